"""Sends over remoting: single, in batches, and one-way; recall of delayed messages.

Sources: protocol facts 5.5, 5.7, 5.13 and 7.8 ("Send").
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from popgate.context import Context
from popgate.errors import BadRequest, BrokerTimeout, Fault, GatewayError, TopicNotFound, shown
from popgate.messages.packed_messages import SentTogether
from popgate.model import Message, Permission, Sent
from popgate.naming import RETRY_PREFIX, check_group, check_topic, is_system_topic
from popgate.wire.frames.codes import FIRST_ID, RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.batches import BatchItem
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import (
    CLUSTER,
    CORRELATION_ID,
    LONGEST_BLOCK,
    MAX_RECONSUME_TIMES,
    REPLY_TO_CLIENT,
    RETRY_MEMBER,
    find_property,
    set_property,
)
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.fields import flag, text
from protocols.remoting.codec.marks import Origin
from protocols.remoting.codec.messages import LONG, SHORT, Head, items_in, message_in
from protocols.remoting.codec.producer_batch import pack_batch, pack_messages, plain_message
from protocols.remoting.requests import DoorContext, Handler, Request
from protocols.remoting.routing import Brokers, broker_of

_TRACES: Final = ("RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_", "BenchmarkTest")
"""Beginnings of topics of the system that clients write to. Source: protocol facts 5.13, trace."""
_LONGEST_BATCH_TOPIC: Final = 127
_NOWHERE: Final = (1 << 63) - 1
"""The place in the id of a message that is held back, and cannot be asked for by it."""
_SEVERAL: Final = 2
"""Messages of one send: a batch of one is rare."""
_REFUSALS: Final = frozenset({Fault.BROKER_BUSY, Fault.TOO_MANY_REQUESTS})
"""Their code, SYSTEM_BUSY, says that nothing was carried out."""
_ID: Final = re.compile(r"[0-9a-fA-F]{32}(?:[0-9a-fA-F]{24})?")
"""An offset message id, of a broker at an address of IPv4 or IPv6."""
_PLACE_DIGITS: Final = 16
"""Of an offset message id, at its end: the place in its broker's log."""
_ID_WIDTH: Final = 33
"""Of an id with an address of IPv4, and the comma before it."""
_LONGEST_IDS: Final = 512 * 1024
"""Bytes of all ids of a batch, above which only the first one is told: a header has 1 MiB."""
_CLUSTER, _CORRELATION_ID, _REPLY_TO = CLUSTER.encode(), CORRELATION_ID.encode(), REPLY_TO_CLIENT.encode()
_MOST, _MEMBER = MAX_RECONSUME_TIMES.encode(), RETRY_MEMBER.encode()

Made = TypeVar("Made")


