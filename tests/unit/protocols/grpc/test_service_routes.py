"""QueryRoute, QueryAssignment, Heartbeat, NotifyClientTermination, and what is true of every RPC."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest

from popgate.context import Context, Principal
from popgate.errors import Unauthenticated
from popgate.kinds import Credentials
from popgate.model import GroupConfig, MessageType, Permission, Route, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from processors.limits import Limits
from protocols.grpc.codec.convert import types_out
from protocols.grpc.rpcs.dispatcher import UNARY

Code = pb.Code
EVERY_TYPE = [
    pb.MessageType.NORMAL,
    pb.MessageType.FIFO,
    pb.MessageType.DELAY,
    pb.MessageType.TRANSACTION,
    pb.MessageType.LITE,
    pb.MessageType.PRIORITY,
]
FIRST_TYPES = EVERY_TYPE[:4]


async def test_the_route_of_a_new_topic_has_eight_queues_of_a_broker_with_id_0(client: Any) -> None:
    answer = await client.route()
    assert answer.status.code == Code.OK
    queues = answer.message_queues
    assert [q.id for q in queues] == list(range(8))
    for queue in queues:
        assert (queue.topic, queue.permission) == (pb.Resource(name="t"), pb.Permission.READ_WRITE)
        assert (queue.broker.id, queue.broker.name) == (0, "popgate")
        assert list(queue.accept_message_types) == EVERY_TYPE
        assert queue.broker.endpoints == client.endpoints


@pytest.mark.parametrize(
    ("language", "version", "unknown"),
    [
        ("JAVA", "5.2.0", ()),
        ("JAVA", "5.2.1-SNAPSHOT", ()),
        ("JAVA", "5.1.0", (pb.PRIORITY,)),
        ("JAVA", "5.0.8", (pb.LITE, pb.PRIORITY)),
        ("JAVA", "5.0.0", (pb.LITE, pb.PRIORITY)),
        ("JAVA", "", (pb.LITE, pb.PRIORITY)),
        ("JAVA", "unknown", (pb.LITE, pb.PRIORITY)),
        ("JAVA", "5.\u0662.0", (pb.LITE, pb.PRIORITY)),
        ("DOTNET", "5.2.0-rc1", (pb.LITE, pb.PRIORITY)),
        ("DOTNET", "5.2.1+0a1b2c3d", ()),
        ("DOT_NET", "5.1.0", (pb.LITE, pb.PRIORITY)),
        ("PYTHON", "0.1.0", (pb.LITE, pb.PRIORITY)),
        ("PYTHON", "5.0.1.1", ()),
        ("PYTHON", "5.1.2", ()),
        ("HTTP", "1.0.0", ()),
        ("GO", "5.0.1-rc1", ()),
        ("RUST", "0.1.1", ()),
        ("CPP", "5.0.0", ()),
        ("", "", ()),
    ],
)
def test_a_route_has_no_type_its_client_cannot_read(
    language: str, version: str, unknown: tuple[int, ...]
) -> None:
    """Releases of Java, .NET and Python before those that know a type fail on the whole route."""
    context = Context(language=language, client_version=version)
    every = types_out(Route("t", (), ()), context, lite=True)
    assert every == [kind for kind in EVERY_TYPE if kind not in unknown]
    [lite, priority] = (
        types_out(Route("t", (kind,), ()), context, lite=True)
        for kind in (MessageType.LITE, MessageType.PRIORITY)
    )
    assert (lite, priority) == tuple(
        [] if kind in unknown else [kind] for kind in (pb.MessageType.LITE, pb.MessageType.PRIORITY)
    )


def test_a_broker_without_lite_topics_does_not_offer_them() -> None:
    context = Context(language="PYTHON", client_version="5.1.2")
    assert types_out(Route("t", (), ()), context, lite=False) == [*FIRST_TYPES, pb.MessageType.PRIORITY]


@pytest.mark.parametrize(("version", "types"), [("5.2.0", EVERY_TYPE), ("5.0.0", FIRST_TYPES)])
async def test_routes_and_assignments_tell_the_types(
    town: Any, gateway: Any, version: str, types: list[int]
) -> None:
    client = town.client(gateway, language="JAVA", client_version=version)
    for queue in (await client.route()).message_queues:
        assert list(queue.accept_message_types) == types
    request = rpc.QueryAssignmentRequest(
        topic=pb.Resource(name="t"), group=pb.Resource(name="g"), endpoints=client.endpoints
    )
    (assigned,) = (await client.call("QueryAssignment", request)).assignments
    assert list(assigned.message_queue.accept_message_types) == types


@pytest.mark.parametrize(
    "fields", [{"priority": 3, "message_type": pb.PRIORITY}, {"lite_topic": "l", "message_type": pb.LITE}]
)
async def test_a_topic_made_on_first_use_takes_what_its_route_says(client: Any, fields: Any) -> None:
    route = await client.route("young")
    assert fields["message_type"] in route.message_queues[0].accept_message_types
    await client.send_one("young", **fields)


async def test_the_topic_is_echoed_with_its_namespace(client: Any) -> None:
    topic = pb.Resource(resource_namespace="ns", name="t")
    request = rpc.QueryRouteRequest(topic=topic, endpoints=client.endpoints)
    answer = await client.call("QueryRoute", request)
    assert all(queue.topic == topic for queue in answer.message_queues)


async def test_a_typed_topic_says_what_it_takes_and_permits(client: Any, gateway: Any) -> None:
    config = TopicConfig(
        "typed", (MessageType.FIFO,), read_queues=2, write_queues=2, permission=Permission.READ
    )
    await gateway.broker.create_topic(config)
    queues = (await client.route("typed")).message_queues
    assert [list(q.accept_message_types) for q in queues] == [[pb.MessageType.FIFO]] * 2
    assert [q.permission for q in queues] == [pb.Permission.READ] * 2


@pytest.mark.parametrize("name", ["", " ", "a b", "t" * 128, "SCHEDULE_TOPIC_XXXX", "a\u00e9"])
async def test_an_illegal_topic_has_no_route(client: Any, name: str) -> None:
    answer = await client.route(name)
    assert answer.status.code == Code.ILLEGAL_TOPIC
    assert answer.status.message
    assert not answer.message_queues


async def test_an_unknown_topic_has_no_route_when_topics_are_not_made_on_first_use(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(auto_create_topics=False))
    client = town.client(gateway)
    assert (await client.route("nowhere")).status.code == Code.TOPIC_NOT_FOUND


DIALLED = pb.Endpoints(
    scheme=pb.AddressScheme.DOMAIN_NAME, addresses=[pb.Address(host="gw.example.com", port=30_081)]
)


async def test_scenario_12_the_route_names_what_the_client_dialled(client: Any) -> None:
    for queue in (await client.route(endpoints=DIALLED)).message_queues:
        assert queue.broker.endpoints == DIALLED


async def test_scenario_12_without_endpoints_the_route_names_the_listening_address(
    client: Any, gateway: Any
) -> None:
    for queue in (await client.route(endpoints=pb.Endpoints())).message_queues:
        assert queue.broker.endpoints == client.endpoints


async def test_scenario_12_without_endpoints_at_a_wildcard_the_route_names_a_real_address(
    town: Any,
) -> None:
    gateway = await town.gateway(listen="grpc://0.0.0.0:0")
    gateway.address = f"127.0.0.1:{gateway.port}"
    client = town.client(gateway)
    for queue in (await client.route(endpoints=pb.Endpoints())).message_queues:
        assert queue.broker.endpoints == client.endpoints


@pytest.mark.parametrize(
    ("advertised", "listen", "host", "port"),
    [
        ("gw.example.com:81", "grpc://127.0.0.1:0", "gw.example.com", 81),
        ("gw.example.com", "grpc://127.0.0.1:0", "gw.example.com", None),
        ("gw.example.com:81", "grpc://127.0.0.1:0?advertised=192.0.2.1:5", "192.0.2.1", 5),
    ],
)
async def test_scenario_12_a_setting_goes_before_what_was_dialled(
    town: Any, advertised: str, listen: str, host: str, port: int | None
) -> None:
    gateway = await town.gateway(advertised=advertised, listen=listen)
    client = town.client(gateway)
    for queue in (await client.route(endpoints=DIALLED)).message_queues:
        (address,) = queue.broker.endpoints.addresses
        assert (address.host, address.port) == (host, port or gateway.port)


async def assignments(client: Any, topic: str = "t", group: str = "g") -> Any:
    request = rpc.QueryAssignmentRequest(
        topic=pb.Resource(name=topic), group=pb.Resource(name=group), endpoints=client.endpoints
    )
    return await client.call("QueryAssignment", request)


async def test_a_group_without_order_is_assigned_the_broker_once(client: Any) -> None:
    answer = await assignments(client)
    assert answer.status.code == Code.OK
    (assignment,) = answer.assignments
    queue = assignment.message_queue
    assert (queue.id, queue.broker.name, queue.broker.id) == (-1, "popgate", 0)
    assert queue.broker.endpoints == client.endpoints
    assert queue.permission == pb.Permission.READ_WRITE


async def test_an_ordered_group_is_assigned_every_queue(client: Any, gateway: Any) -> None:
    await gateway.broker.create_group(GroupConfig("g", ordered=True))
    answer = await assignments(client)
    assert [a.message_queue.id for a in answer.assignments] == list(range(8))


async def test_what_cannot_be_assigned_is_told(client: Any, gateway: Any) -> None:
    assert (await assignments(client, "", "")).status.code == Code.ILLEGAL_TOPIC
    assert (await assignments(client, "t", "")).status.code == Code.ILLEGAL_CONSUMER_GROUP
    await gateway.broker.create_topic(TopicConfig("closed", permission=Permission.WRITE))
    assert (await assignments(client, "closed")).status.code == Code.FORBIDDEN


async def heartbeat(client: Any, kind: int = pb.ClientType.PRODUCER, group: str | None = None) -> int:
    request = rpc.HeartbeatRequest(client_type=kind)
    if group is not None:
        request.group.name = group
    return (await client.call("Heartbeat", request)).status.code


async def test_a_heartbeat_is_answered_by_a_replica_that_never_saw_the_settings(client: Any) -> None:
    assert await heartbeat(client) == Code.OK
    assert await heartbeat(client, pb.ClientType.SIMPLE_CONSUMER, "g") == Code.OK
    assert await heartbeat(client, pb.ClientType.SIMPLE_CONSUMER, "a b") == Code.ILLEGAL_CONSUMER_GROUP


async def test_a_heartbeat_that_does_not_say_what_its_client_is_is_told_so(client: Any) -> None:
    assert await heartbeat(client, pb.ClientType.CLIENT_TYPE_UNSPECIFIED) == Code.UNRECOGNIZED_CLIENT_TYPE
    assert await heartbeat(client, 99) == Code.UNRECOGNIZED_CLIENT_TYPE


async def test_heartbeats_keep_a_client_known_whose_stream_broke(town: Any, gateway: Any) -> None:
    client = town.client(gateway)
    stream = await client.introduce(client.producing())
    stream.cancel()
    clients = gateway.processor.clients
    await town.until(lambda: not clients.get("client-1").alive)
    for _ in range(4):
        await gateway.pass_s(60)
        assert await heartbeat(client) == Code.OK
        assert clients.get("client-1") is not None
    await gateway.pass_s(130)
    assert clients.get("client-1") is None


async def test_a_consumers_heartbeat_names_a_legal_group(client: Any) -> None:
    await client.introduce(client.subscribing())
    assert await heartbeat(client, pb.ClientType.PUSH_CONSUMER, "g") == Code.OK
    assert await heartbeat(client, pb.ClientType.PUSH_CONSUMER, "a b") == Code.ILLEGAL_CONSUMER_GROUP


async def test_a_client_that_says_good_bye_is_forgotten_and_may_say_it_twice(
    client: Any, gateway: Any
) -> None:
    stream = await client.introduce(client.subscribing())
    assert gateway.processor.clients.get("client-1") is not None
    for _ in range(2):
        answer = await client.call("NotifyClientTermination", rpc.NotifyClientTerminationRequest())
        assert answer.status.code == Code.OK
        assert gateway.processor.clients.get("client-1") is None
    stream.cancel()


async def test_a_good_bye_to_another_group_than_its_own_is_refused_and_forgets_nobody(
    client: Any, gateway: Any
) -> None:
    stream = await client.introduce(client.subscribing())
    request = rpc.NotifyClientTerminationRequest(group=pb.Resource(name="other"))
    answer = await client.call("NotifyClientTermination", request)
    assert answer.status.code == Code.BAD_REQUEST
    assert "known as a consumer of g, so it cannot say good-bye to other" in answer.status.message
    assert gateway.processor.clients.get("client-1") is not None
    request.group.name = "g"
    assert (await client.call("NotifyClientTermination", request)).status.code == Code.OK
    assert gateway.processor.clients.get("client-1") is None
    stream.cancel()


async def test_a_producer_has_no_group_to_say_good_bye_to(client: Any, gateway: Any) -> None:
    stream = await client.introduce(client.producing("t"))
    request = rpc.NotifyClientTerminationRequest(group=pb.Resource(name="whatever"))
    assert (await client.call("NotifyClientTermination", request)).status.code == Code.OK
    assert gateway.processor.clients.get("client-1") is None
    stream.cancel()


async def test_what_a_push_consumer_held_is_free_when_it_says_good_bye(town: Any, gateway: Any) -> None:
    client, other = town.client(gateway), town.client(gateway, client_id="client-2")
    await client.introduce(client.subscribing())
    await client.send_one()
    (message,) = await client.receive(auto_renew=True)
    await client.send_one()
    (done,) = await client.receive(auto_renew=True)
    await client.ack(done.system_properties.receipt_handle)
    assert await other.receive() == []
    await client.call("NotifyClientTermination", rpc.NotifyClientTerminationRequest())
    (again,) = await town.until(lambda: other.receive())
    assert again.system_properties.message_id == message.system_properties.message_id


@pytest.mark.parametrize("client_id", [None, "", "   "])
@pytest.mark.parametrize("what", UNARY, ids=lambda what: what.name)
async def test_every_rpc_needs_a_client_id(client: Any, what: Any, client_id: str | None) -> None:
    nobody = client.like()
    del nobody.headers["x-mq-client-id"]
    if client_id is not None:
        nobody.headers["x-mq-client-id"] = client_id
    answer = await nobody.call(what.name, what.request())
    assert answer.status.code == Code.CLIENT_ID_REQUIRED


async def test_a_receive_and_a_telemetry_stream_need_a_client_id_too(client: Any) -> None:
    nobody = client.like(client_id=" ")
    frames = await nobody.frames()
    assert [frame.status.code for frame in frames] == [Code.CLIENT_ID_REQUIRED]
    stream = nobody.telemetry()
    command = await stream.read()
    assert (command.status.code, command.WhichOneof("command")) == (Code.CLIENT_ID_REQUIRED, None)
    assert await stream.read() is grpc.aio.EOF


@pytest.mark.parametrize("what", UNARY, ids=lambda what: what.name)
async def test_an_empty_request_is_answered_with_a_status_and_never_as_internal(
    client: Any, what: Any
) -> None:
    answer = await client.call(what.name, what.request())
    assert answer.HasField("status")
    assert 40000 <= answer.status.code < 50000 or what.name == "NotifyClientTermination"
    assert answer.status.message


DATE = "20250101T000000Z"
SIGNED = (
    "MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, "
    "Signature=AF2C284C4C7BA6DCA61AFA66FB97CF8396323174"
)


class Signatures:
    def authenticate(self, _context: Context, credentials: Credentials, _now: float) -> Principal:
        if not credentials.proves("SECRET"):
            raise Unauthenticated("the signature is wrong")
        return Principal(credentials.access_key)


@pytest.mark.parametrize("authorization", ["", "garbage", SIGNED.replace("AF2C", "0000")])
async def test_who_does_not_prove_who_they_are_is_told_so_in_every_kind_of_answer(
    town: Any, authorization: str
) -> None:
    gateway = await town.gateway(authenticator=Signatures())
    client = town.client(gateway, date_time=DATE)
    client.headers["authorization"] = authorization
    assert (await client.route()).status.code == Code.UNAUTHORIZED
    assert [frame.status.code for frame in await client.frames()] == [Code.UNAUTHORIZED]
    stream = client.telemetry()
    assert (await stream.read()).status.code == Code.UNAUTHORIZED
    client.headers["authorization"] = SIGNED
    assert (await client.route()).status.code == Code.OK


async def test_credentials_are_ignored_while_nobody_asks_for_them(client: Any) -> None:
    client.headers["authorization"] = "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x, Signature=zz"
    assert (await client.route()).status.code == Code.OK


@pytest.mark.parametrize("language", ["", "KLINGON", "NODE_JS", "PHP"])
async def test_no_language_is_refused(client: Any, language: str) -> None:
    assert (await client.like(language=language).route()).status.code == Code.OK


@pytest.mark.parametrize(
    "name",
    [
        "/apache.rocketmq.v2.Admin/ChangeLogLevel",
        "/grpc.health.v1.Health/List",
    ],
)
async def test_what_is_not_served_is_unimplemented(client: Any, name: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.channel.unary_unary(name)(b"", metadata=client.metadata, timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("what", ["unary", "receive", "telemetry"])
async def test_scenario_18_a_bug_is_told_without_details_and_logged_without_the_payload(
    client: Any,
    gateway: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("details")

    for name in ("send", "receive", "settings"):
        monkeypatch.setattr(gateway.processor, name, broken)
    with caplog.at_level(logging.ERROR):
        if what == "unary":
            answer = await client.send(client.message(body=b"secret payload"))
            assert answer.status.code == Code.INTERNAL_SERVER_ERROR
            assert "details" not in answer.status.message
        elif what == "receive":
            assert await client.receive_status() == Code.INTERNAL_SERVER_ERROR
        else:
            stream = client.telemetry()
            await stream.write(rpc.TelemetryCommand(settings=client.subscribing()))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "details" not in caught.value.details()
    assert "ZeroDivisionError" in caplog.text
    assert "secret" not in caplog.text
