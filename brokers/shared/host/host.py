"""The host: a broker of this process, served to other gateways over a socket."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping

from brokers.capabilities import CarriesReplies, LiteGoneHandler, LiteTopics, ReplyHandler, TellsConsumers
from brokers.port import Broker, CheckHandler
from brokers.relay import AsksGateways, CommandHandler, Relayed
from brokers.shared.codec.calls import ASK_GATEWAYS, CALLS
from brokers.shared.host.commands import Commands
from brokers.shared.host.guest import Guest
from brokers.shared.host.pending_calls import HostContext
from brokers.shared.session.addresses import Address, parse_listening
from brokers.shared.settings import SharedSettings
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import BadRequest
from popgate.model import StoredMessage, TransactionCheck
from popgate.sockets.servers import close_server, stop_accepting
from popgate.sockets.unix_sockets import UnixSocket

_log = logging.getLogger(__name__)
_BACKLOG = 128
_TOGETHER = 256
_MOST_CHANGED = 100_000
"""Groups whose members changed in one turn; guests that are not told ask every 20 s anyhow."""


class BrokerHost(AsksGateways):
    """Serves `broker`, which is started before and stopped afterwards, at `url`.

    Raises BadRequest: no address, or one beyond this machine without a secret.
    """

    def __init__(
        self, broker: Broker, url: str, *, clock: Clock, settings: SharedSettings | None = None
    ) -> None:
        self._settings = settings = settings if settings is not None else SharedSettings()
        self._wanted = parse_listening(url)
        if not self._wanted.is_private and not settings.secret:
            raise BadRequest(
                f"a broker is shared at {self._wanted}, beyond this machine, only with a secret:"
                " set shared.secret, on the guests too"
            )
        self._broker = broker
        self._clock = clock
        self._guests: dict[Guest, None] = {}
        """In the order in which they came."""
        self._host_context: HostContext | None = None
        self._server: asyncio.Server | None = None
        self._socket: UnixSocket | None = None
        self._own_check: CheckHandler | None = None
        self._own_gone: LiteGoneHandler | None = None
        self._own_members: Callable[[str], None] | None = None
        self._own_reply: ReplyHandler | None = None
        self._own_command: CommandHandler | None = None
        self._commands = Commands(clock)
        self._changed: set[str] = set()
        """Groups whose members changed in this turn of the loop."""
        self._turn = 0

    def __repr__(self) -> str:
        return f"<BrokerHost {self.address or self._wanted} guests {len(self._guests)}>"

    @property
    def address(self) -> str:
        """Where it listens, with the port that was chosen; empty when it does not."""
        if self._server is None or not self._server.sockets:
            return ""
        if self._wanted.path:
            return str(self._wanted)
        return str(Address(self._wanted.host, self._server.sockets[0].getsockname()[1]))

    def figures(self) -> dict[str, float]:
        """Gauges for the metrics: plain names, no labels."""
        proved = [guest for guest in self._guests if guest.proved]
        return {
            "shared_guests": len(proved),
            "shared_calls": sum(len(guest.serving) for guest in proved),
            "shared_given_back_total": self._host_context.given_back if self._host_context is not None else 0,
        }

    async def start(
        self,
        check: CheckHandler | None = None,
        lite_gone: LiteGoneHandler | None = None,
        members: Callable[[str], None] | None = None,
        reply: ReplyHandler | None = None,
    ) -> None:
        """Listen. The handlers are this process's own: guests are asked, or told, after them.

        Raises OSError with a sentence for the operator.
        """
        loop = asyncio.get_running_loop()
        broker = self._broker
        methods = {
            code: getattr(broker.capability(call.owner) or broker, call.name, None)
            for code, call in CALLS.items()
        }
        able = {code: method for code, method in methods.items() if method is not None}
        able[ASK_GATEWAYS.code] = self.ask_gateways
        self._host_context = HostContext(self._broker, self._clock, self._settings, loop, able)
        self._own_check, self._own_gone = check, lite_gone
        self._own_members, self._own_reply = members, reply
        self._broker.on_check(self._check)
        lite = self._broker.capability(LiteTopics)
        if lite is not None:
            lite.on_lite_gone(self._lite_gone)
        consumers = self._broker.capability(TellsConsumers)
        if consumers is not None:
            consumers.on_members(self._members)
        replies = self._broker.capability(CarriesReplies)
        if replies is not None:
            replies.on_reply(self._reply)
        wanted = self._wanted
        if wanted.path:
            self._socket = UnixSocket(wanted.path)
            self._server = await loop.create_unix_server(self._make, sock=self._socket.link, backlog=_BACKLOG)
        else:
            self._server = await loop.create_server(
                self._make, wanted.host, wanted.port, backlog=_BACKLOG, reuse_address=True
            )

    async def ask_gateways(self, context: Context, code: int, fields: Mapping[str, str]) -> Relayed:
        guests = [guest for guest in self._guests if guest.proved and not guest.over]
        return await self._commands.ask(context, self._own_command, guests, code, fields)

    def on_command(self, handler: CommandHandler) -> None:
        self._own_command = handler

    def drain(self) -> None:
        """Take no new guests, and tell those that are here that the broker is about to stop."""
        self._stop_listening()
        for guest in list(self._guests):
            guest.leaving()

    async def stop(self) -> None:
        """End what waits, let calls finish for a moment, and let the guests go."""
        if self._server is not None:
            await close_server(self._server)
        self._stop_listening()
        await asyncio.gather(*(guest.stop() for guest in list(self._guests)))
        host_context = self._host_context
        while host_context is not None and host_context.work:
            await asyncio.wait(host_context.work)

    # -- inside -------------------------------------------------------------------------------

    def _make(self) -> asyncio.BaseProtocol:
        assert self._host_context is not None  # noqa: S101
        guest = Guest(self._host_context, self._left)
        if len(self._guests) >= self._settings.max_guests:
            silent = next((other for other in self._guests if not other.proved), None)
            if silent is None:
                _log.warning(
                    "%d gateways share this broker already, another one is refused", len(self._guests)
                )
                guest.channel.close("there are too many guests")
                return guest.channel
            # Else whoever can connect keeps gateways out.
            silent.channel.close("it did not say who it is, and another one came")
        self._guests[guest] = None
        return guest.channel

    def _left(self, guest: Guest) -> None:
        self._guests.pop(guest, None)

    def _check(self, check: TransactionCheck) -> bool | Awaitable[bool]:
        """Whether somebody was asked: here, or at a guest, another one first each time."""
        if self._own_check is not None and self._own_check(check) is True:
            return True
        guests = [guest for guest in self._guests if guest.proved]
        if not guests:
            return False
        self._turn += 1
        first = self._turn % len(guests)
        return _asked(check, guests[first:] + guests[:first])

    def _lite_gone(self, client_key: str, group: str, topic: str, lite_topic: str) -> None:
        if self._own_gone is not None:
            self._own_gone(client_key, group, topic, lite_topic)
        for guest in list(self._guests):
            guest.lite_gone(client_key, group, topic, lite_topic)

    def _members(self, group: str) -> None:
        if self._own_members is not None:
            self._own_members(group)
        if self._guests and not self._changed:
            # A guest that comes or goes changes many groups at once, and each of them by many clients.
            asyncio.get_running_loop().call_soon(self._tell_changed)
        if self._guests and len(self._changed) < _MOST_CHANGED:
            self._changed.add(group)

    def _tell_changed(self) -> None:
        changed, self._changed = sorted(self._changed), set()
        for begin in range(0, len(changed), _TOGETHER):
            groups = tuple(changed[begin : begin + _TOGETHER])
            for guest in list(self._guests):
                guest.members_changed(groups)

    async def _reply(self, client_id: str, message: StoredMessage) -> bool:
        """Whether the client took it, here or at a guest that has it."""
        taken = self._own_reply(client_id, message) if self._own_reply is not None else False
        if inspect.isawaitable(taken):
            taken = await taken
        if taken:
            return True
        for guest in [candidate for candidate in self._guests if candidate.has(client_id)]:
            if not guest.over and await guest.reply(client_id, message):
                return True
        return False

    def _stop_listening(self) -> None:
        if self._server is None:
            return
        stop_accepting(self._server)
        self._server = None
        if self._socket is not None:
            self._socket.remove()
            self._socket = None


async def _asked(check: TransactionCheck, guests: list[Guest]) -> bool:
    for guest in guests:
        if not guest.over and await guest.check(check):
            return True
    return False
