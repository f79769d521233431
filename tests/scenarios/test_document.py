"""docs/scenarios.md cannot lie: it is written from the tests, and every promise has one or says when."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import tier_of

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def document() -> Any:
    spec = importlib.util.spec_from_file_location("scenarios_document", HERE / "document.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def proofs(document: Any) -> Any:
    return document.proofs()


def test_the_page_is_current() -> None:
    done = subprocess.run([sys.executable, str(HERE / "document.py"), "--check"])
    assert done.returncode == 0, "run: python tests/scenarios/document.py"


def test_there_are_forty_promises_and_every_test_is_of_one(document: Any, proofs: Any) -> None:
    rows = document.promises()
    assert list(rows) == list(range(1, document.ROWS + 1))
    assert proofs.keys() <= rows.keys()


def test_a_promise_without_a_test_says_what_it_comes_with(document: Any, proofs: Any) -> None:
    for row, about in document.promises().items():
        assert len(about["promise"]) > 20
        assert (row in proofs) != bool(about.get("later")), row


def test_the_first_nine_have_tests_of_their_own(proofs: Any) -> None:
    for row in range(1, 10):
        assert any(proof.path.startswith("tests/scenarios/") for proof in proofs[row]), row


@pytest.mark.parametrize("row", [*range(1, 7), 8, 11, 15, *range(24, 29)])
def test_what_a_cluster_must_keep_is_tested_before_a_real_one(proofs: Any, row: int) -> None:
    live = [proof.path for proof in proofs[row] if proof.live]
    assert [path for path in live if not path.startswith("tests/contract/")], f"{row}: only the contract"


def test_what_is_replaced_before_a_real_cluster_does_not_count_as_tested_there(
    document: Any, tmp_path: Path
) -> None:
    (tmp_path / "tests" / "contract").mkdir(parents=True)
    (tmp_path / "tests" / "contract" / "test_it.py").write_text(
        "def make(user):\n    user.differs('why', 'test_other')\ndef rooms(make): ...\n"
        "def test_scenario_01_asks_for_what_is_not_there(rooms): ...\n"
        "def test_scenario_01_differs(user):\n    user.differs('why', 'test_other')\n"
        "def test_scenario_01_cannot_wait(user):\n    user.moved_by_hand('test_other')\n"
        "def test_scenario_01_holds_everywhere(user): ...\n"
    )
    assert [proof.said for proof in document.proofs(tmp_path)[1] if proof.live] == ["holds everywhere"]


def test_what_the_live_tier_has_counts_as_live(proofs: Any) -> None:
    """The contract is in it by its parameter, and what is replaced before a cluster does not count."""
    paths = {proof.path for tests in proofs.values() for proof in tests if not proof.live}
    assert [path for path in paths if tier_of(path) == "live"] == []


def test_tests_are_found_wherever_they_are(document: Any, tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "far" / "away"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(
        "class TestIt:\n    async def test_scenario_07_in_a_class(self): ...\n"
        "def test_scenario_38_plain(): ...\ndef test_scenario_3_is_none(): ...\n"
        "# test_scenario_04_is_a_comment\n"
    )
    assert document.proofs(tmp_path) == {
        38: [("tests/far/away/test_it.py", "plain", False)],
        7: [("tests/far/away/test_it.py", "in a class", False)],
    }
