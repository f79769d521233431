"""The messaging service: one short method per RPC, knowing no transport. Those of offsets are in `offsets`.

A method takes a decoded request and its Context and returns the answer, or raises GatewayError; the
dispatcher turns that into the status of an answer. Source: protocol facts 1.4 to 1.7, 1.11, 3.2, 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import BadRequest, Fault, GatewayError, TooManyRequests, shown
from popgate.model import EndTransaction, Resolution, StoredMessage
from popgate.naming import check_group, check_topic
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from processors.clients.client_registry import ClientHandle, ClientKind
from processors.messaging import MessagingProcessor
from processors.produce.message_checks import check_count
from processors.requests import NOTHING_SAID, Receive, Said
from protocols.drain import LongPolls
from protocols.grpc.codec import convert
from protocols.grpc.codec.client_quirks import can_receive, notices_only_an_end
from protocols.grpc.codec.endpoints import dialled_endpoints
from protocols.grpc.codec.errors import OK, joint_status, status_of
from protocols.grpc.codec.handles import marked_like, receipt_of, receipts_of
from protocols.grpc.codec.lite import lite_sync_in
from protocols.grpc.codec.packer import EncodedAnswer, Packer, sends_out
from protocols.grpc.codec.plain_consume import PlainAck, PlainReceive, encode_acked
from protocols.grpc.codec.plain_send import PlainSend
from protocols.grpc.codec.received_message import encode_received, encode_time
from protocols.grpc.service.offsets import Positions
from protocols.grpc.telemetry.departures import Departures
from protocols.grpc.telemetry.kept_settings import KeptSettings
from protocols.grpc.telemetry.telemetry import TelemetryClient, TelemetryStream
from protocols.grpc.transport import ResponseStream, TelemetryChannel

_log = logging.getLogger(__name__)

_CLIENT_TYPES: Final = frozenset(set(pb.ClientType.values()) - {pb.ClientType.CLIENT_TYPE_UNSPECIFIED})
_RECEIVED: Final = rpc.ReceiveMessageResponse(status=OK).SerializeToString()
_TOGETHER: Final = 64 * 1024
"""Bytes that are encoded before they are written, or one message."""
_NOTHING: Final = pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")


class MessagingService(Positions):
    """RocketMQ's MessagingService on a MessagingProcessor.

    `advertised`: the address that clients are told to use; None: the one that each of them used.
    """

    def __init__(
        self, processor: MessagingProcessor, clock: Clock, *, advertised: pb.Endpoints | None = None
    ) -> None:
        super().__init__(processor)
        self._clock = clock
        self._advertised = advertised
        self._open: dict[asyncio.Task[Any], TelemetryStream] = {}
        """Telemetry streams: those that wait for a command, and those that wait until one is read."""
        self._streams = LongPolls()
        self._departures = Departures(clock)
        self._kept_settings = KeptSettings()
        self._limits = processor.limits
        self._packer = Packer(processor.limits)

    def __repr__(self) -> str:
        return f"<MessagingService polls {self._polls} streams {len(self._open)}>"

    async def query_route(self, request: rpc.QueryRouteRequest, context: Context) -> rpc.QueryRouteResponse:
        convert.check_endpoints(request.endpoints)
        route = await self._processor.route(context, request.topic.name)
        endpoints = self._endpoints(request.endpoints, context)
        types = convert.types_out(route, context, lite=self._processor.lite.available)
        return rpc.QueryRouteResponse(
            status=OK,
            message_queues=[convert.queue_out(q, types, request.topic, endpoints) for q in route.queues],
        )

    async def query_assignment(
        self, request: rpc.QueryAssignmentRequest, context: Context
    ) -> rpc.QueryAssignmentResponse:
        convert.check_endpoints(request.endpoints)
        assigned = await self._processor.assignments(context, request.topic.name, request.group.name)
        endpoints = self._endpoints(request.endpoints, context)
        types = convert.types_out(assigned.route, context, lite=self._processor.lite.available)
        queues = [convert.queue_out(q, types, request.topic, endpoints) for q in assigned.queues]
        assignments = [pb.Assignment(message_queue=queue) for queue in queues]
        return rpc.QueryAssignmentResponse(status=OK, assignments=assignments)

    async def heartbeat(self, request: rpc.HeartbeatRequest, context: Context) -> rpc.HeartbeatResponse:
        """Also of clients whose settings went elsewhere; unknown ones without a type are refused."""
        client_key = context.client_key
        client = self._processor.clients.get(client_key)
        if client is None and request.client_type not in _CLIENT_TYPES:
            raise BadRequest(
                f"client {shown(context.client_id)} is not known here and does not say what it is:"
                " a heartbeat names a client type, or the telemetry stream has brought the settings",
                Fault.CLIENT_TYPE_UNKNOWN,
                "cannot find client settings for this client",
            )
        if request.HasField("group") and not _is_producer(client, request):
            check_group(request.group.name)
        self._processor.clients.touch(client_key, self._clock.monotonic())
        self._departures.heard(client_key)
        return rpc.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, request: rpc.NotifyClientTerminationRequest, context: Context
    ) -> rpc.NotifyClientTerminationResponse:
        # One that is not known here is gone already.
        self._processor.goodbye(context, request.group.name)
        self._departures.left(context.client_key)
        return rpc.NotifyClientTerminationResponse(status=OK)

    async def send_message(
        self, request: rpc.SendMessageRequest | PlainSend, context: Context
    ) -> rpc.SendMessageResponse | EncodedAnswer:
        count = len(request.message_ids if isinstance(request, PlainSend) else request.messages)
        if count > 1:
            check_count(count, self._limits)
        now_ms = self._clock.now_ms()
        takes_packed = self._processor.takes_packed(count)
        if takes_packed or (isinstance(request, PlainSend) and self._processor.takes_blocks):
            packed = self._packer.pack(request, context.peer, now_ms)
            if packed is not None:
                if takes_packed:
                    return sends_out(await self._processor.send_packed(context, packed), context)
                return sends_out(await self._processor.send(context, packed.unpack()), context)
        if isinstance(request, PlainSend):
            request = request.parse()
        if count > 1:
            convert.check_one_topic([message.topic for message in request.messages])
        messages = [convert.message_in(message, context, now_ms) for message in request.messages]
        return sends_out(await self._processor.send(context, messages), context)

    async def receive_message(
        self,
        request: rpc.ReceiveMessageRequest | PlainReceive,
        context: Context,
        answers: ResponseStream[rpc.ReceiveMessageResponse],
    ) -> int:
        """Write a status, the messages, and the time of delivery; returns the code of the status."""
        topic: pb.Resource | None = None
        try:
            if isinstance(request, PlainReceive):
                receive = request.receive
            else:
                receive = convert.receive_in(request)
                topic = request.message_queue.topic
            if receive.wait_s is None:
                client = self._processor.clients.get(context.client_key)
                # None where the settings came to another replica: the deadline decides, as without settings.
                receive.wait_s = client.polling_wait_s if isinstance(client, TelemetryClient) else None
            polls = self._waits_first if notices_only_an_end(context) else self._polls
            messages = await polls.wait(self._processor.receive(context, receive))
        except GatewayError as error:
            status = status_of(error, context)
        else:
            if messages:
                await self._deliver(receive, topic, context, answers, messages)
                return pb.OK
            status = _NOTHING
        ending = rpc.ReceiveMessageResponse(status=status).SerializeToString()
        await _write_all(answers, [ending, self._time_told()])
        return status.code

    def _time_told(self) -> bytes:
        """The element of a response with the time of delivery."""
        return b"\x1a" + encode_time(self._clock.now_ms())

    async def _deliver(
        self,
        receive: Receive,
        topic: pb.Resource | None,
        context: Context,
        answers: ResponseStream[rpc.ReceiveMessageResponse],
        messages: Sequence[StoredMessage],
    ) -> None:
        """`topic`: as the client names it, where that may have a namespace."""
        ready = [_RECEIVED]
        encoded = size = 0
        failure: BaseException | None = None
        try:
            for stored in messages:
                answer = encode_received(stored, topic)
                length = len(answer)
                if can_receive(context, length):
                    ready.append(answer)
                    encoded += 1
                else:
                    await _write_all(answers, ready)
                    # Not returned from here on, also when this is cancelled: that would undo what is done.
                    encoded += 1
                    await self._cannot_take(receive, context, stored, length)
                size += length
                if size >= _TOGETHER:
                    await _write_all(answers, ready)
                    size = 0
            ready.append(self._time_told())
            encoded += 1
            # Nearly always all of them.
            del ready[: answers.write_at_once(ready)]
            if ready:
                await _write_all(answers, ready)
        except BaseException as error:
            failure = error
        if failure is not None:
            # Also of a cancelled request: the one that was being written may not have arrived either.
            written = max(encoded - len(ready), 0)
            rest, before = messages[written:], messages[:written]
            try:
                await self._processor.give_back(context, receive.topic, receive.group, rest, before)
                raise failure
            finally:
                failure = None  # its traceback has this frame

    async def _cannot_take(
        self, receive: Receive, context: Context, stored: StoredMessage, size: int
    ) -> None:
        _log.warning(
            "message %s of topic %s is too large for the client %s (%s): %d bytes",
            convert.message_out(stored).system_properties.message_id,
            receive.topic,
            context.client_id,
            context.language,
            size,
        )
        await self._processor.not_taken(context, receive.topic, receive.group, stored)

    async def ack_message(
        self, request: rpc.AckMessageRequest | PlainAck, context: Context
    ) -> rpc.AckMessageResponse | EncodedAnswer:
        most = self._limits.max_receipts_per_ack
        if isinstance(request, PlainAck):
            receipts = request.receipts() if len(request.handles) <= most else None
            if receipts is not None:
                results = await self._processor.ack(context, request.topic, request.group, receipts)
                if results.count(None) == len(results):
                    return EncodedAnswer(encode_acked(request.entries))
                return _acked(request.message_ids, request.handles, results, {}, context)
            request = request.parse()
        # One more than there may be is enough to be refused.
        entries_in = request.entries[: most + 1]
        handles = [entry.receipt_handle for entry in entries_in]
        ids = [entry.message_id for entry in entries_in]
        receipts, contradictions = receipts_of(entries_in, handles, ids, context)
        lite_topic = entries_in[-1].lite_topic if entries_in else ""
        said = Said(ids[-1], lite_topic) if lite_topic else NOTHING_SAID
        results = await self._processor.ack(
            context, request.topic.name, request.group.name, receipts, said=said
        )
        return _acked(ids, handles, results, contradictions, context)

    async def change_invisible_duration(
        self, request: rpc.ChangeInvisibleDurationRequest, context: Context
    ) -> rpc.ChangeInvisibleDurationResponse:
        receipt, contradiction = receipt_of(request, context)
        try:
            handle = await self._processor.change_invisible(
                context,
                request.topic.name,
                request.group.name,
                receipt,
                convert.millis_of(request.invisible_duration),
                said=Said(request.message_id, request.lite_topic, contradiction=contradiction),
                suspend=request.suspend,
            )
        except GatewayError as error:
            # Official clients put the answer's handle in the place of theirs, whatever the status:
            # without one, a message that is still theirs could no longer be acknowledged.
            return rpc.ChangeInvisibleDurationResponse(
                status=status_of(error, context), receipt_handle=request.receipt_handle
            )
        return rpc.ChangeInvisibleDurationResponse(
            status=OK, receipt_handle=marked_like(handle, request.receipt_handle)
        )

    async def forward_message_to_dead_letter_queue(
        self, request: rpc.ForwardMessageToDeadLetterQueueRequest, context: Context
    ) -> rpc.ForwardMessageToDeadLetterQueueResponse:
        receipt, contradiction = receipt_of(request, context)
        said = Said(
            request.message_id,
            request.lite_topic,
            request.delivery_attempt,
            request.max_delivery_attempts,
            contradiction,
        )
        await self._processor.dead_letter(context, request.topic.name, request.group.name, receipt, said=said)
        return rpc.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def end_transaction(
        self, request: rpc.EndTransactionRequest, context: Context
    ) -> rpc.EndTransactionResponse:
        topic = check_topic(request.topic.name)
        from_check = request.source == pb.SOURCE_SERVER_CHECK
        if request.resolution == pb.COMMIT:
            resolution = Resolution.COMMIT
        elif request.resolution == pb.ROLLBACK:
            resolution = Resolution.ROLLBACK
        elif from_check and request.transaction_id.strip():
            # The producer was asked and does not know yet: it will be asked again.
            return rpc.EndTransactionResponse(status=OK)
        else:
            raise BadRequest("the resolution of a transaction must be COMMIT or ROLLBACK")
        end = EndTransaction(topic, request.transaction_id, request.message_id, resolution, from_check)
        await self._processor.end_transaction(context, end, trace_context=request.trace_context)
        return rpc.EndTransactionResponse(status=OK)

    async def sync_lite_subscription(
        self, request: rpc.SyncLiteSubscriptionRequest, context: Context
    ) -> rpc.SyncLiteSubscriptionResponse:
        version = request.version if request.HasField("version") else None
        await self._processor.lite.sync(context, lite_sync_in(request), version)
        return rpc.SyncLiteSubscriptionResponse(status=OK)

    async def recall_message(
        self, request: rpc.RecallMessageRequest, context: Context
    ) -> rpc.RecallMessageResponse:
        message_id = await self._processor.recall(context, request.topic.name, request.recall_handle)
        return rpc.RecallMessageResponse(status=OK, message_id=message_id)

    async def telemetry(self, commands: TelemetryChannel, context: Context) -> None:
        """Serve one stream until it ends. Raises TooManyRequests, CallFailed."""
        if len(self._open) >= (most := self._limits.max_clients):
            raise TooManyRequests(f"the limit of {most} telemetry streams is reached", 10.0)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task here
        stream = TelemetryStream(context, commands, self._processor, self._clock, self._kept_settings)
        self._open[task] = stream
        streams = self._waits_first if notices_only_an_end(context) else self._streams
        watch = self._departures.watch(context.client_key, partial(streams.call_back, task))
        try:
            await stream.run(streams)
        finally:
            del self._open[task]
            if watch is not None:
                watch.cancel()

    def leave(self, call: asyncio.Task[Any]) -> None:
        """The connection of a call takes no more: answer its poll, or end its stream, where needed."""
        if self._waits_first.call_back(call) and call in self._open:
            self._open[call].is_sent_away = True

    def drain(self) -> None:
        """Answer long polls now, empty, and end the streams of clients that would not notice."""
        self._waits_first.end()
        self._polls.end()

    def end_streams(self) -> None:
        """End the telemetry streams well, and serve none from now on: their clients go elsewhere."""
        self._streams.end()

    def _endpoints(self, dialled: pb.Endpoints, context: Context) -> pb.Endpoints:
        return self._advertised if self._advertised is not None else dialled_endpoints(dialled, context)


def _acked(
    ids: Sequence[str],
    handles: Sequence[str],
    results: Sequence[GatewayError | None],
    contradictions: Mapping[int, GatewayError],
    context: Context,
) -> rpc.AckMessageResponse:
    """The answer with each outcome; `contradictions`: what is told in place of some, by index."""
    answer = rpc.AckMessageResponse()
    add = answer.entries.add
    failed = False
    for message_id, handle, error in zip(ids, handles, results, strict=True):
        status = OK
        if error is not None:
            failed = True
            status = status_of(contradictions.get(len(answer.entries), error), context)
        add(message_id=message_id, receipt_handle=handle, status=status)
    answer.status.CopyFrom(joint_status(e.status for e in answer.entries) if failed else OK)
    return answer


async def _write_all(answers: ResponseStream[rpc.ReceiveMessageResponse], ready: list[bytes]) -> None:
    """Write these messages and remove each from the list once it is written, also when this fails."""
    while ready:
        taken = answers.write_at_once(ready)
        if not taken:
            await answers.write_bytes(ready[0])
            taken = 1
        del ready[:taken]


def _is_producer(client: ClientHandle | None, request: rpc.HeartbeatRequest) -> bool:
    if client is not None:
        return client.kind is ClientKind.PRODUCER
    return request.client_type == pb.ClientType.PRODUCER
