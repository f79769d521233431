"""The official Python client as a producer in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tests.cluster.records import Records

PROGRAM = Path(__file__).parents[1] / "crash" / "official.py"


@contextlib.asynccontextmanager
async def official_producer(endpoint: str, records: Records) -> AsyncIterator[None]:
    """Sends to the topic "official" until the block ends, and has its own ways to try again."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        endpoint,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    began: dict[str, float] = {}

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            told = json.loads(line)
            if told["fact"] == "trying":
                began[told["body"]] = time.monotonic()
            elif told["fact"] == "sent":
                records.sent[told["body"]] = time.monotonic()
                if any(fault.at >= began[told["body"]] for fault in records.faults):
                    records.repeated.add(told["body"])
            else:
                records.failed(began[told["body"]], "the official client's send", told["why"])

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
