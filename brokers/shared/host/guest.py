"""One guest at its host: its authentication, and the messages between the two beside calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from brokers.capabilities import LiteTopics
from brokers.channel import Channel
from brokers.client_registration import RegistersClients
from brokers.relay import BrokerAnswer
from brokers.shared.codec.calls import CALLS, CHECK, DONE, FAILED, GONE, LEFT, decode, encode
from brokers.shared.codec.errors import ERROR
from brokers.shared.host.pending_calls import HostContext, PendingCalls
from brokers.shared.session.clients import (
    ANSWER,
    CHANGED,
    COMMAND,
    HERE,
    LEAVERS,
    REPLY,
    Member,
    client_of,
    key_of,
)
from brokers.shared.session.hello import (
    AT_ONCE,
    CLIENTS,
    FACTS,
    STATE,
    HostFacts,
    HostState,
    check_hello,
    check_proof,
    hello_fields,
    make_nonce,
    proof,
)
from popgate.errors import BadRequest, BrokerUnavailable, GatewayError, PeerWireError, Unsupported
from popgate.model import StoredMessage, TransactionCheck
from popgate.wire.frames.codes import PortCode
from popgate.wire.frames.remoting import Command, encode_command

_log = logging.getLogger(__name__)

_CHECK_S = 2.0
_HUSH_S = 1.0
_REPLY_S = 5.0
_FIRST_FRAME = 16 * 1024
"""Bytes: nobody needs more to say who it is."""
_MOST_ASKED_ABOUT = 2_000
_LONGEST_FAILURE = 16 * 1024
"""Bytes of why a guest did not answer a command: that is logged, and told to who asks."""


class Guest:
    """A connection of a gateway, from its first byte to its last."""

    def __init__(self, host_context: HostContext, on_over: Callable[[Guest], None]) -> None:
        self.proved = False
        self.over = False
        self._host_context = host_context
        self._on_over = on_over
        self.channel = Channel(
            "a gateway",
            loop=host_context.loop,
            clock=host_context.clock,
            settings=host_context.settings,
            probe=_probe,
            on_asked=self._asked,
            on_opened=self._opened,
            on_over=self._ended,
            first_frame_bytes=_FIRST_FRAME,
        )
        self.serving = PendingCalls(host_context, self.channel)
        self._gone = host_context.loop.create_future()
        self._guest_nonce = ""
        self._nonce = ""
        self._members: dict[str, str] = {}
        """Its clients that the broker was told of: their ids by their keys."""
        self._ids: dict[str, int] = {}
        """How many of those have an id."""

    def __repr__(self) -> str:
        return f"<Guest {self.serving.name} in-flight {len(self.serving)} {self.channel!r}>"

    async def check(self, check: TransactionCheck) -> bool:
        """Whether the guest found a producer to ask."""
        return await self._says_yes(PortCode.CHECK, encode(CHECK, check), _CHECK_S)

    async def command(self, code: int, fields: Mapping[str, str], timeout_s: float) -> BrokerAnswer:
        """What the guest answers to a command for its clients.

        Raises what it raises, BrokerUnavailable, BrokerTimeout.
        """
        answer = await self._answered(PortCode.COMMAND, encode(COMMAND, (code, fields)), timeout_s)
        try:
            if answer.code == DONE:
                return decode(ANSWER, answer.body)
            if len(answer.body) > _LONGEST_FAILURE:
                raise PeerWireError(f"a failure of {len(answer.body)} bytes")
            error = decode(ERROR, answer.body)
        except PeerWireError as nonsense:
            self.channel.close(f"it spoke nonsense: {nonsense}")
            raise BrokerUnavailable(f"what a gateway answered makes no sense: {nonsense}") from None
        raise error

    async def _says_yes(self, code: int, body: bytes, timeout_s: float) -> bool:
        try:
            answer = await self._answered(code, body, timeout_s)
        except GatewayError:
            return False
        return answer.code == DONE and answer.body == b"\1"

    async def _answered(self, code: int, body: bytes, timeout_s: float) -> Command:
        """Raises BrokerUnavailable, BrokerTimeout, BrokerBusy."""
        request = self.channel.ask(code, {}, body, self._host_context.clock.monotonic(), timeout_s)
        try:
            return await request.future
        except asyncio.CancelledError:
            self.channel.forget(request)
            raise

    async def reply(self, client_id: str, message: StoredMessage) -> bool:
        """Whether the client of this id, which is the guest's, took a reply."""
        return await self._says_yes(PortCode.REPLY, encode(REPLY, (client_id, message)), _REPLY_S)

    def has(self, client_id: str) -> bool:
        """Whether a client of this id is connected to the guest."""
        return client_id in self._ids

    def members_changed(self, groups: tuple[str, ...]) -> None:
        """The consumers of these groups are others now."""
        self._tell(PortCode.MEMBERS_CHANGED, encode(CHANGED, groups))

    def lite_gone(self, client_key: str, group: str, topic: str, lite_topic: str) -> None:
        self._tell(PortCode.LITE_GONE, encode(GONE, (client_key, group, topic, lite_topic)))

    def leaving(self) -> None:
        """The host is about to stop."""
        self._tell(PortCode.LEAVING, b"")

    async def stop(self) -> None:
        """Let it ask nothing more, end its calls, say so, and close."""
        await self._hush()
        await self.serving.stop()
        self.channel.finish("the host stopped")
        if not self.over:
            await asyncio.wait((self._gone,), timeout=self._host_context.settings.stop_s)
            self.channel.close("the host stopped")

    async def _hush(self) -> None:
        """Who has answered asks nothing more here: no call meets a host that is just going."""
        if not self.proved or self.over:
            return
        try:
            request = self.channel.ask(
                PortCode.LEAVING, {}, AT_ONCE, self._host_context.clock.monotonic(), _HUSH_S
            )
            await request.future
        except GatewayError as error:
            _log.info(
                "the gateway %s did not answer that the host stops: %s", self.serving.name, error.sentence
            )

    # -- heard from the connection --------------------------------------------------------------

    def _opened(self, channel: Channel) -> None:
        self._host_context.clock.call_later(self._host_context.settings.hello_s, self._proves_in_time)

    def _proves_in_time(self) -> None:
        if not self.proved and not self.over:
            self.channel.close("it did not say who it is")

    def _asked(self, channel: Channel, request: Command) -> None:
        try:
            if self.proved:
                self._answer(request)
            else:
                self._meet(request)
        except PeerWireError as error:
            _log.warning("the gateway %s spoke nonsense: %s", self.serving.name, error)
            channel.close(f"it spoke nonsense: {error}")
        except Exception:
            _log.exception("what the gateway %s asked went wrong", self.serving.name)
            channel.close("it asked for what went wrong")

    def _answer(self, request: Command) -> None:
        code = request.code
        if (call := CALLS.get(code)) is not None:
            self.serving.begin(call, request)
        elif code == PortCode.CANCEL:
            self.serving.cancel(int.from_bytes(request.body[:4], "big"))
        elif code == PortCode.STATE:
            self.serving.reply(request, DONE, encode(STATE, self._state(request.body)))
        elif code == PortCode.MEMBERS_HERE:
            for member in decode(HERE, request.body):
                self._member_here(member)
        elif code == PortCode.MEMBERS_LEFT:
            for key in decode(LEAVERS, request.body):
                self._member_left(key)
        elif code == PortCode.LITE_LEFT:
            client_key, said_so = decode(LEFT, request.body)
            self.serving.lite_clients.discard(client_key)
            lite = self._host_context.broker.capability(LiteTopics)
            if lite is not None:
                lite.leave_lite(client_key, said_so=said_so)
        else:
            self.serving.refuse(request, Unsupported(f"request {code} between gateways"))

    def _member_here(self, member: Member) -> None:
        registers, members = self._host_context.broker.capability(RegistersClients), self._members
        room = member.key in members or len(members) < self._host_context.settings.max_members
        if room and registers is not None:
            self._forget_id(members.get(member.key))
            members[member.key] = member.client_id
            self._ids[member.client_id] = self._ids.get(member.client_id, 0) + 1
            registers.client_is_here(client_of(member, self._mark))

    def _member_left(self, key: str) -> None:
        registers = self._host_context.broker.capability(RegistersClients)
        client_id = self._members.pop(key, None)
        self._forget_id(client_id)
        if client_id is not None and registers is not None:
            registers.client_left(key_of(key, self._mark))

    def _forget_id(self, client_id: str | None) -> None:
        if client_id is not None:
            self._ids[client_id] -= 1
            if not self._ids[client_id]:
                del self._ids[client_id]

    @property
    def _mark(self) -> str:
        """What tells the keys of its clients from those of others."""
        return f"guest {id(self):x}"

    def _meet(self, request: Command) -> None:
        """HELLO, then PROVE; whatever else comes first ends the connection."""
        secret = self._host_context.settings.secret
        try:
            if request.code == PortCode.HELLO and not self._nonce:
                self._nonce = make_nonce()
                self.serving.name = request.fields.get("gateway", "?")[:80]
                self._guest_nonce = check_hello(request.fields, other="gateway")
                self.channel.answer(request.answer(DONE, fields=hello_fields(self._nonce)))
                return
            if request.code != PortCode.PROVE or not self._guest_nonce:
                raise BadRequest("a gateway says hello first")
            known = proof(secret, "guest", self._guest_nonce, self._nonce)
            check_proof(known, request.fields.get("proof", ""), other="gateway")
        except GatewayError as error:
            _log.warning("a gateway is refused: %s", error.sentence)
            self.channel.answer(request.answer(FAILED, error.sentence, body=encode(ERROR, error)))
            self.channel.finish("it was refused")
            return
        self.proved = True
        self.channel.trust()
        broker = self._host_context.broker
        fields = {"proof": proof(secret, "host", self._guest_nonce, self._nonce)}
        facts = encode(FACTS, HostFacts(broker.name, broker.traits))
        self.channel.answer(request.answer(DONE, fields=fields, body=facts))

    def _state(self, body: bytes) -> HostState:
        asked = decode(CLIENTS, body)[:_MOST_ASKED_ABOUT] if body else ()
        broker = self._host_context.broker
        lite = broker.capability(LiteTopics)
        if lite is None:
            return HostState(broker.figures(), ())
        return HostState(broker.figures(), tuple(lite.lite_subscriptions(name) for name in asked))

    def _tell(self, code: int, body: bytes) -> None:
        if self.proved and not self.over:
            try:
                self.channel.tell(code, {}, body)
            except GatewayError as error:
                _log.warning("the gateway %s was not told: %s", self.serving.name, error.sentence)

    def _ended(self, channel: Channel, why: str) -> None:
        self.over = True
        self._gone.set_result(None)
        self.serving.cancel_all()
        lite = self._host_context.broker.capability(LiteTopics)
        if lite is not None:
            for client_key in self.serving.lite_clients:
                lite.leave_lite(client_key, said_so=False)
        self.serving.lite_clients.clear()
        for key in list(self._members):
            self._member_left(key)
        self._on_over(self)


def _probe(opaque: int) -> bytes:
    return encode_command(Command(PortCode.STATE, opaque))
