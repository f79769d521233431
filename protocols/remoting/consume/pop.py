"""Pop: messages taken and hidden, acknowledged one by one or together, hidden for longer.

A classic client constructs its handle from the header of the response; where that would not
be the broker's receipt, the message carries it as the property POP_CK, as redeliveries of RocketMQ do.
Sources: protocol facts 4.1, 4.3, 4.4, 4.6 and 5.5 (200050 to 200055, 200151).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from popgate.errors import (
    BadRequest,
    Fault,
    GatewayError,
    IllegalReceipt,
    PeerWireError,
    ReceiptExpired,
    TooManyRequests,
    shown,
)
from popgate.ids.receipt import OF_TOPIC, Receipt, parse_receipt
from popgate.model import Reading, StoredMessage
from popgate.naming import check_group, check_topic, pop_retry_origin
from popgate.wire.bodies.pop_info import PopInfo, encode_pop_info
from popgate.wire.bodies.small_bodies import BatchAck, decode_batch_acks
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import LONGEST_BLOCK, POP_CK, drop_properties, set_property
from processors.requests import Receive
from protocols.drain import LongPolls
from protocols.remoting.clients.remoting_client import consumer_key, filter_kind_of
from protocols.remoting.codec.fields import flag, long_number, number, text
from protocols.remoting.codec.marks import Origin
from protocols.remoting.codec.records import encode_all
from protocols.remoting.mapped.answers import MOST_BYTES
from protocols.remoting.requests import DoorContext, Handler, Request
from protocols.remoting.routing import Brokers

LARGEST_BATCH: Final = 64 * 1024
"""Bytes of a batch of acknowledgements; each has at least a bit."""
MOST_ACKS: Final = 8192
"""Messages that one batch acknowledges."""
_POP_CK: Final = POP_CK.encode()


class PopHandler:
    """Serves POP_MESSAGE and what follows it."""

    def __init__(self, door_context: DoorContext) -> None:
        self._processor = door_context.processor
        self._clock = door_context.clock
        self._brokers = Brokers(door_context)
        self._polls = LongPolls()
        self._returns: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<PopHandler polls {self._polls} returns {len(self._returns)}>"

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.POP_MESSAGE: self.pop,
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.polling,
        }

    def drain(self) -> None:
        """Answer long polls now, empty."""
        self._polls.end()

    async def pop(self, request: Request) -> Command:
        """Take messages; POLLING_TIMEOUT when none came in time.

        The group says whether it is ordered, and where it starts: `initMode` is not looked at, and an
        `order` that the group does not keep is refused, because it would be broken in silence.
        """
        fields, context = request.fields, request.context
        topic, group = text(fields, "topic"), text(fields, "consumerGroup")
        if flag(fields, "order") and not (await self._processor.settings(context, group)).ordered:
            raise BadRequest(
                f"consumer group {shown(group)} is not ordered, so its pops cannot be: set"
                " consumeMessageOrderly (mqadmin updateSubGroup), or leave out the order"
            )
        receive = Receive(
            topic,
            group,
            filter_kind_of(fields.get("expType", "")),
            fields.get("exp") or "*",
            number(fields, "maxMsgNums"),
            long_number(fields, "invisibleTime"),
            wait_s=self._wait_s(fields),
            attempt_id=fields.get("attemptId", ""),
            broker=fields.get("bname", ""),
            queue_id=number(fields, "queueId", -1),
            max_bytes=MOST_BYTES,
        )
        # Who may not pop says nothing about the member whose id its heartbeat names.
        self._processor.classic.check_member(context, group)
        # Whatever its heartbeats say: it shares messages by itself.
        self._processor.mapped_groups.told(consumer_key(request.peer.client_id, group), Reading.NEUTRAL)
        origin = await self._brokers.origin(context)
        try:
            messages = await self._polls.wait(self._processor.receive(context, receive))
        except TooManyRequests as error:
            # The client asks again a little later.
            return request.refusal(ResponseCode.POLLING_FULL, error.sentence)
        if not messages:
            return request.refusal(ResponseCode.POLLING_TIMEOUT, "no new message")
        try:
            answer = request.answer(*popped(messages, receive.broker or messages[0].broker, origin))
        except BaseException:
            self._give_back(request, topic, group, messages)
            raise
        request.unwritten = lambda: self._give_back(request, topic, group, messages)
        return answer

    async def ack(self, request: Request) -> Command:
        """Finish a delivery. NO_MESSAGE when its time is over."""
        fields = request.fields
        handle, group = text(fields, "extraInfo"), check_group(text(fields, "consumerGroup"))
        topic = topic_popped(text(fields, "topic"), group, parse_receipt(handle))
        (error,) = await self._processor.ack(request.context, topic, group, (handle,))
        return request.answer() if error is None else _refused(request, error)

    async def ack_batch(self, request: Request) -> Command:
        """Finish many; like a broker, it silently ignores those that can never be finished.

        Raises what kept the broker from finishing others now: then the client sends the batch again.
        """
        if len(request.command.body) > LARGEST_BATCH:
            raise BadRequest(f"a batch of acknowledgements has at most {LARGEST_BATCH} bytes")
        try:
            broker, acks = decode_batch_acks(request.command.body)
        except PeerWireError as error:
            raise BadRequest(f"the batch of acknowledgements cannot be read: {error}") from error
        if sum(len(ack.offsets) for ack in acks) > MOST_ACKS:
            raise BadRequest(f"a batch acknowledges at most {MOST_ACKS} messages")
        most = self._processor.limits.max_receipts_per_ack
        failed: GatewayError | None = None
        for (topic, group), handles in _by_reader(broker, acks).items():
            for at in range(0, len(handles), most):
                part = handles[at : at + most]
                try:
                    results = await self._processor.ack(request.context, topic, group, part)
                except GatewayError as error:
                    failed = failed or error
                else:
                    failed = failed or next((error for error in results if error and error.retryable), None)
        if failed is not None:
            raise failed
        return request.answer()

    async def change(self, request: Request) -> Command:
        """Hide a held message for so long from now. The client makes its next handle of the answer."""
        fields = request.fields
        handle, group = text(fields, "extraInfo"), check_group(text(fields, "consumerGroup"))
        receipt = parse_receipt(handle)
        topic = topic_popped(text(fields, "topic"), group, receipt)
        try:
            changed = await self._processor.change_invisible(
                request.context,
                topic,
                group,
                handle,
                long_number(fields, "invisibleTime"),
                suspend=flag(fields, "suspend"),
            )
        except IllegalReceipt as error:
            return _refused(request, error)
        changed_receipt = parse_receipt(changed)
        return request.answer(
            {
                "popTime": str(changed_receipt.pop_ms),
                "invisibleTime": str(changed_receipt.invisible_ms),
                "reviveQid": str(changed_receipt.revive_queue),
            }
        )

    async def notify(self, request: Request) -> Command:
        """Whether there is something to pop; it may be waited for as in a pop."""
        fields = request.fields
        topic, group = text(fields, "topic"), text(fields, "consumerGroup")
        looking = self._processor.arrival_notices.anything(
            request.context, topic, group, self._wait_s(fields)
        )
        try:
            has_message = await self._polls.wait(looking)
        except TooManyRequests:
            return request.answer({"hasMsg": "false", "pollingFull": "true"})
        return request.answer({"hasMsg": "true" if has_message else "false", "pollingFull": "false"})

    async def polling(self, request: Request) -> Command:
        """How many pops wait."""
        fields = request.fields
        topic, group = text(fields, "topic"), text(fields, "consumerGroup")
        waiting = await self._processor.arrival_notices.receivers(request.context, topic, group)
        return request.answer({"pollingNum": str(waiting)})

    # -- inside -------------------------------------------------------------------------------

    def _wait_s(self, fields: Mapping[str, str]) -> float:
        """`pollTime` counts from `bornTime`, by the client's clock; implausible times count from now."""
        poll_ms = long_number(fields, "pollTime")
        if poll_ms < 0:
            raise BadRequest(f"the polling time is {poll_ms} ms", Fault.ILLEGAL_POLLING_TIME)
        born_ms = long_number(fields, "bornTime", 0)
        gone_ms = self._clock.now_ms() - born_ms if born_ms > 0 else 0
        if 0 < gone_ms < poll_ms:
            poll_ms -= gone_ms
        return poll_ms / 1000

    def _give_back(self, request: Request, topic: str, group: str, messages: Sequence[StoredMessage]) -> None:
        """Their answer did not go out: they are there again at once."""
        task = asyncio.get_running_loop().create_task(
            self._processor.give_back(request.context, topic, group, messages)
        )
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)


