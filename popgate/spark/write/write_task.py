"""A task of the sink: takes Arrow batches and returns when every row is acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from popgate.spark.options.sink_options import SinkOptions
from popgate.spark.write.encoder import Encoder
from popgate.spark.write.message_ids import Identity
from popgate.spark.write.sender import Sender

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
