"""The official Python client as a producer in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.cluster.records import Records

PROGRAM = Path(__file__).parents[1] / "replicas" / "official.py"


@contextlib.asynccontextmanager
async def official_producer(endpoint: str, records: Records) -> AsyncIterator[None]:
    """Sends to the topic "official" until the block ends, and has its own ways to try again.

    What it sent again is known from the ends of its own attempts. When they began proves nothing: a broker
    that is about to be killed takes messages until it is dead.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(PROGRAM), endpoint, "producer", "official", "official"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    trying: dict[str, float] = {}

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            told = json.loads(line)
            match told["fact"]:
                case "trying":
                    trying[told["body"]] = told["at"]
                case "attempt lost" | "attempt refused":
                    records.repeated.update(told["bodies"])
                case "sent":
                    records.sent[told["body"]] = told["at"]
                case "failed":
                    records.failed(trying[told["body"]], "the official client's send", told["why"])

    reading = asyncio.ensure_future(read())
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 60)
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading
