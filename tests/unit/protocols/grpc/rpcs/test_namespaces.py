"""Namespaces: ignored unless a setting says otherwise; then topics and groups of each are its own."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import pytest

from popgate.context import Context
from popgate.errors import BadRequest, IllegalGroup, IllegalTopic
from popgate.model import GroupConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from protocols.grpc.rpcs.namespaces import full_name, parts_of, retold, take_in

pytestmark = pytest.mark.usefixtures("reading")

Code = pb.Code
ADMIN = Context(client_id="admin", door="admin")


@pytest.mark.parametrize(
    ("namespace", "name", "full"),
    [
        ("", "t", "t"),
        ("ns", "t", "ns%t"),
        ("ns", "%DLQ%g", "%DLQ%ns%g"),
        ("ns", "%RETRY%g", "%RETRY%ns%g"),
        ("", "%DLQ%g", "%DLQ%g"),
        ("n|s_-1", "t", "n|s_-1%t"),
    ],
)
def test_a_name_goes_in_and_comes_out_the_same(namespace: str, name: str, full: str) -> None:
    assert full_name(namespace, name, is_group=False) == full
    assert parts_of(full) == (namespace, name)


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("", "ns%t"),
        ("", "%DLQ%ns%g"),
        ("ns", "other%t"),
        ("n%s", "t"),
        ("n s", "t"),
        (" ", "t"),
        ("ns\n", "t"),
        ("ns", ""),
        ("ns", "a b"),
        ("ns", "TBW102"),
        ("rmq_sys_x", "t"),
        ("n" * 70, "t" * 60),
        ("n" * 5000, "t"),
    ],
)
def test_names_that_reach_over_or_cannot_be_are_refused(namespace: str, name: str) -> None:
    with pytest.raises(IllegalTopic):
        full_name(namespace, name, is_group=False)


@pytest.mark.parametrize(
    ("namespace", "name"), [("", "ns%g"), ("ns", "g%h"), ("ns", ""), ("n" * 70, "g" * 60)]
)
def test_groups_that_reach_over_or_cannot_be_are_refused(namespace: str, name: str) -> None:
    with pytest.raises(IllegalGroup):
        full_name(namespace, name, is_group=True)


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("topic ns%t does not exist", "topic t does not exist"),
        ("ns%t2 and ns%t", "ns%t2 and t"),
        ("xns%t, %DLQ%ns%t, 'ns%t'", "xns%t, %DLQ%t, 't'"),
        ("nothing", "nothing"),
    ],
)
def test_sentences_are_told_in_the_clients_words(sentence: str, told: str) -> None:
    assert retold(sentence, {"ns%t": "t"}) == told
    assert retold(sentence, {}) == sentence


class Tenant:
    """A client of one namespace; topics are `t`, groups are `g`, unless it says otherwise."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    def resource(self, name: str) -> pb.Resource:
        return pb.Resource(name=name, resource_namespace=self.namespace)

    def own(self, request: Any) -> Any:
        """Put every topic and group of a request, wherever they are, into the namespace."""
        for field, value in request.ListFields():
            if field.message_type is None or field.message_type.GetOptions().map_entry:
                continue
            for item in value if field.is_repeated else (value,):
                if isinstance(item, pb.Resource):
                    item.resource_namespace = self.namespace
                else:
                    self.own(item)
        return request

    async def call(self, name: str, request: Any) -> Any:
        return await self.client.call(name, self.own(request))

    async def send(self, body: bytes = b"hello", **more: Any) -> Any:
        message = self.client.message(body=body, **more)
        return await self.call("SendMessage", rpc.SendMessageRequest(messages=[message]))

    async def frames(self, request: Any) -> list[Any]:
        return [frame async for frame in self.client.stream(self.own(request))]

    async def receive(self, topic: str = "t", **more: Any) -> list[pb.Message]:
        frames = await self.frames(self.client.receive_request(topic, **more))
        return [frame.message for frame in frames if frame.WhichOneof("content") == "message"]

    async def introduce(self, settings: pb.Settings) -> Any:
        return await self.client.introduce(self.own(settings))

    def queue(self) -> pb.MessageQueue:
        return self.own(self.client.queue())


@pytest.fixture
async def gateway(town: Any) -> Any:
    return await town.gateway(namespaces=True)


@pytest.fixture
def tenants(town: Any, gateway: Any) -> list[Tenant]:
    """Of two namespaces, and one of none."""
    return [
        Tenant(town.client(gateway, client_id=f"client-{number}"), namespace)
        for number, namespace in enumerate(("a", "b", ""))
    ]


