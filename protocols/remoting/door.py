"""The entry point of requests of all connections: it passes each to the room that serves its code.

The writer of the response releases what the request holds of the budgets (`popgate.context.Allowance`).
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from popgate.context import Context
from popgate.errors import GatewayError, Unauthenticated
from popgate.kinds import NO_CREDENTIALS, Authenticator, Credentials
from popgate.model import TransactionCheck
from popgate.wire.frames.codes import REPORT_QUERY, RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.frames.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, content
from protocols.observers import CallObserver, NullCalls
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.codec.errors import code_of
from protocols.remoting.codec.marks import Origin
from protocols.remoting.consume.offsets import OffsetHandler
from protocols.remoting.consume.pending_commits import ORDERED, PendingCommits
from protocols.remoting.consume.pop import PopHandler
from protocols.remoting.consume.pull import PullHandler
from protocols.remoting.consume.queue_assignment import QueueAssignmentHandler
from protocols.remoting.consume.queue_locks import QueueLockHandler
from protocols.remoting.consume.send_back import SendBackHandler
from protocols.remoting.mapped.handler import Mapped
from protocols.remoting.members.members import Members
from protocols.remoting.produce.reply import ReplyMessageHandler
from protocols.remoting.produce.send import SendHandler
from protocols.remoting.produce.transactions import TransactionHandler, ask_producer
from protocols.remoting.requests import DoorContext, Handler, Peer, Request, Room
from protocols.remoting.routing import RouteHandler
from protocols.remoting.tools.broker_status import BrokerStatusHandler
from protocols.remoting.tools.client_queries import ClientQueryHandler
from protocols.remoting.tools.config import ConfigHandler
from protocols.remoting.tools.lookup import LookupHandler
from protocols.remoting.tools.query_reports import QueryReportHandler
from protocols.remoting.tools.refused import RefusedCodes
from protocols.remoting.virtual.translation import VirtualQueueTranslator

SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
WAITS: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.POP_LITE_MESSAGE,
        RequestCode.NOTIFICATION,
    }
)
"""What may wait for long."""

_SPARED: Final = 64 * 1024
"""Bytes of a request that no send is, up to which it passes the budgets, though it counts: a consumer that
reads slowly must still be able to commit, and to say that it lives."""
_LITTLE: Final = 4 * 1024
"""Bytes of one of `WAITS`, up to which it holds nothing of the budgets: a connection may have thousands."""
_SENT: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""What producers with tracing expect of an answer. Source: protocol facts 9.5 (68)."""
_LONGEST_REMARK: Final = 1000
_NAMES: Final = {**{int(code): code.name for code in RequestCode}, REPORT_QUERY: "REPORT_QUERY"}
_CODES: Final = {int(code): code.name for code in ResponseCode}
_UNKNOWN: Final = "UNKNOWN"
_NOTHING: Final = "NOTHING"
"""Stands for a code where nobody waits for one."""
_FINE: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.PULL_RETRY_IMMEDIATELY),
        int(ResponseCode.POLLING_TIMEOUT),
        int(ResponseCode.POLLING_FULL),
        int(ResponseCode.NO_MESSAGE),
    }
)

_log = logging.getLogger(__name__)


def rooms_of(door_context: DoorContext, translator: VirtualQueueTranslator | None = None) -> list[Room]:
    """Everything that is served here."""
    translator = translator if translator is not None else VirtualQueueTranslator(door_context)
    mapped = Mapped(door_context)
    heartbeats = Heartbeats(door_context, partial(_ask_producer, translator), mapped.left)
    mapped.members = heartbeats.shares
    return [
        heartbeats,
        ClientQueryHandler(door_context, translator),
        QueueAssignmentHandler(door_context, heartbeats.push_member),
        ConfigHandler(door_context),
        QueueLockHandler(door_context),
        LookupHandler(door_context),
        Members(door_context, heartbeats.push_member, translator, mapped, heartbeats.has_heard),
        PopHandler(door_context),
        OffsetHandler(door_context, mapped),
        PullHandler(door_context, heartbeats.subscriptions, mapped),
        QueryReportHandler(door_context),
        RefusedCodes(door_context),
        ReplyMessageHandler(door_context),
        SendBackHandler(door_context, mapped),
        RouteHandler(door_context),
        SendHandler(door_context),
        BrokerStatusHandler(door_context),
        TransactionHandler(door_context),
    ]


