"""Fault injection, for tests only: the faults are a pure function of a seed and of the calls.

    seed=7;drop=AckMessage:0.1;delay=SendMessage:50ms:0.2;kill=commit:after=37

The seed comes first, then rules of the form `verb=step`, with arguments after colons: a probability (`0.1`;
1 by default), a duration (`50ms`, for `delay`), `after=N` (spares the first N calls of the step), `times=N`
(strikes at most N times), and further arguments of the verb (`for=2s`, `messages=3`). Every step counts its
own calls, and each (seed, rule, call) is decided independently, so that a run with the same calls meets the
same faults. Faults that happened are numbered and recorded.

This module holds the plan. Parts that inject faults declare with `claim` which verbs and steps they support:
`brokers/embedded/storage/faults.py` those of the store, `protocols/grpc/rpcs/faults.py` those of the RPCs.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

_log = logging.getLogger(__name__)
_MOST_RULES = 64
_MOST_KEPT = 10_000
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)\Z", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_CHANCE = re.compile(r"(?:0(?:\.\d+)?|1(?:\.0+)?)\Z", re.ASCII)
_COUNT = re.compile(r"\d{1,12}\Z", re.ASCII)
_WORD = re.compile(r"[A-Za-z]\w*\Z", re.ASCII)


@dataclass(slots=True)
class Rule:
    """One `verb=step` with its arguments; `struck` counts how often it happened."""

    text: str
    verb: str
    step: str
    chance: float = 1.0
    seconds: float | None = None
    after: int = 0
    times: int | None = None
    options: dict[str, int | float] = field(default_factory=dict)
    struck: int = 0


@dataclass(slots=True, frozen=True)
class Happened:
    """A fault: its number in this process, the rule's text, and which call of the step it hit (from 1)."""

    number: int
    rule: str
    step: str
    call: int


class Faults:
    """The plan, and the record of injected faults. `kill` ends the process; tests may replace it."""

    def __init__(self, seed: int, rules: Iterable[Rule], *, kill: Callable[[], None] | None = None) -> None:
        self.seed = seed
        self.rules = tuple(rules)
        self.happened: deque[Happened] = deque(maxlen=_MOST_KEPT)
        self.calls: dict[str, int] = {}
        self.count = 0
        self._kill = kill if kill is not None else _kill_process
        self._claimed: set[int] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Faults seed {self.seed} rules {len(self.rules)} happened {self.count}>"

    @property
    def text(self) -> str:
        return ";".join([f"seed={self.seed}", *(rule.text for rule in self.rules)])

    @classmethod
    def parse(cls, text: str, *, kill: Callable[[], None] | None = None) -> Faults:
        """Parse a plan. Raises ValueError with a sentence: nothing is guessed or ignored."""
        parts = text.split(";")
        name, _, seed = parts[0].partition("=")
        if name != "seed" or not _COUNT.match(seed):
            raise ValueError(f"{parts[0]!r} is no seed: faults begin like seed=7")
        if not 1 < len(parts) <= _MOST_RULES:
            raise ValueError(
                f"faults are a seed and 1 to {_MOST_RULES - 1} rules, like seed=7;drop=AckMessage"
            )
        return cls(int(seed), [_parse_rule(part) for part in parts[1:]], kill=kill)

    # -- who makes them happen -------------------------------------------------------------------

    def claim(self, steps: Mapping[str, Iterable[str]], options: Mapping[str, Iterable[str]]) -> None:
        """Take the rules of these verbs and steps; `options` are the further arguments each verb takes.

        Raises ValueError for an argument that the verb does not take, or one it needs.
        """
        for index, rule in enumerate(self.rules):
            if rule.step not in steps.get(rule.verb, ()):
                continue
            taken = set(options.get(rule.verb, ()))
            unknown = rule.options.keys() - taken
            if unknown:
                raise ValueError(f"{rule.text!r}: {rule.verb} takes no {sorted(unknown)[0]}=")
            if (rule.seconds is not None) != ("duration" in taken):
                need = "needs a duration, like 50ms" if "duration" in taken else "takes no duration"
                raise ValueError(f"{rule.text!r}: {rule.verb} {need}")
            self._claimed.add(index)

    def refuse_unclaimed(self) -> None:
        """Raises ValueError for a rule whose verb or step is not claimed by any part."""
        for index, rule in enumerate(self.rules):
            if index not in self._claimed:
                raise ValueError(f"{rule.text!r} is no fault: nothing here can {rule.verb} at {rule.step}")

    # -- when they happen ------------------------------------------------------------------------

    def strike(self, step: str) -> Rule | None:
        """Count a call of a step; the first rule that strikes it, if any. It is recorded and logged."""
        with self._lock:
            call = self.calls[step] = self.calls.get(step, 0) + 1
            for index, rule in enumerate(self.rules):
                if rule.step == step and self._strikes(index, rule, call):
                    rule.struck += 1
                    self.count += 1
                    happened = Happened(self.count, rule.text, step, call)
                    self.happened.append(happened)
                    break
            else:
                return None
        _log.warning("fault %d: %s at call %d of %s", happened.number, rule.text, call, step)
        return rule

    def kill(self) -> None:
        """Terminate the process as a crash does: nothing is flushed or closed."""
        self._kill()

    def _strikes(self, index: int, rule: Rule, call: int) -> bool:
        if call <= rule.after or (rule.times is not None and rule.struck >= rule.times):
            return False
        if rule.chance >= 1.0:
            return True
        # A generator of its own for each call: no other call has a say in it.
        return random.Random(f"{self.seed}/{index}/{call}").random() < rule.chance  # noqa: S311


def _parse_rule(text: str) -> Rule:
    head, *arguments = text.split(":")
    verb, equals, step = head.partition("=")
    if not equals or not _WORD.match(verb) or not _WORD.match(step):
        raise ValueError(f"{text!r} is no fault: write it like drop=AckMessage:0.1")
    rule = Rule(text, verb, step)
    given: set[str] = set()
    for argument in arguments:
        name, equals, value = argument.partition("=")
        timed = _DURATION.match(value if equals else argument)
        if not equals:
            name = "a duration" if timed else "a chance"
            if timed:
                rule.seconds = float(timed[1]) * _SECONDS[timed[2]]
            elif _CHANCE.match(argument):
                rule.chance = float(argument)
            else:
                raise ValueError(
                    f"{text!r}: {argument!r} is no chance (0 to 1), no duration and no name=value"
                )
        elif name in ("after", "times") and _COUNT.match(value):
            setattr(rule, name, int(value))
        elif _WORD.match(name) and name not in ("after", "times") and (timed or _COUNT.match(value)):
            rule.options[name] = float(timed[1]) * _SECONDS[timed[2]] if timed else int(value)
        else:
            raise ValueError(f"{text!r}: {argument!r} is nothing that can be said of a fault")
        if name in given:
            raise ValueError(f"{text!r}: {name} is given twice")
        given.add(name)
    return rule


def _kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