async def test_by_default_a_namespace_means_nothing_and_is_echoed(town: Any) -> None:
    """As to RocketMQ's own proxy: the name alone counts."""
    gateway = await town.gateway()
    one, other = (Tenant(town.client(gateway), namespace) for namespace in ("a", "b"))
    assert (await one.send(b"shared")).status.code == Code.OK
    [message] = await other.receive()
    assert (message.body, message.topic) == (b"shared", other.resource("t"))
    assert [topic.name for topic in await gateway.processor.metadata.topics(ADMIN)] == ["t"]
    assert (await other.introduce(other.client.subscribing())).settings.subscription.group == other.resource(
        "g"
    )
    plain = Tenant(town.client(gateway), "")
    request = rpc.QueryRouteRequest(topic=plain.resource("a%t"), endpoints=plain.client.endpoints)
    assert (await plain.call("QueryRoute", request)).status.code == Code.OK


async def test_by_default_a_topic_with_a_percent_keeps_its_name_so_that_it_can_be_acknowledged(
    town: Any,
) -> None:
    """Clients acknowledge to the topic that a message names: `t` of `a` would be another one."""
    gateway = await town.gateway()
    plain = Tenant(town.client(gateway), "")
    sent = plain.client.message("a%t", b"hello")
    assert (await plain.call("SendMessage", rpc.SendMessageRequest(messages=[sent]))).status.code == Code.OK
    [message] = await plain.receive("a%t")
    assert message.topic == plain.resource("a%t")
    entry = rpc.AckMessageEntry(
        message_id=message.system_properties.message_id,
        receipt_handle=message.system_properties.receipt_handle,
    )
    request = rpc.AckMessageRequest(topic=message.topic, group=plain.resource("g"), entries=[entry])
    assert (await plain.call("AckMessage", request)).status.code == Code.OK


async def test_each_namespace_has_its_own_topics_and_groups(gateway: Any, tenants: list[Tenant]) -> None:
    for tenant in tenants:
        assert (await tenant.send(tenant.namespace.encode() or b"none")).status.code == Code.OK
    for tenant in tenants:
        [message] = await tenant.receive()
        assert message.body == (tenant.namespace.encode() or b"none")
        assert message.topic == tenant.resource("t")
        assert await tenant.receive() == []
    assert sorted(t.name for t in await gateway.processor.metadata.topics(ADMIN)) == ["a%t", "b%t", "t"]
    assert sorted(g.name for g in await gateway.processor.metadata.groups(ADMIN)) == ["a%g", "b%g", "g"]


async def test_routes_and_assignments_name_the_clients_topic(tenants: list[Tenant]) -> None:
    for tenant in tenants:
        route = await tenant.call(
            "QueryRoute",
            rpc.QueryRouteRequest(topic=tenant.resource("t"), endpoints=tenant.client.endpoints),
        )
        assert {q.topic.SerializeToString() for q in route.message_queues} == {
            tenant.resource("t").SerializeToString()
        }
        found = await tenant.call(
            "QueryAssignment",
            rpc.QueryAssignmentRequest(
                topic=tenant.resource("t"), group=tenant.resource("g"), endpoints=tenant.client.endpoints
            ),
        )
        assert [one.message_queue.topic for one in found.assignments] == [tenant.resource("t")]


async def test_handles_work_in_their_namespace_only(tenants: list[Tenant]) -> None:
    one, other, _ = tenants
    await one.send()
    await other.send()
    [message], [_] = await one.receive(), await other.receive()
    handle = message.system_properties.receipt_handle

    def ack() -> Any:
        return rpc.AckMessageRequest(
            topic=pb.Resource(name="t"),
            group=pb.Resource(name="g"),
            entries=[rpc.AckMessageEntry(receipt_handle=handle)],
        )

    change = rpc.ChangeInvisibleDurationRequest(
        topic=pb.Resource(name="t"),
        group=pb.Resource(name="g"),
        receipt_handle=handle,
        invisible_duration=Duration(seconds=60),
    )
    changed = await one.call("ChangeInvisibleDuration", change)
    assert changed.status.code == Code.OK
    handle = changed.receipt_handle
    assert (await one.call("AckMessage", ack())).status.code == Code.OK
    await one.send(b"again")
    [message] = await one.receive()
    handle = message.system_properties.receipt_handle
    assert (await tenants[2].send()).status.code == Code.OK
    assert (await one.call("AckMessage", ack())).status.code == Code.OK


async def test_dead_letters_of_a_namespace_name_their_origin_in_its_words(tenants: list[Tenant]) -> None:
    for tenant in tenants:
        await tenant.send(tenant.namespace.encode() or b"none")
    for tenant in tenants:
        [message] = await tenant.receive()
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            topic=pb.Resource(name="t"),
            group=pb.Resource(name="g"),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        assert (await tenant.call("ForwardMessageToDeadLetterQueue", request)).status.code == Code.OK
    for tenant in tenants:
        [dead] = await tenant.receive("%DLQ%g", group="undertaker")
        assert dead.body == (tenant.namespace.encode() or b"none")
        assert dead.topic == tenant.resource("%DLQ%g")
        assert dead.system_properties.dead_letter_queue.topic == "t"


