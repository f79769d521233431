from __future__ import annotations

from collections.abc import Callable

from deploy.compile import modules


def test_mypyc_takes_all_modules_on_the_way_of_a_message(measured: Callable[..., list[str]]) -> None:
    name, count = measured("compiled.py")[-1].split()
    assert name == "compiled.modules"
    assert int(count) == sum(map(len, modules().values())) > 200
