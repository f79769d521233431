"""Which tier a test belongs to, and the long series.

| tier | what it holds |
| --- | --- |
| fast | unit and property tests, bounded fuzz: no process of ours, no JVM |
| process | contract, scenarios, command line, drains: gateways as processes, on the embedded broker |
| live | everything before a real RocketMQ, Spark; the official clients of gRPC beside the others |
| long | series that are asked for by name, `sh tests/run.sh --long NAME`; never a part of the test command |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

TIERS = ("fast", "process", "live")
LONG = "long"

_PLACES = {
    "tests/property": "fast",
    "tests/fuzz": "fast",
    "tests/surface": "fast",
    "tests/unit": "fast",
    "tests/replicas": "process",
    "tests/e2e": "process",
    "tests/scenarios": "process",
    "tests/benchmarks": "process",
    "tests/contract": "process",
    "tests/outside": "process",
    "tests/crash": "process",
    "tests/e2e/test_cluster_commands.py": "live",
    "tests/replicas/test_any_replica.py": "live",
    "tests/replicas/test_books.py": "live",
    "tests/live": "live",
    "tests/tools": "live",
    "tests/conformance": "live",
    "tests/classic": "live",
    "tests/rolls": "live",
    "tests/spark": "live",
    "tests/crash/test_kills.py": LONG,
    "tests/replicas/test_asked_again.py": LONG,
    "tests/replicas/test_masters.py": LONG,
    "tests/replicas/test_replicas_classic.py": LONG,
    "tests/classic/test_go_client.py": LONG,
    "tests/classic/test_two_doors.py": LONG,
    "tests/outside/test_image.py": LONG,
    "tests/cluster": LONG,
}
"""The longest prefix of a test's path decides."""

LANES = {
    "tests/conformance/test_drained.py": "interruptions",
    "tests/conformance/test_go.py": "interruptions",
    "tests/conformance/test_interrupted.py": "interruptions",
    "tests/conformance": "clients",
    "tests/classic": "interruptions",
    "tests/rolls": "interruptions",
    "tests/spark": "clients",
}
"""Tests of the live tier that run one after the other in a worker of their own, beside its others.

The longest prefix decides. Each lane takes about as long as the others, and all cores are busy with three.
"""
_OTHER_LANE = "broker"
LIVE_WORKERS = len({*LANES.values(), _OTHER_LANE})

CONTRACT = "tests/contract/"
LIVE_SCENARIOS = "tests/scenarios/test_live_"
LIVE_SITE = "remote"
"""The contract's parameter for a real RocketMQ."""
REPLICAS = "tests/replicas/test_replicas.py"
"""Its parameter says which broker the replicas have."""


@dataclass(frozen=True, slots=True)
class Series:
    """A long series of tests, for what takes longer than the test command may."""

    paths: tuple[str, ...]
    """What pytest is given; nothing where `programs` run instead."""
    environment: dict[str, str] = field(default_factory=dict)
    programs: tuple[tuple[str, ...], ...] = ()
    """Commands after `python`, one after the other, for what is no test of pytest's."""


