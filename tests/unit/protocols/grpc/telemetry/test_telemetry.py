"""The Telemetry stream over a real gRPC server."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest

from popgate.clock import SystemClock
from popgate.context import Context, Principal
from popgate.errors import BrokerUnavailable
from popgate.kinds import Action, Credentials, Resource
from popgate.model import GroupConfig, StoredMessage, TransactionCheck
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from processors.clients.client_registry import ClientKind
from processors.clients.query import VerifyQuestion
from processors.limits import Limits
from processors.policies.registry import Policies
from protocols.drain import LongPolls
from protocols.grpc.rpcs.dispatcher import STREAMED, RpcDispatcher
from protocols.grpc.rpcs.health import Health
from protocols.grpc.service.service import MessagingService
from protocols.grpc.telemetry.departures import KNOWN_S, SILENT_S
from protocols.grpc.telemetry.telemetry import TelemetryStream
from protocols.grpc.transport import BrokenStream
from tests.support.waiting import until

Code = pb.Code
GOODBYE = rpc.NotifyClientTerminationRequest()


async def test_the_headers_come_at_once_before_anything_is_sent(client: Any) -> None:
    stream = client.telemetry()
    await asyncio.wait_for(stream.initial_metadata(), 60)
    stream.cancel()


async def test_settings_are_answered_with_ok_and_settings_every_time(client: Any, gateway: Any) -> None:
    stream = client.telemetry()
    for _ in range(3):
        await stream.write(rpc.TelemetryCommand(settings=client.producing()))
        answer = await stream.read()
        assert (answer.status.code, answer.WhichOneof("command")) == (Code.OK, "settings")
        assert answer.settings.WhichOneof("pub_sub") == "publishing"
        assert answer.settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert len(gateway.processor.clients) == 1


@pytest.mark.parametrize("kind", [pb.ClientType.PUSH_CONSUMER, pb.ClientType.SIMPLE_CONSUMER])
async def test_a_consumer_is_known_by_its_group_and_gets_its_settings(
    client: Any, gateway: Any, kind: int
) -> None:
    await gateway.broker.create_group(GroupConfig("g", ordered=True, max_attempts=3))
    stream = await client.introduce(client.subscribing(kind))
    assert stream.settings.subscription.fifo is True
    assert stream.settings.backoff_policy.max_attempts == 3
    (known,) = gateway.processor.clients.consumers_of("g")
    assert (known.client_id, known.group, known.topics, known.alive) == ("client-1", "g", {"t"}, True)
    assert known.kind in (ClientKind.PUSH_CONSUMER, ClientKind.SIMPLE_CONSUMER)


async def test_a_group_that_is_not_there_is_served_with_defaults(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(auto_create_groups=False))
    client = town.client(gateway)
    stream = await client.introduce(client.subscribing())
    assert stream.settings.backoff_policy.max_attempts == 17
    assert stream.settings.subscription.receive_batch_size == 32


async def test_a_producer_without_topics_is_answered_too(client: Any, gateway: Any) -> None:
    settings = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=pb.Publishing())
    stream = await client.introduce(settings)
    assert stream.settings.publishing.max_body_size == 4_194_304
    assert gateway.processor.clients.get("client-1") is not None


@pytest.mark.parametrize("beats", [False, True])
async def test_a_stream_that_comes_after_the_goodbye_ends_unless_its_client_is_heard(
    client: Any, gateway: Any, beats: bool
) -> None:
    assert (await client.call("NotifyClientTermination", GOODBYE)).status.code == Code.OK
    stream = await client.introduce(client.producing())
    await gateway.pass_s(SILENT_S / 2)
    if beats:
        beat = rpc.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)
        assert (await client.call("Heartbeat", beat)).status.code == Code.OK
    await gateway.pass_s(SILENT_S / 2)
    if beats:
        await stream.write(rpc.TelemetryCommand(settings=client.producing()))
        assert (await stream.read()).status.code == Code.OK
    else:
        assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


async def test_an_id_whose_goodbye_was_long_ago_is_a_new_clients(client: Any, gateway: Any) -> None:
    await client.call("NotifyClientTermination", GOODBYE)
    await gateway.pass_s(KNOWN_S)
    stream = await client.introduce(client.producing())
    await gateway.pass_s(2 * SILENT_S)
    await stream.write(rpc.TelemetryCommand(settings=client.producing()))
    assert (await stream.read()).status.code == Code.OK


def illegal_settings(client: Any) -> dict[str, tuple[pb.Settings, int]]:
    bad_filter = client.subscribing()
    bad_filter.subscription.subscriptions[0].expression.type = pb.FilterType.SQL
    bad_filter.subscription.subscriptions[0].expression.expression = "a >"
    return {
        "topic": (client.producing("a b"), Code.ILLEGAL_TOPIC),
        "group": (client.subscribing(group=""), Code.ILLEGAL_CONSUMER_GROUP),
        "filter": (bad_filter, Code.ILLEGAL_FILTER_EXPRESSION),
        "nothing": (pb.Settings(client_type=pb.ClientType.PRODUCER), Code.BAD_REQUEST),
        "kind": (
            pb.Settings(client_type=77, publishing=pb.Publishing()),
            Code.UNRECOGNIZED_CLIENT_TYPE,
        ),
    }


@pytest.mark.parametrize("case", ["topic", "group", "filter", "nothing", "kind"])
async def test_settings_that_cannot_be_are_told_and_end_the_stream_as_the_clients_fault(
    client: Any, gateway: Any, case: str
) -> None:
    settings, code = illegal_settings(client)[case]
    stream = client.telemetry()
    await stream.write(rpc.TelemetryCommand(settings=settings))
    answer = await stream.read()
    assert (answer.status.code, answer.WhichOneof("command")) == (code, None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == answer.status.message
    assert len(gateway.processor.clients) == 0


async def test_rust_is_told_of_bad_settings_by_a_stream_that_ends_well(client: Any, gateway: Any) -> None:
    """Its reader goes on after a failed stream, for ever; see `TelemetryStream`."""
    rust = client.like(language="RUST")
    stream = rust.telemetry()
    await stream.write(rpc.TelemetryCommand(settings=rust.producing("a b")))
    assert (await stream.read()).status.code == Code.ILLEGAL_TOPIC
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
    assert len(gateway.processor.clients) == 0


@pytest.mark.parametrize("language", ["HTTP", "NODE_JS"])
async def test_node_is_told_its_settings_again_a_few_times(client: Any, gateway: Any, language: str) -> None:
    """Its start waits for them only after it has asked for all its routes; see `telemetry`."""
    stream = await client.like(language=language).introduce(client.producing("t", "u", "v"))
    for seconds in (0.25, 1, 4, 16):
        await gateway.pass_s(seconds)
        answer = await asyncio.wait_for(stream.read(), 60)
        assert (answer.status.code, answer.settings) == (Code.OK, stream.settings)
    await gateway.pass_s(60)
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF, "and that was all"


async def test_others_are_told_once(client: Any, gateway: Any) -> None:
    stream = await client.introduce(client.producing("t", "u", "v"))
    await gateway.pass_s(60)
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_what_nobody_asked_for_is_let_pass(client: Any) -> None:
    stream = client.telemetry()
    for command in (
        rpc.TelemetryCommand(),
        rpc.TelemetryCommand(status=pb.Status(code=Code.OK)),
        rpc.TelemetryCommand(thread_stack_trace=rpc.ThreadStackTrace(nonce="9")),
        rpc.TelemetryCommand(verify_message_result=rpc.VerifyMessageResult(nonce="9")),
    ):
        await stream.write(command)
    await stream.write(rpc.TelemetryCommand(settings=client.producing()))
    assert (await stream.read()).status.code == Code.OK


async def test_a_half_closed_stream_is_ended_well(client: Any) -> None:
    stream = await client.introduce(client.producing())
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("timeout", [365 * 86_400.0, 21_900 * 86_400.0])
async def test_a_stream_may_have_a_deadline_in_years(client: Any, timeout: float) -> None:
    stream = client.telemetry(timeout=timeout)
    await stream.write(rpc.TelemetryCommand(settings=client.producing()))
    assert (await stream.read()).status.code == Code.OK


async def test_the_end_of_an_old_stream_does_not_remove_the_new_one(
    town: Any, client: Any, gateway: Any
) -> None:
    old = await client.introduce(client.producing())
    first = gateway.processor.clients.get("client-1")
    await client.introduce(client.producing())
    second = gateway.processor.clients.get("client-1")
    assert second is not first
    old.cancel()
    await town.until(lambda: not first.alive)
    assert gateway.processor.clients.get("client-1") is second
    assert second.alive
    assert gateway.processor.clients.producers_of("t") == [second]


async def test_settings_that_name_another_group_leave_nothing_behind(client: Any, gateway: Any) -> None:
    stream = await client.introduce(client.subscribing(group="g"))
    await stream.write(rpc.TelemetryCommand(settings=client.subscribing(group="h")))
    assert (await stream.read()).status.code == Code.OK
    clients = gateway.processor.clients
    assert clients.consumers_of("g") == []
    assert len(clients.consumers_of("h")) == 1


async def half(client: Any, **fields: Any) -> Any:
    entry = await client.send_one(message_type=pb.MessageType.TRANSACTION, **fields)
    assert entry.transaction_id
    return entry


async def test_a_transaction_is_committed_once_and_rolled_back_for_good(client: Any) -> None:
    committed, dropped = await half(client, body=b"yes"), await half(client, body=b"no")
    assert await client.receive() == []
    for _ in range(2):
        assert await client.end(committed, pb.COMMIT) == Code.OK
        assert await client.end(dropped, pb.ROLLBACK) == Code.OK
    assert [m.body for m in await client.receive()] == [b"yes"]
    assert await client.end(committed, pb.ROLLBACK) == Code.INVALID_TRANSACTION_ID
    assert await client.end(dropped, pb.COMMIT) == Code.INVALID_TRANSACTION_ID
    assert await client.receive() == []


async def test_scenario_05_any_replica_ends_a_transaction_and_tells_the_truth(
    town: Any, gateway: Any
) -> None:
    other = await town.gateway(beside=gateway)
    here, there = town.client(gateway), town.client(other)
    entry = await half(here)
    await gateway.stop()
    assert await there.end(entry, pb.COMMIT) == Code.OK
    assert len(await there.receive()) == 1


@pytest.mark.parametrize("transaction_id", ["", "  ", "garbage", "x" * 5000, "\u0000"])
async def test_a_transaction_id_that_nobody_gave_out_is_invalid(client: Any, transaction_id: str) -> None:
    await half(client)
    forged = rpc.SendResultEntry(message_id="x", transaction_id=transaction_id)
    assert await client.end(forged) == Code.INVALID_TRANSACTION_ID


async def test_an_end_that_is_none_is_refused_unless_it_answers_a_question(client: Any) -> None:
    entry = await half(client)
    assert await client.end(entry, resolution=0, source=1) == Code.BAD_REQUEST
    assert await client.end(entry, resolution=0, source=2) == Code.OK
    assert await client.end(entry, topic="") == Code.ILLEGAL_TOPIC
    assert await client.end(entry, pb.COMMIT) == Code.OK


async def test_scenario_06_a_producer_is_asked_and_its_answer_counts(client: Any, gateway: Any) -> None:
    stream = await client.introduce(client.producing("t"))
    entry = await half(client, body=b"orphan", tag="A", properties={"k": "v"})
    await gateway.pass_s(7)
    command = await asyncio.wait_for(stream.read(), 60)
    question = command.recover_orphaned_transaction_command
    assert question.transaction_id == entry.transaction_id
    message = question.message
    assert (message.body, message.topic.name) == (b"orphan", "t")
    assert dict(message.user_properties) == {"k": "v"}
    system = message.system_properties
    assert (system.message_id, system.tag) == (entry.message_id, "A")
    assert system.body_encoding == pb.Encoding.IDENTITY
    assert system.body_digest.type == pb.DigestType.MD5
    assert system.message_type == pb.MessageType.TRANSACTION
    assert not system.HasField("receipt_handle")
    answered = rpc.SendResultEntry(message_id=system.message_id, transaction_id=question.transaction_id)
    assert await client.end(answered, pb.COMMIT, source=2) == Code.OK
    assert [m.body for m in await client.receive()] == [b"orphan"]


async def test_a_question_comes_when_the_message_asked_for_it(client: Any, gateway: Any) -> None:
    stream = await client.introduce(client.producing("t"))
    await half(client, orphaned_transaction_recovery_duration=Duration(seconds=60))
    reading = asyncio.ensure_future(stream.read())
    await gateway.pass_s(50)
    assert not reading.done()
    await gateway.pass_s(11)
    command = await asyncio.wait_for(reading, 60)
    assert command.WhichOneof("command") == "recover_orphaned_transaction_command"


async def test_scenario_06_another_producer_of_the_topic_is_asked_when_the_first_is_gone(
    town: Any, gateway: Any
) -> None:
    client, other = town.client(gateway), town.client(gateway, client_id="client-2")
    stream = await client.introduce(client.producing("t"))
    entry = await half(client)
    stream.cancel()
    await town.until(lambda: not gateway.processor.clients.get("client-1").alive)
    heir = await other.introduce(other.producing("t"))
    await gateway.pass_s(7)
    command = await asyncio.wait_for(heir.read(), 60)
    assert command.recover_orphaned_transaction_command.transaction_id == entry.transaction_id


async def test_a_producer_that_named_no_topics_is_asked_about_what_it_sent(client: Any, gateway: Any) -> None:
    settings = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=pb.Publishing())
    stream = await client.introduce(settings)
    entry = await half(client)
    await gateway.pass_s(7)
    command = await asyncio.wait_for(stream.read(), 60)
    assert command.recover_orphaned_transaction_command.transaction_id == entry.transaction_id


class NoPublishing:
    """An `Authorizer` that does not let one client publish."""

    def allows(self, context: Context, action: Action, resource: Resource, now: float) -> bool:
        return context.client_id != "stranger" or action is not Action.PUBLISH


async def test_who_may_not_publish_is_shown_no_half_message(town: Any) -> None:
    gateway = await town.gateway(policies=Policies(authorizer=NoPublishing()))
    stranger, client = town.client(gateway, client_id="stranger"), town.client(gateway)
    streams = [await each.introduce(each.producing("t")) for each in (stranger, client)]
    entry = await half(client)
    await gateway.pass_s(7)
    command = await asyncio.wait_for(streams[1].read(), 60)
    assert command.recover_orphaned_transaction_command.transaction_id == entry.transaction_id
    assert gateway.processor.clients.get("stranger").alive


class Owners:
    """An `Authenticator` that believes everybody, and lets an account use what bears its name alone."""

    def authenticate(self, context: Context, credentials: Credentials, now: float) -> Principal:
        return Principal(credentials.access_key)

    def allows(self, context: Context, action: Action, resource: Resource, now: float) -> bool:
        return resource.name.startswith(context.principal.name)


@pytest.fixture
async def accounts(town: Any) -> tuple[Any, Any, Any]:
    """A gateway, and the clients of two accounts, which name one client id."""
    gateway = await town.gateway(policies=Policies(authorizer=Owners()), authenticator=Owners())
    anna, bert = town.client(gateway), town.client(gateway)
    for name, client in (("anna", anna), ("bert", bert)):
        signed = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature=00"
        client.headers |= {"authorization": signed, "x-mq-date-time": "now"}
    return gateway, anna, bert


@pytest.mark.parametrize("kind", ["producer", "consumer"])
async def test_accounts_with_one_client_id_do_not_meet(accounts: Any, kind: str) -> None:
    """A client id is only what a request says: neither takes the other's place, nor keeps it from its own."""
    gateway, anna, bert = accounts

    def settings(client: Any, name: str) -> pb.Settings:
        if kind == "producer":
            return client.producing(f"{name}-t")
        return client.subscribing(topic=f"{name}-t", group=f"{name}-g")

    clients = gateway.processor.clients
    named = {"anna": anna, "bert": bert}
    streams = [await client.introduce(settings(client, name)) for name, client in named.items()]
    before = {client.key for client in clients.all()}
    assert [client.client_id for client in clients.all()] == ["client-1"] * 2
    for stream, (name, client) in zip(streams, named.items(), strict=True):
        await stream.write(rpc.TelemetryCommand(settings=settings(client, name)))
        assert (await stream.read()).status.code == Code.OK
        assert (await client.call("Heartbeat", rpc.HeartbeatRequest())).status.code == Code.OK
    assert {client.key for client in clients.all()} == before
    await bert.call("NotifyClientTermination", GOODBYE)
    assert len(clients) == 1
    assert (await anna.call("Heartbeat", rpc.HeartbeatRequest())).status.code == Code.OK


