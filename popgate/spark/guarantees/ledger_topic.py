"""The topic of a ledger, and the records of one sink in it; `popgate.spark.guarantees.ledger` defines their
kinds.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from popgate.errors import GatewayError, PeerWireError, TopicNotFound, shown
from popgate.model import CLEANUP_POLICY, COMPACTION
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.connections import passes
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.sink_options import SinkOptions
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.properties import KEYS, UNIQ_KEY, encode_properties, find_property
from popgate.wire.messages.records import Record, decode_records

T = TypeVar("T")
Connect = Callable[[SinkOptions], AbstractContextManager[QueueClient]]
_VERSION: Final = 1
_PULL: Final = 32
_LONGEST_REST_S: Final = 5.0
GONE: Final = "gone"
"""The kind of an entry for offsets without a record, up to its own: a compaction has removed what was."""
_KIND: Final = re.compile(r"open|done|(task)(?::[0-9]+)?|(ends):[0-9]+\.[0-9]+")
"""The part of a key after the name of its sink."""
_END_REST_S: Final = 0.1
_END_RESTS: Final = 20
"""So often it is asked again where the ledger ends: a broker of RocketMQ shows a new end some 300 ms late."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of this sink. `fields` None: it was deleted by a record without a body, or it is GONE."""

    offset: int
    kind: str
    fields: Mapping[str, Any] | None

    @property
    def token(self) -> str:
        return "" if self.fields is None else str(self.fields.get("token"))

    def of_task(self, partition: int) -> str:
        """The attempt of this task that it is of; empty: it is none."""
        if self.kind != "task" or self.fields is None or self.fields.get("partition") != partition:
            return ""
        return str(self.fields.get("attempt"))


