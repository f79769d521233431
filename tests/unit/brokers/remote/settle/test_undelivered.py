"""Deliveries that reached nobody, where the broker counts them all the same."""

from __future__ import annotations

from brokers.remote.settle.undelivered import Undelivered


def test_a_return_counts_for_its_message_and_group():
    returns = Undelivered()
    returns.delivered("h1", "g", b"m")
    assert returns.times("g", b"m") == 0
    returns.returned("h1")
    returns.delivered("h2", "g", b"m")
    returns.returned("h2")
    assert returns.times("g", b"m") == 2
    assert returns.times("other", b"m") == 0
    assert returns.times("g", b"other") == 0


def test_a_handle_is_returned_once_and_an_unknown_one_never():
    returns = Undelivered()
    returns.delivered("h", "g", b"m")
    for handle in ("h", "h", "unknown"):
        returns.returned(handle)
    assert returns.times("g", b"m") == 1


def test_what_is_remembered_is_bounded():
    returns = Undelivered(most=10)
    for number in range(100):
        returns.delivered(f"h{number}", "g", b"%d" % number)
        returns.returned(f"h{number}")
        assert len(returns) <= 10
    assert returns.times("g", b"99") == 1
    assert returns.times("g", b"0") == 0
