"""brokers.remote.retry_reclaim: stored first, then acknowledged, and never buried."""

from __future__ import annotations

from typing import Any

import pytest

from brokers.remote.settings import RemoteSettings
from popgate.context import Context
from popgate.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    NotFound,
    PropertiesTooLarge,
    TopicNotFound,
)
from popgate.model import GroupConfig, Message, SendBack, Sent, StartFrom, StoredMessage, TopicConfig
from popgate.testing.clock import MovableClock
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.messages.properties import decode_properties, encode_properties
from tests.support.open_broker import OpenBroker

CONTEXT = Context(client_id="c")
V1, V2, RETRIES, DEAD = "%RETRY%g_T", "%RETRY%g+T", "%RETRY%g", "%DLQ%g"


def popped(number: int, *, attempt: int = 2, sys_flag: int = 0, **properties: str) -> StoredMessage:
    return StoredMessage(
        V1,
        "broker-a",
        0,
        number,
        4_096 + number,
        sys_flag,
        7,
        5,
        "10.0.0.1:1",
        6,
        "10.0.0.2:2",
        b"body-%d" % number,
        encode_properties({"UNIQ_KEY": f"ID{number}", **properties}),
        attempt,
        f"receipt-{number}",
    )


class Stage:
    """A broker whose requests are played here: `lies` in retry topics, `done` in the order of doing."""

    def __init__(self, broker: OpenBroker, clock: MovableClock) -> None:
        self.broker = broker
        self.clock = clock
        self.lies: dict[str, list[StoredMessage]] = {}
        self.done: list[tuple[str, Any]] = []
        self.topics = {"T", V1, RETRIES}
        self.config = GroupConfig("g", start_from=StartFrom.LAST)
        self.buries = False
        self.answers: dict[str, BaseException] = {}
        """What storing a copy fails with, by message id; and what copying by the broker does."""

    async def group(self, name: str) -> GroupConfig:
        return self.config

    async def route_of(self, topic: str) -> TopicRoute:
        if topic not in self.topics:
            raise TopicNotFound(topic)
        brokers = (BrokerData("c", "broker-a", {0: "10.0.0.2:2"}),)
        return TopicRoute((QueueData("broker-a", 1, 1, 6),), brokers)

    async def look(self, want: Any, brokers: list[str]) -> list[StoredMessage]:
        assert want.config is self.config
        assert brokers == ["broker-a"]
        found = self.lies.pop(want.request.topic, [])
        self.done += [("pop", one.receipt) for one in found]
        return found

    async def send(self, context: Context, messages: list[Message]) -> list[Sent | GatewayError]:
        (message,) = messages
        error = self.answers.get(message.message_id)
        if isinstance(error, PropertiesTooLarge):
            return [error]
        if error is not None:
            raise error
        self.done.append(("store", message))
        return [Sent(message.message_id, "broker-a", 0, 9, commit_offset=77)]

    async def at_place(self, context: Context, broker: str, commit_offset: int) -> StoredMessage:
        assert (broker, commit_offset) == ("broker-a", 77)
        if "look" in self.answers:
            raise self.answers["look"]
        found = popped(1)
        found.topic = DEAD if self.buries else RETRIES
        return found

    async def send_back(self, context: Context, request: SendBack) -> None:
        if "back" in self.answers:
            raise self.answers["back"]
        self.done.append(("copy", request))

    async def ack(
        self, context: Context, topic: str, group: str, receipts: list[str]
    ) -> list[GatewayError | None]:
        self.done.append(("ack", (topic, receipts)))
        return [self.answers.get("ack") for _ in receipts]  # type: ignore[misc]

    async def create_topic(self, config: TopicConfig) -> None:
        self.topics.add(config.name)
        self.done.append(("create", config.name))

    async def reclaim(self) -> tuple[int, bool]:
        step = await self.broker.reclaim(CONTEXT, "g", "T")
        return step.moved, step.more

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.done]


@pytest.fixture
async def stage(clock: MovableClock, monkeypatch: pytest.MonkeyPatch) -> Stage:
    settings = RemoteSettings(name_servers=("127.0.0.1:1",), transaction_keys=(b"k" * 32,))
    broker = OpenBroker(settings, clock=clock)
    stage = Stage(broker, clock)
    parts = {
        "group": broker._groups,
        "look": broker.popper,
        "send": broker._sender,
        "at_place": broker._lookup,
        "send_back": broker._send_backs,
        "ack": broker._settlement,
        "create_topic": broker._topics,
    }
    for name, part in parts.items():
        monkeypatch.setattr(part, name, getattr(stage, name))
    for name in ("of", "now"):
        monkeypatch.setattr(broker.access.routes, name, stage.route_of)
    return stage


