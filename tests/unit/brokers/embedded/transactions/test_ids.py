from typing import Any

import pytest

from brokers.embedded.transactions.ids import TransactionIds
from popgate.errors import IllegalTransactionId
from popgate.model import EndTransaction, HalfPlace, Resolution

Parts = Any


def ending(transaction: str, message_id: str = "") -> EndTransaction:
    return EndTransaction("T", transaction, message_id, Resolution.COMMIT)


async def test_an_id_is_read_as_it_was_made_also_after_a_restart(parts: Parts) -> None:
    ids = TransactionIds()
    ids.load(parts.store)
    await parts.store.commit()
    made = ids.make(0xABC, "message.id")
    again = TransactionIds()
    again.load(parts.store)
    assert again.read(ending(made, "message.id")) == (0xABC, "message.id")


async def test_no_two_messages_and_no_two_numbers_share_a_code(parts: Parts) -> None:
    ids = TransactionIds()
    ids.load(parts.store)
    codes = {ids.make(number, name).split(".")[1] for number in range(10) for name in "abc"}
    assert len(codes) == 30


async def test_every_changed_character_of_an_id_is_noticed(parts: Parts) -> None:
    ids = TransactionIds()
    ids.load(parts.store)
    made = ids.make(0xABC, "m1")
    for at in range(len(made)):
        changed = made[:at] + ("7" if made[at] != "7" else "8") + made[at + 1 :]
        with pytest.raises(IllegalTransactionId, match="was not given out"):
            ids.read(ending(changed))


async def test_the_secret_is_not_shown(parts: Parts) -> None:
    ids = TransactionIds()
    ids.load(parts.store)
    assert repr(ids) == "<TransactionIds>"


async def test_a_message_is_known_by_its_id_and_by_that_without_its_version(parts: Parts) -> None:
    """The first Python client ends a transaction it was asked about with an id two digits short."""
    ids = TransactionIds()
    ids.load(parts.store)
    whole = "0102FC0000000107B90B13BB7E00000000"
    made = ids.make(7, whole)
    for named in ("", whole, whole[2:]):
        assert ids.read(ending(made, named)) == (7, whole)
    for named in (whole[1:], whole[3:], whole[:-1], "other"):
        with pytest.raises(IllegalTransactionId, match="belongs to message"):
            ids.read(ending(made, named))


async def test_two_numbers_name_a_half_message_and_prove_it(parts: Parts) -> None:
    ids = TransactionIds()
    ids.load(parts.store)
    number, proof = ids.place_of(ids.make(0xABC, "m1"))
    assert number == 0xABC
    assert 0 <= proof < 1 << 63
    assert ids.placed(HalfPlace("b", "g", number, proof)) == 0xABC
    for wrong in (
        (number + 1, proof),
        (number, proof ^ 1),
        (-number, proof),
        (number, -1),
        (number, 1 << 63),
    ):
        with pytest.raises(IllegalTransactionId, match="were not given out"):
            ids.placed(HalfPlace("b", "g", *wrong))


async def test_proofs_of_other_numbers_and_other_stores_are_others(parts: Parts) -> None:
    ids, strangers = TransactionIds(), TransactionIds()
    ids.load(parts.store)
    assert len({ids.proof(number) for number in range(100)}) == 100
    strangers._secret = b"another secret"
    assert strangers.proof(1) != ids.proof(1)
