"""Members of mapped groups as classic clients are, on an embedded broker whose clock stands still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.context import Context
from popgate.ids.message_id import make_message_id
from popgate.model import Message
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.records import Record, decode_records
from processors.limits import Limits
from protocols.remoting.consume.offsets import OffsetHandler
from protocols.remoting.door import rooms_of
from protocols.remoting.mapped.handler import Mapped
from protocols.remoting.requests import Room
from tests.unit.protocols.remoting.conftest import Caller, FakePeer, Stage

GROUP, TOPIC, BROKER = "readers", "orders", "popgate"
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4


class Door:
    """All rooms of one door."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.rooms: list[Room] = rooms_of(stage.door_context)

    @property
    def mapped(self) -> Mapped:
        return next(room for room in self.rooms if isinstance(room, OffsetHandler))._mapped

    def drain(self) -> None:
        for room in self.rooms:
            room.drain()

    async def member(self, number: int = 1, *, proven: bool = True, **settings: Any) -> Member:
        """A push consumer on a connection of its own; `proven`: its group is mapped when this is over."""
        client = Member(self, FakePeer(f"10.1.1.{number}:50001"), f"client@{number}")
        await client.beat(**settings)
        if proven:
            await client.query()
            await client.pull(0, wait=False)
            await self.until_mapped()
        return client

    async def until_mapped(self, mapped: bool = True) -> None:
        groups = self.stage.processor.mapped_groups

        async def look() -> bool:
            if groups.is_mapped(GROUP) is mapped:
                return True
            await self.stage.pass_s(0.1)  # between two rounds of judging
            return False

        await self.stage.until(look)


class Member(Caller):
    """A client of the group on one connection."""

    def __init__(self, door: Door, peer: FakePeer, client_id: str) -> None:
        super().__init__(*door.rooms, peer=peer, client_id=client_id)
        self.door = door
        self.client_id = client_id

    async def beat(self, *topics: str, **settings: Any) -> None:
        told = tuple(SubscriptionData(topic) for topic in topics or (TOPIC,))
        consumer = ConsumerData(GROUP, told, **settings)
        await self.ok(RequestCode.HEART_BEAT, body=HeartbeatData(self.client_id, (), (consumer,)).encode())

    async def leave(self) -> None:
        await self.ok(RequestCode.UNREGISTER_CLIENT, {"clientID": self.client_id, "consumerGroup": GROUP})

    async def query(self, queue_id: int = 0, topic: str = TOPIC) -> int:
        answer = await self.ok(RequestCode.QUERY_CONSUMER_OFFSET, self._queue(queue_id, topic))
        return int(answer.fields["offset"])

    async def update(self, offset: int, queue_id: int = 0, topic: str = TOPIC) -> None:
        await self.ok(
            RequestCode.UPDATE_CONSUMER_OFFSET, {**self._queue(queue_id, topic), "commitOffset": offset}
        )

    async def pull(
        self, offset: int, *, commit: int | None = None, wait: bool = True, queue_id: int = 0, **more: Any
    ) -> Command:
        """The answer; a pull that waits is not waited for: see `start`."""
        flags = SUBSCRIPTION | (SUSPEND if wait else 0) | (COMMIT if commit is not None else 0)
        fields = {
            **self._queue(queue_id, more.pop("topic", TOPIC)),
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": flags,
            "commitOffset": commit or 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "expressionType": "TAG",
            **more,
        }
        # Others may be asked for meanwhile.
        answer = await self.call(RequestCode.PULL_MESSAGE, fields)
        assert answer is not None
        return answer

    async def start(self, offset: int, **more: Any) -> asyncio.Task[Command]:
        """A pull that goes on by itself."""
        task = asyncio.ensure_future(self.pull(offset, **more))
        await self.door.stage.pass_s(0)
        return task

    async def take(self, **more: Any) -> list[Record]:
        """Begin anew, and take what is there."""
        return records(await self.pull(await self.query(), wait=False, **more))

    async def send_back(self, physical: int, *, level: int = 0, **more: Any) -> Command:
        fields = {
            "group": GROUP,
            "offset": physical,
            "delayLevel": level,
            "originTopic": TOPIC,
            "maxReconsumeTimes": 16,
            "bname": BROKER,
            **more,
        }
        return await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    def _queue(self, queue_id: int, topic: str) -> dict[str, object]:
        return {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id, "bname": BROKER}


def records(answer: Command) -> list[Record]:
    return list(decode_records(answer.body, verify=True))


def bodies(found: list[Record]) -> list[bytes]:
    return [bytes(one.body) for one in found]


def behind(answer: Command) -> int:
    return int(answer.fields["nextBeginOffset"])


async def send(stage: Stage, *texts: bytes, topic: str = TOPIC, **more: Any) -> None:
    messages = [
        Message(topic, text, make_message_id(), born_host="10.1.1.1:5", queue_id=0, **more) for text in texts
    ]
    await stage.processor.send(Context(), messages)


@pytest.fixture
def limits() -> Limits:
    return Limits(mapped_groups=("*",))


@pytest.fixture
async def door(stage: Stage) -> Door:
    await stage.topic(TOPIC, queues=1)
    await stage.group(GROUP)
    return Door(stage)


@pytest.fixture
async def member(door: Door) -> Member:
    return await door.member()