def popped(messages: Sequence[StoredMessage], broker: str, origin: Origin) -> tuple[dict[str, str], bytes]:
    """The header fields and the body of an answer. `broker` is what the client asked."""
    receipts = [parse_receipt(message.receipt) for message in messages]
    first = receipts[0]
    info = PopInfo(first.pop_ms, first.invisible_ms, first.revive_queue, 0)
    starts: dict[tuple[int, int], int] = {}
    offsets: dict[tuple[int, int], list[int]] = {}
    counts: dict[tuple[int, int, int], int] = {}
    plain = True
    for message, receipt in zip(messages, receipts, strict=True):
        kind, queue_id, offset = receipt.topic_type, message.queue_id, message.offset
        start = starts.setdefault((kind, queue_id), receipt.start_offset)
        offsets.setdefault((kind, queue_id), []).append(offset)
        if receipt.ordered and message.attempt > 1:
            counts[kind, queue_id, offset] = message.attempt - 1
        made = (start, *first[1:4], OF_TOPIC, broker, queue_id, offset)
        plain = plain and made == receipt[:8] and message.properties.find(_POP_CK) < 0
    if not plain:
        # With all of them: a client that looks some of them up counts those that it need not look up, too.
        messages = list(map(_with_handle, messages))
    info.starts, info.offsets, info.counts_at = starts, offsets, counts
    return encode_pop_info(info), encode_all(messages, origin)