SERIES = {
    "cluster": Series(("tests/cluster",), {"TEST_CLUSTER": "true"}),
    "replicas": Series(
        (REPLICAS, "tests/replicas/test_asked_again.py", "tests/replicas/test_masters.py"),
        {"TEST_CLUSTER": "true"},
    ),
    "drains": Series((), programs=(("tests/replicas/drains.py", "--drains", "30"),)),
    "rolls": Series((), programs=(("tests/rolls/run.py",),)),
    "crash": Series(("tests/crash/test_kills.py",)),
    "classic": Series(
        ("tests/classic", "tests/replicas/test_replicas_classic.py"),
        {"TEST_CLASSIC_ALL": "true", "TEST_CLUSTER": "true"},
    ),
    "oldest": Series(("tests/conformance",), {"TEST_OLDEST_EVERYWHERE": "true"}),
    "spark": Series(("tests/spark",), {"TEST_SPARK_JAVA_PROXY": "true"}),
    "spark-kafka": Series((), programs=(("benchmarks/spark_beside_kafka.py", "--quick"),)),
    "spark-kills": Series(
        (),
        programs=(
            ("tests/spark/kills.py", "--kills", "30"),
            ("tests/spark/kills.py", "--kills", "10", "--guarantee", "transactional"),
            ("tests/spark/kills.py", "--kills", "10", "--apart"),
            ("tests/spark/kills.py", "--kills", "10", "--rocketmq"),
            ("tests/spark/kills.py", "--kills", "10", "--rocketmq", "--guarantee", "transactional"),
        ),
    ),
    "image": Series(("tests/outside/test_image.py",)),
    "compiled": Series((), programs=(("tests/support/compiled.py",),)),
    "marks": Series((), programs=(("benchmarks/marks.py",),)),
    "restarts": Series(("tests/scenarios/test_restarts.py",), {"TEST_RESTART_SEEDS": "100"}),
    "models": Series(("tests/property",), {"TEST_HYPOTHESIS": "long"}),
    "fuzz": Series((), programs=(("tests/fuzz/long.py", "--seconds", "3600"),)),
    "http2": Series(
        (), programs=(("tests/fuzz/long.py", "--only", "http2", "hpack", "--complete", "--seconds", "14400"),)
    ),
    "grpcio": Series(("tests/conformance",), {"TEST_GRPC_TRANSPORT": "grpcio"}),
    "proxies": Series(("tests/conformance/test_proxied.py",), {"TEST_PROXIES_ALL": "true"}),
    "soak": Series(
        (),
        programs=(
            ("benchmarks/soak.py", "--minutes", "30"),
            ("benchmarks/soak.py", "--minutes", "30", "--broker", "rocketmq", "--workers", "0"),
        ),
    ),
}


def tier_of(nodeid: str) -> str:
    """The tier of a test.

    Raises ValueError for a folder that has none: a new one has to be placed.
    """
    if nodeid.startswith(LIVE_SCENARIOS) or (nodeid.startswith(CONTRACT) and LIVE_SITE in parameters(nodeid)):
        return "live"
    if nodeid.startswith(REPLICAS) and "rocketmq" in parameters(nodeid):
        return LONG
    if tier := _longest(_PLACES, nodeid):
        return tier
    raise ValueError(f"{nodeid.partition('::')[0]} is in no tier: tests/support/tiers.py has to place it")


def lane_of(nodeid: str) -> str:
    """Which of the live tier's tests a test runs after."""
    return _longest(LANES, nodeid) or _OTHER_LANE


def _longest(places: Mapping[str, str], nodeid: str) -> str | None:
    """What the longest prefix of a test's path stands for."""
    path = PurePosixPath(nodeid.partition("::")[0])
    return next((places[str(place)] for place in (path, *path.parents) if str(place) in places), None)


def paths_of(tier: str) -> list[str]:
    """What pytest has to collect to find all tests of a tier; it finds others, too."""
    if tier == "live":  # Spark at the end: a JVM of its own that stays
        return [
            CONTRACT.rstrip("/"),
            "tests/scenarios",
            *(path for path, its in _PLACES.items() if its == tier and path.endswith(".py")),
            *("tests/live", "tests/tools", "tests/rolls", "tests/classic", "tests/conformance"),
            "tests/spark",
        ]
    # What takes longest first, and run in this order: else one worker has it alone at the end.
    found = [place for place, its in _PLACES.items() if its == tier]
    return [place for place in found if not any(place.startswith(f"{other}/") for other in found)]


def parameters(nodeid: str) -> list[str]:
    """The parts of the parameters' text: what stands in brackets after a test's name."""
    # The first bracket: parameters may have brackets of their own.
    _, bracket, inside = nodeid.partition("[") if nodeid.endswith("]") else ("", "", "")
    return inside[:-1].split("-") if bracket else []


def tiers_of_path(path: str) -> set[str]:
    """The tiers that may have tests in a file or folder."""
    place = PurePosixPath(path)
    found = {tier for name, tier in _PLACES.items() if PurePosixPath(name).is_relative_to(place)}
    if place == PurePosixPath(REPLICAS):
        found.add(LONG)
    try:
        found.add(tier_of(str(place)))
    except ValueError:  # a folder above all places
        found.update(TIERS)
    if {place, *place.parents} & {PurePosixPath("tests/contract"), PurePosixPath("tests/scenarios")}:
        found.add("live")
    return found
