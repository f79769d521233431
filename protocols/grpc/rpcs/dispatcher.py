"""The RPCs that are served, and the way of every one of them: open, answer, tell what failed.

An RPC that is not in the table is answered UNIMPLEMENTED by the transport.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import GatewayError, Internal
from popgate.kinds import Authenticator
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from protocols.grpc.codec.errors import status_of
from protocols.grpc.codec.packer import EncodedAnswer
from protocols.grpc.codec.plain_request import PlainRequest
from protocols.grpc.codec.request_reader import Request, Unreadable
from protocols.grpc.rpcs.health import Health
from protocols.grpc.rpcs.request_context import authenticate, check_client_id, open_context
from protocols.grpc.service.service import MessagingService
from protocols.grpc.transport import (
    BrokenStream,
    Call,
    CallFailed,
    CallStatus,
    ResponseStream,
    TelemetryChannel,
)
from protocols.observers import CallObserver, NullCalls

SERVICE: Final = "apache.rocketmq.v2.MessagingService"

_log = logging.getLogger(__name__)

_CODES: Final = {value.number: value.name for value in pb.Code.DESCRIPTOR.values}
_GONE: Final = "CLIENT_GONE"
"""Stands for a code where nobody was there to be told one."""
_FINE: Final = frozenset({"OK", "MESSAGE_NOT_FOUND", _GONE})


@dataclass(slots=True, frozen=True)
class Unary:
    """One RPC with one answer.

    Requests of up to `spared_bytes` count towards the budgets, but pass them: a consumer that reads
    slowly must still be able to acknowledge, and to say that it lives.
    """

    name: str
    request: type[Message]
    answer: type[Any]
    method: Callable[[MessagingService, Any, Context], Awaitable[Message | EncodedAnswer]]
    spared_bytes: int = 64 * 1024


@dataclass(slots=True, frozen=True)
class Streamed:
    """One RPC whose answer is a stream of elements; each has a status, or something else.

    Requests of up to `spared_bytes` do not count towards the budgets, for they may wait for long; larger
    ones count as long as they wait.
    """

    name: str
    request: type[Message]
    answer: type[Any]
    method: Callable[[MessagingService, Any, Context, ResponseStream[Any]], Awaitable[int]]
    """Returns the code of the status that it wrote."""
    spared_bytes: int = 64 * 1024


UNARY: Final = (
    Unary("QueryRoute", rpc.QueryRouteRequest, rpc.QueryRouteResponse, MessagingService.query_route),
    Unary("Heartbeat", rpc.HeartbeatRequest, rpc.HeartbeatResponse, MessagingService.heartbeat),
    Unary("SendMessage", rpc.SendMessageRequest, rpc.SendMessageResponse, MessagingService.send_message, 0),
    Unary(
        "QueryAssignment",
        rpc.QueryAssignmentRequest,
        rpc.QueryAssignmentResponse,
        MessagingService.query_assignment,
    ),
    Unary("AckMessage", rpc.AckMessageRequest, rpc.AckMessageResponse, MessagingService.ack_message),
    Unary(
        "ForwardMessageToDeadLetterQueue",
        rpc.ForwardMessageToDeadLetterQueueRequest,
        rpc.ForwardMessageToDeadLetterQueueResponse,
        MessagingService.forward_message_to_dead_letter_queue,
    ),
    Unary(
        "SyncLiteSubscription",
        rpc.SyncLiteSubscriptionRequest,
        rpc.SyncLiteSubscriptionResponse,
        MessagingService.sync_lite_subscription,
    ),
    Unary("UpdateOffset", rpc.UpdateOffsetRequest, rpc.UpdateOffsetResponse, MessagingService.update_offset),
    Unary("GetOffset", rpc.GetOffsetRequest, rpc.GetOffsetResponse, MessagingService.get_offset),
    Unary("QueryOffset", rpc.QueryOffsetRequest, rpc.QueryOffsetResponse, MessagingService.query_offset),
    Unary(
        "EndTransaction",
        rpc.EndTransactionRequest,
        rpc.EndTransactionResponse,
        MessagingService.end_transaction,
    ),
    Unary(
        "NotifyClientTermination",
        rpc.NotifyClientTerminationRequest,
        rpc.NotifyClientTerminationResponse,
        MessagingService.notify_client_termination,
    ),
    Unary(
        "ChangeInvisibleDuration",
        rpc.ChangeInvisibleDurationRequest,
        rpc.ChangeInvisibleDurationResponse,
        MessagingService.change_invisible_duration,
    ),
    Unary(
        "RecallMessage", rpc.RecallMessageRequest, rpc.RecallMessageResponse, MessagingService.recall_message
    ),
)

STREAMED: Final = (
    Streamed(
        "ReceiveMessage",
        rpc.ReceiveMessageRequest,
        rpc.ReceiveMessageResponse,
        MessagingService.receive_message,
    ),
    Streamed("PullMessage", rpc.PullMessageRequest, rpc.PullMessageResponse, MessagingService.pull_message),
)
"""Beside these there is Telemetry, which streams both ways."""


def _readable(request: Request) -> Any:
    """Raises BadRequest."""
    if isinstance(request, Unreadable):
        raise request.error
    return request


def _sound(request: HealthCheckRequest | Unreadable) -> HealthCheckRequest:
    """Raises CallFailed: the answer of a health check has no room for a sentence."""
    if isinstance(request, Unreadable):
        raise CallFailed(CallStatus.INVALID_ARGUMENT, request.sentence)
    return request


def names_of(request: Request) -> tuple[str, str]:
    """The topic and the group that a request is about, as it names them; empty where it names none."""
    if isinstance(request, PlainRequest):
        return request.topic, request.group
    fields: Any = request
    names = () if isinstance(request, Unreadable) else request.DESCRIPTOR.fields_by_name
    topic = ""
    if "topic" in names:
        topic = fields.topic.name
    elif "message_queue" in names:
        topic = fields.message_queue.topic.name
    elif "messages" in names and len(fields.messages):
        topic = fields.messages[0].topic.name
    return topic, fields.group.name if "group" in names else ""


class RpcHandler(Protocol):
    """Handles the calls of a transport: an `RpcDispatcher`, or a wrapper around one."""

    @property
    def fails_calls(self) -> bool: ...

    async def unary(self, method: Unary, request: Request, call: Call, size: int | None = None) -> Any: ...

    async def streamed(
        self, method: Streamed, request: Request, call: Call, answers: ResponseStream[Any]
    ) -> str:
        """Returns the name of the code that it wrote; "OK": messages."""
        ...

    async def telemetry(self, commands: TelemetryChannel, call: Call) -> None: ...

    def leave(self, call: asyncio.Task[Any]) -> None:
        """The connection of a call, the task that it runs in, takes no more calls. May be repeated."""
        ...

    async def check_health(self, request: HealthCheckRequest | Unreadable) -> HealthCheckResponse: ...

    async def watch_health(
        self, request: HealthCheckRequest | Unreadable, answers: ResponseStream[HealthCheckResponse]
    ) -> None: ...


class RpcDispatcher:
    """Dispatches calls from any transport to the service. Each method names what it raises."""

    fails_calls = False
    """Whether `unary` and `streamed` may raise CallFailed: only where faults are on order."""

    def __init__(
        self, service: MessagingService, health: Health, clock: Clock, authenticator: Authenticator | None
    ) -> None:
        self._service = service
        self._health = health
        self._clock = clock
        self._authenticator = authenticator
        self._budgets = service.budgets
        self.calls: CallObserver = NullCalls()
        """Is told how every call ended."""

    async def unary(self, method: Unary, request: Request, call: Call, size: int | None = None) -> Any:
        """The answer to a unary RPC: a message of its answer's class.

        `size`: how many bytes the request came in, where that is known: to find it out is dear.
        """
        answer: Any
        began = self._clock.monotonic()
        context = open_context(call, began)
        held = context.allowance = self._budgets.allowance(context.connection)
        try:
            self._admit(context, call)
            readable = _readable(request)
            if size is None:
                size = readable.ByteSize()
            if size > method.spared_bytes:
                held.take(size)
            else:
                held.add(size)
            answer = await method.method(self._service, readable, context)
        except GatewayError as error:
            answer = method.answer(status=status_of(error, context))
        except Exception:
            answer = method.answer(status=_bug(method.name, context))
        finally:
            held.release()
        code = answer.status.code
        self.calls.answered(method.name, _CODES.get(code, "OTHER"), self._clock.monotonic() - began)
        if code != pb.OK:
            self.calls.refused(*names_of(request))
        return answer

    async def streamed(
        self, method: Streamed, request: Request, call: Call, answers: ResponseStream[Any]
    ) -> str:
        """Write the answer to an RPC that streams: elements of its answer's class.

        Returns the name of the code that it wrote, or CLIENT_GONE. What it took counts until the last of it
        is written.
        """
        began = self._clock.monotonic()
        name = _GONE
        context = open_context(call, began)
        held = context.allowance = self._budgets.allowance(context.connection)
        status: pb.Status | None = None
        bug: pb.Status | None = None
        try:
            try:
                try:
                    self._admit(context, call)
                    readable = _readable(request)
                    # Plain ones are small.
                    if isinstance(readable, Message) and (size := readable.ByteSize()) > method.spared_bytes:
                        held.take(size)
                    code = await method.method(self._service, readable, context, answers)
                except GatewayError as error:
                    status = status_of(error, context)
                if status is not None:
                    code = status.code
                    await answers.write(method.answer(status=status))
            except BrokenStream:
                # What was not delivered is on its way back, and there is nobody to tell.
                return _GONE
            except Exception:
                bug = _bug(method.name, context)
            if bug is not None:
                code = bug.code
                with suppress(BrokenStream):
                    await answers.write(method.answer(status=bug))
            name = _CODES.get(code, "OTHER")
        finally:
            held.release()
            self.calls.answered(method.name, name, self._clock.monotonic() - began)
        if name not in _FINE:
            self.calls.refused(*names_of(request))
        return name

    async def telemetry(self, commands: TelemetryChannel, call: Call) -> None:
        """Raises CallFailed."""
        began, code = self._clock.monotonic(), "OK"
        context = open_context(call, began)
        held = context.allowance = self._budgets.allowance(context.connection)
        status: pb.Status | None = None
        try:
            try:
                self._admit(context, call)
                await self._service.telemetry(commands, context)
            except GatewayError as error:
                status = status_of(error, context)
            if status is not None:
                code = _CODES.get(status.code, "OTHER")
                with suppress(BrokenStream):
                    await commands.write(rpc.TelemetryCommand(status=status))
        except BrokenStream:
            code = _GONE
            return
        except CallFailed as failed:
            code = failed.status.name
            raise
        except asyncio.CancelledError:
            code = _GONE
            raise
        except Exception:
            code = "INTERNAL_ERROR"
            raise CallFailed(CallStatus.INTERNAL, _bug("Telemetry", context).message) from None
        finally:
            held.release()
            self.calls.answered("Telemetry", code, self._clock.monotonic() - began)

    def leave(self, call: asyncio.Task[Any]) -> None:
        self._service.leave(call)

    async def check_health(self, request: HealthCheckRequest | Unreadable) -> HealthCheckResponse:
        """Open to everybody, as is `watch_health`. Raises CallFailed."""
        return self._health.check(_sound(request))

    async def watch_health(
        self, request: HealthCheckRequest | Unreadable, answers: ResponseStream[HealthCheckResponse]
    ) -> None:
        """Raises CallFailed."""
        with suppress(BrokenStream):
            await self._health.watch(_sound(request), answers)

    def _admit(self, context: Context, call: Call) -> None:
        if self._authenticator is not None:
            authenticate(context, call, self._authenticator, self._clock.monotonic())
        check_client_id(context)


def _bug(name: str, context: Context) -> pb.Status:
    """Something failed that is no fault of a request: the log gets it all, the client only that it was."""
    _log.exception("%s failed for %s at %s", name, context.client_id, context.peer)
    return status_of(Internal("internal error of the gateway, its log tells more"), context)