def _with_handle(message: StoredMessage) -> StoredMessage:
    """With its handle as a property, where there is room: else its client makes one of the header."""
    block = set_property(message.properties, _POP_CK, message.receipt.encode())
    if len(block) > LONGEST_BLOCK:
        block = drop_properties(message.properties, (_POP_CK,))
    return replace(message, properties=block)


def topic_popped(topic: str, group: str, receipt: Receipt) -> str:
    """The topic that a message was popped from: clients name that of the retries it lay in (facts 4.1)."""
    origin = pop_retry_origin(group, topic) if receipt.topic_type != OF_TOPIC else None
    return check_topic(topic if origin is None else origin)


def _by_reader(broker: str, acks: Iterable[BatchAck]) -> dict[tuple[str, str], list[str]]:
    """The handles, by topic and group."""
    by_reader: dict[tuple[str, str], list[str]] = {}
    for ack in acks:
        handles = by_reader.setdefault((check_topic(ack.topic), check_group(ack.group)), [])
        for offset in ack.offsets:
            receipt = Receipt(
                ack.start,
                ack.pop_ms,
                ack.invisible_ms,
                ack.revive_queue,
                ack.retry,
                broker,
                ack.queue_id,
                offset,
            )
            handles.append(receipt.encode())
    return by_reader


def _refused(request: Request, error: GatewayError) -> Command:
    if isinstance(error, ReceiptExpired):
        return request.refusal(ResponseCode.NO_MESSAGE, error.sentence)
    if isinstance(error, IllegalReceipt):
        return request.refusal(ResponseCode.MESSAGE_ILLEGAL, error.sentence)
    raise error
