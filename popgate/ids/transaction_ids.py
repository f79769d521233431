"""Authenticated transaction ids: a code between the place of the half message and its message id.

The text is `place.code.message_id`. The code is computed with a secret that all gateways of the broker
share, so that a client can only end transactions whose id it was given. The format of the place is the
broker's. Source: any-replica, section 2.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence

from popgate.errors import IllegalTransactionId, shown
from popgate.model import EndTransaction

CODE_BYTES = 16
_FORM = re.compile(r"([\w-]+)\.([0-9a-f]{32})\.(.*)", re.ASCII | re.DOTALL)


def seal(secret: bytes, place: str, message_id: str) -> str:
    """The id of a transaction. `place` has letters, digits, `_` and `-` only, and is not empty."""
    return f"{place}.{_code(secret, place, message_id)}.{message_id}"


def unseal(secrets: Sequence[bytes], end: EndTransaction) -> tuple[str, str]:
    """The place and the message id, of an id made with one of these secrets.

    Raises IllegalTransactionId: forged, or of another message.
    """
    named = _FORM.fullmatch(end.transaction_id)
    if named is None or not _is_ours(secrets, *named.groups()):
        raise IllegalTransactionId(f"{shown(end.transaction_id)} was not given out by this broker")
    place, message_id = named[1], named[3]
    # Python's first version leaves out the digits of an id's version; RocketMQ does not look at the id.
    if end.message_id not in ("", message_id, message_id[2:]):
        raise IllegalTransactionId(
            f"it belongs to message {shown(message_id)}, not to {shown(end.message_id)}"
        )
    return place, message_id


def _is_ours(secrets: Sequence[bytes], place: str, code: str, message_id: str) -> bool:
    return any(hmac.compare_digest(_code(secret, place, message_id), code) for secret in secrets)


def _code(secret: bytes, place: str, message_id: str) -> str:
    text = f"{place}.{message_id}".encode("utf-8", "surrogatepass")
    return hmac.digest(secret, text, "sha256")[:CODE_BYTES].hex()
