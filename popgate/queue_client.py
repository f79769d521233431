"""Reads queues by offset and sends to them, over one blocking connection.

Requests of one kind are pipelined: none waits for the response to another. Bodies of pulls are the
bytes that the broker stored (`popgate/wire/messages/records.py` has the layout). Every request names its
broker, and is sent to the one endpoint of the connection.
Sources: protocol facts 5.5, 5.7 and 7.8.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from popgate.answers import error_of
from popgate.blocking import BlockingConnection
from popgate.errors import Internal, PeerWireError, TopicNotFound, shown
from popgate.model import Bounds
from popgate.naming import TOOLS_GROUP, is_derived_topic, is_system_topic
from popgate.wire.bodies.configs import TopicConfig
from popgate.wire.bodies.query_reports import QueryReport
from popgate.wire.bodies.routes import ClusterInfo, TopicRoute
from popgate.wire.bodies.small_bodies import TopicList
from popgate.wire.frames.codes import FIRST_ID, OF_MASTER, REPORT_QUERY, SEND_ONCE, RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.batches import encode_batch
from popgate.wire.messages.records import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

PRODUCER_GROUP: Final = "popgate"
_SUBSCRIPTION: Final = 4
_NO_DELAY_QUEUES: Final = "4"
_PULLED: Final = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}
_MOST_IN_FLIGHT: Final = 64
"""Questions under way at a time, each small, so that a topic of thousands of queues is no flood."""


class QueuePlace(NamedTuple):
    """One queue, as routes and offsets name it."""

    topic: str
    broker: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """The response to a pull. `body`: stored records one after the other, empty unless `code` is SUCCESS.

    `code` is SUCCESS, PULL_NOT_FOUND (no message there yet), PULL_RETRY_IMMEDIATELY (nothing passed the
    filter up to `next_offset`) or PULL_OFFSET_MOVED (the offset does not exist, `next_offset` is the nearest
    that does).
    """

    code: int
    next_offset: int
    bounds: Bounds
    body: bytes


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """Where the messages are stored: their ids, of a batch maybe the first alone, and the first offset."""

    message_ids: tuple[str, ...]
    queue: QueuePlace
    offset: int


class HalfMessage(NamedTuple):
    """A half message as an end identifies it: by the place that its send returned, and its message id."""

    topic: str
    broker: str
    queue_offset: int
    commit_offset: int
    message_id: str


class QueueClient:
    """Requests about queues over one connection. `group`: pulls use its permissions."""

    def __init__(self, connection: BlockingConnection, *, group: str = TOOLS_GROUP) -> None:
        self.connection = connection
        self.group = group

    # -- where things are -----------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute:
        """Raises TopicNotFound, and the fault of the connection."""
        answer = self.connection.call(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        )
        body = self._good(answer, topic).body
        try:
            return TopicRoute.decode(body)
        except PeerWireError as error:
            raise Internal(f"{self.connection.endpoint} answered with no route: {error}") from error

    def queues(self, topic: str) -> list[QueuePlace]:
        """The queues that can be read, by broker name and number. Raises as `route`."""
        return queues_of_route(topic, self.route(topic))[0]

    def topic_config(self, topic: str) -> TopicConfig:
        """Raises TopicNotFound, and the fault of the connection."""
        body = self._good(self.connection.call(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}), topic).body
        try:
            return TopicConfig.decode(body)
        except PeerWireError as error:
            raise Internal(f"{self.connection.endpoint} answered with no topic: {error}") from error

    def topics(self) -> list[str]:
        """The topics of users, by name. Raises what the connection raises.

        A list of topics has those of the system and of groups, and the names of brokers and clusters, which
        are topics too. Source: RocketMQ's RouteInfoManager.getAllTopicList and TopicConfigManager.
        """
        asked = [
            self.connection.start(code, {})
            for code in (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_BROKER_CLUSTER_INFO)
        ]
        listed, brokers = (self._good(self.connection.finish(opaque), "").body for opaque in asked)
        try:
            topics, cluster = TopicList.decode(listed).topics, ClusterInfo.decode(brokers)
        except PeerWireError as error:
            raise Internal(f"{self.connection.endpoint} answered with no topics: {error}") from error
        return sorted(
            topic
            for topic in topics
            if topic not in cluster.brokers
            and topic not in cluster.clusters
            and not is_system_topic(topic)
            and not is_derived_topic(topic)
        )

    # -- offsets --------------------------------------------------------------------------------------

    def minimums(self, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        """The first offset that is kept, of each."""
        return self._offsets(RequestCode.GET_MIN_OFFSET, [(queue, {}) for queue in queues])

    def maximums(self, queues: Sequence[QueuePlace], *, of_masters: bool = False) -> dict[QueuePlace, int]:
        """The offset that the next message will get, of each; `of_masters`: none that a slave tells."""
        fields = {OF_MASTER: "true"} if of_masters else {}
        return self._offsets(RequestCode.GET_MAX_OFFSET, [(queue, fields) for queue in queues])

    def offsets_at(self, times_ms: Mapping[QueuePlace, int]) -> dict[QueuePlace, int]:
        """The first offset stored at or after a time (ms since 1970), of each; the end if none is."""
        asked = [(queue, {"timestamp": str(time_ms)}) for queue, time_ms in times_ms.items()]
        return self._offsets(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, asked)

    def committed(self, group: str, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        """Where a group is on each queue; queues on which it has no position yet are left out."""
        fields = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        offsets = self._offsets(
            RequestCode.QUERY_CONSUMER_OFFSET,
            [(queue, fields) for queue in queues],
            missing=ResponseCode.QUERY_NOT_FOUND,
        )
        return {queue: offset for queue, offset in offsets.items() if offset >= 0}

    def commit(self, group: str, offsets: Mapping[QueuePlace, int]) -> None:
        """Say where a group is. Raises the first refusal, when all have been answered."""
        asked = [
            (queue, {"consumerGroup": group, "commitOffset": str(offset)})
            for queue, offset in offsets.items()
        ]
        refused = None
        for queue, answer in self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, asked):
            if answer.code != ResponseCode.SUCCESS and refused is None:
                refused = error_of(answer, broker=self.connection.endpoint, topic=queue.topic, group=group)
        if refused is not None:
            raise refused

    # -- reading --------------------------------------------------------------------------------------

    def start_pull(
        self,
        queue: QueuePlace,
        offset: int,
        *,
        most: int,
        expression: str = "*",
        kind: str = "TAG",
    ) -> int:
        """Ask for up to `most` messages from an offset on, without waiting for new ones."""
        fields = {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(most),
            "sysFlag": str(_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": expression,
            "subVersion": "0",
            "expressionType": kind,
            "bname": queue.broker,
        }
        return self.connection.start(RequestCode.PULL_MESSAGE, fields)

    def finish_pull(self, opaque: int, queue: QueuePlace, *, timeout_s: float | None = None) -> PullAnswer:
        """Raises the fault of the response (TopicNotFound, Forbidden, …), or that of the connection."""
        answer = self.connection.finish(opaque, timeout_s=timeout_s)
        if answer.code not in _PULLED:
            raise error_of(answer, broker=self.connection.endpoint, topic=queue.topic, group=self.group)
        numbers = (self._number(answer, name) for name in ("nextBeginOffset", "minOffset", "maxOffset"))
        next_offset, minimum, maximum = numbers
        body = answer.body if answer.code == ResponseCode.SUCCESS else b""
        return PullAnswer(answer.code, next_offset, Bounds(minimum, maximum), body)

    def pull(
        self,
        queue: QueuePlace,
        offset: int,
        *,
        most: int,
        expression: str = "*",
        kind: str = "TAG",
        timeout_s: float | None = None,
    ) -> PullAnswer:
        """One pull, waited for. Raises as `finish_pull`."""
        opaque = self.start_pull(queue, offset, most=most, expression=expression, kind=kind)
        return self.finish_pull(opaque, queue, timeout_s=timeout_s)

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
        """Start to send messages (body and properties block of each), several of them as one batch.

        A queue below 0 means any queue. `once`: a message whose id was sent recently is acknowledged and not
        stored again, if the broker supports that (the embedded one does, within its window). `half`: a
        single message with the property TRAN_MSG, of the producer group in its property PGROUP
        (`PRODUCER_GROUP`).

        Raises LocalWireError for properties that are too long for the layout.
        """
        if len(messages) != 1:
            if half:
                raise ValueError(f"a half message is sent alone, not {len(messages)} together")
            items = encode_batch((0, body, block) for body, block in messages)
            return self.start_send_batch(queue, items, now_ms=now_ms, once=once)
        body, properties = messages[0]
        fields = _send_fields(queue, now_ms, once=once)
        if half:
            fields["f"] = str(TRANSACTION_PREPARED)
        fields["i"] = properties.decode("utf-8", "replace")
        return self.connection.start(RequestCode.SEND_MESSAGE_V2, fields, body)

    def start_send_batch(
        self, queue: QueuePlace, items: bytes, *, now_ms: int | None = None, once: bool = False
    ) -> int:
        """As `start_send`, of messages that are encoded already (`popgate/wire/messages/batches.py`)."""
        fields = {**_send_fields(queue, now_ms, once=once), "m": "true", FIRST_ID: "true"}
        return self.connection.start(RequestCode.SEND_BATCH_MESSAGE, fields, items)

    def finish_send(self, opaque: int, queue: QueuePlace, *, timeout_s: float | None = None) -> SendAnswer:
        """Raises the fault of the response; after BrokerTimeout the messages may or may not be stored."""
        answer = self._good(self.connection.finish(opaque, timeout_s=timeout_s), queue.topic)
        place = QueuePlace(queue.topic, queue.broker, self._number(answer, "queueId"))
        ids = tuple(filter(None, answer.fields.get("msgId", "").split(",")))
        return SendAnswer(ids, place, self._number(answer, "queueOffset"))

    def start_end(self, half: HalfMessage, *, commit: bool) -> int:
        """Begin to deliver a half message, or to drop it. `finish_end` waits."""
        fields = {
            "topic": half.topic,
            "producerGroup": PRODUCER_GROUP,
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.commit_offset),
            "commitOrRollback": str(TRANSACTION_COMMIT if commit else TRANSACTION_ROLLBACK),
            "fromTransactionCheck": "false",
            "msgId": half.message_id,
            "transactionId": half.message_id,
            "bname": half.broker,
        }
        return self.connection.start(RequestCode.END_TRANSACTION, fields)

    def finish_end(self, opaque: int, half: HalfMessage, *, timeout_s: float | None = None) -> None:
        """Raises the fault of the response; after BrokerTimeout the outcome is unknown."""
        self._good(self.connection.finish(opaque, timeout_s=timeout_s), half.topic)

    def send(
        self,
        queue: QueuePlace,
        messages: Sequence[tuple[bytes, bytes]],
        *,
        timeout_s: float | None = None,
    ) -> SendAnswer:
        """Send and wait until it is stored. Raises as `start_send` and `finish_send`."""
        return self.finish_send(self.start_send(queue, messages), queue, timeout_s=timeout_s)

    def report(self, report: QueryReport) -> None:
        """Report a streaming query. Raises the fault of the response: other gateways do not support it."""
        self._good(self.connection.call(REPORT_QUERY, {}, report.encode()), "")

    # -- inside ---------------------------------------------------------------------------------------

    def _offsets(
        self,
        code: int,
        asked: Sequence[tuple[QueuePlace, Mapping[str, str]]],
        *,
        missing: int | None = None,
    ) -> dict[QueuePlace, int]:
        """Raises the first refusal."""
        offsets = {}
        for queue, answer in self._ask(code, asked):
            if answer.code == missing:
                continue
            offsets[queue] = self._number(self._good(answer, queue.topic), "offset")
        return offsets

    def _ask(
        self, code: int, asked: Sequence[tuple[QueuePlace, Mapping[str, str]]]
    ) -> list[tuple[QueuePlace, Command]]:
        """All of them, so many at a time; the time of a call is for each such lot."""
        answers = []
        for begin in range(0, len(asked), _MOST_IN_FLIGHT):
            lot = [
                (queue, self.connection.start(code, {**_place_fields(queue), **fields}))
                for queue, fields in asked[begin : begin + _MOST_IN_FLIGHT]
            ]
            deadline = time.monotonic() + self.connection.timeout_s
            try:
                for queue, opaque in lot:
                    left = max(deadline - time.monotonic(), 0.001)
                    answers.append((queue, self.connection.finish(opaque, timeout_s=left)))
            finally:
                for _, opaque in lot:
                    self.connection.forget(opaque)
        return answers

    def _good(self, answer: Command, topic: str) -> Command:
        """Return the response. Raises its fault if it is an error."""
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(topic)
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=self.connection.endpoint, topic=topic)
        return answer

    def _number(self, answer: Command, name: str) -> int:
        """A whole number of an answer. Raises Internal: there is none, so that it is no answer to this."""
        text = answer.fields.get(name, "")
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
            raise Internal(
                f"{self.connection.endpoint} answered with {shown(text)} as {name}, which is no number"
            )
        return int(text)


def queues_of_route(topic: str, route: TopicRoute) -> tuple[list[QueuePlace], list[QueuePlace]]:
    """The queues that can be read, and those that take messages and cannot; by broker name and number."""
    readable = [QueuePlace(topic, each.broker, at) for each in route.queues for at in each.read_numbers]
    unread = [QueuePlace(topic, each.broker, at) for each in route.queues for at in each.unread_numbers]
    return sorted(readable), sorted(unread)


def _place_fields(queue: QueuePlace) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker}


def _send_fields(queue: QueuePlace, now_ms: int | None, *, once: bool) -> dict[str, str]:
    """Of one message without properties."""
    fields = {
        "a": PRODUCER_GROUP,
        "b": queue.topic,
        "c": "TBW102",
        "d": _NO_DELAY_QUEUES,
        "e": str(queue.queue_id),
        "f": "0",
        "g": str(int(time.time() * 1000) if now_ms is None else now_ms),
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": queue.broker,
    }
    if once:
        fields[SEND_ONCE] = "true"
    return fields