async def test_an_account_may_replace_its_client_whatever_that_names(accounts: Any) -> None:
    """Settings name topics that it may not publish to: only sends to them are refused."""
    _, anna, _ = accounts
    await anna.introduce(anna.producing("bert-t"))
    await anna.introduce(anna.producing("bert-t"))
    assert (await anna.call("Heartbeat", rpc.HeartbeatRequest())).status.code == Code.OK


async def test_no_account_keeps_a_client_of_another_alive(accounts: Any) -> None:
    """What a client works on is renewed as long as there is a heartbeat of it."""
    gateway, anna, bert = accounts
    await anna.introduce(anna.subscribing(topic="anna-t", group="anna-g"))
    (known,) = gateway.processor.clients.all()
    seen = gateway.processor.clients.last_seen(known.key)
    await gateway.pass_s(5)

    async def beat(client: Any, group: str) -> int:
        kind = pb.PUSH_CONSUMER
        request = rpc.HeartbeatRequest(client_type=kind, group=pb.Resource(name=group))
        answer = await client.call("Heartbeat", request)
        return int(answer.status.code)

    assert await beat(bert, "bert-g") == Code.OK
    assert gateway.processor.clients.last_seen(known.key) == seen
    assert await beat(anna, "anna-g") == Code.OK
    assert gateway.processor.clients.last_seen(known.key) == seen + 5


