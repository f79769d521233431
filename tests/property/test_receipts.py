"""Receipt handles: whatever there is in common is read once, and that is never seen from outside."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from popgate.errors import IllegalReceipt
from popgate.ids.receipt import Receipt, parse_receipt

NUMBERS = st.integers(-2, 1 << 64).map(str) | st.sampled_from(
    ["", "07", "+1", "1_0", "\u0663", "x", "0" * 30]
)
PLAIN = st.integers(0, 1000).map(str)
FIELDS = st.lists(PLAIN | NUMBERS | st.just("broker-a"), min_size=6, max_size=10) | st.tuples(
    PLAIN,
    PLAIN,
    PLAIN,
    PLAIN,
    st.sampled_from("0123"),
    st.sampled_from(["b", ""]),
    PLAIN,
    PLAIN,
    PLAIN | NUMBERS,
)


def slowly(handle: str) -> Receipt | None:
    """What the handle says, field by field; None when it is none."""
    fields = handle.split(" ")
    if len(fields) == 10 and re.fullmatch(r"[0-9a-f]{1,8}(\.[0-9a-f]{1,8})?", fields[9]):
        fields.pop()
    if len(handle) > 512 or len(fields) not in (8, 9):
        return None
    broker = fields.pop(5)
    if not broker or not all(f.isascii() and f.removeprefix("-").isdigit() for f in fields):
        return None
    start, pop_ms, invisible_ms, revive, kind, queue_id, offset, commit = map(int, [*fields, "-1"][:8])
    long, short = 1 << 63, 1 << 31
    if not (
        all(0 <= n < long for n in (start, pop_ms, invisible_ms, offset))
        and all(0 <= n < short for n in (revive, queue_id))
        and 0 <= kind <= 2
        and -1 <= commit < long
    ):
        return None
    return Receipt(start, pop_ms, invisible_ms, revive, kind, broker, queue_id, offset, commit)


@given(FIELDS.map(" ".join))
@example("1 2 3 4 0 b 5 6 7")
@example("1 2 3 4 0 b 5 6")
@example("1 2 3 4 0 b 5 6 -1")
@example("1 2 3 4 0 b 5 6 7 8")
@example("1 2 3 4 0 b 5 6 7 1c291ca3.5bb2a0ea")
@example("1 2 3 4 0 b 5 6 9223372036854775808")
@example("1 2 3 4 0 b 5 9223372036854775807 6")
@example("1 2 3 4 0 " + "b" * 600 + " 5 6 7")
def test_a_handle_is_read_alike_the_first_time_and_again(handle: str) -> None:
    expected = slowly(handle)
    for _ in range(2):
        try:
            found = parse_receipt(handle)
        except IllegalReceipt:
            found = None
        assert found == expected
