"""tests/contract/live.py: a test that could not do in time what it had to is played once more, slower."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

LIVE = Path(__file__).parents[2] / "contract" / "live.py"


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("side_by_side", LIVE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


async def played(live: Any, test: Callable[..., Any]) -> None:
    function: Any = SimpleNamespace(obj=test)
    await live._perform(function, {"site": lambda slowness: slowness}, asyncio.Semaphore(1))


async def test_what_was_too_late_is_played_with_longer_times_and_what_is_wrong_is_not(live: Any) -> None:
    seen: list[int] = []

    async def late_once(site: int) -> None:
        seen.append(site)
        if len(seen) == 1:
            raise live.StoodStill("after 5")

    async def wrong(site: int) -> None:
        seen.append(site)
        raise AssertionError("wrong")

    async def always_late(site: int) -> None:
        seen.append(site)
        raise live.StoodStill("after 5")

    await played(live, late_once)
    assert seen == [1, 3]
    seen.clear()
    with pytest.raises(AssertionError, match="wrong"):
        await played(live, wrong)
    assert seen == [1]
    seen.clear()
    with pytest.raises(live.StoodStill):
        await played(live, always_late)
    assert seen == list(live.SLOWNESS)
