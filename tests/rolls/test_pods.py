"""tests.rolls.pods: no process outlives its pod."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rolls.pods import Pod
from tests.support.waiting import PATIENCE_S, until

_PROBE = {"httpGet": {"port": "admin", "path": "/"}, "timeoutSeconds": 1, "periodSeconds": 3600}


class _LatePod(Pod):
    """Its process is there only when `let` is set, however early it is closed."""

    def __init__(self, folder: Path) -> None:
        container: Any = {"command": ["sleep", "300"], "volumeMounts": []}
        container |= {"readinessProbe": _PROBE, "livenessProbe": _PROBE}
        spec = {"volumes": [], "containers": [container], "terminationGracePeriodSeconds": 30}
        manifests: Any = SimpleNamespace(
            template={"spec": spec}, container=container, config_maps={}, secrets={}, port=lambda _: 1
        )
        super().__init__(manifests, "late", "127.0.0.1", folder, lambda: None)
        self.let, self.asked = asyncio.Event(), asyncio.Event()

    async def _run(self, command: list[str]) -> asyncio.subprocess.Process:
        self.asked.set()
        await self.let.wait()
        return await super()._run(command)


@pytest.fixture
async def pod(tmp_path: Path) -> _LatePod:
    """Its process is asked for, and not there yet."""
    pod = _LatePod(tmp_path / "pod")
    pod.start()
    await asyncio.wait_for(pod.asked.wait(), PATIENCE_S)
    return pod


async def test_a_process_that_comes_after_the_end_is_killed(pod: _LatePod) -> None:
    closing = asyncio.ensure_future(pod.close())
    await until(lambda: pod._closed)
    pod.let.set()
    try:
        await asyncio.wait_for(asyncio.shield(closing), PATIENCE_S)
    finally:
        if not closing.done():
            pod.kill()
            await closing
    assert pod.ends == [-9]


async def test_a_process_that_comes_after_its_sigterm_gets_it_then(pod: _LatePod) -> None:
    """A pod that is to go while its container starts needs no more than its grace for that."""
    going = asyncio.ensure_future(pod.terminate())
    await until(lambda: pod._signalled)
    pod.let.set()
    await asyncio.wait_for(going, PATIENCE_S)
    assert (pod.ends, pod.out_of_grace) == ([-15], False)
