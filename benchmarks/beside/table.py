"""The table of what was measured, in Markdown: the Java proxy's, ours, their ratio, and what it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.beside.amounts import AT_A_RATE, WORKS, Work
from benchmarks.beside.machine import sentence
from benchmarks.beside.results import Comparison, Results, Run, compared, middle
from benchmarks.beside.sides import JAVA, JAVA_SMALL, OURS, TIERS

MUSTS: dict[tuple[str, str], float] = {
    **{(work, "cpu_us"): 0.5 for work in ("send_1", "send_32", "receive_32")},
    ("receive_1", "cpu_us"): 0.3,
}
EMBEDDED_MUST = 0.5
FIGURES = (
    ("cpu_us", "CPU of the {} per message", "µs"),
    ("broker_us", "CPU of the broker per message", "µs"),
    ("rate", "messages per second", ""),
    ("per_core", "messages per second and core of the {}", ""),
    ("p50_ms", "p50", "ms"),
    ("p99_ms", "p99", "ms"),
    ("p999_ms", "p99.9", "ms"),
)
TITLES = {
    "own": "A tier of its own, before the same broker",
    "embedded": "With the broker inside: local mode beside the embedded broker",
}
PLACES = {"own": "on a tier of its own", "embedded": "with the broker inside"}
ERRORS, SLOW = "†", "‡"
MUST, AIM = "must", "aim"


def number(value: float) -> str:
    """About three digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


