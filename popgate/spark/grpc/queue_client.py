"""The queue client of the option `transport = grpc`. Sources: protocol facts 1.10, 3.2 and 7.8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from popgate.errors import (
    BrokerUnavailable,
    GatewayError,
    Internal,
    PeerWireError,
    TopicNotFound,
    Unsupported,
)
from popgate.model import Bounds
from popgate.naming import TOOLS_GROUP
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.queue_client import HalfMessage, PullAnswer, QueueClient, QueuePlace, SendAnswer
from popgate.spark.errors import Code, PartlyStored, SparkSourceError
from popgate.spark.grpc.connection import GrpcConnection
from popgate.spark.grpc.messages import message_of, record_of
from popgate.spark.grpc.statuses import error_of
from popgate.spark.offsets import named
from popgate.wire.bodies.configs import TopicConfig
from popgate.wire.bodies.query_reports import QueryReport
from popgate.wire.bodies.routes import PERM_READ, PERM_WRITE, QueueData, TopicRoute
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.batches import decode_batch
from popgate.wire.messages.properties import SHARDING_KEY, find_property

if TYPE_CHECKING:
    from popgate.blocking import BlockingConnection

_TEMPLATE: Final = "TBW102"
"""The topic whose route a topic gets that is made on first use: over gRPC the gateway makes it by itself."""
_INSTEAD: Final = "gRPC has no call for it, use transport = remoting"
_NO_BOUNDS: Final = Bounds(-1, -1)
"""Of a queue: the answer to a pull does not tell them here, and the connector asks for them apart."""
_GROUP: Final = SHARDING_KEY.encode()
_AROUND: Final = 2
"""Answers to a pull besides its messages: a status, and the offset that it reached."""
_MOST_IN_FLIGHT: Final = 64
"""Questions under way at a time."""
_PERMS: Final = {
    int(pb.READ): PERM_READ,
    int(pb.WRITE): PERM_WRITE,
    int(pb.READ_WRITE): PERM_READ | PERM_WRITE,
}


class GrpcQueueClient(QueueClient):
    """Requests about queues over one gRPC connection, which is the client's `connection`.

    gRPC does not tell a slave's answer from a master's, and sends name no queue: the gateway takes that of
    the message group, as all producers do, or the next one.
    """

    def __init__(self, connection: GrpcConnection, *, group: str = TOOLS_GROUP) -> None:
        # It has what those use that are given a client.
        super().__init__(cast("BlockingConnection", connection), group=group)
        self._grpc = connection
        self._there: set[str] = set()
        """Topics of which a queue was there."""

    # -- where things are -----------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute:
        """As a producer asks for it: a topic that is not there is made where that is allowed."""
        counts: dict[str, list[int]] = {}
        for queue in self._queues(topic):
            ends = counts.setdefault(queue.broker.name, [0, 0])
            for at, perm in enumerate((PERM_READ, PERM_WRITE)):
                if _PERMS.get(queue.permission, 0) & perm:
                    ends[at] = max(ends[at], queue.id + 1)
        return TopicRoute(
            tuple(
                QueueData(broker, read, write, (PERM_READ if read else 0) | (PERM_WRITE if write else 0))
                for broker, (read, write) in sorted(counts.items())
            )
        )

    def queues(self, topic: str) -> list[QueuePlace]:
        self._check_there(self._grpc.seen.get(topic, QueuePlace(topic, "", 0)))
        queues = sorted(
            QueuePlace(topic, queue.broker.name, queue.id)
            for queue in self._queues(topic)
            if _PERMS.get(queue.permission, 0) & PERM_READ
        )
        self._grpc.seen.update((topic, queue) for queue in queues[:1])
        return queues

    def topic_config(self, topic: str) -> TopicConfig:
        raise Unsupported(f"to ask for the settings of topic {topic} over gRPC", _INSTEAD)

    def topics(self) -> list[str]:
        raise Unsupported("a list of topics over gRPC", f"{_INSTEAD}, or name them (option topic)")

    # -- offsets --------------------------------------------------------------------------------------

    def minimums(self, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        return self._offsets_told(
            "QueryOffset", ((queue, self._offset_request(queue, pb.BEGINNING)) for queue in queues)
        )

    def maximums(self, queues: Sequence[QueuePlace], *, of_masters: bool = False) -> dict[QueuePlace, int]:
        return self._offsets_told(
            "QueryOffset", ((queue, self._offset_request(queue, pb.END)) for queue in queues)
        )

    def offsets_at(self, times_ms: Mapping[QueuePlace, int]) -> dict[QueuePlace, int]:
        return self._offsets_told(
            "QueryOffset",
            ((queue, self._offset_request(queue, pb.TIMESTAMP, ms)) for queue, ms in times_ms.items()),
        )

    def committed(self, group: str, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        asked = (
            (
                queue,
                rpc.GetOffsetRequest(group=self._grpc.resource(group), message_queue=self._place_of(queue)),
            )
            for queue in queues
        )
        offsets = self._offsets_told("GetOffset", asked, group=group, missing=pb.OFFSET_NOT_FOUND)
        return {queue: offset for queue, offset in offsets.items() if offset >= 0}

    def commit(self, group: str, offsets: Mapping[QueuePlace, int]) -> None:
        asked = (
            (
                queue,
                rpc.UpdateOffsetRequest(
                    group=self._grpc.resource(group), message_queue=self._place_of(queue), offset=offset
                ),
            )
            for queue, offset in offsets.items()
        )
        refused = None
        for queue, answer in self._each("UpdateOffset", asked):
            if answer.status.code != pb.OK and refused is None:
                refused = self._error(answer.status, queue.topic, group)
        if refused is not None:
            raise refused

    # -- reading --------------------------------------------------------------------------------------

    def start_pull(
        self, queue: QueuePlace, offset: int, *, most: int, expression: str = "*", kind: str = "TAG"
    ) -> int:
        if queue.topic not in self._there:
            self._check_there(queue)
            self._there.add(queue.topic)
        request = rpc.PullMessageRequest(
            group=self._grpc.resource(self.group),
            message_queue=self._place_of(queue),
            offset=offset,
            batch_size=most,
            filter_expression=pb.FilterExpression(
                type=pb.TAG if kind == "TAG" else pb.SQL, expression=expression
            ),
        )
        return self._grpc.start_stream("PullMessage", request)

    def finish_pull(self, opaque: int, queue: QueuePlace, *, timeout_s: float | None = None) -> PullAnswer:
        request = self._grpc.request_of(opaque)
        status: pb.Status | None = None
        next_offset: int | None = None
        messages = []
        for answer in self._grpc.finish_stream(opaque, most=request.batch_size + _AROUND):
            match answer.WhichOneof("content"):
                case "message":
                    messages.append(answer.message)
                case "next_offset":
                    next_offset = answer.next_offset
                case "status":
                    status = answer.status
        if status is not None and status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND, pb.ILLEGAL_OFFSET):
            raise self._error(status, queue.topic, self.group)
        if status is None or next_offset is None:
            # A gateway that goes, or something on the way, ended it: what came may not be all.
            raise BrokerUnavailable(f"{self._grpc.endpoint} answered a pull without its end")
        if status.code == pb.ILLEGAL_OFFSET:
            code, messages = ResponseCode.PULL_OFFSET_MOVED, []
        elif messages:
            code = ResponseCode.SUCCESS
        else:
            passed = next_offset > request.offset
            code = ResponseCode.PULL_RETRY_IMMEDIATELY if passed else ResponseCode.PULL_NOT_FOUND
        return PullAnswer(code, next_offset, _NO_BOUNDS, self._records(messages, queue))

    # -- sending --------------------------------------------------------------------------------------

    def start_send(
        self,
        queue: QueuePlace,
        messages: Sequence[tuple[bytes, bytes]],
        *,
        now_ms: int | None = None,
        once: bool = False,
        half: bool = False,
    ) -> int:
        """As the other client, but the queue is the gateway's choice, and so is `once`: one with the embedded
        broker always acknowledges what was sent recently, and stores it no second time.
        """
        if half:
            raise Unsupported("a half message over gRPC", "use transport = remoting")
        topic = self._grpc.resource(queue.topic)
        if not self._grpc.keeps_groups and any(find_property(block, _GROUP) for _, block in messages):
            for each in messages[:-1]:
                self.send(queue, [each])
            messages = messages[-1:]
        request = rpc.SendMessageRequest()
        for body, block in messages:
            message = message_of(queue.topic, body, block, now_ms or 0)
            if topic.resource_namespace:
                message.topic.CopyFrom(topic)
            request.messages.append(message)
        return self._grpc.start("SendMessage", request)

    def start_send_batch(
        self, queue: QueuePlace, items: bytes, *, now_ms: int | None = None, once: bool = False
    ) -> int:
        messages = [(item.body, item.properties) for item in decode_batch(items)]
        return self.start_send(queue, messages, now_ms=now_ms, once=once)

    def finish_send(self, opaque: int, queue: QueuePlace, *, timeout_s: float | None = None) -> SendAnswer:
        """Raises the fault of a message that is not stored, as PartlyStored if others are."""
        sent = [each.system_properties.message_id for each in self._grpc.request_of(opaque).messages]
        answer = self._grpc.finish(opaque, timeout_s=timeout_s)
        statuses = [entry.status for entry in answer.entries]
        if answer.status.code not in (pb.OK, pb.MULTIPLE_RESULTS):
            statuses.append(answer.status)
        errors = [self._error(status, queue.topic) for status in statuses if status.code != pb.OK]
        if errors:
            # One that no repetition helps against counts first: the lot is not sent in vain.
            error = min(errors, key=lambda error: error.retryable)
            if len(answer.entries) == len(sent):
                good = [entry.status.code == pb.OK for entry in answer.entries]
                # Of messages with one id nobody could tell which is stored.
                stored = set(compress(sent, good)) - set(compress(sent, map(not_, good)))
                error = PartlyStored(error, stored) if stored else error
            raise error
        # RocketMQ's own proxy has one entry for all.
        if len(answer.entries) not in (1, len(sent)):
            raise Internal(
                f"{self._grpc.endpoint} answered a send of {len(sent)} messages"
                f" for {len(answer.entries)} of them"
            )
        ids = tuple(entry.message_id for entry in answer.entries)
        return SendAnswer(ids, queue, answer.entries[0].offset)

    def start_end(self, half: HalfMessage, *, commit: bool) -> NoReturn:
        raise Unsupported("the end of a half message over gRPC", "use transport = remoting")

    def finish_end(self, opaque: int, half: HalfMessage, *, timeout_s: float | None = None) -> NoReturn:
        raise Unsupported("the end of a half message over gRPC", "use transport = remoting")

    def report(self, report: QueryReport) -> None:
        raise Unsupported("a report of a query over gRPC", _INSTEAD)

    # -- inside ---------------------------------------------------------------------------------------

    def _check_there(self, queue: QueuePlace) -> None:
        """Raises TopicNotFound: a route, and a pull, would make the topic, as of one that was deleted."""
        request = self._offset_request(queue, pb.BEGINNING)
        if self._grpc.call("QueryOffset", request).status.code == pb.TOPIC_NOT_FOUND:
            raise TopicNotFound(queue.topic)

    def _queues(self, topic: str) -> list[pb.MessageQueue]:
        """Of masters. Raises TopicNotFound, and the fault of the connection."""
        if topic == _TEMPLATE:
            raise TopicNotFound(topic)
        request = rpc.QueryRouteRequest(topic=self._grpc.resource(topic), endpoints=self._grpc.access_point)
        answer = self._grpc.call("QueryRoute", request)
        if answer.status.code != pb.OK:
            raise self._error(answer.status, topic)
        return [queue for queue in answer.message_queues if queue.broker.id == 0]

    def _place_of(self, queue: QueuePlace) -> pb.MessageQueue:
        return pb.MessageQueue(
            topic=self._grpc.resource(queue.topic), id=queue.queue_id, broker=pb.Broker(name=queue.broker)
        )

    def _offset_request(
        self, queue: QueuePlace, policy: pb.QueryOffsetPolicy, time_ms: int = 0
    ) -> rpc.QueryOffsetRequest:
        request = rpc.QueryOffsetRequest(message_queue=self._place_of(queue), query_offset_policy=policy)
        if policy == pb.TIMESTAMP:
            request.timestamp.CopyFrom(Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000))
        return request

    def _offsets_told(
        self,
        method: str,
        asked: Iterable[tuple[QueuePlace, Any]],
        *,
        group: str = "",
        missing: int | None = None,
    ) -> dict[QueuePlace, int]:
        """Raises the first refusal."""
        offsets = {}
        for queue, answer in self._each(method, asked):
            if answer.status.code == missing:
                continue
            if answer.status.code != pb.OK:
                raise self._error(answer.status, queue.topic, group)
            offsets[queue] = answer.offset
        return offsets

    def _each(self, method: str, asked: Iterable[tuple[QueuePlace, Any]]) -> list[tuple[QueuePlace, Any]]:
        """The answers to all of them, so many at a time."""
        requests = list(asked)
        answers = []
        for begin in range(0, len(requests), _MOST_IN_FLIGHT):
            lot = [
                (queue, self._grpc.start(method, request))
                for queue, request in requests[begin : begin + _MOST_IN_FLIGHT]
            ]
            try:
                answers += [(queue, self._grpc.finish(number)) for queue, number in lot]
            finally:
                for _, number in lot:
                    self._grpc.forget(number)
        return answers

    def _records(self, messages: list[pb.Message], queue: QueuePlace) -> bytes:
        """Raises SparkSourceError (DAMAGED)."""
        records = []
        try:
            for message in messages:
                message.topic.name = queue.topic  # with its namespace
                records.append(record_of(message, queue.queue_id))
        except PeerWireError as error:
            raise SparkSourceError(
                Code.DAMAGED,
                f"a message cannot be read over gRPC ({named(queue)}): {error}; use transport = remoting",
            ) from error
        return b"".join(records)

    def _error(self, status: pb.Status, topic: str, group: str = "") -> GatewayError:
        return error_of(status, endpoint=self._grpc.endpoint, topic=topic, group=group)
