"""Topics of which the newest message of each key stays: offsets that are missing there are no loss.

Whatever is missing elsewhere is gone by retention. A RocketMQ broker removes messages before it tells the
higher minimum, and passes over them in between: source DefaultMessageStore.getMessage. Of a compacted topic
it tells the minimum of a log beside, which retention shortens, and keeps the older messages all the same:
source DefaultMessageStore.getMinOffsetInQueue and CompactionLog.getMessage.
"""

from __future__ import annotations

from popgate.errors import Fault, GatewayError
from popgate.model import CLEANUP_POLICY, COMPACTION
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.connections import PASSING
from popgate.spark.offsets import Offsets


def is_compacted(client: QueueClient, topic: str) -> bool | None:
    """None: nobody tells, as RocketMQ's own proxy, or the account may not know. Raises temporary faults."""
    try:
        return client.topic_config(topic).attributes.get(CLEANUP_POLICY) == COMPACTION
    except GatewayError as error:
        if error.fault in PASSING and error.fault is not Fault.INTERNAL:
            raise
        return None


def minimums_of(client: QueueClient, begins: Offsets) -> dict[QueuePlace, int]:
    """The first offset that can be read, of queues that are read from `begins` on. Raises GatewayError."""
    minimums = client.minimums(list(begins))
    behind = {queue.topic for queue, minimum in minimums.items() if minimum > begins[queue]}
    compacted = {topic for topic in behind if is_compacted(client, topic)}
    return {queue: 0 if queue.topic in compacted else minimum for queue, minimum in minimums.items()}