async def test_streams_have_a_bound(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(max_clients=2))
    client = town.client(gateway)
    streams = [client.like(client_id=f"c{n}").telemetry() for n in range(2)]
    for stream in streams:
        await stream.write(rpc.TelemetryCommand(settings=client.producing()))
        assert (await stream.read()).status.code == Code.OK
    late = client.like(client_id="late").telemetry()
    assert (await late.read()).status.code == Code.TOO_MANY_REQUESTS
    assert await late.read() is grpc.aio.EOF
    streams[0].cancel()

    async def has_room() -> bool:
        stream = client.like(client_id="c0").telemetry()
        try:
            await stream.write(rpc.TelemetryCommand(settings=client.producing()))
        except grpc.aio.AioRpcError:
            return False  # it was refused, and had ended, before this was written
        return (await stream.read()).status.code == Code.OK

    await town.until(has_room)


class Unread:
    """A stream whose client takes nothing."""

    async def read(self) -> None:
        await asyncio.Event().wait()

    async def write(self, _command: rpc.TelemetryCommand) -> None:
        await asyncio.Event().wait()


async def test_a_client_that_reads_nothing_is_not_asked_without_end() -> None:
    stream = TelemetryStream(Context(client_id="c"), Unread(), processor=None, clock=SystemClock())  # type: ignore[arg-type]
    message = StoredMessage("t", "b", 0, 0, 0, 0, 0, 0, "1.1.1.1:1", 0, "1.1.1.1:1", b"x", b"")
    check = TransactionCheck("t", "t", "id", message, 0)
    taken = [stream.ask(check) for _ in range(1000)]
    running = asyncio.ensure_future(stream.run(LongPolls()))
    await asyncio.sleep(0)
    taken += [stream.ask(check) for _ in range(1000)]
    assert 0 < taken.index(False) < 100
    assert not any(taken[1000 + taken.index(False) :])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not stream.alive
    assert not stream.ask(check)


