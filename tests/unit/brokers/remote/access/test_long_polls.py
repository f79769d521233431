"""brokers.remote.access.long_polls: requests that wait at a broker leave room for others."""

from __future__ import annotations

from brokers.remote.access.long_polls import LongPolls


def test_each_broker_has_so_many_and_those_that_end_make_room() -> None:
    polls = LongPolls(2)
    assert [polls.begin("a"), polls.begin("a"), polls.begin("a"), polls.begin("b")] == [
        True,
        True,
        False,
        True,
    ]
    polls.end("a")
    assert (polls.begin("a"), polls.begin("a")) == (True, False)
    for broker in ("a", "a", "b"):
        polls.end(broker)
    assert repr(polls) == "<LongPolls 0>"
