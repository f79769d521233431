"""Injects faults into the gRPC door: lost or late responses, broken streams, cancelled calls.

For tests only, and put in the place of the dispatcher when the door is made: without faults nothing of this
is loaded. A step is an RPC by its name (`AckMessage`), and each counts its own calls:

- `drop`: the work is done, the response is lost; the client sees the connection fail (UNAVAILABLE).
- `hang`: the work is done, the response never comes; the client waits until its own deadline.
- `delay=…:50ms`: the work is done, the response comes later.
- `cancel`: the call is cancelled, as by its client: a unary call during the work,
  a streaming one before its first message is written.
- `break=…:messages=3`: the stream breaks after so many messages (0 without it), and the door
  notices; Telemetry: after so many commands.
- `kill`: the process ends when the work is done and before the response.

A dropped stream is written without an error on purpose: the door assumes that it delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from google.protobuf.message import Message

from popgate.clock import Clock
from popgate.faults import Faults, Rule
from popgate.kinds import Authenticator
from popgate.pb.service_pb2 import ReceiveMessageResponse, TelemetryCommand
from protocols.grpc.codec.request_reader import Request
from protocols.grpc.rpcs.dispatcher import STREAMED, UNARY, RpcDispatcher, Streamed, Unary
from protocols.grpc.rpcs.health import Health
from protocols.grpc.service.service import MessagingService
from protocols.grpc.transport import (
    BrokenStream,
    Call,
    CallFailed,
    CallStatus,
    ResponseStream,
    TelemetryChannel,
)

_ONE_ANSWER = tuple(method.name for method in UNARY)
_MANY_ANSWERS = tuple(method.name for method in STREAMED)
_BOTH = (*_ONE_ANSWER, *_MANY_ANSWERS)
STEPS = {
    "drop": _BOTH,
    "hang": _BOTH,
    "delay": _BOTH,
    "cancel": _BOTH,
    "kill": _BOTH,
    "break": (*_MANY_ANSWERS, "Telemetry"),
}
OPTIONS = {"delay": ("duration",), "break": ("messages",)}


def claim(faults: Faults) -> None:
    """Raises ValueError for a rule about an RPC that cannot be."""
    faults.claim(STEPS, OPTIONS)


class FaultyDoor(RpcDispatcher):
    """An `RpcDispatcher` that injects the faults of the plan."""

    fails_calls = True

    def __init__(
        self,
        service: MessagingService,
        health: Health,
        clock: Clock,
        authenticator: Authenticator | None,
        faults: Faults,
    ) -> None:
        super().__init__(service, health, clock, authenticator)
        self._faults = faults

    async def unary(self, method: Unary, request: Request, call: Call, size: int | None = None) -> Any:
        """Raises CallFailed, which an `RpcDispatcher` does not."""
        rule = self._faults.strike(method.name)
        work = super().unary(method, request, call, size)
        if rule is None:
            return await work
        if rule.verb == "cancel":
            await _cut_off(work)
            raise _cancelled(rule)
        answer = await work
        await self._befall(rule)
        return answer

    async def streamed(
        self, method: Streamed, request: Request, call: Call, answers: ResponseStream[Any]
    ) -> str:
        """Raises CallFailed, which an `RpcDispatcher` does not."""
        rule = self._faults.strike(method.name)
        if rule is None:
            return await super().streamed(method, request, call, answers)
        cut = _Cut(answers, rule, self)
        try:
            code = await super().streamed(method, request, call, cut)
        except asyncio.CancelledError:
            if cut.struck and rule.verb == "cancel":
                raise _cancelled(rule) from None
            raise
        if rule.verb in ("drop", "hang"):
            await self._befall(rule)
        if cut.struck and rule.verb == "break":
            raise _lost(rule)
        return code

    async def telemetry(self, commands: TelemetryChannel, call: Call) -> None:
        rule = self._faults.strike("Telemetry")
        if rule is None:
            await super().telemetry(commands, call)
            return
        cut = _CutCommands(commands, int(rule.options.get("messages", 0)))
        work = asyncio.ensure_future(super().telemetry(cut, call))
        failure: BaseException | None = None
        try:
            await asyncio.wait((work, cut.broken), return_when=asyncio.FIRST_COMPLETED)
        except BaseException as error:
            failure = error
        if not work.done():
            await _cut_off(work)
        if failure is not None:
            try:
                raise failure
            finally:
                failure = None  # its traceback has this frame
        if cut.broken.done():
            raise _lost(rule)
        cut.broken.cancel()
        work.result()

    async def befall_first(self, rule: Rule) -> None:
        """Before the first answer of a stream is written."""
        if rule.verb in ("delay", "kill"):
            await self._befall(rule)

    async def _befall(self, rule: Rule) -> None:
        """What happens to an answer that is ready. Raises CallFailed."""
        if rule.verb == "kill":
            self._faults.kill()
        elif rule.verb == "hang":
            await asyncio.get_running_loop().create_future()  # until the call is cancelled
        elif rule.verb == "delay" and rule.seconds is not None:
            over = asyncio.Event()
            timer = self._clock.call_later(rule.seconds, over.set)
            try:
                await over.wait()
            finally:
                timer.cancel()
        else:
            raise _lost(rule)


class _Cut:
    """A `ResponseStream` whose responses reach the client only as far as the rule lets them."""

    def __init__(self, answers: ResponseStream[Any], rule: Rule, door: FaultyDoor) -> None:
        self.struck = False
        self._answers = answers
        self._rule = rule
        self._door = door
        self._messages = 0
        self._begun = False

    async def write(self, answer: Message) -> None:
        rule = self._rule
        if rule.verb in ("drop", "hang"):
            return
        if not self._begun:
            self._begun = True
            await self._door.befall_first(rule)
        if _is_message(answer):
            if rule.verb == "cancel":
                self.struck = True
                raise asyncio.CancelledError
            if rule.verb == "break" and self._messages >= rule.options.get("messages", 0):
                self.struck = True
                raise BrokenStream(f"broken on purpose ({rule.text})")
            self._messages += 1
        await self._answers.write(answer)

    async def write_bytes(self, answer: bytes) -> None:
        await self.write(ReceiveMessageResponse.FromString(answer))

    def write_at_once(self, answers: Sequence[bytes]) -> int:
        return 0


class _CutCommands:
    """A `TelemetryChannel` that breaks after so many written commands."""

    def __init__(self, commands: TelemetryChannel, most: int) -> None:
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commands = commands
        self._left = most

    async def read(self) -> TelemetryCommand | None:
        return await self._commands.read()

    async def write(self, command: TelemetryCommand) -> None:
        if self._left <= 0:
            if not self.broken.done():
                self.broken.set_result(None)
            raise BrokenStream("broken on purpose")
        self._left -= 1
        await self._commands.write(command)


def _is_message(answer: Message) -> bool:
    content: str | None = answer.WhichOneof("content")
    return content == "message"


async def _cut_off(work: Any) -> None:
    """Let the work begin, and cancel it: it is done or not done then, never half."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _lost(rule: Rule) -> CallFailed:
    return CallFailed(CallStatus.UNAVAILABLE, f"the answer was lost on purpose ({rule.text})")


def _cancelled(rule: Rule) -> CallFailed:
    return CallFailed(CallStatus.CANCELLED, f"the call was cancelled on purpose ({rule.text})")
