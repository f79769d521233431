"""Which certificate a peer has shown in a handshake that failed.

The ssl module does not return a certificate whose verification failed. It is taken from the peer's
Certificate message (RFC 8446 section 4.4.2, RFC 5246 section 7.4.6).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

_READ: Final = "read"
_CERTIFICATE: Final = 11
"""The type of a handshake message (RFC 8446 section 4)."""
_MOST_SUBJECT: Final = 256
"""Characters in a line of the log."""
_MOST_SERIAL: Final = 40
"""Hexadecimal digits: 20 octets (RFC 5280 section 4.1.2.2)."""
_LONGEST: Final = 8 << 10
"""Bytes of a message that are kept: longer certificates would cost the event loop time."""

Messages = list[tuple[int, bytes]]
"""Of each Certificate message its length, and its begin."""
_messages: ContextVar[Messages | None] = ContextVar("certificate_messages", default=None)


def note_certificates(context: ssl.SSLContext) -> None:
    """Have `noted` know what peers show in handshakes with this context; `note_no_more` after each."""
    # For debugging, without a promise of the standard library: without it lines do not name the certificate.
    if hasattr(ssl.SSLContext, "_msg_callback"):
        context._msg_callback = _note  # type: ignore[attr-defined]


@contextlib.contextmanager
def noted() -> Iterator[Messages]:
    """Certificate messages of the handshake that is begun inside."""
    messages: Messages = []
    token = _messages.set(messages)  # callbacks of the loop run in a copy of this context
    try:
        yield messages
    finally:
        _messages.reset(token)
        messages.clear()


def note_no_more(context: ssl.SSLContext, transport: asyncio.BaseTransport) -> None:
    """After a handshake with this context: the callback would be called for each record of the connection."""
    if getattr(context, "_msg_callback", None) is not None:
        transport.get_extra_info("ssl_object").context = _after_handshake()


@functools.cache
def _after_handshake() -> ssl.SSLContext:
    """What connections have from then on. Who looks at the peer's certificate needs `verify_mode`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _note(
    _connection: object, direction: str, _version: object, _content: object, kind: object, data: bytes
) -> None:
    if kind == _CERTIFICATE and direction == _READ and (messages := _messages.get()) is not None:
        messages.append((len(data), data[:_LONGEST]))


def described(messages: Messages) -> str:
    """The subject and the serial number, as `openssl x509 -noout -subject -serial` shows it."""
    if not messages:
        return "it cannot be shown"
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
