"""`popgate clients`: what a connected client is asked and told by command, over a raw gRPC stream."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing import GatewayProcess
from popgate.testing.gateway import running_gateway

ROOT = Path(__file__).parents[2]
OK, FAILED, USAGE, NOTHING = 0, 1, 2, 4
CLIENT = "host@42#1/a"
T = TypeVar("T")
Ran = tuple[int, str, str]
"""A command's code, and what it wrote to standard output and to standard error."""


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayProcess]:
    async with running_gateway() as gateway:
        yield gateway


@pytest.fixture
async def stream(gateway: GatewayProcess) -> AsyncIterator[Any]:
    """The Telemetry stream of a push consumer of group g."""
    async with grpc.aio.insecure_channel(gateway.endpoint) as channel:
        method = channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=rpc.TelemetryCommand.SerializeToString,
            response_deserializer=rpc.TelemetryCommand.FromString,
        )
        stream = method(metadata=(("x-mq-client-id", CLIENT), ("x-mq-language", "JAVA")))
        settings = pb.Settings(
            client_type=pb.PUSH_CONSUMER,
            subscription=pb.Subscription(
                group=pb.Resource(name="g"), subscriptions=[pb.SubscriptionEntry(topic=pb.Resource(name="t"))]
            ),
        )
        await stream.write(rpc.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == pb.Code.OK
        yield stream


async def popgate(gateway: GatewayProcess, *arguments: str) -> Ran:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POPGATE_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "popgate", *arguments, "--admin", gateway.admin),
        env={**kept, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 240)
    assert b"Traceback" not in err, err
    return process.returncode or 0, out.decode(), err.decode()


async def ask(gateway: GatewayProcess, answer: Callable[[], Awaitable[T]], *arguments: str) -> tuple[Ran, T]:
    """What a command said, and what `answer` did; again where a busy machine kept us from answering."""
    while True:
        ran, answered = await asyncio.gather(popgate(gateway, *arguments), answer())
        if "did not answer within" not in ran[2]:
            return ran, answered


async def answer_stack(stream: Any, text: str) -> None:
    asked = await stream.read()
    trace = rpc.ThreadStackTrace(nonce=asked.print_thread_stack_trace_command.nonce, thread_stack_trace=text)
    await stream.write(rpc.TelemetryCommand(status=pb.Status(code=pb.Code.OK), thread_stack_trace=trace))


async def answer_verify(stream: Any, code: int) -> bytes:
    asked = (await stream.read()).verify_message_command
    result = rpc.VerifyMessageResult(nonce=asked.nonce)
    await stream.write(rpc.TelemetryCommand(status=pb.Status(code=code), verify_message_result=result))
    return bytes(asked.message.body)


async def test_a_client_is_listed_and_tells_its_stack(gateway: GatewayProcess, stream: Any) -> None:
    code, out, _ = await popgate(gateway, "clients")
    assert code == OK
    assert out.startswith(f"{CLIENT}\tpush consumer\tJAVA\tg\tt\t")
    assert out.endswith("\tyes\n")
    text = "main\n  waiting \x1b[31m\n"
    ran, _ = await ask(gateway, lambda: answer_stack(stream, text), "clients", "stack", CLIENT)
    assert ran == (OK, "main\n  waiting \\x1b[31m\n", "")
    ran, _ = await ask(gateway, lambda: answer_stack(stream, text), "clients", "stack", CLIENT, "-o", "json")
    assert json.loads(ran[1]) == {"client_id": CLIENT, "stack": text}
    code, out, _ = await popgate(gateway, "clients", "show", CLIENT)
    assert (code, out.splitlines()[0]) == (OK, f"client_id\t{CLIENT}")
    assert await popgate(gateway, "clients", "show", "nobody") == (
        NOTHING,
        "",
        "popgate: client nobody is not known here\n",
    )


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (pb.Code.OK, OK, "was consumed by client"),
        (pb.Code.FAILED_TO_CONSUME_MESSAGE, FAILED, "failed to consume message"),
        (pb.Code.MESSAGE_CORRUPTED, FAILED, "could not read message"),
    ],
)
async def test_a_client_consumes_a_message_on_demand(
    gateway: GatewayProcess, stream: Any, answer: int, code: int, said: str
) -> None:
    _, out, _ = await popgate(gateway, "send", "t", "coffee", "-o", "json")
    message_id = json.loads(out)["message_id"]
    ran, body = await ask(
        gateway,
        lambda: answer_verify(stream, answer),
        *("clients", "verify", CLIENT, "--group", "g", "--topic", "t", message_id),
    )
    assert ran[0] == code
    assert said in ran[1] + ran[2]
    assert body == b"coffee"


async def test_clients_are_told_to_reconnect(gateway: GatewayProcess, stream: Any) -> None:
    for arguments in ((CLIENT,), ("--all",)):
        assert await popgate(gateway, "clients", "reconnect", *arguments) == (
            OK,
            "told to reconnect: 1\n",
            "",
        )
        assert (await stream.read()).WhichOneof("command") == "reconnect_endpoints_command"
    for wrong in ((), (CLIENT, "--all")):
        assert (await popgate(gateway, "clients", "reconnect", *wrong))[0] == USAGE
    code, _, err = await popgate(gateway, "clients", "stack", "nobody")
    assert (code, err) == (NOTHING, "popgate: client 'nobody' is not known here\n")