class Table:
    """`doubts` are sentences about the commit that was measured, `machine.doubts`."""

    def __init__(self, results: Results, doubts: Sequence[str] = ()) -> None:
        self._results = results
        self._doubts = doubts
        self._lines: list[str] = []
        self._reached: dict[str, list[bool]] = {}

    def write(self) -> str:
        self._lines, self._reached = [], {MUST: [], AIM: []}
        for tier in TIERS:
            rows = [
                *self._works(tier),
                *self._rates(tier),
                *self._warm(tier),
                *self._memory(tier),
                *self._others(tier),
            ]
            if rows:
                self._lines += [f"### {TITLES[tier]}", "", *_HEAD, *rows, ""]
        self._plain()
        self._notes()
        lines = [*self._about(), *self._counted(), "", *self._lines]
        return "\n".join(lines).rstrip() + "\n"

    def _about(self) -> Iterator[str]:
        settings = self._results.settings
        command = f"popgate serve {settings['serve_options']}".rstrip()
        counts = settings.get("workers", {})
        workers = ", ".join(f"{_workers(count)} {PLACES[tier]}" for tier, count in counts.items())
        parts = [sentence(self._results.machine), f"`{command}`{f', {workers}' if workers else ''}"]
        if settings.get("compiled"):
            parts.append("ours compiled")
        if options := settings.get("java_options"):
            parts.append(f"the Java proxy with `{options}`")
        yield f"{'; '.join(parts)}."
        if self._doubts:
            yield from ("", f"**{' '.join(self._doubts)}**", "")
        yield (
            "Medians of the rounds; the ratio is the median of the rounds' own ratios, ours to the Java "
            "proxy's (least-most). A rate that a row names is half of the Java proxy's most."
        )
        if self._results.settings["quick"]:
            yield ""
            yield "**A short run: it shows that everything works, and no figure of it means anything.**"

    def _counted(self) -> Iterator[str]:
        told = [f"{sum(met)} of {len(met)} {kind}s" for kind, met in self._reached.items() if met]
        if told:
            yield f"Reached: {' and '.join(told)}."

    # -- rows -------------------------------------------------------------------------------------

    def _row(
        self,
        name: str,
        unit: str,
        comparison: Comparison | None,
        aim: float | None = None,
        *,
        least: bool = False,
        must: bool = False,
    ) -> Iterator[str]:
        """`aim` is what the ratio is at most, or, with `least`, at least; what is a `must` counts apart."""
        if comparison is None:
            return
        marks = _marks(comparison.runs)
        unit = f" {unit}" if unit else ""
        theirs = ratio = wanted = ""
        if comparison.ratios:
            middle, few, many = comparison.middle
            theirs = f"{number(comparison.theirs)}{unit}"
            ratio = f"{middle:.2f}" + (f" ({few:.2f}-{many:.2f})" if few != many else "")
            if aim is not None:
                met = middle >= aim if least else middle <= aim
                wanted = self._judged(f"{'≥' if least else '≤'} {aim:g}", met, MUST if must else AIM)
        yield f"| {name}{marks} | {theirs} | {number(comparison.ours)}{unit} | {ratio} | {wanted} |"

    def _alone(self, name: str, value: float, unit: str, most: float, runs: list[Run]) -> str:
        """A row with an aim of its own, whatever the Java proxy takes."""
        kind = MUST if name.startswith("memory") else AIM
        aim = self._judged(f"≤ {most:g} {unit}", value <= most, kind)
        return f"| {name}{_marks(tuple(runs))} | | {number(value)} {unit} | | {aim} |"

    def _judged(self, words: str, met: bool, kind: str) -> str:
        """Whether it is reached; of a short run nothing is said."""
        if self._results.settings["quick"]:
            return ""
        self._reached[kind].append(met)
        return f"{kind} {words}: {'yes' if met else '**no**'}"

    def _pair(self, tier: str, part: str, figure: str, *, java: str = JAVA) -> Comparison | None:
        of = self._results.of
        return compared(of(tier, part, java), of(tier, part, OURS), figure)

    def _works(self, tier: str) -> Iterator[str]:
        whose = "gateway" if tier == "own" else "process"
        for work in WORKS.values():
            for figure, words, unit in FIGURES:
                aim = MUSTS.get((work.name, figure))
                least = figure == "per_core" and work.name in AT_A_RATE
                if least:
                    aim = 2.0
                elif aim is not None and tier == "embedded":
                    aim = EMBEDDED_MUST
                name = words.format(whose)
                pair = self._pair(tier, work.name, figure)
                must = figure == "cpu_us"
                yield from self._row(f"{work.title}: {name}", unit, pair, aim, least=least, must=must)
                if figure == "cpu_us" and (title := self._at_a_rate(tier, work)):
                    # Beside that at full load: there calls come together, and share much of their cost.
                    paced = self._pair(tier, f"{work.name}.rate", figure)
                    yield from self._row(f"{title}: {name}", unit, paced)

    def _rates(self, tier: str) -> Iterator[str]:
        for name in AT_A_RATE:
            title = self._at_a_rate(tier, WORKS[name])
            if not title:
                continue
            for figure, words in (("p50_ms", "p50"), ("p99_ms", "p99"), ("p999_ms", "p99.9")):
                aim = 0.5 if figure == "p99_ms" else None
                pair = self._pair(tier, f"{name}.rate", figure)
                yield from self._row(f"{title}: {words}", "ms", pair, aim)

    def _at_a_rate(self, tier: str, work: Work) -> str:
        """What a work at the rate of both is called; empty where it was not done."""
        runs = [one for side in (JAVA, OURS) for one in self._results.of(tier, f"{work.name}.rate", side)]
        rate = middle(runs, "wanted")
        return "" if rate is None else f"{work.title}, at {number(rate)} messages per second"

    def _warm(self, tier: str) -> Iterator[str]:
        """What the first and the last messages of the warm-up cost, which shows whether both are warm."""
        for work in WORKS.values():
            told = []
            for side in (JAVA, OURS):
                runs = self._results.of(tier, f"{work.name}.warm_up", side)
                costs = [run.figures["cpu_us"] for run in runs]
                told.append(f"{number(costs[0])}, {number(costs[-1])} µs" if costs else "")
            if any(told):
                name = f"warm-up, {work.title}: CPU per message, first and last quarter"
                yield f"| {name} | {' | '.join(told)} | | |"

    def _memory(self, tier: str) -> Iterator[str]:
        # With other options the heap is no longer that of the aim.
        given = self._results.settings.get("java_options")
        shipped = (JAVA, "heap as given", None) if given else (JAVA, "shipped heap of 4 GB", 0.1)
        for java, heap, aim in (shipped, (JAVA_SMALL, "heap of 512 MB", 0.3)):
            if java == JAVA_SMALL and not self._results.of(tier, "memory_loaded", java):
                continue
            for part, words in (("memory_idle", "idle"), ("memory_loaded", "loaded")):
                wanted = aim if part == "memory_loaded" and tier == "own" else None
                pair = self._pair(tier, part, "pss_mb", java=java)
                yield from self._row(f"memory {words} (PSS), {heap}", "MB", pair, wanted, must=True)

    def _others(self, tier: str) -> Iterator[str]:
        of = self._results.of
        yield from self._row("ready after the start", "s", self._pair(tier, "ready", "ready_s"), 0.15)
        started = of(tier, "ready", OURS)
        soon = middle(started, "ready_s")
        if soon is not None:
            yield self._alone("ready after the start, by itself", soon, "s", 0.6, started)
        java, ours = (of(tier, "idle_connections", side) for side in (JAVA, OURS))
        held = middle(ours, "held")
        words = f"memory of each of {number(held or 0)} idle connections"
        pss_and_heap = compared(
            _renamed(java, "heap_kib_each", "kib"), _renamed(ours, "pss_kib_each", "kib"), "kib"
        )
        yield from self._row(f"{words}: live heap / PSS", "KiB", pss_and_heap, 1.0)
        yield from self._row(f"{words}: PSS", "KiB", compared(java, ours, "pss_kib_each"))
        each = middle(ours, "pss_kib_each")
        if each is not None:
            yield self._alone(f"{words}, PSS", each, "KiB", 8, ours)
        stored = middle(of(tier, "polls", OURS), "stored_mb")
        held = middle(of(tier, "polls", OURS), "held")
        if stored is None or held is None:
            return
        messages = number(float(self._results.settings["amounts"]["stored"]))
        words = f"memory with {messages} messages stored"
        yield from self._row(f"{words} (PSS)", "MB", self._pair(tier, "polls", "stored_mb"))
        waiting = f"{words} and {number(held)} long polls waiting"
        yield from self._row(f"{waiting} (PSS)", "MB", self._pair(tier, "polls", "waiting_mb"))
        runs = of(tier, "polls", OURS)
        most = middle(runs, "waiting_mb")
        if most is not None:
            yield self._alone(waiting, most, "MB", 250, runs)

    def _plain(self) -> None:
        of = self._results.of
        floor = of("embedded", "nghttpd", "nghttpd")
        if not floor:
            return
        self._lines += ["### Beside nghttpd", ""]
        self._lines += ["| one call | nghttpd | popgate | ratio |", "| --- | --- | --- | --- |"]
        for side, words in (("ours_route", "query route"), ("ours_send", "send, embedded broker")):
            pair = compared(floor, of("embedded", "nghttpd", side), "cpu_us")
            for row in self._row(f"{words}: CPU", "µs", pair):
                self._lines.append(row.rpartition("|")[0].rpartition("|")[0] + "|")
        self._lines.append("")

    def _notes(self) -> None:
        failed = self._results.failed
        slow = [run for run in self._results.runs if not run.kept_up]
        if self._results.broken:
            self._lines += ["**Not measured:**", "", *(f"- {why}" for why in self._results.broken), ""]
        if failed:
            self._lines += [f"{ERRORS} Errors occurred:", ""]
            self._lines += [
                f"- {run.tier}, {run.part}, {run.side}, round {run.round + 1}: {run.errors},"
                f" {'; '.join(dict.fromkeys(run.said))}"
                for run in failed
            ]
            self._lines.append("")
        if slow:
            self._lines += [f"{SLOW} The rate was not kept:", ""]
            self._lines += [
                f"- {run.tier}, {run.part}, {run.side}, round {run.round + 1}:"
                f" {number(run.figures['rate'])} of {number(run.figures['wanted'])} messages per second"
                for run in slow
            ]
            self._lines.append("")
        self._lines += [f"- {note}" for note in self._results.notes]


_HEAD = ("| | Java proxy | popgate | ratio | reached |", "| --- | --- | --- | --- | --- |")


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count != 1 else ''}"


def _renamed(runs: list[Run], old: str, new: str) -> list[Run]:
    return [
        Run(run.tier, run.part, run.side, run.round, {new: run.figures[old]}, run.errors, run.said)
        for run in runs
        if old in run.figures
    ]


def _marks(runs: tuple[Run, ...]) -> str:
    wrong: tuple[tuple[str, Callable[[Run], bool]], ...] = (
        (ERRORS, lambda run: run.errors > 0),
        (SLOW, lambda run: not run.kept_up),
    )
    return "".join(f" {mark}" for mark, is_so in wrong if any(is_so(run) for run in runs))