class SendHandler:
    """Serves the sends."""

    def __init__(self, door_context: DoorContext) -> None:
        self._processor = door_context.processor
        self._clock = door_context.clock
        self._brokers = Brokers(door_context)
        self._turns = itertools.count()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send_short,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
            RequestCode.RECALL_MESSAGE: self.recall,
        }

    def drain(self) -> None:
        """Nothing waits here."""

    # They hand on a coroutine: one of their own would be run for nothing.

    def send(self, request: Request) -> Coroutine[Any, Any, Command]:
        return self._send(request, Head.read(request.fields, LONG))

    def send_short(self, request: Request) -> Coroutine[Any, Any, Command]:
        return self._send(request, Head.read(request.fields, SHORT))

    def send_batch(self, request: Request) -> Coroutine[Any, Any, Command]:
        head = Head.read(request.fields, SHORT)
        head.batch = True
        return self._send(request, head)

    async def recall(self, request: Request) -> Command:
        fields = request.fields
        topic = text(fields, "topic")
        if topic.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "messages of retry topics are not recalled")
        try:
            message_id = await self._processor.recall(request.context, topic, text(fields, "recallHandle"))
        except GatewayError as error:
            if error.fault not in (Fault.BAD_REQUEST, Fault.MESSAGE_NOT_FOUND):
                raise
            raise Refused(ResponseCode.ILLEGAL_OPERATION, error.sentence) from error
        return request.answer({"msgId": message_id})

    # -- inside -------------------------------------------------------------------------------

    async def _send(self, request: Request, head: Head) -> Command:
        context = request.context
        topic = _checked(head.topic)
        if head.batch:
            if topic.startswith(RETRY_PREFIX):
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, "batches are not sent to retry topics")
            if len(topic) > _LONGEST_BATCH_TOPIC:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"a batch's topic has {len(topic)} characters")
        again, member = topic.startswith(RETRY_PREFIX), ""
        if again:
            # Its broker makes a dead letter of what came often enough (protocol facts 7.8, rule 7).
            group = check_group(topic[len(RETRY_PREFIX) :])
            member = await self._processor.classic.prepare_group(context, group)
        elif not head.broker:
            head.broker = await self._only_broker(request, topic)
        if head.batch and head.queue_id < 0:
            head.broker, head.queue_id = await self._one_queue(context, topic, head.broker)
        if head.batch:
            answer = await self._forwarded(request, head, topic) or await self._packed(request, head, topic)
            if answer is not None:
                return answer
            items = items_in(head, request.command.body)
        else:
            if not again:
                answer = await self._passed_on(request, head, topic)
                if answer is not None:
                    return answer
            items = [BatchItem(head.flag, request.command.body, head.properties)]
        now_ms, limits = self._clock.now_ms(), self._processor.limits
        messages = [
            message_in(head, item, topic=topic, born_host=context.peer, now_ms=now_ms, limits=limits)
            for item in items
        ]
        if again:
            _tell_more(messages[0], head, member)
            # They stand among its properties, and choose nothing here.
            messages[0].message_group = messages[0].lite_topic = ""
            messages[0].deliver_at_ms = min(messages[0].deliver_at_ms, now_ms + limits.max_delay_ms)
        for message in messages:
            if b"CORRELATION_ID" in message.properties:
                await self._name_cluster(context, message)
        origin = await self._brokers.origin(context)  # before it is stored: nothing may fail afterwards
        stored = await self._store(context, topic, messages)
        return request.answer(_answer_to(messages[0].message_id, stored, origin))

    async def _passed_on(self, request: Request, head: Head, topic: str) -> Command | None:
        """The answer to a message of the usual kind that goes to its broker as it is; None: it does not."""
        processor, context = self._processor, request.context
        if not processor.batches.supported or is_system_topic(topic):
            return None
        single = self._made(plain_message, request, head, topic)
        if single is None:
            return None
        origin = await self._brokers.origin(context)  # before it is stored: nothing may fail afterwards
        try:
            stored = await processor.batches.forward_message(context, single)
        except BadRequest as error:
            if error.fault is Fault.BAD_REQUEST:
                raise _final(error) from error
            raise
        return request.answer(_answer_to(single.message_id, (stored,), origin))

    async def _forwarded(self, request: Request, head: Head, topic: str) -> Command | None:
        """The answer to a batch that goes to its broker in one piece; None: it does not."""
        processor, context = self._processor, request.context
        if not processor.batches.supported or is_system_topic(topic):
            return None
        packed = self._made(pack_batch, request, head, topic)
        if packed is None:
            return None
        origin = await self._brokers.origin(context)  # before it is stored: nothing may fail afterwards
        try:
            stored = await processor.batches.forward(context, packed.batch)
        except BadRequest as error:
            if error.fault is Fault.BODY_TOO_LARGE:
                return None  # for this broker, and nothing is stored; in parts it may take them
            if error.fault is Fault.BAD_REQUEST:
                raise _final(error) from error
            raise
        ids = _ids_at(origin, stored.broker, stored.offset_message_ids, packed.batch.count)
        return request.answer(
            {
                "msgId": ids,
                "queueId": str(stored.queue_id),
                "queueOffset": str(stored.offset),
                "transactionId": packed.first_message_id,
            }
        )

    async def _packed(self, request: Request, head: Head, topic: str) -> Command | None:
        """The answer to a batch whose broker stores messages packed; None: it is not, or may not."""
        processor, context = self._processor, request.context
        if processor.batches.supported or not processor.takes_packed(_SEVERAL) or is_system_topic(topic):
            return None
        packed = self._made(pack_messages, request, head, topic)
        if packed is None:
            return None
        origin = await self._brokers.origin(context)  # before it is stored: nothing may fail afterwards
        try:
            results = await processor.send_packed(context, packed)
        except BadRequest as error:
            if error.fault is Fault.BAD_REQUEST:
                raise _final(error) from error
            raise
        stored = _all_stored(results)
        if flag(request.fields, FIRST_ID):
            stored = stored[:1]
        return request.answer(_answer_to(packed.message_ids[0].decode(), stored, origin))

    def _made(self, make: Callable[..., Made], request: Request, head: Head, topic: str) -> Made:
        """What `pack_batch` or `pack_messages` makes of a batch, or `plain_message` of a message."""
        return make(
            head,
            request.command.body,
            topic=topic,
            born_host=request.context.peer,
            now_ms=self._clock.now_ms(),
            limits=self._processor.limits,
        )

    async def _store(self, context: Context, topic: str, messages: Sequence[Message]) -> list[Sent]:
        """All, in order; in parts where they are more than one send may have. Raises as `_all_stored`."""
        most, system = self._processor.limits.max_messages_per_send, is_system_topic(topic)
        stored: list[Sent] = []
        for begin in range(0, len(messages), most):
            part = messages[begin : begin + most]
            try:
                if not begin and len(messages) > most:
                    await self._processor.check_all(context, messages, system=system)
                results = await self._processor.send(context, part, system=system)
            except BadRequest as error:
                if error.fault is Fault.BAD_REQUEST:
                    raise _final(error) from error
                raise
            except GatewayError as error:
                if stored and error.fault in _REFUSALS:
                    raise _partly_stored(len(stored), error) from error
                raise
            stored += _all_stored(results, len(stored))
        return stored

    async def _only_broker(self, request: Request, topic: str) -> str:
        """For a client that names none. Empty: the topic is about to be made."""
        try:
            return broker_of(request, await self._processor.metadata.queues(request.context, topic))
        except TopicNotFound:
            return ""

    async def _one_queue(self, context: Context, topic: str, broker: str) -> tuple[str, int]:
        """A queue for a batch that names none: one for all of it."""
        try:
            queues = await self._processor.metadata.queues(context, topic)
        except TopicNotFound:
            return broker, 0
        writable = [
            queue for queue in queues if queue.permission & Permission.WRITE and broker in ("", queue.broker)
        ]
        if not writable:
            return broker, 0
        queue = writable[next(self._turns) % len(writable)]
        return queue.broker, queue.queue_id

    async def _name_cluster(self, context: Context, message: Message) -> None:
        """Add the cluster for the reply to a request message. Source: protocol facts 7.6, 7.8 (8)."""
        block = message.properties
        if find_property(block, _CORRELATION_ID) is None or find_property(block, _REPLY_TO) is None:
            return
        for broker in await self._brokers.known():
            if message.broker in ("", broker.name):
                message.properties = set_property(block, _CLUSTER, broker.cluster.encode("utf-8", "replace"))
                return


