"""What an operator asks a client over its Telemetry stream, and settings that are told anew."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from popgate.context import Context
from popgate.errors import BadRequest, ClientNotFound, Forbidden, GatewayError, TooManyRequests, Unsupported
from popgate.groups.verdict import Verdict
from popgate.model import ExponentialRetry, GroupConfig, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from processors.clients.query import StackQuestion
from protocols.drain import LongPolls
from protocols.grpc.telemetry.pending_queries import PendingQueries
from protocols.grpc.telemetry.telemetry import TelemetryStream

Code = pb.Code
ADMIN = Context(client_id="admin", door="admin")


async def command(stream: Any) -> Any:
    return await asyncio.wait_for(stream.read(), 60)


@pytest.fixture
async def reader(client: Any) -> Any:
    return await client.introduce(client.subscribing())


async def test_a_client_is_asked_for_its_stack_and_its_answer_is_told(gateway: Any, reader: Any) -> None:
    asking = asyncio.ensure_future(gateway.processor.client_queries.stack(ADMIN, "client-1"))
    nonce = (await command(reader)).print_thread_stack_trace_command.nonce
    assert nonce.isdigit()
    for other in ("", "x", nonce + "0"):
        trace = rpc.ThreadStackTrace(nonce=other, thread_stack_trace="not this one")
        await reader.write(rpc.TelemetryCommand(status=pb.Status(code=Code.OK), thread_stack_trace=trace))
    await reader.write(
        rpc.TelemetryCommand(
            status=pb.Status(code=Code.OK), verify_message_result=rpc.VerifyMessageResult(nonce=nonce)
        )
    )
    trace = rpc.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waiting")
    await reader.write(rpc.TelemetryCommand(status=pb.Status(code=Code.OK), thread_stack_trace=trace))
    assert await asyncio.wait_for(asking, 60) == "main: waiting"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED, Forbidden),
        (Code.NOT_IMPLEMENTED, Unsupported),
        (Code.INTERNAL_ERROR, GatewayError),
        (0, GatewayError),
        (777, GatewayError),
    ],
)
@pytest.mark.parametrize("what", ["stack", "verify"])
async def test_a_client_that_refuses_is_told_of_with_its_code(
    client: Any, gateway: Any, reader: Any, code: int, error: type[GatewayError], what: str
) -> None:
    status = pb.Status(code=code, message="cannot do that")
    if what == "stack":
        asking = asyncio.ensure_future(gateway.processor.client_queries.stack(ADMIN, "client-1"))
        nonce = (await command(reader)).print_thread_stack_trace_command.nonce
        answer = rpc.TelemetryCommand(status=status, thread_stack_trace=rpc.ThreadStackTrace(nonce=nonce))
    else:
        entry = await client.send_one()
        asking = asyncio.ensure_future(
            gateway.processor.client_queries.verify(ADMIN, "client-1", "g", "t", entry.message_id)
        )
        nonce = (await command(reader)).verify_message_command.nonce
        answer = rpc.TelemetryCommand(
            status=status, verify_message_result=rpc.VerifyMessageResult(nonce=nonce)
        )
    await reader.write(answer)
    with pytest.raises(error) as told:
        await asyncio.wait_for(asking, 60)
    assert type(told.value) is error
    assert "client-1" in told.value.sentence


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (Code.OK, Verdict.CONSUMED),
        (Code.FAILED_TO_CONSUME_MESSAGE, Verdict.FAILED),
        (Code.MESSAGE_CORRUPTED, Verdict.CORRUPTED),
    ],
)
async def test_a_client_is_made_to_consume_a_message_that_nobody_takes(
    client: Any, gateway: Any, reader: Any, code: int, verdict: Verdict
) -> None:
    entry = await client.send_one(body=b"once more", tag="A", properties={"k": "v"})
    asking = asyncio.ensure_future(
        gateway.processor.client_queries.verify(ADMIN, "client-1", "g", "t", entry.message_id)
    )
    asked = (await command(reader)).verify_message_command
    message = asked.message
    assert (message.topic.name, message.body, dict(message.user_properties)) == (
        "t",
        b"once more",
        {"k": "v"},
    )
    assert (message.system_properties.message_id, message.system_properties.tag) == (entry.message_id, "A")
    assert not message.system_properties.HasField("receipt_handle")
    result = rpc.VerifyMessageResult(nonce=asked.nonce)
    await reader.write(rpc.TelemetryCommand(status=pb.Status(code=code), verify_message_result=result))
    assert await asyncio.wait_for(asking, 60) is verdict
    assert [m.body for m in await client.receive()] == [b"once more"]


async def test_a_client_may_send_the_question_back_with_its_status(
    client: Any, gateway: Any, reader: Any
) -> None:
    """Node.js says so that it does not consume on demand."""
    entry = await client.send_one()
    asking = asyncio.ensure_future(
        gateway.processor.client_queries.verify(ADMIN, "client-1", "g", "t", entry.message_id)
    )
    nonce = (await command(reader)).verify_message_command.nonce
    back = rpc.VerifyMessageCommand(nonce=nonce)
    status = pb.Status(code=Code.NOT_IMPLEMENTED)
    await reader.write(rpc.TelemetryCommand(status=status, verify_message_command=back))
    with pytest.raises(Unsupported):
        await asyncio.wait_for(asking, 60)


async def test_a_client_that_leaves_fails_its_questions_at_once(gateway: Any, reader: Any, town: Any) -> None:
    asking = asyncio.ensure_future(gateway.processor.client_queries.stack(ADMIN, "client-1"))
    assert (await command(reader)).WhichOneof("command") == "print_thread_stack_trace_command"
    reader.cancel()
    with pytest.raises(ClientNotFound, match="left before it answered"):
        await asyncio.wait_for(asking, 60)
    with pytest.raises(BadRequest, match="has no open stream"):
        await gateway.processor.client_queries.stack(ADMIN, "client-1")


async def test_a_client_that_does_not_answer_has_few_questions_until_they_are_over(
    gateway: Any, reader: Any
) -> None:
    ask = gateway.processor.client_queries.stack
    asking = [asyncio.ensure_future(ask(ADMIN, "client-1")) for _ in range(20)]
    async with asyncio.timeout(60):
        while sum(one.done() for one in asking) < 4:
            await asyncio.sleep(0)
    done, waiting = await asyncio.wait(asking, timeout=0.1)  # and no more than these
    assert (len(done), len(waiting)) == (4, 16)
    assert all(isinstance(one.exception(), TooManyRequests) for one in done)
    await gateway.pass_s(6)
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert {type(one).__name__ for one in outcomes} == {"ClientTimeout"}
    again = asyncio.ensure_future(ask(ADMIN, "client-1"))
    nonces = {(await command(reader)).print_thread_stack_trace_command.nonce for _ in range(17)}
    assert len(nonces) == 17
    again.cancel()


async def test_what_was_asked_is_forgotten_when_nobody_waits_for_the_answer() -> None:
    """It may hold a message of the largest size."""
    asked = PendingQueries("client-1")
    questions = [StackQuestion() for _ in range(3)]
    for question in questions:
        assert asked.command_for(question) is not None
    questions[0].withdraw()
    questions[1].failed(ClientNotFound("client-1"))
    await asyncio.sleep(0)
    assert repr(asked) == "<PendingQueries client-1 open 1>"
    asked.left()
    assert repr(asked) == "<PendingQueries client-1 open 0>"
    for question in questions:
        question.withdraw()


async def test_a_stack_without_end_is_cut(gateway: Any, reader: Any) -> None:
    asking = asyncio.ensure_future(gateway.processor.client_queries.stack(ADMIN, "client-1"))
    nonce = (await command(reader)).print_thread_stack_trace_command.nonce
    trace = rpc.ThreadStackTrace(nonce=nonce, thread_stack_trace="x" * 3_000_000)
    await reader.write(rpc.TelemetryCommand(status=pb.Status(code=Code.OK), thread_stack_trace=trace))
    assert len(await asyncio.wait_for(asking, 60)) == 1024 * 1024


async def test_clients_are_told_to_reconnect(gateway: Any, reader: Any) -> None:
    gateway.processor.client_queries.reconnect(ADMIN, "client-1")
    assert gateway.processor.client_queries.reconnect_all(ADMIN) == (1, 0)
    nonces = [(await command(reader)).reconnect_endpoints_command.nonce for _ in range(2)]
    assert len(set(nonces)) == 2
    assert all(nonce.isdigit() for nonce in nonces)


async def test_settings_are_told_again_when_the_group_changes(client: Any, gateway: Any, reader: Any) -> None:
    """Only to those concerned, and once for changes of one moment."""
    producer = await client.like(client_id="producer").introduce(client.producing("other"))
    config = GroupConfig("g", ordered=True, max_attempts=1, retry=ExponentialRetry(5_000, 60_000, 2.0))
    for attempts in (7, 8, 9):
        await gateway.processor.metadata.update_group(ADMIN, replace(config, max_attempts=attempts))
    await gateway.pass_s(1)
    told = await command(reader)
    assert told.status.code == Code.OK
    assert told.settings.subscription.fifo is True
    assert told.settings.subscription.group.name == "g"
    assert told.settings.backoff_policy.max_attempts == 9
    assert [d.seconds for d in told.settings.backoff_policy.customized_backoff.next][:2] == [5, 10]
    await gateway.processor.metadata.create_topic(ADMIN, TopicConfig("other"))
    await gateway.pass_s(1)
    assert (await command(producer)).settings.publishing.max_body_size == 4 * 1024 * 1024
    await reader.done_writing()
    assert await command(reader) is grpc.aio.EOF


async def test_a_deleted_group_is_not_made_again_by_telling_its_clients(gateway: Any, reader: Any) -> None:
    await gateway.processor.metadata.update_group(ADMIN, GroupConfig("g", max_attempts=3))
    await gateway.pass_s(1)
    assert (await command(reader)).settings.backoff_policy.max_attempts == 3
    await gateway.processor.metadata.delete_group(ADMIN, "g")
    await gateway.pass_s(1)
    assert (await command(reader)).settings.backoff_policy.max_attempts == 17
    assert await gateway.processor.metadata.groups(ADMIN) == []


class Slow:
    """A stream whose client takes one command whenever it is told to."""

    def __init__(self) -> None:
        self.taken: list[rpc.TelemetryCommand] = []
        self.more = asyncio.Semaphore(0)
        self.incoming: asyncio.Queue[rpc.TelemetryCommand] = asyncio.Queue()

    async def read(self) -> rpc.TelemetryCommand:
        return await self.incoming.get()

    async def write(self, told: rpc.TelemetryCommand) -> None:
        await self.more.acquire()
        self.taken.append(told)


async def test_a_client_that_reads_slowly_is_told_the_last_settings_only(
    gateway: Any, client: Any, town: Any
) -> None:
    slow = Slow()
    stream = TelemetryStream(Context(client_id="slow"), slow, gateway.processor, gateway.clock)  # type: ignore[arg-type]
    running = asyncio.ensure_future(stream.run(LongPolls()))
    slow.incoming.put_nowait(rpc.TelemetryCommand(settings=client.subscribing()))
    slow.more.release()
    await town.until(lambda: len(slow.taken) == 1)
    for attempts in range(1, 10):
        await gateway.processor.metadata.update_group(ADMIN, GroupConfig("g", max_attempts=attempts))
        await gateway.pass_s(1)
    for _ in range(10):
        slow.more.release()
    await town.until(lambda: slow.taken[-1].settings.backoff_policy.max_attempts == 9)
    assert len(slow.taken) <= 3
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_settings_that_are_too_long_to_be_kept_are_refused(client: Any) -> None:
    settings = client.producing()
    settings.user_agent.platform = "x" * (1024 * 1024)
    stream = client.telemetry()
    await stream.write(rpc.TelemetryCommand(settings=settings))
    told = await stream.read()
    assert told.status.code == Code.BAD_REQUEST
    assert "the limit is 1048576" in told.status.message