async def test_large_questions_that_nobody_reads_have_a_bound_in_bytes_too() -> None:
    stream = TelemetryStream(Context(client_id="c"), Unread(), processor=None, clock=SystemClock())  # type: ignore[arg-type]
    body = bytes(4 * 1024 * 1024)
    message = StoredMessage("t", "b", 0, 0, 0, 0, 0, 0, "1.1.1.1:1", 0, "1.1.1.1:1", body, b"")
    taken = [stream.ask(TransactionCheck("t", "t", "id", message, 0)) for _ in range(10)]
    assert taken == [True, True] + [False] * 8


async def test_one_question_is_taken_however_large_it_is() -> None:
    stream = TelemetryStream(Context(client_id="c"), Unread(), processor=None, clock=SystemClock())  # type: ignore[arg-type]
    body = bytes(9 * 1024 * 1024)
    message = StoredMessage("t", "b", 0, 0, 0, 0, 0, 0, "1.1.1.1:1", 0, "1.1.1.1:1", body, b"")
    assert stream.ask(TransactionCheck("t", "t", "id", message, 0))
    assert not stream.ask(TransactionCheck("t", "t", "id", message, 0))


@pytest.mark.parametrize(
    ("language", "taken"),
    [("HTTP", False), ("NODE_JS", False), ("RUST", False), ("DOTNET", False), ("JAVA", True)],
)
async def test_a_question_that_a_client_cannot_receive_is_not_put_to_it(language: str, taken: bool) -> None:
    """Its gRPC would end the stream; C#'s client opens no other, and would be asked nothing any more."""
    context = Context(client_id="c", door="grpc", language=language)
    stream = TelemetryStream(context, Unread(), processor=None, clock=SystemClock())  # type: ignore[arg-type]
    message = StoredMessage("t", "b", 0, 0, 0, 0, 0, 0, "1.1.1.1:1", 0, "1.1.1.1:1", b"", b"")
    for body, wanted in (bytes(4 * 1024 * 1024), taken), (bytes(4 * 1024 * 1024 - 65_536), True):
        large = replace(message, body=body)
        assert stream.ask(TransactionCheck("t", "t", "id", large, 0)) is wanted
    verify = VerifyQuestion(replace(message, body=bytes(4 * 1024 * 1024)))
    assert TelemetryStream(context, Unread(), None, SystemClock()).question(verify)  # type: ignore[arg-type]
    assert verify.settled is not taken
    verify.withdraw()


