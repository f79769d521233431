"""Rows of the pitfalls (protocol facts 9) that no other test shows; `docs/pitfalls.md` has all of them."""

from __future__ import annotations

from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, Forbidden
from popgate.model import TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from processors.limits import Limits

Code = pb.Code
ADMIN = Context(client_id="admin", door="admin")


async def test_the_largest_messages_come_one_in_an_element(client: Any) -> None:
    """Pitfall 9.1.13: some clients read at most 4 MiB per element."""
    body = bytes(4 * 1024 * 1024)
    for _ in range(3):
        await client.send_one(body=body)
    frames = await client.frames()
    messages = [frame for frame in frames if frame.WhichOneof("content") == "message"]
    assert [len(frame.message.body) for frame in messages] == [len(body)] * 3
    assert max(frame.ByteSize() for frame in messages) < len(body) + 1024


async def test_queues_keep_their_ids_whatever_may_be_read_or_written(client: Any, gateway: Any) -> None:
    """Pitfall 9.2.24: the ids are those of the queues, and not made from the order of permissions."""
    await gateway.processor.metadata.create_topic(ADMIN, TopicConfig("t", read_queues=2, write_queues=4))
    queues = {queue.id: queue.permission for queue in (await client.route()).message_queues}
    assert queues == {0: pb.READ_WRITE, 1: pb.READ_WRITE, 2: pb.WRITE, 3: pb.WRITE}
    sent = {(await client.send_one(body=b"x")).offset for _ in range(8)}
    assert sent == {0, 1}
    for queue_id in range(4):
        bounds = rpc.QueryOffsetRequest(
            message_queue=client.queue(queue_id=queue_id), query_offset_policy=pb.END
        )
        assert (await client.call("QueryOffset", bounds)).offset == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerTimeout("no answer"), Code.PROXY_TIMEOUT),
        (BrokerUnavailable("no broker"), Code.HA_NOT_AVAILABLE),
    ],
)
async def test_a_broker_that_does_not_answer_is_not_told_as_a_topic_that_is_not_there(
    client: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    """Pitfall 9.2.26."""

    async def route(_topic: str) -> None:
        raise error

    monkeypatch.setattr(gateway.broker, "route", route)
    assert (await client.route()).status.code == code


async def test_a_new_topic_is_there_at_once_for_who_was_told_that_it_is_not(town: Any) -> None:
    """Pitfall 9.2.27: nothing remembers that a topic is not there."""
    gateway = await town.gateway(limits=Limits(auto_create_topics=False))
    client = town.client(gateway)
    assert (await client.route()).status.code == Code.TOPIC_NOT_FOUND
    await gateway.processor.metadata.create_topic(ADMIN, TopicConfig("t"))
    assert (await client.route()).status.code == Code.OK


async def test_properties_that_the_stored_form_cannot_hold_are_refused_or_left_out(client: Any) -> None:
    """Pitfall 9.3.33."""
    for value in ("a\x01b", "a\x02b", "\x7f"):
        refused = await client.send(client.message(properties={"k": value}))
        assert refused.status.code == Code.ILLEGAL_MESSAGE_PROPERTY_KEY
    await client.send_one(properties={"empty": "", "k": "v"})
    [message] = await client.receive()
    assert message.user_properties["k"] == "v"
    assert message.user_properties.get("empty", "") == ""


async def test_a_users_properties_are_the_only_ones_that_a_user_gets(client: Any, gateway: Any) -> None:
    """Pitfall 9.3.34: what the gateway and the broker note beside a message stays theirs."""
    half = await client.send_one(
        message_type=pb.TRANSACTION,
        message_group="group",
        trace_context="00-ab",
        tag="A",
        keys=["k"],
        orphaned_transaction_recovery_duration=Duration(seconds=60),
        properties={"mine": "yes"},
    )
    assert await client.end(half) == Code.OK
    delayed = pb.SystemProperties()
    delayed.delivery_timestamp.FromMilliseconds(gateway.clock.now_ms() - 1)
    await client.send_one(delivery_timestamp=delayed.delivery_timestamp, properties={"mine": "yes"})
    messages = await client.receive()
    assert [dict(message.user_properties) for message in messages] == [{"mine": "yes"}] * 2


async def test_who_may_not_is_forbidden_and_not_unknown(
    client: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 9.7.86: 40300, where the Java proxy says 40100."""

    def refuse(*_facts: Any, **_names: Any) -> None:
        raise Forbidden("an anonymous caller has no permission")

    processor = gateway.processor
    for part in (processor, processor._sender, processor._receiver):
        monkeypatch.setattr(part, "_admit", refuse)
        monkeypatch.setattr(part, "_admits_all", False, raising=False)
    assert (await client.send(client.message())).status.code == Code.FORBIDDEN
    assert await client.receive_status() == Code.FORBIDDEN
