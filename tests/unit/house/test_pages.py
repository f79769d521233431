"""What the pages say of the code is true: the paths and names they mention exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    "ARCHITECTURE.md",
    "README.md",
    "CONTRIBUTING.md",
    "docs/internals.md",
    *(f"docs/adr/{p.name}" for p in (ROOT / "docs/adr").glob("*.md")),
]
PLACE = re.compile(
    r"`((?:popgate|brokers|processors|protocols|proxy|tests|docs|deploy|benchmarks)/[\w./-]*?)(?::(\w+))?`"
)
LINK = re.compile(r"\]\(((?!https?:|#)[^)]+)\)")


def places(page: str) -> set[tuple[str, str]]:
    return {(path, name) for path, name in PLACE.findall((ROOT / page).read_text())}


@pytest.mark.parametrize("page", PAGES)
def test_the_places_a_page_names_exist(page: str) -> None:
    for path, name in places(page):
        if path.startswith("popgate/_app"):
            continue
        assert (ROOT / path).exists(), f"{page} names {path}"
        if name:
            tree = ast.parse((ROOT / path).read_text())
            defined = {
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert name in defined, f"{page} names {name} in {path}"


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for target in LINK.findall((ROOT / page).read_text()):
        assert (folder / target.partition("#")[0]).exists(), f"{page} links to {target}"


def test_the_architecture_names_enough_to_be_checked() -> None:
    assert len(places("ARCHITECTURE.md")) > 40
