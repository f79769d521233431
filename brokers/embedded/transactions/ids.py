"""Transaction ids: the number of a half message, a proof that this broker issued it, and the message id.

Classic producers name a half message by two numbers, its offsets in the log and in its queue. The
first one is its number here, and the second one is the proof.

The proof is computed with a secret that is stored beside the data, so that every worker of the broker can
end every transaction, and nobody else. Source: any-replica, section 2.
"""

from __future__ import annotations

import hmac
import secrets

from brokers.embedded.storage.keys import META
from brokers.embedded.storage.store import Store
from popgate.errors import IllegalTransactionId, shown
from popgate.ids.transaction_ids import seal, unseal
from popgate.model import EndTransaction, HalfPlace

_SECRET_KEY = b"transaction secret"
_SECRET_BYTES = 32
_PLACE = b"place of a half message: %d"
_PROOF_MASK = (1 << 63) - 1
"""Offsets are signed numbers of 64 bits, and none is negative."""


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

    def proof(self, sequence: int) -> int:
        """What proves that a half message's number was given out: another number."""
        code = hmac.digest(self._secret, _PLACE % sequence, "sha256")
        return int.from_bytes(code[:8], "big") & _PROOF_MASK

    def place_of(self, transaction_id: str) -> tuple[int, int]:
        """The two numbers for an id that `make` made."""
        sequence = int(transaction_id.partition(".")[0], 16)
        return sequence, self.proof(sequence)

    def placed(self, place: HalfPlace) -> int:
        """The number of the half message at a place.

        Raises IllegalTransactionId: not given out by this broker.
        """
        sequence, proof = place.commit_offset, place.queue_offset
        if not 0 <= proof <= _PROOF_MASK or self.proof(max(sequence, 0)) != proof:
            where = shown(f"{sequence} and {proof}")
            raise IllegalTransactionId(f"the offsets {where} were not given out by this broker")
        return sequence
