"""Messages as a send request carries them, and what its answer makes of them.

Sources: protocol facts 3.1 and 3.2 (mapping), 5.5 (fields), 5.7 (batch body), 7.8 (what a broker does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brokers.remote.batching import goes_alone, may_batch
from popgate.errors import BadRequest, Fault, LocalWireError, PeerWireError, PropertiesTooLarge, shown
from popgate.message_id import make_message_id
from popgate.model import Message, MessageType, Sent
from popgate.naming import RETRY_PREFIX
from popgate.wire.batches import BatchItem, encode_batch
from popgate.wire.codes import RequestCode
from popgate.wire.properties import (
    BORN_HOST,
    KEYS,
    LITE_TOPIC,
    LONGEST_BLOCK,
    MAX_RECONSUME_TIMES,
    PRIORITY,
    RECONSUME_TIME,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    encode_properties,
    find_property,
    set_property,
)
from popgate.wire.records import TRANSACTION_PREPARED

_UNIQ_KEY = UNIQ_KEY.encode()
_BORN_HOST = BORN_HOST.encode()
_TIMER_DELIVER_MS = TIMER_DELIVER_MS.encode()
_RECONSUME_TIME = RECONSUME_TIME.encode()
_MAX_RECONSUME_TIMES = MAX_RECONSUME_TIMES.encode()
_INT = 0xFFFFFFFF
_SIGN = 1 << 31
_LARGEST_INT = _SIGN - 1
_LARGEST_LONG = (1 << 63) - 1


def complete(message: Message) -> None:
    """See to it that a message has an id, and a block of properties that names it and its time.

    Most have, from where they were checked. Raises BadRequest, PropertiesTooLarge.
    """
    properties = message.properties
    if not properties:
        properties = message.properties = _block(message)
    named = find_property(properties, _UNIQ_KEY)
    if named is None:
        message.message_id = message.message_id or make_message_id()
        properties = set_property(properties, _UNIQ_KEY, message.message_id.encode("utf-8", "replace"))
    elif not message.message_id:
        message.message_id = named.decode("utf-8", "replace")
    if message.born_host and b"__BORNHOST\x01" not in properties:
        # A broker stores the gateway's own address as that of the sender.
        properties = set_property(properties, _BORN_HOST, _told(message.born_host))
    if message.deliver_at_ms > 0 and b"TIMER_DEL" not in properties and b"DELAY\x01" not in properties:
        properties = set_property(properties, _TIMER_DELIVER_MS, b"%d" % message.deliver_at_ms)
    if len(properties) > LONGEST_BLOCK:
        raise PropertiesTooLarge(len(properties), LONGEST_BLOCK, "bytes of properties")
    message.properties = properties


def _told(text: str) -> bytes:
    return text.replace("\x01", "").replace("\x02", "").encode("utf-8", "replace") or b"?"


def _block(message: Message) -> bytes:
    message.message_id = message.message_id or make_message_id()
    named = {
        TAGS: message.tag,
        KEYS: " ".join(message.keys),
        SHARDING_KEY: message.message_group,
        PRIORITY: "" if message.priority is None else str(message.priority),
        LITE_TOPIC: message.lite_topic,
        UNIQ_KEY: message.message_id,
    }
    try:
        return encode_properties({**message.user_properties, **named})
    except LocalWireError as error:
        raise BadRequest(f"the message cannot be stored: {error}") from error


def send_request(
    messages: Sequence[Message], queue_id: int, born_ms: int
) -> tuple[RequestCode, dict[str, str], bytes]:
    """Code, fields and body of the request that stores these messages in one queue.

    The topic stands in the place of the template from which a broker may make topics that it does not
    know: it is none, and a topic that was deleted this very moment does not come to life again.
    Raises BadRequest for what cannot be told in a request.
    """
    first = messages[0]
    topic = first.topic
    # A broker takes the body of a request without one for none at all; in a batch it may be empty.
    many = len(messages) > 1 or not first.body
    if not first.body and (goes_alone(first) or not may_batch(topic)):
        raise BadRequest(
            "a RocketMQ cluster stores a message without a body only if it is neither delayed nor"
            " transactional nor a retry",
            Fault.BODY_EMPTY,
        )
    sys_flag = first.sys_flag
    if first.type is MessageType.TRANSACTION:
        sys_flag |= TRANSACTION_PREPARED
    fields = {
        "a": first.producer_group or topic,
        "b": topic,
        "c": topic,
        "d": "4",
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": str(born_ms),
        "h": str(_signed(first.flag)),
        "i": first.properties.decode("utf-8", "replace"),
        "j": "0",
        "k": "false",
        "m": "true" if many else "false",
    }
    if topic.startswith(RETRY_PREFIX):
        fields["j"] = _number_in(first.properties, _RECONSUME_TIME) or "0"
        most = _number_in(first.properties, _MAX_RECONSUME_TIMES)
        if most:
            fields["l"] = most
    if not many:
        return RequestCode.SEND_MESSAGE_V2, fields, first.body
    try:
        body = encode_batch([BatchItem(_signed(one.flag), one.body, one.properties) for one in messages])
    except LocalWireError as error:
        raise BadRequest(f"the messages cannot be stored: {error}") from error
    return RequestCode.SEND_BATCH_MESSAGE, fields, body


def sent(messages: Sequence[Message], broker: str, fields: Mapping[str, str]) -> list[Sent]:
    """What became of the messages of one request, by its answer: one each, with its own offset.

    A batch is answered with its first offset; the others follow it (protocol facts 5.7). Raises
    PeerWireError when the answer does not say where they are.
    """
    try:
        queue_id, offset = int(fields["queueId"]), int(fields["queueOffset"])
    except (KeyError, ValueError) as error:
        raise PeerWireError("a send was answered without its queue or offset") from error
    if not (0 <= queue_id <= _LARGEST_INT and 0 <= offset <= _LARGEST_LONG):
        told = shown(f"queue {fields['queueId']} and offset {fields['queueOffset']}")
        raise PeerWireError(f"a send was answered with {told}")
    found = [Sent(one.message_id, broker, queue_id, offset + at) for at, one in enumerate(messages)]
    if len(found) == 1:
        found[0].recall_handle = fields.get("recallHandle", "")
    return found


def _number_in(properties: bytes, name: bytes) -> str:
    found = find_property(properties, name)
    return found.decode() if found is not None and found.isdigit() and len(found) < 10 else ""


def _signed(number: int) -> int:
    """As a signed 32 bit number, which is what the protocol has."""
    number &= _INT
    return number - (1 << 32) if number & _SIGN else number
