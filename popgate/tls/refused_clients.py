"""Client certificates that were refused in the handshake: which one, of whom, where, and why.

The ssl module tells why, but does not return a certificate whose verification failed. It is taken from the
client's Certificate message (RFC 8446 section 4.4.2, RFC 5246 section 7.4.6).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

_READ: Final = "read"
_CERTIFICATE: Final = 11
"""The type of a handshake message (RFC 8446 section 4)."""
_REASONS: Final = {
    3: "there is no revocation list of its issuer, or of one further up",
    8: "the revocation list of its issuer, or of one further up, is signed by somebody else",
    9: "it is not valid yet",
    10: "it has expired",
    11: "the revocation list of its issuer, or of one further up, is not valid yet",
    12: "the revocation list of its issuer, or of one further up, has expired",
    18: "it is signed by itself, and no authority of tls.client_ca",
    19: "it comes from an authority that is not in tls.client_ca",
    20: "it comes from an authority that is not in tls.client_ca",
    21: "it comes from an authority that is not in tls.client_ca",
    35: "its issuer, or one further up, may not sign revocation lists (key usage cRLSign)",
    36: "the revocation list of its issuer, or of one further up, has a critical extension that is not known",
    44: "the revocation list of its issuer, or of one further up, is for other certificates",
}
"""By OpenSSL's numbers (x509_vfy.h, X509_V_ERR_...), which do not change."""

_REVOKED: Final = 23
_MOST_SUBJECT: Final = 256
"""Characters in a line of the log."""
_MOST_SERIAL: Final = 40
"""Hexadecimal digits: 20 octets (RFC 5280 section 4.1.2.2)."""
_LONGEST: Final = 8 << 10
"""Bytes of a message that are kept: longer certificates would cost the event loop time."""
_MOST_SHOWN: Final = 10
"""Certificates that are read in a second; each takes some 0.1 ms, with 8 KiB of names 2 ms."""

_log = logging.getLogger(__name__)
_Message = tuple[int, bytes]
"""The length of a Certificate message, and its begin."""
_message: ContextVar[list[_Message] | None] = ContextVar("certificate_message", default=None)


class _Turns:
    """So many in a second."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begin = -1.0
        self._taken = 0

    def take(self) -> bool:
        now = self._now()
        if not self._begin <= now < self._begin + 1.0:
            self._begin, self._taken = now, 0
        self._taken += 1
        return self._taken <= _MOST_SHOWN


_turns = {True: _Turns(), False: _Turns()}
"""Of revoked certificates, and of others, which do not take turns from them."""


@functools.cache
def _after_handshake() -> ssl.SSLContext:
    """What connections have from then on. Who looks at the client's certificate needs `verify_mode`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def note_certificates(context: ssl.SSLContext) -> None:
    """Have `shake_hands` know what clients show in handshakes with this context."""
    # For debugging, without a promise of the standard library: without it lines do not name the certificate.
    if hasattr(ssl.SSLContext, "_msg_callback"):
        context._msg_callback = _note  # type: ignore[attr-defined]


def _note(
    _connection: object, direction: str, _version: object, _content: object, kind: object, data: bytes
) -> None:
    if kind == _CERTIFICATE and direction == _READ and (shown := _message.get()) is not None:
        shown.append((len(data), data[:_LONGEST]))


async def shake_hands(
    make: Callable[[], Any],
    sock: socket.socket,
    context: ssl.SSLContext,
    *,
    timeout_s: float,
    peer: tuple[str, int] | None,
    place: str,
) -> None:
    """Serve an accepted connection with TLS. Raises OSError: the handshake failed, or took too long.

    A refused client certificate is logged: of `peer`, which is the address of the socket if it is None, at
    `place`, the listener's address.
    """
    name = _name_of(peer if peer is not None else sock.getpeername())
    shown: list[_Message] = []
    token = _message.set(shown)  # callbacks of the loop run in a copy of this context
    try:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            make, sock, ssl=context, ssl_handshake_timeout=timeout_s
        )
    except ssl.SSLError as error:
        _report(error, shown, name, place)
        raise
    finally:
        _message.reset(token)
        shown.clear()
    if getattr(context, "_msg_callback", None) is not None:
        secured = transport.get_extra_info("ssl_object")
        # Without the callback, which would be called for each record of the connection.
        secured.context = _after_handshake()


def _name_of(peer: Any) -> str:
    return ":".join(map(str, peer[:2])) if isinstance(peer, tuple) and peer else "a process of this machine"


def _report(error: ssl.SSLError, shown: list[_Message], name: str, place: str) -> None:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _REVOKED:  # sampled for itself: others do not keep these lines back
            _log.warning(
                "the certificate of a client is refused at %s: it is revoked, or an authority in its chain"
                " is; %s, from %s",
                place,
                _shown(shown, _turns[True]),
                name,
            )
            return
        why = _REASONS.get(error.verify_code, error.verify_message)
        named = _shown(shown, _turns[False])
        _log.warning("the certificate of a client is refused at %s: %s; %s, from %s", place, why, named, name)
    elif error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        _log.warning("a client without a certificate is refused at %s, from %s", place, name)


def _shown(messages: list[_Message], turns: _Turns) -> str:
    """The subject and the serial number, as `openssl x509 -noout -subject -serial` shows it."""
    if not messages:
        return "it cannot be shown"
    if not turns.take():
        return "it is not shown, because many are refused"
    from cryptography import x509  # 15 MB that stay in memory, for gateways that refuse somebody only

    try:
        encoded = _first_certificate(*messages[-1])
        if encoded is None:
            return "it is too long to be shown"
        read = x509.load_der_x509_certificate(encoded)
        subject, serial = read.subject.rfc4514_string(), f"{read.serial_number:X}"
        times = f"{read.not_valid_before_utc:%Y-%m-%d %H:%M} to {read.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        raise
    except BaseException:  # whatever a stranger sends; faults of the library's Rust code are no Exception
        return "it cannot be shown"
    return f"subject {subject[:_MOST_SUBJECT]!r}, serial {serial[:_MOST_SERIAL]}, valid from {times}"


def _first_certificate(length: int, begin: bytes) -> bytes | None:
    """None: it is longer than what was kept. Raises IndexError for what is no such message."""
    body, rest = memoryview(begin)[4:], length - 4
    if int.from_bytes(body[:3]) != rest - 3:  # of TLS 1.3: the context comes first
        body = body[1 + body[0] :]
    size = int.from_bytes(body[3:6])
    return bytes(body[6 : 6 + size]) if 6 + size <= len(body) else None
