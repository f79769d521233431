"""Which offsets that are missing are a loss: those of which retention has removed the messages.

Of a compacted topic the newest message of each key stays, and the others are missing. A RocketMQ broker
removes messages before it tells the higher minimum, and passes over them in between: source
DefaultMessageStore.getMessage. Of a compacted topic it tells the minimum of a log beside, which retention
shortens, and keeps the older messages all the same: source DefaultMessageStore.getMinOffsetInQueue and
CompactionLog.getMessage. The offsets of a static topic have a gap where a queue went to another broker:
source TopicQueueMappingUtils.blockSeqRoundUp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from popgate.errors import Fault, GatewayError, PeerWireError
from popgate.model import CLEANUP_POLICY, COMPACTION
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.connections import PASSING
from popgate.spark.offsets import Offsets
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.records import decode_record

_SHOWN_S: Final = 30.0
"""In that time a broker tells the higher minimum: it goes through its queues every 10 s, and some take 100 ms
each. Source: DefaultMessageStore.cleanQueueFilesPeriodically."""
_REST_S: Final = 1.0


def is_compacted(client: QueueClient, topic: str) -> bool | None:
    """None: nobody tells, as RocketMQ's own proxy, or the account may not know. Raises temporary faults."""
    try:
        return client.topic_config(topic).attributes.get(CLEANUP_POLICY) == COMPACTION
    except GatewayError as error:
        if error.fault in PASSING and error.fault is not Fault.INTERNAL:
            raise
        return None


def is_removed(
    client: QueueClient,
    queue: QueuePlace,
    offset: int,
    *,
    now: Callable[[], float],
    rest: Callable[[float], None],
) -> bool:
    """Whether retention has removed what a pull passed over at this offset: its minimum comes to say so.

    Retention begins with the oldest of a broker's log: while there is a message before this offset, it has
    removed nothing behind it. So only a gap at the beginning of a queue is waited for. `now` is in seconds
    and never goes back, `rest` takes seconds. Raises GatewayError.
    """
    until = now() + _SHOWN_S
    while (minimum := client.minimums([queue])[queue]) <= offset:
        if _has_older(client, queue, minimum, offset) or now() >= until:
            return False
        rest(_REST_S)
    return True


def _has_older(client: QueueClient, queue: QueuePlace, minimum: int, offset: int) -> bool:
    """Whether a message is there right before the offset, or where the queue begins. Raises GatewayError."""
    places = dict.fromkeys((offset - 1, minimum)) if minimum < offset else ()
    return any(_is_one_from(client, queue, place, offset) for place in places)


def _is_one_from(client: QueueClient, queue: QueuePlace, begin: int, end: int) -> bool:
    answer = client.pull(queue, begin, most=1)
    if answer.code != ResponseCode.SUCCESS:
        return False
    try:
        record = decode_record(answer.body)
    except PeerWireError:
        return False
    # For the first of its log, once that is removed, a broker answers with the one that the log begins with
    # then. Source: CommitLog.getMessage.
    is_own = record.topic == queue.topic and record.offset == answer.next_offset - 1
    return is_own and record.offset < end


def minimums_of(client: QueueClient, begins: Offsets) -> dict[QueuePlace, int]:
    """The first offset that can be read, of queues that are read from `begins` on. Raises GatewayError."""
    minimums = client.minimums(list(begins))
    behind = {queue.topic for queue, minimum in minimums.items() if minimum > begins[queue]}
    compacted = {topic for topic in behind if is_compacted(client, topic)}
    return {queue: 0 if queue.topic in compacted else minimum for queue, minimum in minimums.items()}
