"""The handshake of host and guest: versions, and the proof that both know the secret.

The guest sends HELLO and PROVE, with fields that every version can read; no other request is accepted before.
Each side proves that it knows the secret by a code over the other side's random value (HMAC-SHA256), so
that an eavesdropper cannot replay it. What follows is not encrypted.

Both processes must agree on the layout of the calls (`brokers.shared.codec.calls.fingerprint`), which
changes automatically when the domain or the port does: gateways of different versions refuse each other
with a sentence, unless no layout has changed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from brokers.shared.codec.calls import fingerprint
from brokers.shared.codec.kinds import Kind
from brokers.shared.codec.type_hints import kind_of
from brokers.shared.session.clients import ANSWER, COMMAND, HERE, REPLY
from brokers.traits import Traits
from popgate import __version__
from popgate.errors import BadRequest, Unauthenticated, Unsupported

AT_ONCE = b"\1"
"""What LEAVING says when the host is to be asked nothing more; without it there is a while left."""
PROTOCOL = "1"
"""Of the meeting itself and of what stands in fields; the rest is in the layout."""
_LONGEST_FIELD = 256


@dataclass(slots=True, frozen=True)
class HostFacts:
    """What a guest must know of its host's broker."""

    name: str
    traits: Traits


FACTS: Kind[HostFacts] = kind_of(HostFacts)


@dataclass(slots=True, frozen=True)
class HostState:
    """How a host is: its figures, and to how many lite topics the clients subscribe that were asked about."""

    figures: Mapping[str, float]
    subscriptions: tuple[int, ...]


STATE: Kind[HostState] = kind_of(HostState)
CLIENTS: Kind[tuple[str, ...]] = kind_of(tuple[str, ...])

LAYOUT = fingerprint(
    *(FACTS.told, STATE.told, CLIENTS.told),
    *(HERE.told, REPLY.told, COMMAND.told, ANSWER.told),
)


def make_nonce() -> str:
    return secrets.token_hex(32)


def hello_fields(nonce: str, gateway: str = "") -> dict[str, str]:
    fields = {"protocol": PROTOCOL, "version": __version__, "layout": LAYOUT, "nonce": nonce}
    if gateway:
        fields["gateway"] = gateway
    return fields


def check_hello(fields: Mapping[str, str], *, other: str) -> str:
    """The other side's nonce. `other` is what it is to us. Raises Unsupported, BadRequest."""
    hello = {name: fields.get(name, "") for name in ("protocol", "version", "layout", "nonce")}
    if any(len(value) > _LONGEST_FIELD for value in hello.values()):
        raise BadRequest(f"the {other} says something that no gateway says")
    if hello["protocol"] != PROTOCOL or hello["layout"] != LAYOUT:
        version = hello["version"] or "of an unknown version"
        raise Unsupported(
            f"sharing a broker between popgate {__version__} and a {other} that is popgate {version}"
            f" (layouts {LAYOUT} and {hello['layout'] or 'none'}: run the same version on both sides)"
        )
    if len(hello["nonce"]) < 32:
        raise BadRequest(f"the {other} made up too little to prove anything by")
    return hello["nonce"]


def proof(secret: str, role: str, guest_nonce: str, host_nonce: str) -> str:
    """A code over both random values, role and versions by the secret; empty without a secret."""
    if not secret:
        return ""
    said = "\0".join((PROTOCOL, LAYOUT, role, guest_nonce, host_nonce))
    return hmac.new(secret.encode(), said.encode(), hashlib.sha256).hexdigest()


def check_proof(expected: str, said: str, *, other: str) -> None:
    """Raises Unauthenticated, with what the operator has to look at."""
    if hmac.compare_digest(expected.encode(), said.encode("utf-8", "surrogatepass")):
        return
    if not expected:
        raise Unauthenticated(f"the {other} has a secret and this side has none: set shared.secret on both")
    if not said:
        raise Unauthenticated(f"this side has a secret and the {other} none: set shared.secret on both")
    raise Unauthenticated(f"the {other} does not know the secret: shared.secret must be the same on both")