class LedgerTopic:
    """A process's access to it. Methods raise SparkSourceError and, except for `asked`, GatewayError."""

    def __init__(self, options: SinkOptions, connect: Connect, rest: Callable[[float], None]) -> None:
        self._options, self._connect, self._rest = options, connect, rest
        self._prefix = f"{options.sink_id}:"
        self._known: QueuePlace | None = None

    def queue(self, client: QueueClient) -> QueuePlace:
        """The queue of the ledger. Raises SparkSourceError for a topic that cannot be one."""
        if self._known is not None:
            return self._known
        topic = self._options.ledger_topic
        how = (
            f"make it with: popgate topic create {topic} --queues 1 --attribute {CLEANUP_POLICY}={COMPACTION}"
        )
        try:
            policy = client.topic_config(topic).attributes.get(CLEANUP_POLICY)
            queues = client.queues(topic)
        except TopicNotFound as error:
            raise self.wrong(f"the topic is not there, {how}") from error
        if policy != COMPACTION:
            raise self.wrong(
                f"the topic is not compacted, its records would go by age: name another one, and {how}"
            )
        if len(queues) != 1:
            raise self.wrong(
                f"the topic has {len(queues)} queues, and a ledger has one: name another one, and {how}"
            )
        self._known = queues[0]
        return queues[0]

    def end(self, client: QueueClient, queue: QueuePlace, behind: int = -1) -> int:
        """Where it ends: behind this offset, at which it has a record."""
        for _ in range(_END_RESTS):
            end = client.maximums([queue], of_masters=True)[queue]
            if end > behind:
                return end
            self._rest(_END_REST_S)
        raise self.made_anew(f"it ends at {end}", behind)

    def made_anew(self, evidence: str, at: int) -> SparkSourceError:
        return self.wrong(
            f"the ledger was made anew while a batch was written: {evidence}, and the batch was opened at"
            f" offset {at}. Nothing tells what of the batch was sent: when the query is started again, with"
            " this sinkId too, it is sent as a whole, and what was sent of it already is there twice"
        )

    def send(
        self, client: QueueClient, queue: QueuePlace, kind: str, fields: Mapping[str, Any], *, key: str = ""
    ) -> int:
        """The offset of the record, once it is stored."""
        body = json.dumps({"v": _VERSION, "kind": kind, **fields}, separators=(",", ":")).encode()
        block = encode_properties({KEYS: self._prefix + (key or kind), UNIQ_KEY: uuid.uuid4().hex.upper()})
        return client.send(queue, [(body, block)], timeout_s=self._options.timeout_s).offset

    def entries(self, client: QueueClient, queue: QueuePlace, begin: int, end: int) -> list[Entry]:
        """Records of this sink at these offsets, in order, and where records of whichever sink are gone."""
        entries = []
        for record in self._records(client, queue, begin, end):
            if record.offset > begin:
                entries.append(Entry(record.offset - 1, GONE, None))
            begin = record.offset + 1
            key = (find_property(record.properties, KEYS.encode()) or b"").decode("utf-8", "replace")
            # Sinks may have names that begin alike.
            kind = _KIND.fullmatch(key.removeprefix(self._prefix)) if key.startswith(self._prefix) else None
            if kind is not None:
                entries.append(self._entry(record, kind[1] or kind[2] or kind[0]))
        if begin < end:
            entries.append(Entry(end - 1, GONE, None))
        return entries

    def entries_now(
        self, client: QueueClient, queue: QueuePlace, begin: int, end: int
    ) -> tuple[list[Entry], int]:
        """`entries`, those that came while they were read, and where they end now.

        What a compaction removed meanwhile has its successor among these.
        """
        entries = self.entries(client, queue, begin, end)
        while True:
            before, end = end, max(end, self.end(client, queue))
            later = self.entries(client, queue, before, end)
            entries += later
            if not any(each.kind == GONE for each in later):
                return entries, end

    def _entry(self, record: Record, kind: str) -> Entry:
        if not record.body:
            return Entry(record.offset, kind, None)
        try:
            fields = json.loads(record.body)
            if fields["v"] != _VERSION or fields["kind"] != kind:
                raise ValueError(f"it is of version {fields['v']}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.damaged(record.offset, error) from error
        return Entry(record.offset, kind, fields)

    def _records(self, client: QueueClient, queue: QueuePlace, begin: int, end: int) -> Iterator[Record]:
        end_s = time.monotonic() + self._options.timeout_s
        at = begin
        while at < end:
            answer = client.pull(queue, at, most=_PULL, timeout_s=self._options.timeout_s)
            if answer.code == ResponseCode.PULL_NOT_FOUND or (
                # So a slave says it, where no gateway stands before it.
                answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.next_offset == at
            ):
                # It ends there or beyond: this replica has not heard of it yet.
                if time.monotonic() >= end_s:
                    # A slave that stands in for its master may lack it: without a master nobody knows.
                    client.maximums([queue], of_masters=True)
                    raise self.wrong(
                        f"nothing is at offset {at}, though it ended at {end}: was it made anew?"
                    )
                self._rest(0.05)
                continue
            if answer.next_offset <= at:
                raise self.wrong(f"there is no offset {at} any more: it was made anew")
            try:
                for record in decode_records(answer.body):
                    if at <= record.offset < end:
                        yield record
            except PeerWireError as error:
                raise self.damaged(at, error) from error
            at = answer.next_offset

    # -- asking again, and failures ---------------------------------------------------------------

    def asked(self, work: Callable[[QueueClient], T]) -> T:
        """Done again as a whole when it fails for now: records that are there twice count once."""
        numbers, times = self._options.numbers, 0
        while True:
            try:
                with self._connect(self._options) as client:
                    return work(client)
            except SparkSourceError as error:
                if not passes(error):
                    raise self._told(error) from error.__cause__
                if times == numbers["send.numRetries"]:
                    raise
                first_rest_s = numbers["send.retryIntervalMs"] / 1000
                self._rest(min(first_rest_s * 2 ** min(times, 20), _LONGEST_REST_S))
                times += 1

    def _told(self, error: SparkSourceError) -> SparkSourceError:
        """With the ledger's name, where the gateway refused something."""
        if error.code is Code.LEDGER or not isinstance(error.__cause__, GatewayError):
            return error
        return SparkSourceError(
            error.code, f"{error.sentence} (option ledgerTopic = {self._options.ledger_topic})"
        )

    def wrong(self, sentence: str) -> SparkSourceError:
        return ledger_error(self._options, sentence)

    def damaged(self, offset: int, error: Exception) -> SparkSourceError:
        return self.wrong(f"what stands at offset {offset} is no record of this connector: {error}")


def ledger_error(options: SinkOptions, sentence: str) -> SparkSourceError:
    """With the options that name the ledger and the sink in it."""
    name = "sinkId" if options.version < 0 else "txnAppId"
    return SparkSourceError(
        Code.LEDGER,
        f"{sentence} (option ledgerTopic = {options.ledger_topic}, option {name} = {shown(options.sink_id)})",
    )
