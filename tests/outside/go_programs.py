"""Programs of Go, compiled once and kept in the cache of tests."""

from __future__ import annotations

import shutil
from pathlib import Path

from popgate.testing.made import FETCH_TRIES, digest, made_once, run_tool

HERE = Path(__file__).parent


def go_program(name: str, package: str, pinned: Path | None = None) -> Path:
    """A command of the modules that a folder pins, compiled once. Raises Missing.

    `pinned`: the folder; None: the one here that is called `name`.
    """
    pinned = HERE / name if pinned is None else pinned
    sources = sorted(path for path in pinned.iterdir() if path.suffix in (".go", ".mod", ".sum"))

    def compile_in(folder: Path) -> None:
        for source in sources:
            shutil.copy2(source, folder)
        run_tool(["go", "build", "-o", name, package], folder, tries=FETCH_TRIES)

    return made_once(name, digest(package, sources, pinned.parent), compile_in, making=("go",)) / name
