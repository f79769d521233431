"""The messages of one send request, kept until the request is acknowledged."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from popgate.errors import GatewayError
from popgate.ids.message_id import decode_offset_message_id
from popgate.queue_client import HalfMessage, QueueClient, QueuePlace, SendAnswer
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.write.outgoing_rows import Outgoing, PackedRows
from popgate.wire.messages.batches import decode_batch, encode_batch
from popgate.wire.messages.properties import KEYS, UNIQ_KEY, find_property


@dataclass(slots=True, eq=False)
class Lot:
    """Messages of one request. `place` None: any queue of the topic, the next one each time it is sent."""

    topic: str
    place: QueuePlace | None
    ordered: bool
    first: int
    """The number of its first row."""
    parts: list[tuple[bytes, bytes] | bytes] = field(default_factory=list)
    """Bodies with their blocks, and messages as a send has them."""
    count: int = 0
    size: int = 0
    """Bytes of all bodies and blocks."""
    last: int = 0
    times: int = 0
    """How often it was sent."""
    client: QueueClient | None = None
    opaque: int = 0
    to: QueuePlace | None = None
    """Where it went, by which connection, under which number."""
    why: GatewayError | None = None
    """Why it went by none."""

    def add(self, row: Outgoing) -> None:
        self.parts.append((row.body, row.block))
        self.count += 1
        self.size += len(row.body) + len(row.block)
        self.last = row.number

    def add_packed(self, rows: PackedRows, begin: int, stop: int) -> None:
        """Some of them."""
        self.parts.append(rows.part(begin, stop))
        self.count += stop - begin
        self.size += rows.size(begin, stop)
        self.last = rows.first + stop - 1

    def messages(self) -> list[tuple[bytes, bytes]]:
        """The body and the block of each."""
        messages: list[tuple[bytes, bytes]] = []
        for part in self.parts:
            if isinstance(part, bytes):
                messages += [(item.body, item.properties) for item in decode_batch(part)]
            else:
                messages.append(part)
        return messages

    def leave_out(self, ids: AbstractSet[str]) -> int:
        """Forget the messages that have one of these; how many there were."""
        before, left = self.count, [each for each in self.messages() if id_in(each[1]) not in ids]
        self.parts, self.count = [*left], len(left)
        return before - self.count

    def start(self, client: QueueClient, to: QueuePlace, *, once: bool, half: bool) -> int:
        """Begin to send it. Raises as `QueueClient.start_send`."""
        if self.count == 1:
            return client.start_send(to, self.messages(), once=once, half=half)
        body = b"".join(
            part if isinstance(part, bytes) else encode_batch([(0, *part)]) for part in self.parts
        )
        return client.start_send_batch(to, body, once=once)


def half_of(answer: SendAnswer, block: bytes) -> HalfMessage:
    """Where a half message lies. Raises SparkSourceError (GATEWAY) for an answer that does not say it."""
    try:
        _, commit_offset = decode_offset_message_id(answer.message_ids[0])
    except (IndexError, ValueError) as error:
        raise SparkSourceError(
            Code.GATEWAY, f"INTERNAL: the answer to a half message does not say where it lies: {error}"
        ) from error
    return HalfMessage(answer.queue.topic, answer.queue.broker, answer.offset, commit_offset, id_in(block))


def key_of(row: Outgoing) -> str:
    """The compaction key; empty: none."""
    return (find_property(row.block, KEYS.encode()) or b"").decode("utf-8", "replace")


def id_in(block: bytes) -> str:
    return (find_property(block, UNIQ_KEY.encode()) or b"").decode("utf-8", "replace")
