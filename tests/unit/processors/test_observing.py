from __future__ import annotations

import inspect
from typing import Any

import pytest

from popgate.errors import Fault, TopicNotFound
from processors.observing import NullObserver, Observer, Watch


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