async def test_a_copy_says_what_a_retry_says_and_nothing_of_its_way(stage: Stage) -> None:
    flags = 0x1 | 0x8 | 0x10 | 0x20  # compressed; committed, and hosts of IPv6, which the copy is not
    way = {"POP_CK": "x", "1ST_POP_TIME": "1", "ORIGIN_GROUP": "g", "TRAN_MSG": "true", "DELAY": "3"}
    stage.lies[V1] = [popped(1, attempt=4, sys_flag=flags, color="red", WAIT="false", **way)]
    assert await stage.reclaim() == (1, True)
    assert stage.kinds() == ["pop", "store", "ack"]
    copy = stage.done[1][1]
    assert (copy.topic, copy.broker, copy.queue_id) == (RETRIES, "broker-a", 0)
    assert (copy.body, copy.message_id, copy.attempt) == (b"body-1", "ID1", 3)
    assert (copy.born_ms, copy.born_host, copy.flag, copy.sys_flag) == (5, "10.0.0.1:1", 7, 0x1)
    assert decode_properties(copy.properties) == {
        "UNIQ_KEY": "ID1",
        "color": "red",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "0A0000020000000200000000000" + "01001",
    }
    assert stage.done[2][1] == (V1, ["receipt-1"])
    assert await stage.reclaim() == (0, False)


async def test_retries_of_both_names_are_moved(stage: Stage) -> None:
    stage.topics.add(V2)
    stage.lies = {V1: [popped(1)], V2: [popped(2)]}
    assert await stage.reclaim() == (2, True)
    assert [told for kind, told in stage.done if kind == "ack"] == [(V2, ["receipt-2"]), (V1, ["receipt-1"])]


async def test_no_copy_is_dead_before_it_was_delivered_once_more(stage: Stage) -> None:
    stage.config = GroupConfig("g", max_attempts=3)
    stage.lies[V1] = [popped(1, attempt=3), popped(2, attempt=9)]
    await stage.reclaim()
    assert [told.attempt for kind, told in stage.done if kind == "store"] == [2, 2]


async def test_the_topic_for_retries_is_made_where_it_is_missing(stage: Stage) -> None:
    stage.topics.discard(RETRIES)
    stage.lies[V1] = [popped(1)]
    assert await stage.reclaim() == (1, True)
    assert stage.kinds() == ["pop", "create", "store", "ack"]


@pytest.mark.parametrize("error", [BrokerTimeout("who knows"), BrokerUnavailable("not now")])
async def test_what_is_not_stored_for_sure_is_not_acknowledged(stage: Stage, error: BaseException) -> None:
    stage.lies[V1] = [popped(1), popped(2), popped(3)]
    stage.answers["ID2"] = error
    assert await stage.reclaim() == (1, False)
    assert stage.done[-1] == ("ack", (V1, ["receipt-1"]))


async def test_where_the_broker_buries_copies_it_makes_them_itself(stage: Stage) -> None:
    """A group that holds locks reads in order: what is sent to its retries is taken for given up."""
    stage.buries = True
    stage.lies[V1] = [popped(1, attempt=3), popped(2)]
    assert await stage.reclaim() == (2, True)
    assert stage.kinds() == ["pop", "pop", "store", "copy", "copy", "ack"]
    request = stage.done[3][1]
    assert (request.group, request.broker, request.commit_offset, request.delay_level) == (
        *("g", "broker-a", 4_097, 1),
    )
    assert request.max_attempts == 4
    stage.done.clear()
    stage.lies[V1] = [popped(3)]
    await stage.reclaim()
    assert stage.kinds() == ["pop", "copy", "ack"]
    # Locks end: later it is tried once more.
    stage.buries = False
    stage.clock.advance(61)
    stage.done.clear()
    stage.lies[V1] = [popped(4)]
    await stage.reclaim()
    assert stage.kinds() == ["pop", "store", "ack"]


async def test_what_no_request_can_tell_the_broker_copies(stage: Stage) -> None:
    stage.lies[V1] = [popped(1), popped(2)]
    stage.answers["ID1"] = PropertiesTooLarge(40_000, 32_767, "bytes of properties")
    assert await stage.reclaim() == (2, True)
    assert stage.kinds() == ["pop", "pop", "copy", "store", "ack"]


async def test_a_message_that_is_gone_keeps_no_other_back(stage: Stage) -> None:
    stage.lies[V1] = [popped(1), popped(2)]
    stage.answers["ID1"] = PropertiesTooLarge(40_000, 32_767, "bytes of properties")
    stage.answers["back"] = NotFound("it is gone")
    assert await stage.reclaim() == (1, False)
    assert stage.done[-1] == ("ack", (V1, ["receipt-2"]))


async def test_a_copy_that_cannot_be_looked_at_is_stored_all_the_same(stage: Stage) -> None:
    stage.lies[V1] = [popped(1)]
    stage.answers["look"] = BrokerUnavailable("not now")
    stage.answers["ack"] = BrokerUnavailable("nor that")
    assert await stage.reclaim() == (1, True)
    assert stage.kinds() == ["pop", "store", "ack"]


async def test_nothing_is_moved_of_the_groups_own_retries_and_of_broadcast_groups(stage: Stage) -> None:
    step = await stage.broker.reclaim(CONTEXT, "g", RETRIES)
    assert (step.moved, step.more) == (0, False)
    stage.config = GroupConfig("g", broadcast=True)
    stage.lies[V1] = [popped(1)]
    assert await stage.reclaim() == (0, False)
    assert stage.done == []