class Door:
    """The rooms of the door, by request code."""

    authenticator: Authenticator | None = None
    """Without one everybody is anonymous, and credentials are ignored."""

    def __init__(self, door_context: DoorContext, rooms: Iterable[Room] | None = None) -> None:
        self.calls: CallObserver = NullCalls()
        """Is told how every request ended."""
        self._clock = door_context.clock
        self._translator = VirtualQueueTranslator(door_context) if rooms is None else None
        self._rooms = list(rooms if rooms is not None else rooms_of(door_context, self._translator))
        self._committing = PendingCommits()
        self._handlers: dict[int, Handler] = {}
        for room in self._rooms:
            for code, handler in room.handlers().items():
                if int(code) in self._handlers:
                    raise ValueError(f"two rooms serve the request code {int(code)}")
                self._handlers[int(code)] = handler

    def __repr__(self) -> str:
        return f"<Door {len(self._handlers)} request codes>"

    def serves(self, code: int) -> bool:
        return code in self._handlers

    def drain(self) -> None:
        """End what waits; nothing waits from now on."""
        for room in self._rooms:
            room.drain()

    def refused(self, command: Command, code: ResponseCode) -> None:
        """Somebody else answered a request so, before it came here."""
        self.calls.answered(_NAMES.get(command.code, _UNKNOWN), code.name, 0.0)

    async def serve(self, request: Request) -> Command | None:
        """The answer to a request; None for one that nobody waits to be answered. Raises nothing else."""
        began = self._clock.monotonic()
        command = request.command
        name = _NAMES.get(command.code, _UNKNOWN)
        code = _NOTHING
        try:
            answer = await self._answer(request)
            if answer is not None:
                code = _CODES.get(answer.code, "OTHER")
                if answer.code not in _FINE:
                    self.calls.refused(*names_of(command.fields))
        except asyncio.CancelledError:
            code = "CLIENT_GONE"
            raise
        finally:
            self.calls.answered(name, code, self._clock.monotonic() - began)
        return None if command.is_oneway else answer

    async def _answer(self, request: Request) -> Command | None:
        command, context = request.command, request.context
        handler = self._handlers.get(command.code)
        if handler is None:
            return request.refusal(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
            )
        try:
            if self.authenticator is not None:
                context.principal = self.authenticator.authenticate(
                    context, credentials_in(command), self._clock.monotonic()
                )
            _hold(command, context)
            translator = self._translator
            if translator is not None and translator.serves(command):
                serving = translator.serve(request, handler)
            else:
                serving = handler(request)
            if command.code in ORDERED:
                serving = self._committing.serve(command, serving)
            answer = await serving
        except GatewayError as error:
            answer = request.refusal(code_of(error), _bounded(error.sentence))
        except Exception:
            _log.exception(
                "%s failed for %s at %s",
                _NAMES.get(command.code, command.code),
                context.client_id,
                context.peer,
            )
            answer = request.refusal(
                ResponseCode.SYSTEM_ERROR, "internal error of the gateway, its log tells more"
            )
        if answer is not None and command.code in SENDS:
            for key, value in _SENT.items():
                answer.fields.setdefault(key, value)
        return answer


def _ask_producer(
    translator: VirtualQueueTranslator, peer: Peer, check: TransactionCheck, origin: Origin
) -> bool:
    place = check.place
    if place is not None and translator.names_none(peer) and not origin.has_number(place.broker):
        # It would answer about a half message of nobody. Others name the broker in their answers.
        return False
    return ask_producer(peer, check, origin)


def _bounded(sentence: str) -> str:
    """Names that are echoed may have any length."""
    return sentence if len(sentence) <= _LONGEST_REMARK else sentence[:_LONGEST_REMARK] + "…"


def _hold(command: Command, context: Context) -> None:
    """Count the bytes of a request. Raises TooManyRequests."""
    held = context.allowance
    if held is None:
        return
    fields, code = command.fields, command.code
    size = len(command.body) + len(command.remark) + sum(map(len, fields)) + sum(map(len, fields.values()))
    if size > _SPARED or code in SENDS or (size > _LITTLE and code in WAITS):
        held.take(size)
    elif code not in WAITS:
        held.add(size)


def names_of(fields: Mapping[str, str]) -> tuple[str, str]:
    """The topic and the consumer group that a request is about, in its words; empty where it names none."""
    get = fields.get
    return get("topic") or get("b") or get("originTopic") or "", get("consumerGroup") or get("group") or ""


def credentials_in(command: Command) -> Credentials:
    """What a request offers to prove who sends it; none for one that names no access key.

    Raises Unauthenticated. Source: protocol facts 5.12.
    """
    fields = command.fields
    access_key = fields.get(ACCESS_KEY, "")
    if not access_key:
        return NO_CREDENTIALS
    try:
        signature = b64decode(fields.get(SIGNATURE, ""), validate=True)
    except ValueError:
        raise Unauthenticated("the field Signature is no Base64") from None
    try:
        signed = content(fields, command.body, command.version)
    except UnicodeEncodeError:
        raise Unauthenticated("a field that is signed is no text") from None
    return Credentials(
        access_key=access_key,
        signature=signature,
        signed=signed,
        token=fields.get(SECURITY_TOKEN, ""),
    )
