"""Client certificates that were refused in the handshake: which one, of whom, where, and why."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

from popgate.tls.shown_certificates import Messages, described, note_no_more, noted

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
_MOST_SHOWN: Final = 10
"""Certificates that are read in a second; each takes some 0.1 ms, with 8 KiB of names 2 ms."""

_log = logging.getLogger(__name__)


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
    with noted() as messages:
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                make, sock, ssl=context, ssl_handshake_timeout=timeout_s
            )
        except ssl.SSLError as error:
            _report(error, messages, name, place)
            raise
    note_no_more(context, transport)


def _name_of(peer: Any) -> str:
    return ":".join(map(str, peer[:2])) if isinstance(peer, tuple) and peer else "a process of this machine"


def _report(error: ssl.SSLError, messages: Messages, name: str, place: str) -> None:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _REVOKED:  # sampled for itself: others do not keep these lines back
            _log.warning(
                "the certificate of a client is refused at %s: it is revoked, or an authority in its chain"
                " is; %s, from %s",
                place,
                _shown(messages, _turns[True]),
                name,
            )
            return
        why = _REASONS.get(error.verify_code, error.verify_message)
        named = _shown(messages, _turns[False])
        _log.warning("the certificate of a client is refused at %s: %s; %s, from %s", place, why, named, name)
    elif error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        _log.warning("a client without a certificate is refused at %s, from %s", place, name)


def _shown(messages: Messages, turns: _Turns) -> str:
    if messages and not turns.take():
        return "it is not shown, because many are refused"
    return described(messages)
