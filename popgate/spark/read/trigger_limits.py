"""Limits the next batch of a stream, and decides whether there is enough for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.offsets import Offsets
from popgate.spark.options.source_options import SourceOptions
from popgate.spark.read.read_plan import limited
from popgate.wire.frames.codes import ResponseCode

_MOST_SAMPLED: Final = 4
"""Queues that one measurement looks into, those with the most to read."""
_SAMPLE: Final = 32
"""Messages that it reads of each."""
_ASSUMED_BYTES: Final = 1024.0
"""Of an offset, while none could be looked at."""


class Limits:
    """The limits that options set. `now` is in seconds, and never goes back."""

    def __init__(self, options: SourceOptions, now: Callable[[], float]) -> None:
        self._options, self._now = options, now
        self._mean_bytes: float | None = None
        self._began: float | None = None

    def began(self) -> None:
        """A batch was decided on: the time that the next one may wait runs from here."""
        self._began = self._now()

    def waits(self, begins: Offsets, ends: Offsets) -> bool:
        """Whether there is too little for a batch, and the maximum delay has not passed yet.

        The first batch of a process never waits: the time of the last one is unknown.
        """
        least = self._options.numbers["minOffsetsPerTrigger"]
        if least is None or self._began is None:
            return False
        if sum(_sizes(begins, ends).values()) >= least:
            return False
        return self._now() - self._began < self._options.trigger_delay_s

    def applied(self, client: QueueClient, begins: Offsets, ends: Offsets) -> dict[QueuePlace, int]:
        """The ends of the next batch. Raises GatewayError: sizes are measured by reading."""
        most = self._options.numbers["maxOffsetsPerTrigger"]
        most_bytes = self._options.numbers["maxBytesPerTrigger"]
        if most_bytes is not None and (sizes := _sizes(begins, ends)):
            by_bytes = max(int(most_bytes / self._measured(client, begins, sizes)), 1)
            most = by_bytes if most is None else min(most, by_bytes)
        return dict(ends) if most is None else limited(begins, ends, most)

    def _measured(self, client: QueueClient, begins: Offsets, sizes: dict[QueuePlace, int]) -> float:
        """A running mean of bytes per offset; offsets without a message (filtered or compacted) count as 0
        bytes.
        """
        fullest = sorted(sizes, key=lambda queue: -sizes[queue])[:_MOST_SAMPLED]
        expression, kind = self._options.filter
        most = min(self._options.number("pullBatchSize"), _SAMPLE)
        asked = [
            (queue, client.start_pull(queue, begins[queue], most=most, expression=expression, kind=kind))
            for queue in fullest
        ]
        size = offsets = 0
        for queue, number in asked:
            answer = client.finish_pull(number, queue, timeout_s=self._options.timeout_s)
            if answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
                size += len(answer.body)
                offsets += max(answer.next_offset - begins[queue], 0)
        if offsets:
            mean, before = size / offsets, self._mean_bytes
            self._mean_bytes = mean if before is None else (mean + before) / 2
        mean_bytes = _ASSUMED_BYTES if self._mean_bytes is None else self._mean_bytes
        return max(mean_bytes, 1.0)


def _sizes(begins: Offsets, ends: Offsets) -> dict[QueuePlace, int]:
    """Offsets of the queues that have any."""
    return {queue: end - begins[queue] for queue, end in ends.items() if end > begins[queue]}
