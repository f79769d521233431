"""Finds what earlier attempts of a batch have sent: the ids of messages stored since the batch was opened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, NoReturn

from popgate.errors import PeerWireError, TopicNotFound
from popgate.queue_client import QueueClient, QueuePlace, queues_of_route
from popgate.spark.connections import client_of
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.guarantees.ledger_topic import ledger_error
from popgate.spark.guarantees.openings import Opened
from popgate.spark.offsets import Offsets, named
from popgate.spark.options.sink_options import SinkOptions
from popgate.spark.options.source_options import SourceOptions, read_source_options
from popgate.spark.read.driver import asked
from popgate.spark.read.partition_reader import whole
from popgate.spark.read.read_plan import Range
from popgate.spark.read.record_decoder import Records
from popgate.spark.write.queue_selector import is_compacted

SETTLE_S: Final = 1.0
"""The delay before a scan: requests of a closed connection may still be in transit, and a RocketMQ broker
shows stored messages up to 300 ms later."""
_UNKNOWN: Final = (
    "nothing tells what of the batch was sent. With another sinkId it is sent as a whole, and what was sent"
    " of it already is there twice"
)
Connect = Callable[[Any], AbstractContextManager[QueueClient]]


class Scan:
    """Looks into the topics of one write. All methods raise SparkSourceError."""

    def __init__(
        self,
        options: SinkOptions,
        opened: Opened,
        *,
        connect: Connect = client_of,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options, self._opened = options, opened
        self._known = dict(opened.begins)
        """Where queues ended before anything of the batch was sent to them."""
        self._looked: dict[str, Offsets] = {}
        self._connect, self._rest = connect, rest

    def begins_at(self, ends: Offsets) -> None:
        """Where queues of topics that rows name ended before anything of the batch was sent to them."""
        for queue, at in ends.items():
            self._known[queue] = min(at, self._known.get(queue, at))

    def looked_from(self, topic: str) -> Offsets | None:
        """Where the last look at a topic began; None: there was none."""
        return self._looked.get(topic)

    def settle(self, seconds: float = SETTLE_S) -> None:
        """Wait until sent messages are visible."""
        self._rest(seconds)

    def is_compacted(self, topic: str) -> bool:
        """Whether messages may be gone because of later ones of their key."""

        def ask(client: QueueClient) -> bool:
            try:
                return is_compacted(client, topic)
            except TopicNotFound:
                return False

        return asked(self._reading(topic), ask, connect=self._connect, rest=self._rest)

    def ids(self, topics: Iterable[str]) -> dict[str, set[str]]:
        """The ids by topic, from any sender: two topics may have messages with one id."""
        return {topic: self._ids_of_topic(topic) for topic in topics}

    # -- inside -----------------------------------------------------------------------------------

    def _ids_of_topic(self, topic: str) -> set[str]:
        reading = self._reading(topic)
        ranges = asked(
            reading, lambda client: self._ranges(client, topic), connect=self._connect, rest=self._rest
        )
        ids: set[str] = set()
        for each in ranges:
            pulls = whole(each, reading, self._refuse, connect=self._connect, rest=self._rest)
            for body, _ in pulls:
                try:
                    ids.update(Records(body).column("message_id").drop_null().to_pylist())
                except PeerWireError as error:
                    raise SparkSourceError(
                        Code.DAMAGED, f"a message of {named(each.queue)} cannot be read: {error}"
                    ) from error
        return ids

    def _ranges(self, client: QueueClient, topic: str) -> list[Range]:
        try:
            # Of one route: a queue whose permission changes between two would be in neither.
            queues, unread = queues_of_route(topic, client.route(topic))
        except TopicNotFound:
            queues, unread = [], []
        if unread:
            raise ledger_error(
                self._options,
                f"{named(unread[0])} takes messages and cannot be read, by its permission or because its"
                " topic has fewer read queues than write queues: start the query again when it can be, until"
                f" then {_UNKNOWN}",
            )
        gone = [each for each in self._known if each.topic == topic and each not in queues]
        if gone:
            raise ledger_error(
                self._options,
                f"{named(min(gone))} is not there, and was when the batch was begun: start the query again"
                f" when it is, until then {_UNKNOWN}",
            )
        # A slave may lack what an earlier attempt sent, and that would be sent again.
        minimums, ends = client.minimums(queues), client.maximums(queues, of_masters=True)
        begins = self._looked[topic] = self._begins(client, queues)
        for queue, begin in begins.items():
            if begin > ends[queue]:
                raise ledger_error(
                    self._options,
                    f"{named(queue)} ends at {ends[queue]}, and ended at {begin} when the batch was begun:"
                    f" it was made anew, {_UNKNOWN}",
                )
            if queue in self._known and begin < minimums[queue]:
                raise ledger_error(
                    self._options,
                    f"{named(queue)} keeps nothing before {minimums[queue]}, and ended at {begin} when the"
                    f" batch was begun: {_UNKNOWN}",
                )
        return [
            Range(queue, max(begin, minimums[queue]), ends[queue])
            for queue, begin in sorted(begins.items())
            if begin < ends[queue]
        ]

    def _begins(self, client: QueueClient, queues: list[QueuePlace]) -> Mapping[QueuePlace, int]:
        known = {queue: self._known[queue] for queue in queues if queue in self._known}
        rest = {queue: self._opened.since_ms for queue in queues if queue not in known}
        return {**known, **(client.offsets_at(rest) if rest else {})}

    def _refuse(self, sentence: str) -> NoReturn:
        """In the place of a warning that messages are gone, rows of the batch maybe among them."""
        raise ledger_error(self._options, f"{sentence}: {_UNKNOWN}")

    def _reading(self, topic: str) -> SourceOptions:
        """The sink's options as those of a source."""
        given = {
            "endpoints": ",".join(self._options.gateway.endpoints),
            "topic": topic,
            "failOnDataLoss": "false",
            "pullTimeoutMs": str(self._options.numbers["sendTimeoutMs"]),
            "fetchOffset.numRetries": str(self._options.numbers["send.numRetries"]),
            "fetchOffset.retryIntervalMs": str(self._options.numbers["send.retryIntervalMs"]),
        }
        return replace(read_source_options(given, streaming=False), gateway=self._options.gateway)
