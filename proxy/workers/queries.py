"""Requests from one process of the gateway to the others for their part of a response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from proxy.workers.roster import Roster, admin_socket

_PATIENCE_S = 3.0
"""How long one may take that is asked for figures; questions to clients may take longer."""
_LONG_S = 15.0


@dataclass(slots=True, frozen=True)
class Part:
    """The response of one process."""

    number: int
    status: int
    body: bytes

    def facts(self) -> dict[str, Any]:
        """The body as JSON; empty if it is none."""
        try:
            facts = json.loads(self.body)
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}


async def ask_others(
    roster: Roster, method: str, path: str, body: bytes = b"", *, long: bool = False
) -> tuple[list[Part], int]:
    """The answers of those that answer in time, and how many did not."""
    numbers = roster.others()
    asked = [
        _ask(roster.folder, number, method, path, body, _LONG_S if long else _PATIENCE_S)
        for number in numbers
    ]
    parts: Sequence[Part | None] = await asyncio.gather(*asked)
    there = [part for part in parts if part is not None]
    return there, len(numbers) - len(there)


async def _ask(
    folder: Path, number: int, method: str, path: str, body: bytes, patience_s: float
) -> Part | None:
    connector = aiohttp.UnixConnector(str(admin_socket(folder, number)))
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=patience_s),
                headers={"Content-Type": "application/json"} if body else None,
            ) as session,
            session.request(method, f"http://localhost{path}", data=body or None) as answer,
        ):
            return Part(number, answer.status, await answer.read())
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
