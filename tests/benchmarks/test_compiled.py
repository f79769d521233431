from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deploy.compile import INTERPRETED, ROOMS, ROOT, modules


def test_mypyc_takes_all_modules_on_the_way_of_a_message(measured: Callable[..., list[str]]) -> None:
    name, count = measured("compiled.py")[-1].split()
    assert name == "compiled.modules"
    assert int(count) == sum(map(len, modules().values())) > 200


def test_each_module_of_a_compiled_room_is_compiled_or_has_its_reason() -> None:
    compiled = {path for paths in modules().values() for path in paths}
    left = set(" ".join(INTERPRETED.values()).split())
    assert not compiled & left
    for package in " ".join(ROOMS.values()).split():
        files = [Path(ROOT, package)] if package.endswith(".py") else Path(ROOT, package).glob("[!_]*.py")
        names = {str(file.relative_to(ROOT)) for file in files}
        assert names
        assert names <= compiled | left
