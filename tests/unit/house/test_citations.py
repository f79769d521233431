"""Each section of the pages of facts that the code or a page cites exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOTS = ("popgate", "brokers", "processors", "protocols", "proxy", "tests", "benchmarks", "docs")
FACTS = "docs/protocol-facts.md"
REPLICA = "docs/any-replica.md"
_NUMBERS = r"((?:\d+(?:\.\d+)?(?:\s*\([^)]*\))?(?:,\s+|\s+and\s+|,\s+and\s+)?)+)"
_FACTS = re.compile(r"[Pp]rotocol facts,?\s+(?:sections?\s+)?" + _NUMBERS)
_REPLICA = re.compile(r"any-replica,?\s+sections?\s+" + _NUMBERS)


def files() -> list[Path]:
    """All that may cite, without the pages that are cited, and without what is generated from protobuf."""
    found = [
        path for root in ROOTS for path in (ROOT / root).rglob("*") if path.suffix in {".py", ".md", ".toml"}
    ]
    pages = {ROOT / FACTS, ROOT / REPLICA}
    return [*(ROOT.glob("*.md")), *(path for path in found if path not in pages and "pb" not in path.parts)]


def cited(pattern: re.Pattern[str]) -> dict[str, set[str]]:
    """By number, which files cite it. What stands in brackets names a code or a row, and is no section."""
    numbers: dict[str, set[str]] = {}
    for path in files():
        # A citation may go over the end of a line, in a comment too.
        text = re.sub(r"\n[ \t]*(?:# )?", " ", path.read_text())
        for match in pattern.finditer(text):
            for number in re.findall(r"\d+(?:\.\d+)?", re.sub(r"\([^)]*\)", "", match[1])):
                numbers.setdefault(number, set()).add(str(path.relative_to(ROOT)))
    return numbers


def sections(page: str) -> set[str]:
    return set(re.findall(r"(?m)^#{2,3} (\d+(?:\.\d+)?)", (ROOT / page).read_text()))


def rows_of_pitfalls() -> set[str]:
    text = (ROOT / FACTS).read_text()
    return set(re.findall(r"(?m)^\| (\d+) \|", text[text.index("\n## 9.") : text.index("\n## 10.")]))


@pytest.mark.parametrize(("page", "pattern", "least"), [(FACTS, _FACTS, 60), (REPLICA, _REPLICA, 4)])
def test_what_is_cited_is_there(page: str, pattern: re.Pattern[str], least: int) -> None:
    there = sections(page) | (rows_of_pitfalls() if page == FACTS else set())
    numbers = cited(pattern)
    assert len(numbers) >= least
    assert {number: sorted(by) for number, by in numbers.items() if number not in there} == {}
