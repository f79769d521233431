"""What was seen around a failed test of clients, as a section of its report.

What a client told, what the gateway counts about the test's topics and groups, and what the RocketMQ behind
it complained about: all of it is gone when the run has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.gateway import GatewayProcess
from popgate.testing.rocketmq import SharedRocketMQ, shared_rocketmq
from tests.support.waiting import NotInTimeError, wait_until

_MOST_LINES = 40
_LONGEST_LINE = 240
_FIGURES = re.compile(
    r"(lost|dropped|late|back|returned|failed|failures|refused|errors)[a-z_]*(\{.*\})? (?!0(\.0)?$)"
)
"""Samples that say that something went wrong, where they are not 0."""
_TOLD = ("fact", "by", "label", "step", "body", "attempt", "queue", "offset", "count")
_COMPLAINTS = re.compile(r" (WARN|ERROR) ")
_CLOSED = re.compile("expired channel|IDLE exception")
"""Why a broker closed a connection, with all requests on it."""
_BROKER_LOGS = ("pop", "broker", "store", "storeerror", "remoting")
_END_OF_THREADS = "JNI global refs"
_AT_WORK = re.compile(r"BLOCKED|AdminBrokerProcessor|registerBroker|\.persist\(")
_DEEPEST = 14
_DUMPED_WITHIN_S = 10.0


def failed_on_facts(item: pytest.Item, report: pytest.TestReport) -> Mapping[str, Any] | None:
    """What a test was given that failed on the facts of a stage; None: it is no such test."""
    given: Mapping[str, Any] = getattr(item, "funcargs", {})
    failed = report.when == "call" and report.failed
    return given if failed and {"facts", "stages"} <= given.keys() else None


def add_evidence(
    report: pytest.TestReport,
    facts: Iterable[Mapping[str, Any]],
    gateway: GatewayProcess | None,
    names: str,
    *,
    before_cluster: bool,
    logs: Sequence[Path] = (),
) -> None:
    """Add a section to the report of a failed test. `names`: what its topics and groups begin with.

    `logs`: those of its client. What cannot be told is left out.
    """
    lines = timeline(facts)
    if gateway is not None:
        with contextlib.suppress(OSError):
            lines += _short(figures(_metrics(gateway), names))
    for log in logs:
        lines += _short(complaints(log, names))
    if before_cluster:
        with shared_rocketmq() as there:
            for log in sorted(Path(there.folder).glob("broker-*/home/logs/rocketmqlogs/*.log")):
                if log.stem in _BROKER_LOGS:
                    lines += _short(complaints(log, names))
    report.sections.append((f"evidence about {names}", "\n".join(lines)))


def timeline(facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """What a client told, a line each, in ms since the first; the latest if there are too many."""
    told = [one for one in facts if "at" in one]
    began = told[0]["at"] if told else 0
    return _short(f"{one['at'] - began:>7} {_words(one)}" for one in told)


def _words(fact: Mapping[str, Any]) -> str:
    return " ".join(str(fact[word]) for word in _TOLD if fact.get(word) not in (None, ""))


def figures(metrics: str, names: str) -> list[str]:
    """Samples about the names, and those that say that something went wrong."""
    samples = (line for line in metrics.splitlines() if not line.startswith("#") and "_bucket{" not in line)
    return [line for line in samples if names in line or _FIGURES.search(line)]


def complaints(log: Path, names: str) -> list[str]:
    """Lines of a log of RocketMQ's, or of its client's, that complain about names, messages, connections."""
    if not log.exists():
        return []
    lines = (line for line in log.read_text(errors="replace").splitlines() if _COMPLAINTS.search(line))
    general = log.stem in ("pop", "storeerror")
    return [f"{log.name}: {line}" for line in lines if general or names in line or _CLOSED.search(line)]


def threads_at_work(cluster: SharedRocketMQ) -> list[str]:
    """What a broker does that does not answer: its threads that wait for a lock, write, or register."""
    output = next(Path(cluster.folder).glob("broker-*/output.log"))

    def written() -> str:
        return output.read_text(errors="replace")

    before = written().count(_END_OF_THREADS)
    os.kill(cluster.broker_pid, signal.SIGQUIT)
    try:
        wait_until(lambda: written().count(_END_OF_THREADS) > before, _DUMPED_WITHIN_S)
    except NotInTimeError:
        return [f"the broker wrote no threads within {_DUMPED_WITHIN_S:g} s: it does not run, or is not let"]
    return stacks(written())


def stacks(output: str) -> list[str]:
    """The tops of stacks that matter in the last dump of threads that a virtual machine wrote."""
    dump = output[output.rindex("Full thread dump") :]
    found = [block.splitlines()[:_DEEPEST] for block in dump.split("\n\n") if _AT_WORK.search(block)]
    return _short(line for block in found for line in block)


def _metrics(gateway: GatewayProcess) -> str:
    with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def _short(lines: Iterable[str]) -> list[str]:
    return [line[:_LONGEST_LINE] for line in lines][-_MOST_LINES:]
