"""The gateway's lives in a crash run: how each one ends is a matter of the seed.

Most end by SIGKILL at some moment, some of them while they are still starting; others by their own
hand in the middle of a step: a batch is about to be written, or it is written and nobody was told.
Some answers are lost in every life.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from popgate.testing.gateway import GatewayDidNotStart, GatewayProcess
from tests.crash.records import Life

_SETTINGS = (
    *("--set", "limits.min_invisible_s=1"),
    *("--set", "transactions.first_check_s=1"),
    *("--set", "transactions.check_interval_s=1"),
    *("--set", "transactions.max_checks=1000"),
)
_STEPS = (
    *("commit", "committed", "committed"),
    *("SendMessage", "AckMessage", "EndTransaction", "ChangeInvisibleDuration"),
)
_LOST = "drop=SendMessage:0.03;drop=AckMessage:0.03;drop=EndTransaction:0.05;drop=ReceiveMessage:0.02"
"""What is done in every life, and its answer lost: a kill alone seldom meets that moment."""
_LOST_FOR_SURE = "drop=SendMessage:after=10:times=1;drop=AckMessage:after=10:times=1"
"""And one of each for sure in every life that answers so many: on a slow machine chances are few."""
_STEP_WITHIN_S = 5.0
"""A life that did not come to its step by then is ended otherwise."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Lives:
    """A gateway that is killed and started again, always at the same address."""

    def __init__(self, data: Path, seed: int, *, options: tuple[str, ...] = ()) -> None:
        self.dice = random.Random(f"{seed}/lives")
        self._settings = (*_SETTINGS, *options)
        self._seed = seed
        self.ends: list[str] = []
        self.opening: list[float] = []
        """Seconds from the start of each process until it was ready."""
        self.lives: list[Life] = []
        """Those that came to be ready."""
        self.errors: list[str] = []
        self.gateway = GatewayProcess(data, options=self._options())

    async def begin(self) -> None:
        await asyncio.to_thread(self.gateway.start)
        self._ready()

    def _ready(self) -> None:
        self.lives.append(Life(_now_ms()))

    async def _kill(self) -> None:
        await asyncio.to_thread(self.gateway.kill)
        self.lives[-1].ended_ms = _now_ms()

    @property
    def endpoint(self) -> str:
        return self.gateway.endpoint

    async def end_one(self, longest: float) -> None:
        """Let the gateway live for a while, kill it, and start the next one.

        The sleeps here wait for nothing: the seed chooses by them at which moment a kill comes.
        """
        way = self.dice.choices(("killed", "by its own hand", "killed at its start"), (6, 3, 2))[0]
        if way == "by its own hand":
            await self._end_itself(longest)
        else:
            await asyncio.sleep(self.dice.uniform(0.05, longest))
            await self._kill()
            self.ends.append("killed")
            if way == "killed at its start":
                await self._kill_at_start()
        await self._start_next()

    def _options(self, kill: str = "") -> tuple[str, ...]:
        faults = f"faults=seed={self._seed + len(self.ends)};{_LOST};{_LOST_FOR_SURE}"
        return (*self._settings, "--set", f"{faults};kill={kill}" if kill else faults)

    async def _start_next(self, kill: str = "") -> None:
        self._keep_errors()
        self.gateway = self.gateway.successor(options=self._options(kill))
        begin = time.monotonic()
        await asyncio.to_thread(self.gateway.start)
        self.opening.append(time.monotonic() - begin)
        self._ready()

    async def _kill_at_start(self) -> None:
        self._keep_errors()
        self.gateway = self.gateway.successor(options=self._options())
        starting = asyncio.create_task(asyncio.to_thread(self.gateway.start))
        await asyncio.sleep(self.dice.uniform(0.2, 1.0))
        while not await asyncio.to_thread(self._killed) and not starting.done():
            await asyncio.sleep(0.005)  # on a busy machine there is no process yet
        with contextlib.suppress(GatewayDidNotStart):
            await starting
        self.ends.append("killed at its start")

    def _killed(self) -> bool:
        """Kill it; False: it was not started yet."""
        try:
            self.gateway.kill()
        except RuntimeError:
            return False
        return True

    async def _end_itself(self, longest: float) -> None:
        """The next life ends in the middle of a step, or by a kill if that step never comes."""
        await asyncio.sleep(self.dice.uniform(0.05, longest))
        await self._kill()
        self.ends.append("killed")
        step, after = self.dice.choice(_STEPS), self.dice.randrange(1, 60)
        if step.startswith("commit"):
            after *= 10  # every turn of its loop has one
        try:
            await self._start_next(f"{step}:after={after}")
            await asyncio.to_thread(self.gateway.wait, _STEP_WITHIN_S)
            self.lives[-1].ended_ms = _now_ms()
            self.ends.append(f"at {step}")
        except GatewayDidNotStart:
            if self.gateway.wait() != -signal.SIGKILL:
                raise
            self.ends.append(f"at {step}, at its start")
        except subprocess.TimeoutExpired:
            await self._kill()
            self.ends.append("killed")

    async def close(self) -> int:
        """Ask the last one to stop; its exit code."""
        code = await asyncio.to_thread(self.gateway.terminate)
        self._keep_errors()
        return code

    async def ask_admin(self, path: str, told: dict[str, Any] | None = None) -> Any:
        """An answer of the admin port; POST when something is told."""

        def ask() -> Any:
            data = None if told is None else json.dumps(told).encode()
            request = urllib.request.Request(
                f"{self.gateway.admin}{path}", data, {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=100) as answer:
                return json.loads(answer.read() or b"null")

        return await asyncio.to_thread(ask)

    def _keep_errors(self) -> None:
        log = self.gateway.log
        errors = [line for line in log.splitlines() if '"level": "error"' in line]
        self.errors += [line for line in errors if "FAULTS ARE ON" not in line]
        if "Traceback" in log:
            self.errors.append(log[log.index("Traceback") :][:2_000])
