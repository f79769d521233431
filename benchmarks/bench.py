"""The gateway and RocketMQ's own proxy, in turn, under the same load, and what each costs.

    python benchmarks/bench.py [--quick] [--only PART,...] [--serve-options "..."] [--out docs/performance]
    python benchmarks/bench.py --table docs/performance/beside-java-proxy.json    # print it once more
    python benchmarks/bench.py --tier own --broker rocketmq://127.0.0.1:9876      # one that runs already

Two tiers: before the same real broker (`own`), and with the broker inside, RocketMQ's local mode beside the
embedded broker (`embedded`, CPU of the whole process). Every work is done through one gateway and then
through the other, another one first in each round; CPU and memory are those of all processes that a
gateway consists of. Ratios are of one round; told are medians. A run in which an error occurred is marked,
and the exit code is 1. Ours is started as `popgate serve` is by default, with one worker for each core before
a broker: how many there were is told, and so is a commit that others cannot measure again. Parts:

    send_1, send_32, receive_32, receive_1, route, alone    as fast as answers come
    rate                the four first, at half of the Java proxy's most, latencies from the time due
    memory              idle and loaded, beside heaps of 4 GB (as shipped) and of 512 MB
    idle_connections    of each of 10,000 connections after settings and one call
    polls               10,000 long polls on 100 connections, a million messages stored
    ready               until it serves
    nghttpd             CPU of one call beside a plain HTTP/2 server in C

Needs Go and, unless --without-java, Java and Maven.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.amounts import PARTS, QUICK, WORKS, Amounts, chosen_from, seconds_of
from benchmarks.beside.driving import Load, build
from benchmarks.beside.holding import Holding
from benchmarks.beside.machine import doubts, facts, slow_disk
from benchmarks.beside.results import Results
from benchmarks.beside.sides import OURS, TIERS, Town, compiled_copy
from benchmarks.beside.starting import plain, ready
from benchmarks.beside.table import Table
from benchmarks.beside.working import Working
from popgate.testing.rocketmq import Missing

NAME = "beside-java-proxy"
MISSING = 3
"""The exit code when Go, Java or something fetched is not there."""


def measure(
    results: Results,
    parts: list[str],
    tiers: Sequence[str],
    amounts: Amounts,
    serve: list[str],
    *,
    java: bool,
    java_options: Sequence[str] = (),
    broker: str = "",
    compiled: Path | None = None,
) -> None:
    """What cannot be measured is told in the results, and the rest goes on. Raises Missing."""
    load = Load(build())
    if broker:
        results.note("The broker had run before, and others may have used it at the same time.")
    if "own" in tiers and "rate" in parts and not broker and (note := slow_disk(results.machine)):
        results.note(note)
    for tier in tiers:
        town = Town(tier, serve, java=java, java_options=java_options, broker=broker, tree=compiled)
        with results.trying(f"{tier}"), town:
            if {*WORKS, "rate", "memory"} & set(parts):
                with results.trying(f"{tier}, works"):
                    Working(town, load, amounts, results).run(parts)
            if "idle_connections" in parts and (tier == "own" or not java):
                Holding(town, load, amounts, results).idle_connections()
            if "polls" in parts and tier == "embedded":
                Holding(town, load, amounts, results).polls()
            if "ready" in parts:
                ready(town, amounts, results)
            if "nghttpd" in parts and tier == "embedded":
                with results.trying(f"{tier}, nghttpd"):
                    plain(town, load, amounts, results)
        if town.workers:
            results.settings["workers"][tier] = town.workers


def chosen_tiers(
    parser: argparse.ArgumentParser, tier: str | None, broker: str, *, java: bool
) -> tuple[str, ...]:
    if broker and tier == "embedded":
        parser.error("--broker: with the broker inside there is no other one")
    if tier:
        return (tier,)
    if broker:
        return ("own",)
    return TIERS if java else ("embedded",)


def told_doubts(results: Results) -> list[str]:
    """Why the figures cannot be measured again, said at once, too: a table is read later, and by others."""
    found = doubts(results.machine)
    for doubt in found:
        print(f"WARNING: {doubt}", file=sys.stderr)
    return found


def built() -> int:
    try:
        build()
    except Missing as why:
        print(f"not compiled: {why}", file=sys.stderr)
        return MISSING
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="little of everything: proves only that it runs")
    parser.add_argument("--only", type=chosen_from(PARTS), default=list(PARTS), metavar="PART,...")
    parser.add_argument("--tier", choices=TIERS, help="one of the two")
    parser.add_argument("--rounds", type=int, help=f"default {Amounts.rounds}")
    parser.add_argument("--serve-options", default="", help='with "=": --serve-options="--workers 2"')
    parser.add_argument("--without-java", action="store_true", help="ours alone, with its embedded broker")
    parser.add_argument("--java-options", default="", help="of the Java proxy's virtual machine, as above")
    parser.add_argument("--broker", default="", metavar="URL", help="a RocketMQ for the tier of its own")
    parser.add_argument(
        "--compiled", type=compiled_copy, metavar="DIR", help="ours as `deploy/compile.py tree DIR` made it"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"write {NAME}.json and {NAME}.md there")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="print the table of a written result and end"
    )
    parser.add_argument("--build", action="store_true", help="only compile the load generator")
    given = parser.parse_args()
    if given.table is not None:
        written = Results.read(given.table)
        print(Table(written, told_doubts(written)).write(), end="")
        return 0
    if given.build:
        return built()
    amounts = QUICK if given.quick else Amounts()
    if given.rounds is not None:
        amounts = Amounts(**{**asdict(amounts), "rounds": given.rounds})
    java = not given.without_java
    tiers = chosen_tiers(parser, given.tier, given.broker, java=java)
    about = seconds_of(amounts, given.only, tiers, java=java)
    ends = time.strftime("%H:%M", time.localtime(time.time() + about))
    print(f"about {max(round(about / 60), 1)} minutes, until {ends}", flush=True)
    settings = {
        "quick": given.quick,
        "serve_options": given.serve_options,
        "java_options": given.java_options,
        "compiled": given.compiled is not None,
        "workers": {},
        "parts": given.only,
        "tiers": list(tiers),
        "amounts": asdict(amounts),
        "works": [asdict(work) for work in WORKS.values()],
    }
    results = Results(facts(), settings)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        results.file = given.out / f"{NAME}.json"
    begun = time.monotonic()
    try:
        measure(
            results,
            given.only,
            tiers,
            amounts,
            shlex.split(given.serve_options),
            java=java,
            java_options=shlex.split(given.java_options),
            broker=given.broker,
            compiled=given.compiled,
        )
    except Missing as why:
        print(f"not measured: {why}", file=sys.stderr)
        return MISSING
    except KeyboardInterrupt:
        results.broken.append("the run was ended before its end")
    results.settings["took_s"] = round(time.monotonic() - begun)
    results.write()
    table = Table(results, told_doubts(results)).write()
    print(f"\n{table}", end="")
    if given.out is not None:
        (given.out / f"{NAME}.md").write_text(table)
    # Errors of the Java proxy are part of the comparison: the table tells them.
    return 1 if results.broken or any(run.side == OURS for run in results.failed) else 0


if __name__ == "__main__":
    sys.exit(main())
