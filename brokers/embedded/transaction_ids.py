"""Transaction ids: the number of a half message, a code that proves it was given out, the message id.

The code is made with a secret that lies beside the data, so that nobody can end a transaction that
is not theirs, and every worker of the broker can end every one. Source: any-replica, section 2.
"""

from __future__ import annotations

import hmac
import re
import secrets

from brokers.embedded.keys import META
from brokers.embedded.store import Store
from popgate.errors import IllegalTransactionId, shown
from popgate.model import EndTransaction

_SECRET_KEY = b"transaction secret"
_SECRET_BYTES = 32
_CODE_BYTES = 16
_FORM = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{32})\.(.*)", re.DOTALL)


class TransactionIds:
    """Makes and reads the ids of one store."""

    __slots__ = ("_secret",)

    def __init__(self) -> None:
        self._secret = b""

    def __repr__(self) -> str:
        return "<TransactionIds>"

    def load(self, store: Store) -> None:
        """Read the secret; a new store gets one, in its batch, and the caller commits."""
        stored = store.get(META, _SECRET_KEY)
        self._secret = stored or self._secret or secrets.token_bytes(_SECRET_BYTES)
        if stored is None:
            store.put(META, _SECRET_KEY, self._secret)

    def make(self, sequence: int, message_id: str) -> str:
        return f"{sequence:x}.{self._code(sequence, message_id)}.{message_id}"

    def read(self, end: EndTransaction) -> tuple[int, str]:
        """The number and the message id. Raises IllegalTransactionId: forged, or of another message."""
        named = _FORM.fullmatch(end.transaction_id)
        if named is None:
            raise IllegalTransactionId(f"{shown(end.transaction_id)} was not given out by this broker")
        sequence, message_id = int(named[1], 16), named[3]
        if not hmac.compare_digest(self._code(sequence, message_id), named[2]):
            raise IllegalTransactionId(f"{shown(end.transaction_id)} was not given out by this broker")
        # Python's first version leaves out the digits of an id's version; RocketMQ does not look at the id.
        if end.message_id not in ("", message_id, message_id[2:]):
            raise IllegalTransactionId(
                f"it belongs to message {shown(message_id)}, not to {shown(end.message_id)}"
            )
        return sequence, message_id

    def _code(self, sequence: int, message_id: str) -> str:
        text = b"%x.%b" % (sequence, message_id.encode("utf-8", "surrogatepass"))
        return hmac.digest(self._secret, text, "sha256")[:_CODE_BYTES].hex()
