"""RocketMQ's own mqadmin, several commands in one process, at the remoting door of a gateway.

What is run, in which order, and what it must print is in `commands.toml`, which docs/tools.md is made of.
Before a real RocketMQ the clients that the tools look at are connected to another gateway than the one that
is asked. That RocketMQ is the one that other tests use, too; where TEST_CLUSTER is `true` it is one of its
own, and what looks at all topics and groups is run as well.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import re
import subprocess
import threading
import time
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from popgate.ids.message_id import decode_offset_message_id
from popgate.testing.gateway import CREATE_ON_USE, GatewayProcess
from popgate.testing.made import FETCH_TRIES, Missing, ToolFailed, digest, locked, made_once, run_tool
from popgate.testing.rocketmq import PATIENT, RocketMQ, shared_rocketmq
from popgate.testing.rocketmq.requests import ask
from popgate.wire.frames.codes import RequestCode
from tests.support.needed import missing
from tests.support.versions import described
from tests.support.waiting import PATIENCE_S

HERE = Path(__file__).parent
COMMANDS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "commands.toml").read_text())
DASHBOARD: dict[str, dict[str, Any]] = tomllib.loads((HERE / "dashboard.toml").read_text())
START_S = 240.0
SHOWN_S = 2 * PATIENCE_S
"""Of what a command shows some comes with the next heartbeat of a broker, every 30 s, or the next but one."""
GAVE_UP = ("RemotingTimeoutException", "RemotingConnectException")
"""What a command prints that gave up before it could be told to wait longer than 3 to 5 s, as shipped."""
ANSWER_S = 160.0
"""The driver gives a command up after 100 s."""
ALL = os.environ.get("TEST_CLUSTER", os.environ.get("CI")) == "true"
EMBEDDED, CLUSTER = "embedded", "cluster"
OWN_NAMES = re.compile(r"\b(orders|others|readers|late|copy|producers|listed-[12])\b")
"""Topics and groups that the table makes."""
FILES = {
    "topics.json": [
        {"topicName": "listed-1", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6},
        {"topicName": "listed-2", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6},
    ],
    "groups.json": [{"groupName": "listed-1"}, {"groupName": "listed-2", "retryMaxTimes": 3}],
}
"""What commands read, by the names that the table has for them."""


def jars() -> Path:
    """The folder with the tools and all that they need. Raises Missing."""
    pom = HERE / "java" / "pom.xml"

    def fetch(made: Path) -> None:
        (made / "pom.xml").write_bytes(pom.read_bytes())
        with locked("maven"):  # processes that fill Maven's own cache at once spoil it
            run_tool(["mvn", "-q", "-B", "-U", "dependency:copy-dependencies"], made, tries=FETCH_TRIES)

    key = digest("tools", [pom], HERE)
    return made_once("mqadmin", key, fetch, using=("java",), making=("mvn",)) / "target" / "dependency"


def classes() -> Path:
    """The folder with the compiled driver. Raises Missing."""
    sources = sorted((HERE / "java").rglob("*.java"))
    needed = jars()

    def compile_it(made: Path) -> None:
        options = ["--release", "17", "-Xlint:all", "-Werror", "-d", str(made), "-cp", f"{needed}/*"]
        try:
            run_tool(["javac", *options, *map(str, sources)], made)
        except ToolFailed as failed:
            raise AssertionError(f"the driver does not compile: {failed}") from None

    key = digest("tools", [*sources, HERE / "java" / "pom.xml"], HERE)
    return made_once("mqadmin-driver", key, compile_it, making=("javac",))


@dataclass(slots=True)
class Printed:
    """What a step printed; `expected` are the texts of the table, with what they stand for."""

    step: Mapping[str, Any]
    text: str
    ended: bool
    shows: list[str]
    never: list[str]


class Tools:
    """The process. One command at a time."""

    def __init__(self, door: str, folder: Path) -> None:
        options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        homes = ("-Duser.home=.", "-Djava.io.tmpdir=.")
        path = os.pathsep.join([str(classes()), str(jars() / "*")])
        self._door = door
        self._process = subprocess.Popen(
            ["java", *options, *homes, "-cp", path, "popgate.tools.Tools", door],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._line() == "ready"

    def run(self, words: Sequence[str]) -> tuple[str, bool]:
        """What a command printed, and whether it came to its end."""
        assert self._process.stdin is not None
        coded = " ".join(base64.b64encode(word.encode()).decode() for word in words)
        self._process.stdin.write(coded + "\n")
        self._process.stdin.flush()
        how, _milliseconds, told = self._line().split(" ")
        return base64.b64decode(told).decode(errors="replace"), how == "ended"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")

    def _line(self) -> str:
        line = self._lines.get(timeout=ANSWER_S)
        assert line, "the process of the tools ended"
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass(slots=True)
class Asked:
    """The answer to a request: its code and all that it says, and what they should be."""

    code: int
    text: str
    expected: int
    shows: list[str]


@dataclass(slots=True)
class Played:
    """The table, played from its first step to the last; `names` are all commands that mqadmin has."""

    names: set[str]
    asked: str = ""
    used: str = ""
    """The doors of the gateway that the tools ask, and of the one that clients are connected to."""
    known: dict[str, str] = field(default_factory=dict)
    """What the steps kept, by its names."""
    log: str = ""
    dashboard: dict[str, Asked] = field(default_factory=dict)
    """By request, what the dashboard asks."""
    printed: dict[str, list[Printed]] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Place:
    """Where the table is played: by which door, before which broker, and what is put behind `OWN_NAMES`.

    `version`: of RocketMQ, as its brokers tell it, or as which the embedded broker tells itself.
    """

    kind: str
    door: str
    broker: str
    version: str
    behind: str = ""

    def named(self, text: str) -> str:
        return OWN_NAMES.sub(lambda found: found[0] + self.behind, text)

    def shows(self, row: Mapping[str, Any], step: Mapping[str, Any]) -> Sequence[str]:
        """The texts that a step prints here; of a command that is refused, if nothing else, the reason."""
        if self.kind == CLUSTER and "cluster" in step:
            return list(step["cluster"])
        if "shows" in step:
            return list(step["shows"])
        refused = answer_of(row, self.kind).get("refused")
        return [refused] if refused is not None else []


def plays(kind: str, row: Mapping[str, Any], step: Mapping[str, Any]) -> bool:
    """Whether a step is run in front of this kind of broker."""
    if kind == EMBEDDED:
        return True
    return "untested" not in row.get("cluster", {}) and (ALL or not step.get("wide"))


def answer_of(row: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """What has `refused`, `but` or `untested` of a command in front of this kind of broker."""
    return row["cluster"] if kind == CLUSTER and "cluster" in row else row


def play(tools: Tools, place: Place, folder: Path) -> Played:
    played = Played(set(tools.run(["@names"])[0].split()))
    known = played.known = {
        "door": place.door,
        "folder": str(folder),
        "name": place.broker,
        "version": place.version,
    }
    steps = [
        (step, name, row)
        for name, row in COMMANDS.items()
        for step in row.get("steps", ())
        if plays(place.kind, row, step)
    ]
    for step, name, row in sorted(steps, key=lambda one: one[0]["at"]):
        words = [_filled(place.named(word), known) for word in step["run"].split()]
        if not name.startswith("@"):
            words += ["-n", place.door]
        expected = [spaced(_filled(place.named(one), known)) for one in place.shows(row, step)]
        until = ["@until", step["until"]] if "until" in step else []
        text, ended = tools.run([*until, name, *words])
        end = time.monotonic() + SHOWN_S
        while not all(one in spaced(text) for one in expected) and time.monotonic() < end:
            if not step.get("again") and not any(one in text for one in GAVE_UP):
                break
            time.sleep(0.1)
            text, ended = tools.run([*until, name, *words])
        known |= dict(zip(step.get("keep", ()), text.split(), strict=False))
        never = [spaced(_filled(place.named(one), known)) for one in step.get("never", ())]
        played.printed.setdefault(name, []).append(Printed(step, text, ended, expected, never))
    return played


def ask_as_the_dashboard(place: Place, known: dict[str, str]) -> dict[str, Asked]:
    """All its requests, one after the other. Raises OSError where there is no answer."""
    known["commit"] = str(decode_offset_message_id(known["place"])[1])
    asked: dict[str, Asked] = {}
    for name, row in DASHBOARD.items():
        fields = {key: _filled(place.named(value), known) for key, value in row.get("fields", {}).items()}
        body = place.named(row.get("body", "")).encode()
        answer = ask(place.door, RequestCode[name], fields, body, timeout_s=ANSWER_S)
        told = [f"{key}={value}" for key, value in answer.fields.items()]
        text = " ".join([answer.remark, *told, answer.body.decode(errors="replace")])
        wanted = {**row, **(row.get("cluster", {}) if place.kind == CLUSTER else {})}
        shows = [_filled(place.named(one), known) for one in wanted.get("shows", ())]
        asked[name] = Asked(answer.code, text, wanted.get("code", 0), shows)
    return asked


def spaced(text: str) -> str:
    """With one space between words: columns are as wide as names are long."""
    return " ".join(text.split())


def _filled(text: str, known: Mapping[str, str]) -> str:
    for name, value in known.items():
        text = text.replace("{" + name + "}", value)
    return text


@contextlib.contextmanager
def opened(kind: str, folder: Path) -> Iterator[tuple[Place, GatewayProcess, str]]:
    """A place, the gateway that tools ask, and the door that clients use. Raises Missing."""
    with contextlib.ExitStack() as closing:
        if kind == EMBEDDED:
            gateway = closing.enter_context(_gateway(folder / "data").start(START_S))
            yield Place(kind, gateway.endpoint, "popgate", "V5_3_3"), gateway, gateway.endpoint
            return
        there = closing.enter_context(RocketMQ()) if ALL else closing.enter_context(shared_rocketmq())
        options = ("--broker", there.url, *CREATE_ON_USE, *PATIENT, "--set", "workers=1")
        asked = closing.enter_context(_gateway(folder / "asked", *options).start(START_S))
        used = closing.enter_context(_gateway(folder / "used", *options).start(START_S))
        behind = "-" + uuid.uuid4().hex[:8]
        place = Place(kind, asked.endpoint, "broker-a", described(there.version), behind)
        yield place, asked, used.endpoint


def _gateway(data: Path, *options: str) -> GatewayProcess:
    return GatewayProcess(data, listen=("remoting://127.0.0.1:0",), options=options)


@pytest.fixture(scope="session")
def at_embedded(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return _played(EMBEDDED, tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="session")
def at_cluster(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return _played(CLUSTER, tmp_path_factory.mktemp("tools"))


@pytest.fixture
def played(kind: str, request: pytest.FixtureRequest) -> Played:
    """Everything in the tables, played once before each kind of broker."""
    made: Played = request.getfixturevalue(f"at_{kind}")
    return made


def _played(kind: str, folder: Path) -> Played:
    with contextlib.ExitStack() as closing:
        try:
            classes()
            place, gateway, used = closing.enter_context(opened(kind, folder))
        except Missing as what:
            missing(what)
        for name, content in FILES.items():
            (folder / name).write_text(place.named(json.dumps(content)))
        tools = Tools(used, folder)
        try:
            made = play(tools, place, folder)
            made.dashboard = ask_as_the_dashboard(place, made.known)
        finally:
            tools.close()
        made.log, made.asked, made.used = gateway.log, place.door, used
    return made
