"""Client programs that play scenarios in a process of their own, and report events, one JSON line each.

A driver is started with the address to connect to; it reads lines of `run ID SCENARIO key=value …` and
`go ID`. Each line that it prints names its run and its kind: {"run": "normal", "fact": "sent", …}. A run
ends with the fact `end` or `crash`; `finished` says that only closing the clients remains.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from popgate.testing.variables import variables

LONGEST_RUN_S = 900.0
"""Some play more than a thousand messages one after the other, beside many others, on two cores."""


class Facts(list[dict[str, Any]]):
    """The events that a driver reported about one run, in order."""

    def of(self, fact: str, **fields: Any) -> list[dict[str, Any]]:
        """The facts of one kind with these values."""
        return [
            event
            for event in self
            if event["fact"] == fact and all(event.get(name) == value for name, value in fields.items())
        ]

    def received(self, by: str | None = None) -> list[dict[str, Any]]:
        return self.of("received") if by is None else self.of("received", by=by)

    def bodies(self, by: str | None = None) -> list[str]:
        return [event["body"] for event in self.received(by)]

    def step(self, step: str) -> dict[str, Any]:
        """How a step ended: its `done` or `refused`."""
        [step_event] = [event for event in self if event.get("step") == step]
        return step_event

    @property
    def ended_well(self) -> bool:
        """Whether the run came to its end."""
        return any(event["fact"] == "end" for event in reversed(self))

    def refusal(self, step: str) -> str:
        """The name of the code a step was refused with; `client` when the client refused by itself."""
        step_event = self.step(step)
        if step_event["fact"] != "refused":
            raise AssertionError(f"{step} was not refused")
        return step_event["error"]["code"] or "client"


class Driver:
    """A driver process; several runs may go on in it."""

    def __init__(
        self,
        command: Sequence[str],
        endpoint: str,
        folder: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`environment`: variables of the process that it does not have from this one."""
        folder.mkdir(parents=True, exist_ok=True)
        home = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(  # noqa: S603 - a program that the caller names, without a shell
            [*command, endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**variables(), **home, **environment},
            cwd=folder,
        )
        # Not a file: the Rust client can write gigabytes.
        self._words: deque[bytes] = deque(maxlen=30)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._kept = folder / "facts.jsonl"
        self._news = threading.Condition()
        self._facts: dict[str, Facts] = {}
        self._ended: set[str] = set()
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in _given(self._process.stdout):
            if line.startswith(b"{") and line.endswith(b"\n"):  # not the half of one that a kill leaves
                with self._kept.open("ab") as kept:  # for who looks into a failure
                    kept.write(line)
                fact = json.loads(line)
                with self._news:
                    self._facts.setdefault(fact["run"], Facts()).append(fact)
                    if fact["fact"] in ("end", "crash"):  # what still runs may tell more
                        self._ended.add(fact["run"])
                    self._news.notify_all()
        self._process.wait()
        with self._news:
            self._over = True
            self._news.notify_all()

    def _listen(self) -> None:
        self._words.extend(_given(self._process.stderr))

    def _tell(self, line: str) -> None:
        pipe = _given(self._process.stdin)
        with contextlib.suppress(OSError):  # it died: the reader tells
            pipe.write(line.encode() + b"\n")
            pipe.flush()

    def run(self, run: str, scenario: str, params: Mapping[str, str]) -> None:
        pairs = " ".join(f"{name}={value}" for name, value in params.items())
        self._tell(f"run {run} {scenario} {pairs}")

    def go(self, run: str) -> None:
        self._tell(f"go {run}")

    def wait(self, run: str, arrived: Callable[[Facts], bool], seconds: float = LONGEST_RUN_S) -> Facts:
        """The facts of a run, once enough `arrived`, the run is over, or the process or the time ended."""
        with self._news:
            self._news.wait_for(
                lambda: self._over or self.ended(run) or arrived(self._facts.get(run, Facts())), seconds
            )
            return Facts(self._facts.get(run, ()))

    def ended(self, run: str) -> bool:
        return run in self._ended

    @property
    def dead(self) -> bool:
        return self._over

    def last_words(self) -> str:
        return b"".join(self._words.copy())[-3000:].decode(errors="replace")

    def close(self) -> None:
        """End the process: at once, whatever goes on."""
        self._process.kill()
        self._reader.join()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                _given(pipe).close()


def _given(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("the process was started with pipes")
    return pipe
