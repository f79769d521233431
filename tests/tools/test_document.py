"""The table that the tests play, and the page that is made of it."""

from __future__ import annotations

from tests.tools.document import COMMANDS, PAGE, rendered


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == rendered(), "run: python tests/tools/document.py"


def test_every_command_has_one_answer_and_a_step_that_shows_it() -> None:
    for name, row in COMMANDS.items():
        if name.startswith("@"):
            continue
        for answer, shows in ((row, "shows"), (row.get("cluster", row), "cluster")):
            assert len({"refused", "but", "untested"} & set(answer)) <= 1, name
            if "untested" not in answer and "refused" not in answer:
                assert row["steps"], name
                assert all(step.get(shows, step.get("shows")) for step in row["steps"]), name


def test_steps_have_an_order() -> None:
    places = [step["at"] for row in COMMANDS.values() for step in row.get("steps", ())]
    assert len(set(places)) == len(places)
