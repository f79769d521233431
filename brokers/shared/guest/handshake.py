"""The guest's side of the handshake with its host."""

from __future__ import annotations

from brokers.channel import Channel
from brokers.shared.codec.calls import DONE, decode
from brokers.shared.codec.errors import ERROR
from brokers.shared.session.hello import (
    FACTS,
    HostFacts,
    check_hello,
    check_proof,
    hello_fields,
    make_nonce,
    proof,
)
from brokers.shared.settings import SharedSettings
from popgate.clock import Clock
from popgate.errors import BrokerUnavailable, PeerWireError, Unsupported
from popgate.wire.frames.codes import PortCode
from popgate.wire.frames.remoting import Command

_LONGEST_SENTENCE = 400


async def meet(channel: Channel, clock: Clock, settings: SharedSettings) -> HostFacts:
    """Say hello, and let each side prove that it knows the secret.

    Raises Unsupported (another version), Unauthenticated (another secret), BadRequest,
    BrokerUnavailable, BrokerTimeout.
    """

    async def said(code: int, fields: dict[str, str]) -> Command:
        request = channel.ask(code, fields, b"", clock.monotonic(), settings.hello_s)
        answer = await request.future
        if answer.code == DONE:
            return answer
        try:
            error = decode(ERROR, answer.body)
        except PeerWireError:
            # Of another version: the sentence is there for every one.
            sentence = answer.remark[:_LONGEST_SENTENCE] or "a host that refuses without a reason"
            raise Unsupported(sentence) from None
        raise error

    nonce = make_nonce()
    hello = await said(PortCode.HELLO, hello_fields(nonce, settings.gateway))
    host_nonce = check_hello(hello.fields, other="host")
    proved = await said(PortCode.PROVE, {"proof": proof(settings.secret, "guest", nonce, host_nonce)})
    known = proof(settings.secret, "host", nonce, host_nonce)
    check_proof(known, proved.fields.get("proof", ""), other="host")
    try:
        return decode(FACTS, proved.body)
    except PeerWireError as error:
        raise BrokerUnavailable(f"what the host says of its broker cannot be read: {error}") from None