async def test_reading_by_offset_stays_in_the_namespace(tenants: list[Tenant]) -> None:
    for tenant in tenants:
        entry = (await tenant.send(tenant.namespace.encode() or b"none")).entries[0]
        pulled: list[Any] = []
        for queue_id in range(8):
            where = {"queue_id": queue_id}
            frames = await tenant.frames(tenant.client.pull_request(0, **where))
            pulled += [frame.message for frame in frames if frame.WhichOneof("content") == "message"]
        assert [message.system_properties.message_id for message in pulled] == [entry.message_id]
        assert pulled[0].topic == tenant.resource("t")
        group, queue = tenant.resource("g"), tenant.queue()
        update = rpc.UpdateOffsetRequest(group=group, message_queue=queue, offset=0)
        assert (await tenant.call("UpdateOffset", update)).status.code == Code.OK
        get = rpc.GetOffsetRequest(group=group, message_queue=queue)
        assert (await tenant.call("GetOffset", get)).offset == 0
        query = rpc.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.END)
        assert (await tenant.call("QueryOffset", query)).status.code == Code.OK


async def test_delayed_messages_are_recalled_in_their_namespace(gateway: Any, tenants: list[Tenant]) -> None:
    one, other, _ = tenants
    later = pb.SystemProperties()
    later.delivery_timestamp.FromMilliseconds(gateway.clock.now_ms() + 60_000)
    answer = await one.send(delivery_timestamp=later.delivery_timestamp)
    handle = answer.entries[0].recall_handle

    def recall() -> rpc.RecallMessageRequest:
        return rpc.RecallMessageRequest(topic=pb.Resource(name="t"), recall_handle=handle)

    await other.send()
    assert (await other.call("RecallMessage", recall())).status.code != Code.OK
    assert (await one.call("RecallMessage", recall())).status.code == Code.OK


async def test_producers_are_asked_about_transactions_of_their_namespace(
    gateway: Any, tenants: list[Tenant]
) -> None:
    one, other, _ = tenants
    streams = [await tenant.introduce(tenant.client.producing()) for tenant in (other, one)]
    entry = (await one.send(b"half", message_type=pb.TRANSACTION)).entries[0]
    await gateway.pass_s(7)
    command = await asyncio.wait_for(streams[1].read(), 60)
    question = command.recover_orphaned_transaction_command
    assert question.transaction_id == entry.transaction_id
    assert question.message.topic == one.resource("t")
    end = rpc.EndTransactionRequest(
        topic=question.message.topic,
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=pb.COMMIT,
        source=pb.SOURCE_SERVER_CHECK,
    )
    assert (await one.call("EndTransaction", end)).status.code == Code.OK
    assert [message.body for message in await one.receive()] == [b"half"]


async def test_settings_are_of_the_namespaces_group_and_come_back_as_they_went(
    gateway: Any, tenants: list[Tenant]
) -> None:
    one, other, _ = tenants
    await gateway.processor.metadata.create_group(ADMIN, GroupConfig("a%g", ordered=True, max_attempts=3))
    streams = [await tenant.introduce(tenant.client.subscribing()) for tenant in (one, other)]
    assert [stream.settings.subscription.fifo for stream in streams] == [True, False]
    for tenant, stream in zip((one, other), streams, strict=True):
        told = stream.settings.subscription
        assert told.group == tenant.resource("g")
        assert [entry.topic for entry in told.subscriptions] == [tenant.resource("t")]
    await gateway.processor.metadata.update_group(ADMIN, GroupConfig("b%g", max_attempts=5))
    await gateway.pass_s(1)
    again = await asyncio.wait_for(streams[1].read(), 60)
    assert again.settings.subscription.group == other.resource("g")
    assert again.settings.backoff_policy.max_attempts == 5
    producer = await one.introduce(one.client.producing())
    assert list(producer.settings.publishing.topics) == [one.resource("t")]


async def test_a_client_consumes_a_message_for_an_operator_in_its_own_words(
    gateway: Any, tenants: list[Tenant]
) -> None:
    one = tenants[0]
    stream = await one.introduce(one.client.subscribing())
    entry = (await one.send(b"once more")).entries[0]
    asking = asyncio.ensure_future(
        gateway.processor.client_queries.verify(ADMIN, "client-0", "a%g", "a%t", entry.message_id)
    )
    asked = (await asyncio.wait_for(stream.read(), 60)).verify_message_command
    assert asked.message.topic == one.resource("t")
    result = rpc.VerifyMessageResult(nonce=asked.nonce)
    await stream.write(rpc.TelemetryCommand(status=pb.Status(code=Code.OK), verify_message_result=result))
    await asyncio.wait_for(asking, 60)


