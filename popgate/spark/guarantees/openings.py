"""The record by which a driver opens a batch in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from popgate.spark.guarantees.notes import number_of
from popgate.spark.offsets import Offsets, flat, nested


@dataclass(frozen=True, slots=True)
class Opened:
    """A batch that may be written; tasks get a copy. `query` empty and `batch` -1: none was done before."""

    token: str
    offset: int
    """Of its record in the ledger."""
    query: str
    batch: int
    rows: int
    """Of the last batch that was done."""
    checksum: int = 0
    """Of those rows."""
    begins: Offsets = field(default_factory=dict)
    """Ends of the queues of the option `topic` before anything was sent."""
    since_ms: int = 0
    """Before that nothing was sent to topics that rows name."""
    again: bool = False
    """Whether a batch was opened before that is not done: rows of this one may be there."""
    first: str = ""
    """The token of the driver that opened the batch first."""
    first_offset: int = -1
    """Of that one's record in the ledger."""
    version: int = -1
    """The number of the batch that it was opened for, where options tell it; -1: they do not."""

    def encode(self) -> dict[str, Any]:
        """As a record of the ledger has it."""
        fields = {
            "token": self.token,
            "query": self.query,
            "batch": self.batch,
            "rows": self.rows,
            "checksum": self.checksum,
            "begins": nested(self.begins),
            "since": self.since_ms,
            "again": self.again,
            "first": self.first,
            "at": self.first_offset,
        }
        return fields if self.version < 0 else {**fields, "version": self.version}

    @classmethod
    def decode(cls, fields: Mapping[str, Any], offset: int) -> Opened:
        """Raises KeyError, TypeError, and SparkSourceError for ends that are none."""
        token = str(fields.get("token"))
        return cls(
            token,
            offset,
            text_of(fields["query"]),
            number_of(fields["batch"]),
            number_of(fields["rows"]),
            number_of(fields["checksum"]),
            flat(fields["begins"]),
            number_of(fields["since"]),
            fields["again"] is True,
            # Records from before there were these have none.
            text_of(fields.get("first", token)),
            at if (at := number_of(fields.get("at", -1))) >= 0 else offset,
            number_of(fields.get("version", -1)),
        )


def text_of(value: object) -> str:
    """Raises TypeError for anything but a text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
