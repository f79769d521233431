"""Reports the clients of a guest to its host, so that every gateway knows the members of a group.

A guest reports all of them whenever it connects to its host, and the host removes them when the guest is
gone. Tools ask the guest for more (`brokers.shared.host.commands`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from brokers.capabilities import GroupMember, ReplyHandler
from brokers.client_registration import AsksClients, ConnectedClient
from brokers.relay import MOST_COMMANDS, MOST_OF_GATEWAY, CommandHandler, Relayed
from brokers.shared.codec.calls import (
    ASK_GATEWAYS,
    CONSUMERS,
    DONE,
    FAILED,
    MEMBERS,
    SEND_REPLY,
    decode,
    encode,
)
from brokers.shared.codec.errors import ERROR
from brokers.shared.guest.facet import Facet
from brokers.shared.session.clients import (
    ANSWER,
    CHANGED,
    COMMAND,
    HERE,
    LEAVERS,
    REPLY,
    Member,
    member_of,
)
from popgate.context import Context
from popgate.errors import BrokerUnavailable, GatewayError, Internal, TooManyRequests, Unsupported
from popgate.model import Message, Sent
from popgate.wire.frames.codes import PortCode
from popgate.wire.frames.remoting import Command

_log = logging.getLogger(__name__)
_TOGETHER = 256


class Members(Facet):
    """`RegistersClients`, `TellsConsumers`, `CarriesReplies` and `AsksGateways` at a guest."""

    _here: dict[str, ConnectedClient]
    """By key, those that the host is told of."""
    _unsaid: dict[str, None]
    """Keys of those that came or left while the host did not read: it is told once it does."""
    _members_handler: Callable[[str], None] | None = None
    _reply_handler: ReplyHandler | None = None
    _command_handler: CommandHandler | None = None
    _commands_open = 0
    """Commands of the host without an answer."""

    def client_is_here(self, client: ConnectedClient) -> None:
        self._here[client.key] = client
        self._tell_of((client,))

    def client_left(self, key: str) -> None:
        if self._here.pop(key, None) is not None:
            self._tell_left((key,))

    def on_question(self, asker: AsksClients) -> None:
        """Nobody asks by way of the host in these words: tools do by `on_command`."""

    async def consumers(self, group: str) -> list[str]:
        return await self._link.ask(CONSUMERS, group)

    async def members(self, group: str) -> list[GroupMember]:
        return await self._link.ask(MEMBERS, group)

    def on_members(self, handler: Callable[[str], None]) -> None:
        self._members_handler = handler

    async def send_reply(self, context: Context, message: Message) -> Sent:
        return await self._link.ask(SEND_REPLY, context, message)

    def on_reply(self, handler: ReplyHandler) -> None:
        self._reply_handler = handler

    async def ask_gateways(self, context: Context, code: int, fields: Mapping[str, str]) -> Relayed:
        # The host is told until when its answer is waited for.
        until = self._clock.monotonic() + self._settings.request_timeout_s
        deadline = until if context.deadline is None else min(until, context.deadline)
        return await self._link.ask(ASK_GATEWAYS, replace(context, deadline=deadline), code, fields)

    def on_command(self, handler: CommandHandler) -> None:
        self._command_handler = handler

    # -- inside -------------------------------------------------------------------------------

    def _tell_of(self, clients: Iterable[ConnectedClient]) -> None:
        rest = iter(clients)
        while some := tuple(member_of(member) for member in islice(rest, _TOGETHER)):
            self._tell_members(some)

    def _tell_members(self, some: tuple[Member, ...]) -> None:
        body, half = encode(HERE, some), len(some) // 2
        if half and len(body) > self._settings.max_answer_bytes:
            # Clients may have many topics: what fits into no frame would never be told.
            self._tell_members(some[:half])
            self._tell_members(some[half:])
        elif not self._link.tell(PortCode.MEMBERS_HERE, body):
            self._unsaid.update(dict.fromkeys(member.key for member in some))

    def _tell_left(self, keys: Iterable[str]) -> None:
        rest = iter(keys)
        while some := tuple(islice(rest, _TOGETHER)):
            if not self._link.tell(PortCode.MEMBERS_LEFT, encode(LEAVERS, some)):
                # A member that is not there any more keeps queues that nobody reads then.
                self._unsaid.update(dict.fromkeys(some))

    def _tell_all(self) -> None:
        """To a host that knows of nobody."""
        self._unsaid.clear()
        self._tell_of(self._here.values())

    def _tell_unsaid(self) -> None:
        unsaid, self._unsaid = self._unsaid, {}
        self._tell_of([self._here[key] for key in unsaid if key in self._here])
        self._tell_left([key for key in unsaid if key not in self._here])

    def _members_changed(self, request: Command) -> None:
        for group in decode(CHANGED, request.body):
            if self._members_handler is not None:
                self._members_handler(group)

    def _reply(self, request: Command) -> Command | Awaitable[Command | None]:
        client_id, message = decode(REPLY, request.body)
        taken: bool | Awaitable[bool] = False
        try:
            if self._reply_handler is not None:
                taken = self._reply_handler(client_id, message)
        except Exception:
            _log.exception("handing over a reply went wrong")
        if inspect.isawaitable(taken):
            return _later(request, taken)
        return told(request, yes=bool(taken))

    def _command(self, request: Command) -> Awaitable[Command]:
        return self._commanded(request, *decode(COMMAND, request.body))

    async def _commanded(self, request: Command, code: int, fields: Mapping[str, str]) -> Command:
        self._commands_open += 1
        try:
            if self._commands_open > MOST_COMMANDS:
                raise TooManyRequests(f"the limit of {MOST_COMMANDS} commands of other gateways is reached")
            if self._command_handler is None:
                raise Unsupported(f"request code {code} of another gateway")
            body = encode(ANSWER, await self._command_handler(code, fields))
            if len(body) > MOST_OF_GATEWAY:
                raise BrokerUnavailable(
                    f"a gateway has {len(body)} bytes to answer, the limit is {MOST_OF_GATEWAY}"
                )
        except GatewayError as error:
            return request.answer(FAILED, body=encode(ERROR, error))
        except Exception:
            _log.exception("answering command %d of another gateway went wrong", code)
            failure = Internal(f"a gateway could not answer request code {code}")
            return request.answer(FAILED, body=encode(ERROR, failure))
        finally:
            self._commands_open -= 1
        return request.answer(DONE, body=body)


def told(request: Command, *, yes: bool) -> Command:
    """The answer of one byte to a question of the host."""
    return request.answer(DONE, body=b"\1" if yes else b"\0")


async def _later(request: Command, taken: Awaitable[bool]) -> Command:
    try:
        return told(request, yes=await taken)
    except Exception:
        _log.exception("handing over a reply went wrong")
        return told(request, yes=False)
