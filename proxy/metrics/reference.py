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
        parts.append(f"\n## {title}\n\n{_COLUMNS}")
        parts += [
            f"| `{spec.name}` | {spec.kind} | {', '.join(spec.labels)} | {spec.over} | {spec.about} |\n"
            for spec in specs
        ]
    parts.append(_TAIL)
    return "".join(parts)


def contract_file() -> str:
    return "".join(f"{line}\n" for line in contract())


def _told(bounds: tuple[float, ...]) -> str:
    return ", ".join(f"{bound:g}" for bound in bounds)


_COLUMNS = "| metric | type | labels | processes | description |\n| --- | --- | --- | --- | --- |\n"
_HEAD = """# Metrics

Generated from `proxy/metrics/names.py`. `GET /metrics` on the admin port returns all of them in the text
format of Prometheus; none has to be enabled. Names, types and labels are stable: a test compares them with a
committed list.

At most `metrics.max_topics` topics and `metrics.max_groups` pairs of topic and group have labels of
their own; the others are counted together as `_other`. One without activity for `metrics.forget_s` loses
its label to the next one. If there are more groups than labels, groups with unfinished messages come
first. The progress of groups is read from the broker at most once a second and for a limited number of
queues, so that the cost of a scrape does not grow with the number of groups; with many of them, values
may be a few scrapes old.

The column *processes* says how the values of [several processes](workers.md) are combined: their sum, the
largest or the smallest.

Histogram buckets in seconds: {buckets}; per topic and group: {coarse}.
"""

_TAIL = """
## The process

`process_resident_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds`,
`process_start_time_seconds` and others of the Prometheus client, `python_gc_collections_total` and similar
ones, and `python_info`.
"""


if __name__ == "__main__":
    METRICS_PAGE.write_text(metrics_page(), encoding="utf-8")
    CONTRACT_FILE.write_text(contract_file(), encoding="utf-8")
