"""Receipt handles of gRPC clients: a receipt, and a mark of the message that it was delivered with.

The receipt alone decides which delivery is settled. Clients send the message's id beside it, and lite
consumers its lite topic; those of another message show that the caller mixed up two messages. The mark lets
every replica see that without memory and without a request to a broker: it is the CRC-32 of the id, and that
of the lite topic if the message has one (`1c291ca3`, `1c291ca3.5bb2a0ea`).

It is a tenth field, which RocketMQ's own proxy and brokers do not read (`ReceiptHandle.decode`,
`ExtraInfoUtil`). A handle without a mark, as that proxy issues it, is accepted unchecked.
"""

from __future__ import annotations

from collections.abc import Sequence

from popgate.context import Context
from popgate.errors import IllegalReceipt, shown
from popgate.ids.receipt import is_mark
from popgate.pb import service_pb2 as rpc
from popgate.wire.checksum import crc32
from protocols.grpc.codec.client_quirks import may_be_new_id

Settlement = (
    rpc.AckMessageEntry | rpc.ChangeInvisibleDurationRequest | rpc.ForwardMessageToDeadLetterQueueRequest
)


def marked(receipt: bytes, message_id: bytes, lite_topic: bytes | None = None) -> bytes:
    """The handle of a message that is delivered with this id and lite topic."""
    if lite_topic is None:
        return b"%b %x" % (receipt, id_sum(message_id))
    return b"%b %x.%x" % (receipt, id_sum(message_id), crc32(lite_topic))


def id_sum(message_id: bytes) -> int:
    """The CRC-32 of the last 32 bytes, which every client repeats.

    Of an id of 34 characters Java's client leaves out the first two if they are 00 (`MessageIdImpl`), and
    Python's before 5.0.8 whatever they are (`MessageIdCodec.decode`).
    """
    return crc32(message_id[-32:])


def marked_like(receipt: str, handle: str) -> str:
    """The handle for a newer receipt of the message of `handle`, which may have no mark."""
    return f"{receipt} {handle.rpartition(' ')[2]}" if handle.count(" ") == 9 else receipt


def receipt_of(request: Settlement, context: Context) -> tuple[str, IllegalReceipt | None]:
    """The receipt in a request's handle, and an error if the request also names a different message.

    With an error the receipt is blank, which the processor refuses after its other checks. An empty id or
    lite topic is not compared.
    """
    handle = request.receipt_handle
    receipt, _, mark = handle.rpartition(" ")
    if handle.count(" ") != 9 or not is_mark(mark):
        return handle, None
    of_id, _, of_lite_topic = mark.partition(".")
    message_id, lite_topic = request.message_id, request.lite_topic
    if message_id and f"{id_sum(message_id.encode()):x}" != of_id:
        if may_be_new_id(context, message_id):
            return receipt, None
        return "", IllegalReceipt(handle, f"its message id is not {shown(message_id)}")
    if lite_topic and f"{crc32(lite_topic.encode()):x}" != of_lite_topic:
        return "", IllegalReceipt(handle, f"its lite topic is not {shown(lite_topic)}")
    return receipt, None


def receipts_of(
    entries: Sequence[rpc.AckMessageEntry], handles: Sequence[str], ids: Sequence[str], context: Context
) -> tuple[list[str], dict[int, IllegalReceipt]]:
    """`receipt_of` for all entries, whose handles and ids these are, with the errors by index."""
    receipts: list[str] = []
    errors: dict[int, IllegalReceipt] = {}
    for entry, handle, message_id in zip(entries, handles, ids, strict=True):
        # Nearly every handle ends with the mark of this id (`id_sum`), and of no lite topic.
        receipt = handle.removesuffix(" %x" % crc32(message_id.encode()[-32:]))  # noqa: UP031 - faster
        if receipt == handle or not message_id or entry.lite_topic:
            receipt, error = receipt_of(entry, context)
            if error is not None:
                errors[len(receipts)] = error
        receipts.append(receipt)
    return receipts, errors
