"""What a task of the sink does: Arrow batches in, everything acknowledged at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from popgate.spark.encoding import Encoder
from popgate.spark.identities import Identity
from popgate.spark.sending import Sender
from popgate.spark.sink_options import SinkOptions

MakeSender = Callable[[SinkOptions, int], Sender]


def written(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    identity: Identity,
    *,
    make_sender: MakeSender = Sender,
) -> int:
    """How many rows were sent, each acknowledged. Raises SparkSourceError."""
    encoder = Encoder(options, identity)
    with make_sender(options, identity.partition) as sender:
        for batch in batches:
            sender.add_all(encoder.pieces(batch))
        return sender.finish()
