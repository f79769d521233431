"""Writes docs/metrics.md, and the committed list of names.

`python -m proxy.metrics.reference` in a checkout rewrites both; tests prove that they are current. The list
is a promise: an existing name keeps its type and its labels.
"""

from __future__ import annotations

from pathlib import Path

from proxy.metrics.histograms import BUCKETS, COARSE
from proxy.metrics.names import SECTIONS, contract

METRICS_PAGE = Path("docs/metrics.md")
CONTRACT_FILE = Path("tests/unit/proxy/metrics/names.txt")


def metrics_page() -> str:
    """docs/metrics.md."""
    parts = [_HEAD.format(buckets=_told(BUCKETS), coarse=_told(COARSE))]
    for title, specs in SECTIONS:
        parts.append(f"\n## {title}\n\n| metric | type | labels | tells |\n| --- | --- | --- | --- |\n")
        parts += [
            f"| `{spec.name}` | {spec.kind} | {', '.join(spec.labels)} | {spec.about} |\n" for spec in specs
        ]
    parts.append(_TAIL)
    return "".join(parts)


def contract_file() -> str:
    return "".join(f"{line}\n" for line in contract())


def _told(bounds: tuple[float, ...]) -> str:
    return ", ".join(f"{bound:g}" for bound in bounds)


_HEAD = """# Metrics

Generated from `proxy/metrics/names.py`; `GET /metrics` on the admin port tells them in Prometheus' text
format. All are on by default. Names, types and labels are kept: a test holds them to a committed list.

Topics and groups are labels up to `metrics.max_topics` and `metrics.max_groups`; later ones are counted
together as `_other`. One that shows no activity for `metrics.forget_s` is forgotten, and its room is given
to the next. Where more groups stand than have room, those with something to do are told before those
without. What the broker tells of groups is asked once a second at most, and for so many queues at a time
that a scrape costs the same in a large house as in a small one: there the figures of a group may be a few
scrapes old.

Buckets of times, in seconds: {buckets}; per topic and group: {coarse}.
"""

_TAIL = """
## The process

`process_resident_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds`,
`process_start_time_seconds` and others of the Prometheus client, `python_gc_collections_total` and its
like, and `python_info`.
"""


if __name__ == "__main__":
    METRICS_PAGE.write_text(metrics_page(), encoding="utf-8")
    CONTRACT_FILE.write_text(contract_file(), encoding="utf-8")