def _checked(topic: str) -> str:
    """Raises Refused: an invalid topic name, or a topic that clients may not write to."""
    if is_system_topic(topic):
        if not topic.startswith(_TRACES):
            raise Refused(
                ResponseCode.NO_PERMISSION, f"sending message to topic[{shown(topic)}] is forbidden."
            )
        return topic
    try:
        return check_topic(topic)
    except BadRequest as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, error.sentence) from error


def _all_stored(results: Sequence[Sent | GatewayError], before: int = 0) -> Sequence[Sent]:
    """Raises the first fault, or `_partly_stored`. `before`: so many of the batch are stored already."""
    if isinstance(results, SentTogether):
        return results
    stored = [result for result in results if isinstance(result, Sent)]
    for result in results:
        if isinstance(result, GatewayError):
            count = before + len(stored)
            if count and result.fault in _REFUSALS:
                raise _partly_stored(count, result)
            raise result
    return stored


def _partly_stored(count: int, error: GatewayError) -> GatewayError:
    """In the place of one of `_REFUSALS`, after which a client that must not repeat a message would."""
    return BrokerTimeout(f"{count} messages of the batch are stored, and others are not: {error.sentence}")


def _answer_to(first_message_id: str, stored: Sequence[Sent], origin: Origin) -> dict[str, str]:
    """Source: protocol facts 7.8, send rule 12."""
    first = stored[0]
    if isinstance(stored, SentTogether) and stored.places:
        ids = origin.message_ids(stored.broker, stored.places)
    else:
        ids = [
            origin.message_id(result.broker, result.commit_offset if result.commit_offset >= 0 else _NOWHERE)
            for result in stored
        ]
    if len(ids) * (len(ids[0]) + 1) > _LONGEST_IDS:
        ids = ids[:1]
    fields = {
        "msgId": ",".join(ids),
        "queueId": str(first.queue_id),
        "queueOffset": str(first.offset),
        "transactionId": first_message_id,
    }
    if first.recall_handle and len(stored) == 1:
        fields["recallHandle"] = first.recall_handle
    return fields


