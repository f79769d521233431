"""Combines the acknowledgements of one turn of the event loop into one request per broker.

A single acknowledgement is sent as ACK_MESSAGE, because the broker then reports an invalid one; in a
BATCH_ACK_MESSAGE it silently ignores invalid entries (protocol facts 4.4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from brokers.remote.access.broker_client import BrokerClient
from popgate.answers import error_of
from popgate.errors import GatewayError, IllegalReceipt
from popgate.ids.receipt import OF_RETRY_V1, OF_RETRY_V2, Receipt
from popgate.naming import pop_retry_topic_v1, pop_retry_topic_v2
from popgate.wire.bodies.small_bodies import BatchAck, encode_batch_acks
from popgate.wire.frames.codes import RequestCode, ResponseCode

_WIDEST: Final = 1_024
"""Offsets from the start of its check point: an acknowledgement beyond that is sent alone."""
_MOST: Final = 1_024
"""Acknowledgements of one request."""
_MOST_QUEUES: Final = 1_024
"""An acknowledgement for a queue beyond these is sent alone. A broker makes, and keeps, each queue that a
batch names (RocketMQ 5.3.3, AckMessageProcessor.appendAck); of a single one it looks first whether the topic
has its queue. And a client may write what it likes into a handle of a redelivery."""
_AT_ONCE: Final = 256
"""Of those of one turn that are sent alone, if there are several."""
_MOST_AT_ONCE: Final = 1_024
"""Of those of all turns: only so many requests may be under way to a broker, and others need them, too
(`RemoteSettings.max_in_flight`)."""
_ILLEGAL: Final = frozenset(
    {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE, ResponseCode.INVALID_PARAMETER}
)


class Ack(NamedTuple):
    """A delivery to finish. `handle` is its text as the client has it, `topic` the one it was popped from."""

    topic: str
    group: str
    receipt: Receipt
    handle: str


class _Part:
    """What one caller asks of one broker. The future has one outcome for each, in order."""

    __slots__ = ("acks", "done")

    def __init__(self, acks: Sequence[Ack], done: asyncio.Future[list[GatewayError | None]]) -> None:
        self.acks = acks
        self.done = done


def real_topic(topic: str, group: str, receipt: Receipt) -> str:
    """The topic that the broker popped the message from: the group's retries have one of their own (4.1)."""
    if receipt.topic_type == OF_RETRY_V1:
        return pop_retry_topic_v1(group, topic)
    if receipt.topic_type == OF_RETRY_V2:
        return pop_retry_topic_v2(group, topic)
    return topic


def _entry(ack: Ack, offsets: list[int]) -> BatchAck:
    receipt = ack.receipt
    return BatchAck(
        ack.group,
        ack.topic,
        receipt.topic_type,
        receipt.start_offset,
        receipt.queue_id,
        receipt.revive_queue,
        receipt.pop_ms,
        receipt.invisible_ms,
        offsets=tuple(offsets),
    )


