"""proxy.metrics.labels: a bounded number of label values, and that idle ones make room."""

from __future__ import annotations

from proxy.metrics.labels import Capped


class Count:
    def __init__(self) -> None:
        self.value = 0

    def activity(self) -> float:
        return self.value


class Table:
    """A `Capped` of two values on a clock that a test sets."""

    def __init__(self, *, added: bool = False) -> None:
        self.now = 0.0
        self.capped: Capped[str, Count] = Capped(
            Count, "_other", most=2, forget_s=100.0, now=lambda: self.now, added=added
        )

    def count(self, key: str) -> None:
        self.capped[key].value += 1

    def values(self) -> dict[str, int]:
        return {key: one.value for key, one in self.capped.items()}


def test_later_values_are_counted_together() -> None:
    table = Table()
    for key in ("a", "b", "c", "d", "a"):
        table.count(key)
    assert table.values() == {"a": 2, "b": 1, "_other": 2}


def test_scenario_24_idle_label_values_are_forgotten_and_make_room() -> None:
    table = Table()
    table.count("a")
    table.count("b")
    for now in (30.0, 60.0, 90.0, 120.0, 150.0):
        table.now = now
        table.count("b")
        table.capped.forget_idle()
    assert table.values() == {"b": 6}
    table.count("c")
    assert table.values() == {"b": 6, "c": 1}


def test_names_that_come_and_go_do_not_use_up_the_bound_for_ever_also_when_nobody_scrapes() -> None:
    table = Table()
    for number in range(50):
        table.now += 60.0
        table.count(f"topic-{number}")
    named = [key for key in table.values() if key != "_other"]
    assert len(named) <= 2
    assert int(named[-1].removeprefix("topic-")) > 40


def test_one_that_is_used_is_not_forgotten_and_the_others_together_never() -> None:
    table = Table()
    for key in ("a", "b", "c"):
        table.count(key)
    for _ in range(20):
        table.now += 26.0
        table.count("a")
        table.count("b")
        table.capped.forget_idle()
    assert table.values() == {"a": 21, "b": 21, "_other": 1}


def test_one_that_comes_back_begins_at_nothing() -> None:
    table = Table()
    table.count("a")
    for _ in range(10):
        table.now += 26.0
        table.capped.forget_idle()
    assert len(table.capped) == 0
    table.count("a")
    assert table.values() == {"a": 1}


def test_who_is_only_looked_up_is_not_added() -> None:
    table = Table()
    table.capped.known("a").value += 1
    assert table.values() == {"_other": 1}


def test_idle_ones_of_several_processes_go_when_their_place_is_needed() -> None:
    """Without them the sum over all processes would fall, which Prometheus takes for a new beginning."""
    table = Table(added=True)
    table.count("a")
    table.count("b")
    for _ in range(10):
        table.now += 30.0
        table.count("b")
        table.capped.forget_idle()
    assert table.values() == {"a": 1, "b": 11}
    table.count("c")
    assert table.values() == {"b": 11, "c": 1}
    # Looks of scrapes are no reason to put it off.
    for _ in range(5):
        table.now += 30.0
        table.count("b")
        table.capped.forget_idle()
    table.count("d")
    assert table.values() == {"b": 16, "d": 1}
