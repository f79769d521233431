from __future__ import annotations

import pytest

from popgate.errors import BadRequest, Fault, IllegalTransactionId, MessageTypeMismatch
from popgate.model import EndTransaction, MessageType, Resolution, Route
from processors.produce.handle_checks import check_end, check_recall


@pytest.mark.parametrize(
    ("transaction_id", "words"),
    [("", "must not be blank"), ("\t", "must not be blank"), ("t" * 4097, "the limit is 4096")],
)
def test_an_id_that_no_broker_can_have_given_ends_nothing(transaction_id: str, words: str) -> None:
    with pytest.raises(IllegalTransactionId, match=words) as caught:
        check_end(EndTransaction("orders", transaction_id, "m", Resolution.COMMIT))
    assert caught.value.fault is Fault.ILLEGAL_TRANSACTION_ID
    check_end(EndTransaction("orders", "t" * 4096, "", Resolution.COMMIT))


def test_only_topics_that_take_delays_can_be_recalled_from() -> None:
    strict = Route("orders", (MessageType.FIFO,), ())
    with pytest.raises(MessageTypeMismatch):
        check_recall("handle", strict, check_types=True)
    check_recall("handle", strict, check_types=False)
    check_recall("handle", Route("orders", (), ()), check_types=True)
    check_recall("handle", Route("orders", (MessageType.NORMAL, MessageType.DELAY), ()), check_types=True)


@pytest.mark.parametrize(
    ("handle", "words"), [("", "blank"), ("h" * 4097, "4097 characters, the limit is 4096")]
)
def test_a_recall_handle_that_cannot_be_one_is_a_bad_request(handle: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        check_recall(handle, Route("orders", (), ()), check_types=True)
    assert caught.value.fault is Fault.BAD_REQUEST
