"""Reports of streaming queries from their driver to a gateway, which exposes their metrics with its own.

A format of this project: JSON in the body of the request code `REPORT_QUERY` (`popgate.wire.frames.codes`).
`{"v":1,"query":"orders","ended":false,"figures":{"batch_id":3,…},"sources":[{"topics":["t"],"min":0,…}]}`
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from popgate.errors import PeerWireError, shown
from popgate.wire.json_syntax.jsontext import dumps_plain, loads_plain

_VERSION: Final = 1
LONGEST_QUERY: Final = 255
"""Characters of a query's name."""
MOST_SOURCES: Final = 16
MOST_TOPICS: Final = 100
"""Per source; of more topics the first ones by name are reported."""
_LONGEST: Final = 64 * 1024
_LARGEST: Final = 1e300
FIGURES: Final[Mapping[str, tuple[str, str]]] = {
    # name: type, help
    "input_rows_total": ("counter", "Rows read since the driver began to report."),
    "input_rows_per_second": ("gauge", "Rows read per second in the last trigger."),
    "processed_rows_per_second": ("gauge", "Rows processed per second in the last trigger."),
    "batch_id": ("gauge", "Number of the last batch."),
    "batch_seconds": ("gauge", "Duration of the last trigger."),
    "state_rows": ("gauge", "Rows of state held by the query."),
    "late_rows_total": (
        "counter",
        "Rows dropped because they arrived too late for the watermark, since the driver began to report.",
    ),
}
"""Of a query."""
LAGS: Final[Mapping[str, str]] = {
    "lag_min": "Unread offsets of the queue with the smallest lag.",
    "lag_max": "Unread offsets of the queue with the greatest lag.",
    "lag_avg": "Unread offsets, the mean over the queues.",
}
"""Gauges of each of its sources that reads topics."""


class SourceLag(NamedTuple):
    """How far one source of a query is behind, in offsets of a queue."""

    number: int
    """Which of the query's sources it is, from 0."""
    topics: tuple[str, ...]
    least: float
    most: float
    mean: float


@dataclass(frozen=True, slots=True)
class QueryReport:
    """`figures` have names of `FIGURES`; `ended`: the query has ended."""

    query: str
    sources: tuple[SourceLag, ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    age_s: float = 0.0
    """Seconds since the trigger that they are of ended."""
    ended: bool = False

    def encode(self) -> bytes:
        """Figures that are not finite numbers are left out, and so are topics above the limit."""
        topics = MOST_TOPICS
        while len(body := self._encode(topics)) > _LONGEST and topics > 1:
            topics //= 2
        return body

    def _encode(self, topics: int) -> bytes:
        sources = [
            {
                "number": each.number,
                "topics": list(each.topics[:topics]),
                "min": each.least,
                "max": each.most,
                "mean": each.mean,
            }
            for each in self.sources[:MOST_SOURCES]
            if all(map(_is_told, (each.least, each.most, each.mean)))
        ]
        return dumps_plain(
            {
                "v": _VERSION,
                "query": self.query[:LONGEST_QUERY],
                "ended": self.ended,
                "age_s": self.age_s if _is_told(self.age_s) else 0,
                "figures": {name: value for name, value in self.figures.items() if _is_told(value)},
                "sources": sources,
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> QueryReport:
        """Raises PeerWireError; figures that are not known here are left out."""
        if len(body) > _LONGEST:
            raise PeerWireError(f"a report of a query has {len(body)} bytes, the limit is {_LONGEST}")
        fields = loads_plain(body)
        if not isinstance(fields, dict) or fields.get("v") != _VERSION:
            raise PeerWireError(f"a report of a query is an object of version {_VERSION}")
        query, ended, figures = fields.get("query"), fields.get("ended", False), fields.get("figures", {})
        if not isinstance(query, str) or not 0 < len(query) <= LONGEST_QUERY or not query.isprintable():
            raise PeerWireError(f"a query has 1 to {LONGEST_QUERY} printable characters, not {_told(query)}")
        if not isinstance(ended, bool) or not isinstance(figures, dict):
            raise PeerWireError("a report of a query has ended as a truth value, and figures as an object")
        sources = fields.get("sources", [])
        if not isinstance(sources, list) or len(sources) > MOST_SOURCES:
            raise PeerWireError(f"a report of a query has up to {MOST_SOURCES} sources")
        read = tuple(map(_source, sources))
        if len({source.number for source in read}) < len(read):
            raise PeerWireError("two sources of a query have the same number")
        return cls(
            query,
            read,
            {name: _number(name, figures[name]) for name in FIGURES if name in figures},
            _number("age_s", fields.get("age_s", 0)),
            ended,
        )


def _is_told(value: float) -> bool:
    """Whether a gateway takes it: Spark's rates may be infinite, and below 0 when a clock goes back."""
    return 0 <= value < _LARGEST


def _source(fields: object) -> SourceLag:
    if not isinstance(fields, dict):
        raise PeerWireError("a source of a query is an object")
    number, topics = fields.get("number"), fields.get("topics")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1000:
        raise PeerWireError(f"a source of a query has a number below 1000, not {_told(number)}")
    if not isinstance(topics, list) or not 0 < len(topics) <= MOST_TOPICS:
        raise PeerWireError(f"a source of a query has 1 to {MOST_TOPICS} topics")
    if not all(isinstance(topic, str) and topic for topic in topics):
        raise PeerWireError("a topic of a query is a text")
    least, most, mean = (_number(name, fields.get(name)) for name in ("min", "max", "mean"))
    return SourceLag(number, tuple(topics), least, most, mean)


def _number(name: str, raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise PeerWireError(f"{name} of a query is a number, not {_told(raw)}")
    try:
        value = float(raw)
    except OverflowError:
        value = math.inf
    if not 0 <= value < _LARGEST:
        raise PeerWireError(f"{name} of a query is {_told(raw)}, which is too large, or below 0")
    return value


def _told(value: Any) -> str:
    return shown(str(value)[:100])