class Gone:
    """Both sides of a stream, or the answering one, whose client is not there any more."""

    async def read(self) -> rpc.TelemetryCommand | None:
        return None

    async def write(self, _command: Any) -> None:
        raise BrokenStream("gone")


class Told:
    """A client that tells its settings once, and vanishes."""

    def __init__(self, settings: pb.Settings) -> None:
        self._commands = [rpc.TelemetryCommand(settings=settings)]

    async def read(self) -> rpc.TelemetryCommand | None:
        if not self._commands:
            raise BrokenStream("gone")
        return self._commands.pop()

    async def write(self, _command: Any) -> None:
        """Nobody looks at it."""


class Kept:
    """A client that says something, and waits: it notes who has the command besides itself then."""

    def __init__(self, command: rpc.TelemetryCommand) -> None:
        self._command = command
        self._alone = 0
        self.keepers = -1

    async def read(self) -> rpc.TelemetryCommand | None:
        references = sys.getrefcount(self._command)
        if not self._alone:
            self._alone = references
            return self._command
        self.keepers = references - self._alone
        return None

    async def write(self, _command: Any) -> None:
        """Nobody looks at it."""


@pytest.mark.parametrize("kind", ["settings", "thread_stack_trace", "recover_orphaned_transaction_command"])
async def test_no_command_is_kept_while_the_next_is_waited_for(gateway: Any, client: Any, kind: str) -> None:
    """As it was read it may take some hundreds of megabytes, which nobody counts."""
    command = rpc.TelemetryCommand(settings=client.producing())
    if kind != "settings":
        getattr(command, kind).SetInParent()
    kept = Kept(command)
    del command
    await TelemetryStream(Context(client_id="c"), kept, gateway.processor, gateway.clock).run(LongPolls())
    assert kept.keepers == 0


