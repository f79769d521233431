"""Detects queues that were recreated under the same name, and have grown past the position of the query.

Their end offsets do not reveal it. But everything before such a position was stored by the time of the last
batch: a queue whose oldest message is before the position and was stored later is another one. This compares
the clocks of two machines, the driver's and a broker's.
"""

from __future__ import annotations

from typing import Final

from popgate.errors import PeerWireError
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.offsets import Offsets
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.records import decode_record

_SKEW_MS: Final = 60_000
"""So far a broker's clock may be ahead of a driver's."""


def made_anew(client: QueueClient, begins: Offsets, at_ms: int) -> list[QueuePlace]:
    """The recreated queues of `begins`, the offsets read up to by `at_ms`.

    Raises GatewayError. If the first offsets of a queue are empty, as after a compaction, a broker may report
    none of it as old: then the oldest message is read.
    """
    after_ms = at_ms + _SKEW_MS
    minimums = client.minimums(list(begins))
    later = client.offsets_at(dict.fromkeys(begins, after_ms))
    suspects = [queue for queue in begins if later[queue] <= minimums[queue] < begins[queue]]
    return [queue for queue in suspects if _is_young(client, queue, minimums[queue], begins[queue], after_ms)]


def _is_young(client: QueueClient, queue: QueuePlace, minimum: int, begin: int, after_ms: int) -> bool:
    answer = client.pull(queue, minimum, most=1)
    if answer.code != ResponseCode.SUCCESS:
        return False
    try:
        oldest = decode_record(answer.body)
    except PeerWireError:
        return False
    return oldest.offset < begin and oldest.store_ms >= after_ms