async def test_heartbeats_and_goodbyes_are_taken_with_a_namespace(tenants: list[Tenant]) -> None:
    for tenant in tenants:
        await tenant.introduce(tenant.client.subscribing())
        beat = rpc.HeartbeatRequest(group=tenant.resource("g"), client_type=pb.PUSH_CONSUMER)
        assert (await tenant.call("Heartbeat", beat)).status.code == Code.OK
        bye = rpc.NotifyClientTerminationRequest(group=tenant.resource("g"))
        assert (await tenant.call("NotifyClientTermination", bye)).status.code == Code.OK


async def test_errors_name_what_the_client_knows(town: Any, tenants: list[Tenant]) -> None:
    one = tenants[0]
    queue = one.queue()
    query = rpc.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.END)
    answer = await one.call("QueryOffset", query)
    assert (answer.status.code, answer.status.message) == (
        Code.TOPIC_NOT_FOUND,
        "No topic route info in name server for the topic: t: topic t does not exist",
    )
    frames = await one.frames(one.client.receive_request("bad name"))
    assert frames[0].status.code == Code.ILLEGAL_TOPIC
    assert "'bad name'" in frames[0].status.message
    assert "a%" not in frames[0].status.message


@pytest.mark.parametrize("name", ["a%t", "%DLQ%a%g"])
async def test_nobody_reaches_into_another_namespace(tenants: list[Tenant], name: str) -> None:
    await tenants[0].send(b"secret")
    for tenant in tenants[1:]:
        frames = await tenant.frames(tenant.client.receive_request(name))
        assert frames[0].status.code == Code.ILLEGAL_TOPIC
        message = tenant.client.message(name, b"forged")
        answer = await tenant.call("SendMessage", rpc.SendMessageRequest(messages=[message]))
        assert answer.status.code == Code.ILLEGAL_TOPIC


async def test_settings_with_names_that_cannot_be_end_the_stream_as_the_clients_fault(
    tenants: list[Tenant],
) -> None:
    tenant = Tenant(tenants[0].client, "no namespace")
    stream = tenant.client.telemetry()
    await stream.write(rpc.TelemetryCommand(settings=tenant.own(tenant.client.subscribing())))
    answer = await stream.read()
    assert answer.status.code in (Code.ILLEGAL_TOPIC, Code.ILLEGAL_CONSUMER_GROUP)
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_rust_is_told_of_such_names_by_a_stream_that_ends_well(tenants: list[Tenant]) -> None:
    """Its reader goes on after a failed stream, for ever; see `TelemetryStream`."""
    rust = Tenant(tenants[0].client.like(language="RUST"), "no namespace")
    stream = rust.client.telemetry()
    await stream.write(rpc.TelemetryCommand(settings=rust.own(rust.client.subscribing())))
    assert (await stream.read()).status.code in (Code.ILLEGAL_TOPIC, Code.ILLEGAL_CONSUMER_GROUP)
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_batch_of_two_namespaces_is_refused(tenants: list[Tenant]) -> None:
    client = tenants[0].client
    messages = [client.message(), client.message()]
    for message, namespace in zip(messages, "ab", strict=True):
        message.topic.resource_namespace = namespace
    answer = await client.send(*messages)
    assert answer.status.code == Code.MESSAGE_CORRUPTED


@pytest.mark.parametrize("kind", ["messages", "subscriptions"])
def test_requests_with_very_many_names_are_refused_before_a_look_at_them(kind: str) -> None:
    """Nobody has been asked yet who sends them, and a million takes a second."""
    request: Any = rpc.SendMessageRequest() if kind == "messages" else rpc.TelemetryCommand()
    entries = request.messages if kind == "messages" else request.settings.subscription.subscriptions
    entry = entries.add()
    entry.topic.name, entry.topic.resource_namespace = "t", "ns"
    entries.extend([entry] * (1 << 14))
    with pytest.raises(BadRequest, match=f"16385 {kind}, the limit is 16384"):
        take_in(request)
    assert entries[0].topic.name == "t"
    del entries[-1]
    assert take_in(request) == {"ns%t": "t"}


def test_long_names_are_not_kept() -> None:
    names = [f"{n}" + "x" * 1_000 for n in range(8)]
    for name in names:
        assert full_name("", name, is_group=False) is name
        with pytest.raises(IllegalTopic):
            full_name("shop", name, is_group=False)
    held = [sys.getrefcount(name) for name in names]
    # The list, the variable of the loop, and the argument; nobody else has them.
    assert max(held) <= 4


def test_a_sentence_is_retold_with_the_names_in_it_however_many_there_are() -> None:
    known = {f"shop%t{n}": f"t{n}" for n in range(20_000)}
    assert retold("topic shop%t12 does not exist", known) == "topic t12 does not exist"
    assert retold("something else", known) == "something else"
