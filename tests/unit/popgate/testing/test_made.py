"""What tests fetch and build: once, also when several want it, and anew after an interruption."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from popgate.testing import made
from popgate.testing.made import Missing, ToolFailed, cache_folder, digest, made_once, run_tool


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_CACHE", str(tmp_path / "cache"))


def test_it_is_made_once_for_a_key_and_anew_for_another():
    def make(folder):
        (folder / "thing").write_text("made")
        made.append(folder)

    made = []
    first = made_once("thing", "1", make)
    assert made_once("thing", "1", make) == first
    assert (first / "thing").read_text() == "made"
    assert made_once("thing", "2", make) != first
    assert len(made) == 2


def test_what_an_interruption_left_is_made_anew():
    def interrupted(folder):
        (folder / "half").write_text("a half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once("thing", "1", interrupted)
    made = made_once("thing", "1", lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir() if path.name != ".made"] == ["whole"]


def test_two_that_want_it_at_once_get_the_same_made_once():
    making, go_on = threading.Event(), threading.Event()
    made = []

    def make(folder):
        made.append(folder)
        making.set()
        assert go_on.wait(60)

    got = []
    threads = [threading.Thread(target=lambda: got.append(made_once("thing", "1", make))) for _ in range(2)]
    threads[0].start()
    assert making.wait(60)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert got[0] == got[1]


def test_another_process_waits_for_the_one_that_makes_it():
    words = (
        "from popgate.testing.made import made_once\n"
        "print(made_once('thing', '1', lambda folder: print('made it myself')))"
    )
    started = []

    def make(folder):
        started.append(subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True))

    made = made_once("thing", "1", make)
    out, _ = started[0].communicate(timeout=240)
    assert out == f"{made}\n"


def test_a_tool_that_is_not_there_is_named():
    with pytest.raises(Missing, match="no-such-tool"):
        made_once("thing", "1", lambda folder: None, making=("no-such-tool",))
    made_once("thing", "1", lambda folder: None)
    made_once("thing", "1", lambda folder: None, making=("no-such-tool",))  # it is made
    with pytest.raises(Missing, match="no-such-tool"):
        made_once("thing", "1", lambda folder: None, using=("no-such-tool",))


def test_a_tool_that_fails_tells_what_it_said(tmp_path):
    with pytest.raises(ToolFailed, match="out of reach"):
        run_tool([sys.executable, "-c", "raise SystemExit('the registry is out of reach')"], tmp_path)
    run_tool([sys.executable, "-c", "import os; assert os.environ['WORD'] == 'x'"], tmp_path, {"WORD": "x"})


def test_a_tool_is_asked_again_until_it_ends_well_or_says_what_nothing_mends(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "_REST_S", 0.0)
    counts = "with open('tried', 'a') as tried: print(file=tried)\n"
    third = counts + "raise SystemExit('out of reach' if len(open('tried').readlines()) < 3 else 0)"
    with pytest.raises(ToolFailed, match="out of reach"):
        run_tool([sys.executable, "-c", third], tmp_path, tries=2)
    run_tool([sys.executable, "-c", third], tmp_path, tries=2)
    assert len((tmp_path / "tried").read_text()) == 3
    wrong = counts + "raise SystemExit('it does not compile')"
    with pytest.raises(ToolFailed, match="does not compile"):
        run_tool([sys.executable, "-c", wrong], tmp_path, tries=4, unless=["not compile"])
    assert len((tmp_path / "tried").read_text()) == 4


def test_all_tries_together_have_the_time_of_one_build(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "LONGEST_BUILD_S", 1.0)
    counts = "import time\nwith open('tried', 'a') as tried: print(file=tried)\ntime.sleep(1_000)"
    with pytest.raises(ToolFailed, match="did not end within"):
        run_tool([sys.executable, "-S", "-c", counts], tmp_path, tries=4)
    tried = tmp_path / "tried"
    assert not tried.exists() or len(tried.read_text()) == 1  # or the interpreter took longer to start


def test_the_name_follows_the_contents(tmp_path):
    source = tmp_path / "source"
    source.write_text("a")
    first = digest("seed", [source], tmp_path)
    assert digest("seed", [source], tmp_path) == first
    assert digest("other", [source], tmp_path) != first
    source.write_text("b")
    assert digest("seed", [source], tmp_path) != first


def test_the_cache_is_where_it_was_told_to_be(tmp_path):
    assert cache_folder() == tmp_path / "cache"
    assert cache_folder().is_dir()
