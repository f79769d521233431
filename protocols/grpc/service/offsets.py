"""Reads by offset: PullMessage, and the offsets of queues and of groups.

The base of the `MessagingService`. RocketMQ's own proxy serves none of it. Sources: protocol facts 1.10
and 7.8, the table of status codes of rocketmq-apis, and the only pull consumer that was written for
these calls (a draft of the official Java client), which continues at the `next_offset` that comes with
ILLEGAL_OFFSET, and at 0 when there is none.
"""

from __future__ import annotations

from popgate.context import Context
from popgate.errors import BadRequest, Fault, IllegalOffset, NotFound, shown
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from processors.budgets import Budgets
from processors.messaging import MessagingProcessor
from processors.requests import Pull
from protocols.drain import LongPolls
from protocols.grpc.codec import convert
from protocols.grpc.codec.client_quirks import notices_only_an_end
from protocols.grpc.codec.errors import OK, status_of
from protocols.grpc.transport import ResponseStream

_PULLED = rpc.PullMessageResponse(status=OK)
_MOST = 32
"""Messages of a pull that does not say how many."""


class Positions:
    """What is asked for by queue and offset. A queue is named by its topic, its broker's name and its id."""

    def __init__(self, processor: MessagingProcessor) -> None:
        self._processor = processor
        self._polls = LongPolls()
        self._waits_first = LongPolls()
        """Polls and telemetry streams of clients that notice only the end of a connection: they end when a
        drain begins, also where the others last as long as it does, and when their connection is to go."""

    @property
    def budgets(self) -> Budgets:
        """How many bytes may be under way; the door counts."""
        return self._processor.budgets

    async def pull_message(
        self,
        request: rpc.PullMessageRequest,
        context: Context,
        answers: ResponseStream[rpc.PullMessageResponse],
    ) -> int:
        """Write a status, the messages, and where the next pull starts. That none was found is no failure.

        Returns the code of the status.

        Nothing is taken: the messages have no receipt handle and need no acknowledgement.
        """
        illegal: IllegalOffset | None = None
        try:
            polls = self._waits_first if notices_only_an_end(context) else self._polls
            pulled = await polls.wait(self._processor.pull(context, pull_in(request)))
        except IllegalOffset as error:
            illegal = error
        if illegal is not None:
            status = status_of(illegal, context)
            await answers.write(rpc.PullMessageResponse(status=status))
            await answers.write(rpc.PullMessageResponse(next_offset=illegal.nearest))
            return status.code
        await answers.write(_PULLED)
        if pulled is None:
            # Called back: the gateway closes, and the next pull goes elsewhere.
            await answers.write(rpc.PullMessageResponse(next_offset=request.offset))
            return pb.OK
        topic = request.message_queue.topic
        for stored in pulled.messages:
            await answers.write(rpc.PullMessageResponse(message=convert.message_out(stored, topic)))
        await answers.write(rpc.PullMessageResponse(next_offset=pulled.next_offset))
        return pb.OK

    async def update_offset(
        self, request: rpc.UpdateOffsetRequest, context: Context
    ) -> rpc.UpdateOffsetResponse:
        queue = request.message_queue
        convert.check_endpoints(queue.broker.endpoints)
        await self._processor.offsets.commit(
            context, request.group.name, queue.topic.name, queue.broker.name, queue.id, request.offset
        )
        return rpc.UpdateOffsetResponse(status=OK)

    async def get_offset(self, request: rpc.GetOffsetRequest, context: Context) -> rpc.GetOffsetResponse:
        """Raises NotFound OFFSET_NOT_FOUND."""
        group, queue = request.group.name, request.message_queue
        convert.check_endpoints(queue.broker.endpoints)
        offset = await self._processor.offsets.committed(
            context, group, queue.topic.name, queue.broker.name, queue.id
        )
        if offset is None:
            raise NotFound(
                f"consumer group {group} has no offset at queue {queue.id} of topic {queue.topic.name}"
                f" on broker {shown(queue.broker.name)}: it never read it",
                Fault.OFFSET_NOT_FOUND,
            )
        return rpc.GetOffsetResponse(status=OK, offset=offset)

    async def query_offset(
        self, request: rpc.QueryOffsetRequest, context: Context
    ) -> rpc.QueryOffsetResponse:
        """Raises BadRequest: no such policy, or the time is missing."""
        queue, policy = request.message_queue, request.query_offset_policy
        convert.check_endpoints(queue.broker.endpoints)
        where = (queue.topic.name, queue.broker.name, queue.id)
        if policy == pb.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise BadRequest("an offset by time needs a timestamp")
            time_ms = convert.time_ms(request.timestamp)
            offset = await self._processor.offsets.offset_at(context, *where, time_ms)
        elif policy in (pb.BEGINNING, pb.END):
            bounds = await self._processor.offsets.bounds(context, *where)
            offset = bounds.minimum if policy == pb.BEGINNING else bounds.maximum
        else:
            raise BadRequest(f"there is no offset policy {policy}: it is BEGINNING, END or TIMESTAMP")
        return rpc.QueryOffsetResponse(status=OK, offset=offset)


def pull_in(request: rpc.PullMessageRequest) -> Pull:
    """A request to read by offset. Without a polling time it does not wait.

    Raises IllegalTopic, IllegalFilter, BadRequest.
    """
    queue = request.message_queue
    convert.check_queue(queue)
    return Pull(
        topic=queue.topic.name,
        broker=queue.broker.name,
        queue_id=queue.id,
        offset=request.offset,
        group=request.group.name,
        filter_kind=convert.filter_kind(request.filter_expression),
        filter_expression=request.filter_expression.expression,
        max_messages=request.batch_size if request.batch_size > 0 else _MOST,
        wait_s=convert.millis_of(request.long_polling_timeout) / 1000
        if request.HasField("long_polling_timeout")
        else None,
    )