class AckBatcher:
    """One request per broker and turn of the loop."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client
        self._parts: dict[str, list[_Part]] = {}
        self._alone: set[str] = set()
        """Brokers that do not know batches."""
        self._rooms: dict[str, asyncio.Semaphore] = {}
        """By broker, for `_MOST_AT_ONCE`."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<AckBatcher under way {len(self._tasks)}>"

    def finish(self, broker: str, acks: Sequence[Ack]) -> asyncio.Future[list[GatewayError | None]]:
        """Acknowledge deliveries of one broker; the future has an outcome for each.

        It fails only with a fault of this program.
        """
        loop = self._loop
        if loop is None:  # to find it costs a call of the system before Python 3.12
            loop = self._loop = asyncio.get_running_loop()
        if not self._parts:
            loop.call_soon(self._flush)
        done: asyncio.Future[list[GatewayError | None]] = loop.create_future()
        self._parts.setdefault(broker, []).append(_Part(acks, done))
        return done

    async def stop(self) -> None:
        """Wait for requests in progress."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _flush(self) -> None:
        parts, self._parts = self._parts, {}
        for broker, its in parts.items():
            task = asyncio.get_running_loop().create_task(self._send(broker, its))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, broker: str, parts: list[_Part]) -> None:
        """Send the acknowledgements of one turn, in requests of at most `_MOST`."""
        acks = [ack for part in parts for ack in part.acks]
        try:
            outcomes = await self._outcomes(broker, acks)
        except Exception as error:
            # A fault of ours. Who waits is told: a cancelled future would look as if it had been called back.
            for part in parts:
                if not part.done.done():
                    part.done.set_exception(error)
            return
        except BaseException:
            for part in parts:
                part.done.cancel()
            raise
        at = 0
        for part in parts:
            if not part.done.done():
                part.done.set_result(outcomes[at : at + len(part.acks)])
            at += len(part.acks)

    async def _outcomes(self, broker: str, acks: Sequence[Ack]) -> list[GatewayError | None]:
        together: list[int] = []
        alone: list[int] = []
        for at, ack in enumerate(acks):
            receipt = ack.receipt
            near = 0 <= receipt.offset - receipt.start_offset < _WIDEST and receipt.queue_id < _MOST_QUEUES
            (together if near else alone).append(at)
        if broker in self._alone:
            together, alone = [], list(range(len(acks)))
        outcomes: list[GatewayError | None] = [None] * len(acks)
        if len(together) == 1:
            alone += together
            together = []
        for start in range(0, len(together), _MOST):
            some = together[start : start + _MOST]
            if broker in self._alone:
                alone += some
                continue
            error = await self._batch(broker, [acks[at] for at in some])
            if broker in self._alone:
                alone += some
                continue
            for at in some:
                outcomes[at] = error
        if len(alone) == 1:
            outcomes[alone[0]] = await self._single(broker, acks[alone[0]])
        else:
            for start in range(0, len(alone), _AT_ONCE):
                some = alone[start : start + _AT_ONCE]
                results = await asyncio.gather(*(self._one_of_many(broker, acks[at]) for at in some))
                for at, result in zip(some, results, strict=True):
                    outcomes[at] = result
        return outcomes

    async def _batch(self, broker: str, acks: Sequence[Ack]) -> GatewayError | None:
        merged: dict[tuple[object, ...], tuple[Ack, list[int]]] = {}
        for ack in acks:
            topic, group, receipt, _ = ack
            # All of it but the offsets of the message.
            key = (topic, group, receipt[:7])
            entry = merged.get(key)
            if entry is None:
                merged[key] = ack, [receipt.offset]
            else:
                entry[1].append(receipt.offset)
        entries = [_entry(ack, offsets) for ack, offsets in merged.values()]
        try:
            body = encode_batch_acks(broker, entries)
            answer = await self._client.call_patiently(broker, RequestCode.BATCH_ACK_MESSAGE, {}, body)
        except GatewayError as error:
            return error
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._alone.add(broker)
            return None
        if answer.code == ResponseCode.SUCCESS:
            return None
        return error_of(answer, broker=broker, topic=acks[0].topic, group=acks[0].group)

    async def _one_of_many(self, broker: str, ack: Ack) -> GatewayError | None:
        room = self._rooms.get(broker)
        if room is None:
            room = self._rooms[broker] = asyncio.Semaphore(_MOST_AT_ONCE)
        async with room:
            return await self._single(broker, ack)

    async def _single(self, broker: str, ack: Ack) -> GatewayError | None:
        receipt = ack.receipt
        fields = {
            "consumerGroup": ack.group,
            "topic": real_topic(ack.topic, ack.group, receipt),
            "queueId": str(receipt.queue_id),
            "extraInfo": ack.handle,
            "offset": str(receipt.offset),
        }
        try:
            answer = await self._client.call_patiently(broker, RequestCode.ACK_MESSAGE, fields)
        except GatewayError as error:
            return error
        if answer.code == ResponseCode.SUCCESS:
            return None
        if answer.code in _ILLEGAL:
            return IllegalReceipt(ack.handle, answer.remark[:200] or "the broker refuses it")
        return error_of(answer, broker=broker, topic=ack.topic, group=ack.group)