def _final(error: BadRequest) -> Refused:
    """What clients do not repeat (INVALID_PARAMETER), in the place of an error that has no code of its own.

    Who caught the error raises: raised anew from here, it would be in a circle with this frame, and keep its
    request until the collector comes.
    """
    return Refused(ResponseCode.INVALID_PARAMETER, error.sentence)


def _ids_at(origin: Origin, broker: str, text: str, count: int) -> str:
    """Offset message ids of stored messages, as clients see them, with commas between as in `text`."""
    if origin.leaves(broker):
        moved = _moved(text, pack_host(origin.host).hex().upper(), count)
        if moved:
            return moved
    names = text.split(",")
    if len(names) != count or not all(map(_ID.fullmatch, names)):
        return ",".join([origin.message_id(broker, _NOWHERE)] * count)
    if origin.leaves(broker):
        address = pack_host(origin.host).hex().upper()
        return ",".join([address + name[-_PLACE_DIGITS:] for name in names])
    return ",".join(origin.message_ids(broker, [int(name[-_PLACE_DIGITS:], 16) for name in names]))


def _moved(text: str, address: str, count: int) -> str:
    """Ids that all begin with the same address of IPv4, with another one in its place; empty: they do not.

    Each of them is looked at by a few steps through all of them together.
    """
    ids = "," + text
    if (
        len(ids) != _ID_WIDTH * count
        or ids.count(",") != count
        or ids[::_ID_WIDTH] != "," * count
        # Blanks are left out, and so are missed.
        or len(_digits(text.replace(",", ""))) * 2 != len(text) - count + 1
    ):
        return ""
    before = ids[: _ID_WIDTH - _PLACE_DIGITS]
    if ids.count(before) != count:
        return ""
    return ids.replace(before, "," + address)[1:]


def _digits(text: str) -> bytes:
    """What hex digits say; empty: there are others."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _tell_more(message: Message, head: Head, member: str) -> None:
    """How often a message may come again, and to whom, is asked of its properties; most tell the first."""
    most, block = head.most_reconsumed, message.properties
    if most is not None and most >= 0 and find_property(block, _MOST) is None:
        block = set_property(block, _MOST, b"%d" % most)
    if member:
        block = set_property(block, _MEMBER, member.encode())
    if len(block) <= LONGEST_BLOCK:
        message.properties = block
