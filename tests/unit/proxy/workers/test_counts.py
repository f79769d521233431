"""proxy.workers.counts: a sum over processes does not fall when one of them ends, whenever that is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.workers.counts import add_to_past, added, keep
from tests.support.waiting import PATIENCE_S

NAME = "popgate_messages_sent_total"


def text(value: float) -> str:
    return f"# TYPE {NAME} counter\n{NAME} {value}\n"


def value(told: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in told.splitlines() if not line.startswith("#"))


def test_the_living_are_added_to_those_that_were(tmp_path: Path) -> None:
    keep(tmp_path, 1, text(10))
    keep(tmp_path, 2, text(20))
    assert value(added(tmp_path, {1: text(11), 2: text(22)})) == 33
    add_to_past(tmp_path, 1)
    assert value(added(tmp_path, {2: text(22)})) == 32
    assert not (tmp_path / "counts-1").exists()
    add_to_past(tmp_path, 2)
    add_to_past(tmp_path, 3)  # it was never asked
    assert value(added(tmp_path, {})) == 30


def test_two_scrapes_of_a_process_are_kept_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By two threads: what is read must be whole."""
    both, replace = threading.Barrier(2), Path.replace

    def meet(path: Path, target: Path) -> Path:
        both.wait(PATIENCE_S)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", meet)
    with ThreadPoolExecutor(2) as threads:
        for kept in [threads.submit(keep, tmp_path, 1, text(10)) for _ in range(2)]:
            kept.result()
    assert [path.name for path in tmp_path.iterdir()] == ["counts-1"]


def test_one_that_does_not_answer_is_told_as_it_was(tmp_path: Path) -> None:
    keep(tmp_path, 1, text(10))
    assert value(added(tmp_path, {2: text(5)}, ["popgate_other 1\n"])) == 16


def test_one_that_ended_after_it_answered_counts_once(tmp_path: Path) -> None:
    keep(tmp_path, 1, text(10))
    asked = {1: text(10), 2: text(1)}
    add_to_past(tmp_path, 1)
    assert value(added(tmp_path, asked)) == 11


@given(
    events=st.lists(st.tuples(st.sampled_from(["count", "die", "scrape"]), st.integers(0, 3)), max_size=40)
)
def test_a_sum_never_falls(tmp_path_factory, events: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("counts")
    living = dict.fromkeys(range(4), 0)
    following, last = 4, 0.0
    for event, which in events:
        number = sorted(living)[which]
        if event == "count":
            living[number] += 1
        elif event == "die":
            del living[number]
            add_to_past(folder, number)
            living[following] = 0
            following += 1
        else:
            for one, count in living.items():
                keep(folder, one, text(count))
            told = value(added(folder, {one: text(count) for one, count in living.items()}))
            assert told >= last
            last = told