class Bearers:
    """An `Authorizer` that lets who has a certificate use what bears its name alone."""

    def allows(self, context: Context, action: Action, resource: Resource, now: float) -> bool:
        return resource.name.startswith(context.certificate)


async def test_accounts_may_be_certificates_alone(town: Any) -> None:
    """All callers are anonymous then."""
    gateway = await town.gateway(policies=Policies(authorizer=Bearers()))
    anna, bert = (Context(client_id="c", certificate=(name,)) for name in ("anna", "bert"))
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.add(name="anna-t")
    settings.publishing.topics.add(name="bert-t")
    channel = Kept(rpc.TelemetryCommand(settings=settings))
    await TelemetryStream(anna, channel, gateway.processor, gateway.clock).run(LongPolls())
    assert gateway.processor.clients.get(anna.client_key) is not None
    assert gateway.processor.clients.get(bert.client_key) is None


async def test_a_client_that_is_gone_is_known_without_its_connection_and_then_forgotten_whole(
    client: Any, gateway: Any
) -> None:
    told = Told(client.subscribing())
    stream = TelemetryStream(Context(client_id="gone"), told, gateway.processor, gateway.clock)
    clients, known, connection = gateway.processor.clients, weakref.ref(stream), weakref.ref(told)
    gc.disable()
    try:
        await stream.run(LongPolls())
        del told
        assert (connection(), clients.get("gone").alive) == (None, False)
        del stream
        assert known() is not None
        clients.expire(gateway.clock.monotonic() + 1_000)
        assert (clients.get("gone"), known()) == (None, None)
    finally:
        gc.enable()


class Nameless:
    """A call without the client id that every call must have."""

    def header(self, _name: str) -> str:
        return ""

    peer = local = "127.0.0.1:9"
    names = ()

    def time_remaining(self) -> float | None:
        return None


async def test_a_client_that_leaves_before_it_is_told_of_its_fault_makes_no_noise(gateway: Any) -> None:
    """What leaves the door unexpectedly is written to the log with its way through the code."""
    service = MessagingService(gateway.processor, gateway.clock)
    door = RpcDispatcher(service, Health([]), gateway.clock, None)
    await door.telemetry(Gone(), Nameless())
    [receive] = [what for what in STREAMED if what.name == "ReceiveMessage"]
    await door.streamed(receive, rpc.ReceiveMessageRequest(), Nameless(), Gone())
    assert gateway.processor.budgets.used == 0


async def test_settings_are_taken_also_where_the_gateway_has_no_room_for_more(
    client: Any, gateway: Any
) -> None:
    """Clients send them every few minutes; a stream that they end there is the last one of some clients."""
    stream = await client.introduce(client.producing())
    budgets = gateway.processor.budgets
    budgets.add("others", "", budgets.process_bytes)
    await stream.write(rpc.TelemetryCommand(settings=client.producing()))
    assert (await stream.read()).status.code == Code.OK
    assert budgets.used == budgets.process_bytes


