"""protocols.grpc.telemetry.kept_settings: large settings of many streams have a limit together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import TooManyRequests
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from protocols.drain import LongPolls
from protocols.grpc.telemetry.kept_settings import SMALL, KeptSettings
from protocols.grpc.telemetry.telemetry import TelemetryStream
from tests.support.waiting import PATIENCE_S


def test_small_settings_do_not_count() -> None:
    kept = KeptSettings(0)
    assert kept.replace(0, SMALL) == 0
    with pytest.raises(TooManyRequests, match="keeps 0 bytes of large settings, the limit is 0"):
        kept.replace(0, SMALL + 1)


def test_what_takes_the_place_of_others_counts_instead_of_them() -> None:
    kept = KeptSettings(500_000)
    first, second = kept.replace(0, 200_000), kept.replace(0, 300_000)
    with pytest.raises(TooManyRequests):
        kept.replace(first, 200_001)
    assert kept.replace(first, 100_000) == 100_000
    assert kept.replace(second, 0) == 0
    assert kept.replace(0, 400_000) == 400_000


class Talker:
    """A client that sends settings as it is told, and notes the codes of the answers."""

    def __init__(self) -> None:
        self.settings: asyncio.Queue[pb.Settings | None] = asyncio.Queue()
        self.codes: asyncio.Queue[int] = asyncio.Queue()

    async def read(self) -> rpc.TelemetryCommand | None:
        settings = await self.settings.get()
        return None if settings is None else rpc.TelemetryCommand(settings=settings)

    async def write(self, command: rpc.TelemetryCommand) -> None:
        self.codes.put_nowait(command.status.code)

    async def told(self, settings: pb.Settings) -> int:
        self.settings.put_nowait(settings)
        return await asyncio.wait_for(self.codes.get(), PATIENCE_S)


async def test_streams_keep_so_much_of_large_settings_together(gateway: Any, client: Any) -> None:
    kept, polls = KeptSettings(250_000), LongPolls()
    large = client.producing()
    large.user_agent.hostname = "h" * 100_000
    talkers = [Talker() for _ in range(3)]
    streams = [
        TelemetryStream(Context(client_id=f"c{n}"), talker, gateway.processor, gateway.clock, kept)
        for n, talker in enumerate(talkers)
    ]
    running = [asyncio.ensure_future(stream.run(polls)) for stream in streams]
    assert [await talker.told(large) for talker in talkers[:2]] == [pb.OK] * 2
    assert await talkers[0].told(large) == pb.OK
    assert await talkers[2].told(large) == pb.TOO_MANY_REQUESTS
    for talker in talkers[:2]:
        talker.settings.put_nowait(None)
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["NoneType", "NoneType", "CallFailed"]
    assert kept.replace(0, 250_000) == 250_000
