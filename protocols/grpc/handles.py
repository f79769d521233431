"""Receipt handles as clients of gRPC have them: a receipt, and a mark of the message that it came with.

The receipt alone decides what is done. Clients send the message's id beside it, and lite consumers its
lite topic, both as they came with the handle: others show that the caller mixed up two messages. The mark
lets every replica see that without memory and without asking a broker: the CRC-32 of the id, and that of
the lite topic of a message that has one (`1c291ca3`, `1c291ca3.5bb2a0ea`).

It is a tenth field, at which RocketMQ's own proxy and its brokers do not look (`ReceiptHandle.decode`,
`ExtraInfoUtil`). Handles without a mark, as that proxy and older gateways give them out, are good unchecked.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from popgate.errors import IllegalReceipt, shown
from popgate.receipt import OF_TOPIC, is_mark, parse_receipt
from protocols.grpc.pb import service_pb2 as rpc

_SHORTENED = 32
"""Characters of an id that the Java client may have cut two zeros off from (`MessageIdImpl.toString`)."""


def marked(receipt: bytes, message_id: bytes, lite_topic: bytes | None = None) -> bytes:
    """The handle for a receipt of the message that is told with this id and lite topic."""
    if lite_topic is None:
        return b"%b %x" % (receipt, crc32(message_id))
    return b"%b %x.%x" % (receipt, crc32(message_id), crc32(lite_topic))


def marked_alike(receipt: str, handle: str) -> str:
    """The handle for a newer receipt of the message of `handle`, which may have no mark."""
    return f"{receipt} {handle.rpartition(' ')[2]}" if handle.count(" ") == 9 else receipt


def receipt_of(
    request: rpc.AckMessageEntry
    | rpc.ChangeInvisibleDurationRequest
    | rpc.ForwardMessageToDeadLetterQueueRequest,
    *,
    compare: bool,
) -> str:
    """The receipt in the request's handle.

    With `compare`, raises IllegalReceipt when the request names another message or lite topic beside it;
    what is empty is not compared.
    """
    if compare:
        return _checked(request.receipt_handle, request.message_id, request.lite_topic)
    return _checked(request.receipt_handle, "", "")


def receipts_of(
    entries: Sequence[rpc.AckMessageEntry], handles: Sequence[str], ids: Sequence[str], *, compare: bool
) -> tuple[list[str], dict[int, IllegalReceipt]]:
    """`receipt_of` each entry, whose handles and ids these are, and by index what it raised.

    The receipt is blank there, so that all else is checked and counted as ever.
    """
    receipts: list[str] = []
    contradicted: dict[int, IllegalReceipt] = {}
    for at, (entry, handle, message_id) in enumerate(zip(entries, handles, ids, strict=True)):
        # Nearly always the handle ends in the mark of this id, and of no lite topic.
        receipt = handle.removesuffix(" %x" % crc32(message_id.encode()))  # noqa: UP031 - in half the time
        if not message_id or receipt == handle or entry.lite_topic:
            try:
                receipt = receipt_of(entry, compare=compare)
            except IllegalReceipt as error:
                contradicted[at] = error
                receipt = ""
        receipts.append(receipt)
    return receipts, contradicted


def _checked(handle: str, message_id: str, lite_topic: str) -> str:
    if handle.count(" ") != 9:
        return handle
    receipt, _, mark = handle.rpartition(" ")
    of_id, _, of_lite_topic = mark.partition(".")
    if message_id:
        if f"{crc32(message_id.encode()):x}" != of_id and not _is_shortened(message_id, of_id):
            raise IllegalReceipt(
                handle,
                f"its message, {_place(receipt)}, has another id than the request names, {shown(message_id)}",
            )
    elif not is_mark(mark):
        return handle  # not one of ours: refused where it is parsed
    if lite_topic and f"{crc32(lite_topic.encode()):x}" != of_lite_topic:
        raise IllegalReceipt(
            handle, f"its message, {_place(receipt)}, is not of the request's lite topic, {shown(lite_topic)}"
        )
    return receipt


def _is_shortened(message_id: str, of_id: str) -> bool:
    """Whether the mark is of this id with two zeros in front.

    The Java client takes an id of 34 characters for two of a version and the rest, and leaves out version 00.
    """
    return len(message_id) == _SHORTENED and f"{crc32(f'00{message_id}'.encode()):x}" == of_id


def _place(receipt: str) -> str:
    """Where the message is stored, in words. Raises IllegalReceipt for what is no receipt."""
    read = parse_receipt(receipt)
    topic = "" if read.topic_type == OF_TOPIC else " of the group's retry topic"
    return f"at offset {read.offset} of queue {read.queue_id}{topic} of broker {read.broker}"
