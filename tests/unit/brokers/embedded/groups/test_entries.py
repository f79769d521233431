import pytest

from brokers.embedded.groups.entries import MOST_RENEWALS, Entry, Lane, decode_entry, not_later, short_text


def same(one: Entry, other: Entry) -> bool:
    fields = ("due_ms", "pop_ms", "attempt", "held", "attempt_id", "holder", "renewals")
    return all(getattr(one, name) == getattr(other, name) for name in fields)


@pytest.mark.parametrize(
    "entry",
    [
        Entry(1_700_000_030_000, 1_700_000_000_000, 1, True, "", "client@host"),
        Entry(0, 0, 0, False),
        Entry(1 << 50, 1 << 50, 1 << 20, True, "attempt-ü", "Kunde-Ü"),
    ],
)
def test_an_entry_comes_back_from_the_store_as_it_was(entry: Entry) -> None:
    found = decode_entry(entry.encode())
    assert same(found, entry)
    assert found.lane is None


@pytest.mark.parametrize("name", [b"", b"customer-17", bytes(range(256))])
def test_an_entry_tells_its_message_group(name: bytes) -> None:
    entry = Entry(2, 1, 1, True, "attempt", "holder", Lane(name))
    found = decode_entry(entry.encode())
    assert same(found, entry)
    assert found.lane is not None
    assert found.lane.name == name


def test_a_very_long_message_group_is_left_to_the_message_itself() -> None:
    found = decode_entry(Entry(2, 1, 1, True, "a", "h", Lane(b"x" * 5_000)).encode())
    assert found.lane is None
    assert (found.attempt_id, found.holder) == ("a", "h")


@pytest.mark.parametrize("text", ["", "4f7a-11", "kurz und ü", "x" * 50])
def test_a_short_text_stays_what_it_is(text: str) -> None:
    assert short_text(text) == text


@pytest.mark.parametrize("text", ["x" * 10_000, "ü" * 150, "\ud800", "a\x00ü"])
def test_what_is_too_long_or_no_text_is_replaced_by_something_that_fits(text: str) -> None:
    stands_for_it = short_text(text)
    assert len(stands_for_it.encode()) <= 200
    assert stands_for_it == short_text(text)
    assert stands_for_it != short_text(text + "x")


def test_a_delivery_made_by_a_clock_that_was_wrong_blocks_no_longer_than_it_asked_for() -> None:
    entry = Entry(due_ms=3_630_000, pop_ms=3_600_000, attempt=2, held=True, holder="h")
    found = not_later(entry, now_ms=1_000)
    assert (found.due_ms, found.pop_ms, found.attempt) == (31_000, 3_600_000, 2)
    assert not_later(entry, now_ms=3_600_000) is entry


@pytest.mark.parametrize("lane", [None, Lane(b"customer-17")])
def test_how_often_an_entry_was_renewed_comes_back_too(lane: Lane | None) -> None:
    entry = Entry(2, 1, 1, True, "attempt", "holder", lane)
    for count in range(1, MOST_RENEWALS + 3):
        entry = entry.due(2 + count, entry.renewals + 1)
        found = decode_entry(entry.encode())
        assert same(found, entry)
        assert found.renewals == min(count, MOST_RENEWALS)
        assert (found.held, found.lane is None) == (True, lane is None)


def test_an_entry_of_a_store_that_counted_no_renewals_has_none() -> None:
    """Its flags are 1 for held and 2 for a lane, as they have been since the first format."""
    written = bytes.fromhex("0000000000000002000000000000000100000001030102") + b"ahh" + b"lane"
    found = decode_entry(written)
    assert (found.held, found.renewals, found.attempt_id, found.holder) == (True, 0, "a", "hh")
    assert found.encode() == written
