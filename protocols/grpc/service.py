"""The messaging service: one short method per RPC, knowing no transport. Those of offsets are in `offsets`.

A method takes a decoded request and its Context and returns the answer, or raises GatewayError;
`rpcs` turns that into the status of an answer. Source: protocol facts 1.4 to 1.7, 1.11, 3.2, 4.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import BadRequest, Fault, GatewayError, TooManyRequests, shown
from popgate.model import EndTransaction, Resolution, StoredMessage
from popgate.naming import check_group, check_topic
from processors.clients import ClientHandle, ClientKind
from processors.messaging import MessagingProcessor
from processors.producing import check_count
from protocols.draining import Waits
from protocols.grpc import convert
from protocols.grpc.advertising import dialled_endpoints
from protocols.grpc.errors import OK, status_of
from protocols.grpc.lite import lite_sync_in
from protocols.grpc.offsets import Positions
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb import service_pb2 as rpc
from protocols.grpc.pb.timestamp_pb2 import Timestamp
from protocols.grpc.peculiarities import can_receive
from protocols.grpc.telemetry import TelemetryStream
from protocols.grpc.transport import Answers, Commands

_log = logging.getLogger(__name__)

_CLIENT_TYPES = frozenset(set(pb.ClientType.values()) - {pb.ClientType.CLIENT_TYPE_UNSPECIFIED})
_RECEIVED = rpc.ReceiveMessageResponse(status=OK)
_NOTHING = pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")


class MessagingService(Positions):
    """RocketMQ's MessagingService on a MessagingProcessor.

    `advertised`: what clients are told to connect to; None: what each of them dialled.
    """

    def __init__(
        self, processor: MessagingProcessor, clock: Clock, *, advertised: pb.Endpoints | None = None
    ) -> None:
        super().__init__(processor)
        self._clock = clock
        self._advertised = advertised
        self._open = 0
        """Telemetry streams: those that wait for a command, and those that wait until one is read."""
        self._streams = Waits()

    def __repr__(self) -> str:
        return f"<MessagingService polls {self._polls} streams {self._open}>"

    async def query_route(self, request: rpc.QueryRouteRequest, context: Context) -> rpc.QueryRouteResponse:
        route = await self._processor.route(context, request.topic.name)
        endpoints = self._endpoints(request.endpoints, context)
        return rpc.QueryRouteResponse(
            status=OK,
            message_queues=[convert.queue_out(q, route, request.topic, endpoints) for q in route.queues],
        )

    async def query_assignment(
        self, request: rpc.QueryAssignmentRequest, context: Context
    ) -> rpc.QueryAssignmentResponse:
        found = await self._processor.assignments(context, request.topic.name, request.group.name)
        endpoints = self._endpoints(request.endpoints, context)
        return rpc.QueryAssignmentResponse(
            status=OK,
            assignments=[
                pb.Assignment(message_queue=convert.queue_out(q, found.route, request.topic, endpoints))
                for q in found.queues
            ],
        )

    async def heartbeat(self, request: rpc.HeartbeatRequest, context: Context) -> rpc.HeartbeatResponse:
        """A client whose settings went to another replica, or to this one before it was restarted, is well.

        Only a client that nobody knows and that does not say what it is cannot be answered.
        """
        client = self._processor.clients.get(context.client_id)
        if client is None and request.client_type not in _CLIENT_TYPES:
            raise BadRequest(
                f"client {shown(context.client_id)} is not known here and does not say what it is:"
                " a heartbeat names a client type, or the telemetry stream has brought the settings",
                Fault.CLIENT_TYPE_UNKNOWN,
            )
        if request.HasField("group") and not _is_producer(client, request):
            check_group(request.group.name)
        self._processor.clients.touch(context.client_id, self._clock.monotonic())
        return rpc.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, _request: rpc.NotifyClientTerminationRequest, context: Context
    ) -> rpc.NotifyClientTerminationResponse:
        # One that is not known here is gone already.
        self._processor.goodbye(context)
        return rpc.NotifyClientTerminationResponse(status=OK)

    async def send_message(
        self, request: rpc.SendMessageRequest, context: Context
    ) -> rpc.SendMessageResponse:
        count = len(request.messages)
        if count > 1:
            check_count(count, self._processor.limits)
            _check_one_topic([message.topic for message in request.messages])
        now_ms = self._clock.now_ms()
        messages = [convert.message_in(message, context, now_ms) for message in request.messages]
        results = await self._processor.send(context, messages)
        entries = [
            rpc.SendResultEntry(status=status_of(result, context))
            if isinstance(result, GatewayError)
            else convert.sent_out(result)
            for result in results
        ]
        return rpc.SendMessageResponse(status=_together(e.status for e in entries), entries=entries)

    async def receive_message(
        self,
        request: rpc.ReceiveMessageRequest,
        context: Context,
        answers: Answers[rpc.ReceiveMessageResponse],
    ) -> int:
        """Write a status, the messages, and the time of delivery; undelivered messages are given back.

        Returns the code of the status.
        """
        try:
            receive = convert.receive_in(request)
            messages = await self._polls.wait(self._processor.receive(context, receive))
        except GatewayError as error:
            status = status_of(error, context)
            await answers.write(rpc.ReceiveMessageResponse(status=status))
        else:
            status = _NOTHING
            if messages:
                status = OK
                await self._deliver(request, context, answers, messages)
            else:
                await answers.write(rpc.ReceiveMessageResponse(status=status))
        seconds, ms = divmod(self._clock.now_ms(), 1000)
        now = Timestamp(seconds=seconds, nanos=ms * 1_000_000)
        await answers.write(rpc.ReceiveMessageResponse(delivery_timestamp=now))
        return status.code

    async def _deliver(
        self,
        request: rpc.ReceiveMessageRequest,
        context: Context,
        answers: Answers[rpc.ReceiveMessageResponse],
        messages: Sequence[StoredMessage],
    ) -> None:
        topic = request.message_queue.topic
        written = 0
        try:
            await answers.write(_RECEIVED)
            for stored in messages:
                answer = rpc.ReceiveMessageResponse(message=convert.message_out(stored, topic))
                if can_receive(context, answer):
                    await answers.write(answer)
                else:
                    _log.warning(
                        "message %s of topic %s is too large for the client %s (%s): %d bytes",
                        answer.message.system_properties.message_id,
                        topic.name,
                        context.client_id,
                        context.language,
                        answer.ByteSize(),
                    )
                    await self._processor.not_taken(context, topic.name, request.group.name, stored)
                written += 1
        except BaseException:
            # Also of a cancelled request: the one that was being written may not have arrived either.
            await self._processor.give_back(context, topic.name, request.group.name, messages[written:])
            raise

    async def ack_message(self, request: rpc.AckMessageRequest, context: Context) -> rpc.AckMessageResponse:
        # One more than there may be is enough to be refused.
        entries_in = request.entries[: self._processor.limits.max_receipts_per_ack + 1]
        results = await self._processor.ack(
            context, request.topic.name, request.group.name, [e.receipt_handle for e in entries_in]
        )
        entries = [
            rpc.AckMessageResultEntry(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=OK if error is None else status_of(error, context),
            )
            for entry, error in zip(entries_in, results, strict=True)
        ]
        return rpc.AckMessageResponse(status=_together(e.status for e in entries), entries=entries)

    async def change_invisible_duration(
        self, request: rpc.ChangeInvisibleDurationRequest, context: Context
    ) -> rpc.ChangeInvisibleDurationResponse:
        try:
            handle = await self._processor.change_invisible(
                context,
                request.topic.name,
                request.group.name,
                request.receipt_handle,
                convert.millis_of(request.invisible_duration),
                message_id=request.message_id,
                suspend=request.suspend,
            )
        except GatewayError as error:
            # Official clients put the answer's handle in the place of theirs, whatever the status:
            # without one, a message that is still theirs could no longer be acknowledged.
            return rpc.ChangeInvisibleDurationResponse(
                status=status_of(error, context), receipt_handle=request.receipt_handle
            )
        return rpc.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)

    async def forward_message_to_dead_letter_queue(
        self, request: rpc.ForwardMessageToDeadLetterQueueRequest, context: Context
    ) -> rpc.ForwardMessageToDeadLetterQueueResponse:
        await self._processor.dead_letter(
            context, request.topic.name, request.group.name, request.receipt_handle
        )
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
        await self._processor.end_transaction(context, end)
        return rpc.EndTransactionResponse(status=OK)

    async def sync_lite_subscription(
        self, request: rpc.SyncLiteSubscriptionRequest, context: Context
    ) -> rpc.SyncLiteSubscriptionResponse:
        await self._processor.lite.sync(context, lite_sync_in(request))
        return rpc.SyncLiteSubscriptionResponse(status=OK)

    async def recall_message(
        self, request: rpc.RecallMessageRequest, context: Context
    ) -> rpc.RecallMessageResponse:
        message_id = await self._processor.recall(context, request.topic.name, request.recall_handle)
        return rpc.RecallMessageResponse(status=OK, message_id=message_id)

    async def telemetry(self, commands: Commands, context: Context) -> None:
        """Serve one stream until it ends. Raises TooManyRequests, CallFailed."""
        most = self._processor.limits.max_clients
        if self._open >= most:
            raise TooManyRequests(f"the limit of {most} telemetry streams is reached", 10.0)
        self._open += 1
        try:
            await TelemetryStream(context, commands, self._processor, self._clock).run(self._streams)
        finally:
            self._open -= 1

    def drain(self) -> None:
        """Answer long polls now, empty, and end the telemetry streams: their clients go elsewhere."""
        self._polls.end()
        self._streams.end()

    def _endpoints(self, dialled: pb.Endpoints, context: Context) -> pb.Endpoints:
        return self._advertised if self._advertised is not None else dialled_endpoints(dialled, context)


def _check_one_topic(topics: Sequence[pb.Resource]) -> None:
    """Raises IllegalTopic, BadRequest MESSAGE_CORRUPTED. Names alone are not enough: namespaces count."""
    first = topics[0]
    check_topic(first.name)
    for topic in topics:
        if topic != first:
            raise BadRequest(
                f"the messages of one send go to one topic, these go to {shown(_full(first))}"
                f" and {shown(_full(topic))}",
                Fault.MESSAGE_CORRUPTED,
            )


def _full(topic: pb.Resource) -> str:
    return f"{topic.resource_namespace}%{topic.name}" if topic.resource_namespace else topic.name


def _together(statuses: Iterable[pb.Status]) -> pb.Status:
    """The status of an answer with entries: theirs when they agree, else MULTIPLE_RESULTS (pitfall 17)."""
    found = {status.code: status for status in statuses}
    if len(found) == 1:
        return next(iter(found.values()))
    return pb.Status(code=pb.MULTIPLE_RESULTS, message="the entries have different results")


def _is_producer(client: ClientHandle | None, request: rpc.HeartbeatRequest) -> bool:
    if client is not None:
        return client.kind is ClientKind.PRODUCER
    return request.client_type == pb.ClientType.PRODUCER