async def test_large_settings_that_find_no_room_end_no_stream_that_has_some(
    client: Any, gateway: Any
) -> None:
    """Those before hold until they are repeated. The first ones of a stream are refused."""
    large = rpc.TelemetryCommand(settings=client.producing())
    large.settings.user_agent.hostname = "h" * 100_000
    stream, budgets = await client.introduce(large.settings), gateway.processor.budgets
    budgets.add("others", "", budgets.process_bytes)
    await stream.write(large)
    await stream.write(rpc.TelemetryCommand(settings=client.producing("u")))
    answer = await stream.read()
    assert (answer.status.code, answer.settings.publishing.topics[0].name) == (Code.OK, "u")
    assert budgets.used == budgets.process_bytes
    other = client.like(client_id="other").telemetry()
    await other.write(large)
    assert (await other.read()).status.code == Code.TOO_MANY_REQUESTS


async def test_settings_that_are_repeated_while_a_broker_is_away_end_no_stream(
    client: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before hold. The first ones of a stream are refused."""
    stream = await client.introduce(client.subscribing())
    away = AsyncMock(side_effect=BrokerUnavailable("broker-a"))
    monkeypatch.setattr(gateway.processor, "settings", away)
    await stream.write(rpc.TelemetryCommand(settings=client.subscribing()))
    await until(lambda: away.await_count == 1)
    monkeypatch.undo()
    await stream.write(rpc.TelemetryCommand(settings=client.subscribing()))
    assert (await stream.read()).status.code == Code.OK
    monkeypatch.setattr(gateway.processor, "settings", away)
    other = client.telemetry()
    await other.write(rpc.TelemetryCommand(settings=client.subscribing()))
    assert (await other.read()).status.code == Code.HA_NOT_AVAILABLE
    assert gateway.processor.budgets.used == 0


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
async def test_a_drain_leaves_streams_alone_until_its_end_where_others_serve(
    town: Any, transport: str
) -> None:
    """What their clients are told and asked goes on over them; some never open theirs again."""
    gateway = await town.gateway(
        leaves_streams=lambda: True, listen=f"grpc://127.0.0.1:0?transport={transport}"
    )
    client = town.client(gateway)
    stream = await client.introduce(client.producing())
    drain = asyncio.ensure_future(gateway.adapter.drain(gateway.clock.monotonic() + 8))
    await gateway.pass_s(5)
    asking = asyncio.ensure_future(
        gateway.processor.client_queries.stack(Context(client_id="admin", door="admin"), "client-1")
    )
    command = await asyncio.wait_for(stream.read(), 60)
    nonce = command.print_thread_stack_trace_command.nonce
    trace = rpc.ThreadStackTrace(nonce=nonce, thread_stack_trace="main")
    await stream.write(rpc.TelemetryCommand(status=pb.Status(code=Code.OK), thread_stack_trace=trace))
    assert await asyncio.wait_for(asking, 60) == "main"
    assert not drain.done()
    await gateway.pass_s(5)
    assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
    await asyncio.wait_for(drain, 60)
    assert gateway.adapter.farewell().streams == 1


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
async def test_a_drain_ends_the_streams_of_clients_of_rust_at_once(town: Any, transport: str) -> None:
    """While one is open they do not notice that their connection takes no more calls, and fail the next."""
    gateway = await town.gateway(
        leaves_streams=lambda: True, listen=f"grpc://127.0.0.1:0?transport={transport}"
    )
    rust = town.client(gateway, client_id="rust", language="RUST")
    java = town.client(gateway)
    ending, staying = await rust.introduce(rust.producing()), await java.introduce(java.producing())
    drain = asyncio.ensure_future(gateway.adapter.drain(gateway.clock.monotonic() + 3600))
    assert await asyncio.wait_for(ending.read(), 60) is grpc.aio.EOF
    assert not drain.done()
    await staying.done_writing()
    assert await asyncio.wait_for(staying.read(), 60) is grpc.aio.EOF
    await asyncio.wait_for(drain, 60)


async def test_a_connection_of_rust_that_is_old_ends_its_stream(town: Any) -> None:
    """As at a drain; other clients keep theirs for the time that an old connection has."""
    gateway = await town.gateway(connection_age_s=0.1, connection_grace_s=3600.0)
    rust = town.client(gateway, client_id="rust", language="RUST")
    java = town.client(gateway)
    staying, ending = await java.introduce(java.producing()), await rust.introduce(rust.producing())
    assert await asyncio.wait_for(ending.read(), 60) is grpc.aio.EOF
    await staying.write(rpc.TelemetryCommand(settings=java.producing()))
    assert (await asyncio.wait_for(staying.read(), 60)).HasField("settings")


async def test_a_poll_of_rust_on_an_old_connection_is_answered(town: Any) -> None:
    """With or without a telemetry stream beside it, which is not opened a second time; of others it lasts."""
    gateway = await town.gateway(limits=town.for_long, connection_age_s=0.1, connection_grace_s=3600.0)
    rust = town.client(gateway, client_id="rust", language="RUST")
    java = town.client(gateway)
    staying = java.stream(java.receive_request(wait_ms=town.long_ms), None)
    status, _ = await rust.frames(wait_ms=town.long_ms)
    assert status.status.code == Code.MESSAGE_NOT_FOUND
    await java.like(client_id="java-2").send_one()
    assert (await staying.read()).status.code == Code.OK


async def held_by_rust(town: Any, gateway: Any) -> Any:
    """A message that a consumer of Rust holds whose stream and connection were ended for their age."""
    rust = town.client(gateway, client_id="rust", language="RUST")
    ending = await rust.introduce(rust.subscribing())
    await rust.send_one()
    (held,) = await rust.receive(auto_renew=True)
    assert await asyncio.wait_for(ending.read(), 60) is grpc.aio.EOF
    return held


async def test_a_consumer_of_rust_keeps_what_it_holds_when_its_connection_is_old(town: Any) -> None:
    """Its stream is ended by the gateway: the client lives, if it says nothing for a while either."""
    gateway = await town.gateway(connection_age_s=0.1, connection_grace_s=3600.0)
    held = await held_by_rust(town, gateway)
    other = town.client(gateway, client_id="other")
    for _ in range(3):
        await gateway.pass_s(gateway.processor.limits.release_grace_s)
    assert await other.receive() == []
    answer = await other.like(client_id="rust").ack(held.system_properties.receipt_handle)
    assert answer.status.code == Code.OK


async def test_a_consumer_of_rust_that_then_falls_silent_is_lost(town: Any) -> None:
    """It keeps nothing for ever: what it held goes to others."""
    gateway = await town.gateway(connection_age_s=0.1, connection_grace_s=3600.0)
    await held_by_rust(town, gateway)
    limits, other = gateway.processor.limits, town.client(gateway, client_id="other")
    for _ in range(int(limits.client_expiry_s / limits.release_grace_s) + 10):
        await gateway.pass_s(limits.release_grace_s)
    assert gateway.processor.clients.get("rust") is None
    assert len(await other.receive()) == 1


async def test_a_producer_of_rust_whose_connection_is_old_can_be_asked_nothing(town: Any) -> None:
    """Which the register is told, so that a broker asks another one about its transactions."""
    gateway = await town.gateway(connection_age_s=0.1, connection_grace_s=3600.0)
    left: list[str] = []
    gateway.processor.clients.on_leave = lambda handle, _: left.append(handle.client_id)
    rust = town.client(gateway, client_id="rust", language="RUST")
    ending = await rust.introduce(rust.producing())
    assert await asyncio.wait_for(ending.read(), 60) is grpc.aio.EOF
    await town.until(lambda: left == ["rust"])


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
async def test_a_drain_is_over_when_the_last_client_closed_its_stream(town: Any, transport: str) -> None:
    gateway = await town.gateway(
        leaves_streams=lambda: True, listen=f"grpc://127.0.0.1:0?transport={transport}"
    )
    client = town.client(gateway)
    stream = await client.introduce(client.producing())
    drain = asyncio.ensure_future(gateway.adapter.drain(gateway.clock.monotonic() + 3600))
    await stream.done_writing()
    assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
    await asyncio.wait_for(drain, 60)


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
async def test_a_drain_without_streams_and_calls_is_over_at_once(town: Any, transport: str) -> None:
    gateway = await town.gateway(
        leaves_streams=lambda: True, listen=f"grpc://127.0.0.1:0?transport={transport}"
    )
    await town.client(gateway).send_one()
    await asyncio.wait_for(gateway.adapter.drain(gateway.clock.monotonic() + 3600), 60)


async def test_a_drain_ends_streams_at_once_where_nobody_else_serves(gateway: Any, client: Any) -> None:
    stream = await client.introduce(client.producing())
    drain = asyncio.ensure_future(gateway.adapter.drain(gateway.clock.monotonic() + 3600))
    assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
    await asyncio.wait_for(drain, 60)
