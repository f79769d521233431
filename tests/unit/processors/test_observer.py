from __future__ import annotations

import inspect
from typing import Any

import pytest

from popgate.errors import Fault, TopicNotFound
from processors.observer import DoorSums, Latest, NullObserver, Observer, Watch


def test_the_observer_that_counts_nothing_takes_every_call() -> None:
    calls = {
        name: call for name, call in vars(Observer).items() if inspect.isfunction(call) and name[0] != "_"
    }
    assert {"sent", "received", "acked", "failed"} <= set(calls)
    for name, call in calls.items():
        assert inspect.signature(getattr(NullObserver, name)) == inspect.signature(call)


def test_a_watch_reports_what_clients_are_told_and_nothing_else(observer: Any) -> None:
    watch = Watch(observer, "send")
    with watch:
        pass
    with pytest.raises(TopicNotFound), watch:
        raise TopicNotFound("orders")
    with pytest.raises(ZeroDivisionError), watch:
        raise ZeroDivisionError
    assert observer.of("failed") == [("send", Fault.TOPIC_NOT_FOUND)]


def test_totals_of_a_closed_door_stay_and_what_it_holds_does_not() -> None:
    sums = DoorSums()
    first = sums.add(lambda: {"mapped_held": 2, "mapped_renewed_total": 3})
    sums.add(lambda: {"mapped_held": 5, "mapped_renewed_total": 7})
    first()
    figures = sums.figures()
    assert (figures["mapped_held"], figures["mapped_renewed_total"]) == (5, 10)
    assert figures["mapped_window_pauses_total"] == 0


def test_of_listeners_the_last_one_that_is_here_counts() -> None:
    latest = Latest("nobody")
    gone = [latest.add(name) for name in ("a", "b", "c")]
    assert latest.now == "c"
    gone[1]()
    assert latest.now == "c"
    gone[2]()
    assert latest.now == "a"
    gone[0]()
    assert latest.now == "nobody"
