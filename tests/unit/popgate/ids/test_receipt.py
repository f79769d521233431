"""Vectors: protocol facts 10; form: 4.1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popgate.errors import Fault, IllegalReceipt
from popgate.ids.receipt import ORDERED, Receipt, parse_receipt

VECTOR = "100 1700000000000 60000 3 0 broker-a 2 101 4096"
RECEIPT = Receipt(100, 1700000000000, 60000, 3, 0, "broker-a", 2, 101, 4096)
FIFO_VECTOR = "100 1700000000000 60000 999 0 broker-a 2 101 4096"


def test_the_vector_is_written_and_read() -> None:
    assert RECEIPT.encode() == VECTOR
    assert parse_receipt(VECTOR) == RECEIPT
    assert not RECEIPT.ordered
    assert RECEIPT.due_ms == 1700000060000


def test_an_ordered_handle_has_the_mark() -> None:
    receipt = parse_receipt(FIFO_VECTOR)
    assert receipt.ordered
    assert receipt.revive_queue == ORDERED
    assert receipt.encode() == FIFO_VECTOR


def test_the_ninth_field_may_be_absent() -> None:
    receipt = parse_receipt(VECTOR.rsplit(" ", 1)[0])
    assert receipt.commit_offset == -1
    assert receipt.offset == 101


@pytest.mark.parametrize("mark", ["1", "1c291ca3", "1c291ca3.5bb2a0ea"])
def test_a_mark_behind_nine_fields_is_ignored(mark: str) -> None:
    assert parse_receipt(f"{VECTOR} {mark}") == RECEIPT
    with pytest.raises(IllegalReceipt):
        parse_receipt(f"{VECTOR} {mark} {mark}")


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "x",
        "100 1700000000000 60000 3 0 broker-a 2",
        VECTOR + " 1.",
        VECTOR + " ",
        VECTOR.replace(" ", "  "),
        VECTOR.replace("100 ", "x ", 1),
        VECTOR.replace("100 ", "-1 ", 1),
        VECTOR.replace("100 ", "1_0 ", 1),
        VECTOR.replace("100 ", "+1 ", 1),
        VECTOR.replace("100 ", "٣ ", 1),
        VECTOR.replace("100 ", f"{1 << 63} ", 1),
        VECTOR.replace(" 0 broker", " 3 broker"),
        VECTOR.replace("broker-a", ""),
        VECTOR.replace("4096", "-2"),
        VECTOR.replace("4096", "-"),
        VECTOR + "\n",
        "1" * 600,
    ],
)
def test_what_no_broker_gave_out_is_refused(handle: str) -> None:
    with pytest.raises(IllegalReceipt) as caught:
        parse_receipt(handle)
    assert caught.value.fault is Fault.ILLEGAL_RECEIPT


LONG = st.integers(0, (1 << 63) - 1)
INT = st.integers(0, (1 << 31) - 1)


@given(
    st.builds(
        Receipt,
        *(LONG, LONG, LONG, INT, st.integers(0, 2)),
        *(st.from_regex(r"[a-zA-Z0-9_.-]{1,30}", fullmatch=True), INT, LONG, st.integers(-1, (1 << 63) - 1)),
    )
)
def test_a_receipt_comes_back(receipt: Receipt) -> None:
    assert parse_receipt(receipt.encode()) == receipt


@given(st.text(max_size=60) | st.text("0123456789 -x", max_size=60))
def test_any_text_is_read_or_refused(handle: str) -> None:
    try:
        receipt = parse_receipt(handle)
    except IllegalReceipt as error:
        assert error.handle == handle  # noqa: PT017 - what the error carries is what is tested
    else:
        assert parse_receipt(receipt.encode()) == receipt
