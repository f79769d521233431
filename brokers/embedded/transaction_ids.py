"""Transaction ids: the number of a half message, a code that proves it was given out, the message id.

The code is made with a secret that lies beside the data, so that every worker of the broker can
end every transaction, and nobody else. Source: any-replica, section 2.
"""

from __future__ import annotations

import secrets

from brokers.embedded.keys import META
from brokers.embedded.store import Store
from popgate.model import EndTransaction
from popgate.transaction_ids import seal, unseal

_SECRET_KEY = b"transaction secret"
_SECRET_BYTES = 32


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
        return seal(self._secret, f"{sequence:x}", message_id)

    def read(self, end: EndTransaction) -> tuple[int, str]:
        """The number and the message id. Raises IllegalTransactionId: forged, or of another message."""
        place, message_id = unseal((self._secret,), end)
        return int(place, 16), message_id
