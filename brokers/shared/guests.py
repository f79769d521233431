"""One guest at its host: how it proves itself, and what is said between the two beside calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from brokers.capabilities import LiteTopics
from brokers.channel import Channel
from brokers.shared.calls import CALLS, CHECK, DONE, FAILED, GONE, LEFT, decode, encode
from brokers.shared.errors import ERROR
from brokers.shared.hello import (
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
from brokers.shared.serving import House, Serving
from popgate.errors import BadRequest, GatewayError, PeerWireError, Unsupported
from popgate.model import TransactionCheck
from popgate.wire.codes import PortCode
from popgate.wire.remoting import Command, encode_command

_log = logging.getLogger(__name__)

_CHECK_S = 2.0
_FIRST_FRAME = 16 * 1024
"""Bytes: nobody needs more to say who it is."""
_MOST_ASKED_ABOUT = 2_000


class Guest:
    """A connection of a gateway, from its first byte to its last."""

    def __init__(self, house: House, on_over: Callable[[Guest], None]) -> None:
        self.proved = False
        self.over = False
        self._house = house
        self._on_over = on_over
        self.channel = Channel(
            "a gateway",
            loop=house.loop,
            clock=house.clock,
            settings=house.settings,
            probe=_probe,
            on_asked=self._asked,
            on_opened=self._opened,
            on_over=self._ended,
            first_frame_bytes=_FIRST_FRAME,
        )
        self.serving = Serving(house, self.channel)
        self._gone = house.loop.create_future()
        self._guest_nonce = ""
        self._nonce = ""

    def __repr__(self) -> str:
        return f"<Guest {self.serving.name} in-flight {len(self.serving)} {self.channel!r}>"

    async def check(self, check: TransactionCheck) -> bool:
        """Whether the guest found a producer to ask."""
        now = self._house.clock.monotonic()
        try:
            one = self.channel.ask(PortCode.CHECK, {}, encode(CHECK, check), now, _CHECK_S)
        except GatewayError:
            return False
        try:
            answer = await one.future
        except GatewayError:
            return False
        except asyncio.CancelledError:
            self.channel.forget(one)
            raise
        return answer.code == DONE and answer.body == b"\1"

    def lite_gone(self, client_id: str, group: str, topic: str, lite_topic: str) -> None:
        self._tell(PortCode.LITE_GONE, encode(GONE, (client_id, group, topic, lite_topic)))

    def leaving(self) -> None:
        """The host is about to stop."""
        self._tell(PortCode.LEAVING, b"")

    async def stop(self) -> None:
        """End its calls, say so, and close."""
        await self.serving.stop()
        self.channel.finish("the host stopped")
        if not self.over:
            await asyncio.wait((self._gone,), timeout=self._house.settings.stop_s)
            self.channel.close("the host stopped")

    # -- heard from the connection --------------------------------------------------------------

    def _opened(self, channel: Channel) -> None:
        self._house.clock.call_later(self._house.settings.hello_s, self._proves_in_time)

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
        elif code == PortCode.LITE_LEFT:
            client_id, said_so = decode(LEFT, request.body)
            self.serving.lite_clients.discard(client_id)
            if isinstance(self._house.broker, LiteTopics):
                self._house.broker.leave_lite(client_id, said_so=said_so)
        else:
            self.serving.refuse(request, Unsupported(f"request {code} between gateways"))

    def _meet(self, request: Command) -> None:
        """HELLO, then PROVE; whatever else comes first ends the connection."""
        secret = self._house.settings.secret
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
        broker = self._house.broker
        fields = {"proof": proof(secret, "host", self._guest_nonce, self._nonce)}
        facts = encode(FACTS, HostFacts(broker.name, broker.traits))
        self.channel.answer(request.answer(DONE, fields=fields, body=facts))

    def _state(self, body: bytes) -> HostState:
        asked = decode(CLIENTS, body)[:_MOST_ASKED_ABOUT] if body else ()
        broker = self._house.broker
        if not isinstance(broker, LiteTopics):
            return HostState(broker.figures(), ())
        return HostState(broker.figures(), tuple(broker.lite_subscriptions(one) for one in asked))

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
        broker = self._house.broker
        if isinstance(broker, LiteTopics):
            for client_id in self.serving.lite_clients:
                broker.leave_lite(client_id, said_so=False)
        self.serving.lite_clients.clear()
        self._on_over(self)


def _probe(opaque: int) -> bytes:
    return encode_command(Command(PortCode.STATE, opaque))
