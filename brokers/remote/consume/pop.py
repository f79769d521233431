"""Pops from a cluster: brokers in turn, those that recently had messages first; then long polling.

A waiting pop takes no messages while it waits: the gateway asks the brokers whether messages have arrived
(`brokers.remote.consume.arrival_watch`), and a woken caller pops without waiting. Messages of a response
whose caller has gone are returned. Sources: protocol facts 4.3, 4.5, 4.6 and 4.8, any-replica section 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.refreshing_cache import RefreshingCache
from brokers.remote.consume.arrival_watch import ArrivalWatch
from brokers.remote.consume.pop_batcher import MOST_MESSAGES, PopBatcher
from brokers.remote.consume.pop_filter import PopAttempt, PopFilter
from brokers.remote.consume.pop_hints import PopHints, UnservedGroups
from brokers.remote.consume.pop_response import read_popped, receipts_told
from brokers.remote.consume.wait_queue import GONE, NOTHING, Line, LineKey, WaitQueue
from brokers.remote.settle.deliveries import Deliveries, may_be_popped
from brokers.remote.settle.settle import LONGEST_INVISIBLE_MS
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    Fault,
    Forbidden,
    GatewayError,
    GroupNotFound,
    PeerWireError,
    TooManyRequests,
    Unsupported,
    shown,
)
from popgate.model import FilterKind, GroupConfig, Pop, StartFrom, StoredMessage
from popgate.naming import RETRY_PREFIX
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command

_MOST_WAITING: Final = 65_536
_LONGEST_ATTEMPT_ID: Final = 255
_NO_ANSWER: Final = BrokerUnavailable, BrokerBusy, BrokerTimeout
_REFUSED: Final = GroupNotFound, Forbidden
_LOOKS: Final = 3
_BESIDE_BODIES: Final = 2 * 1024 * 1024
"""Of an answer: 32 headers of messages, with the longest properties that there can be."""
_FROM_FIRST, _FROM_LAST = "0", "1"
"""Where a broker begins with a queue in which the group has no position: it decides at its first pop of the
queue, for all gateways (4.3, 4). From the last: with the first message while that is still in the memory of
the broker, else with the last one; of retries always with the first."""
_EMPTY: Final = frozenset(
    {ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL}
)


class _TooOld(BrokerBusy):
    """The broker processed a pop too late, and did not look for messages."""


class _TooMuch(BrokerBusy):
    """The broker popped more than fits into one of its answers."""


class Popper:
    """The port's `pop`."""

    def __init__(
        self,
        access: ClusterAccess,
        pop_filter: PopFilter,
        groups: RefreshingCache[GroupConfig],
        deliveries: Deliveries,
    ) -> None:
        self._client = access.client
        self._clock = access.clock
        self._long_polls = access.long_polls
        self._routes = access.routes
        self._settings = access.settings
        self._filter = pop_filter
        self._groups = groups
        self._deliveries = deliveries
        self._recent = PopHints(self._clock)
        self.unserved = UnservedGroups(self._clock)
        self.waiters = WaitQueue(self._clock, _MOST_WAITING)
        self._arrival_watch = ArrivalWatch(self._clock, self.waiters, self._anything)
        self._pop_batcher = PopBatcher(self._client, self._clock, self, self._settings.slow_s)
        self._turn = 0

    async def stop(self) -> None:
        self.waiters.end_all()
        await self._arrival_watch.stop()
        await self._pop_batcher.stop()

    def figures(self) -> dict[str, float]:
        return {
            "waiting_pops": len(self.waiters),
            "notifications": len(self._arrival_watch),
            "late_pops_given_back": self._filter.given_back,
            "dead_lettered": self._filter.buried,
            "groups_unserved": len(self.unserved.now()),
        }

    async def pop(self, context: Context, request: Pop) -> list[StoredMessage]:
        _check_request(request)
        config = context.group
        if config is None or config.name != request.group:
            config = self._groups.kept(request.group)
        route = self._routes.kept(request.topic) or await self._routes.of(request.topic)
        config = config or await self._groups.of(request.group)
        want = _attempt(context, request, config, route)
        until = request.wait_until
        if until is not None and until <= self._clock.monotonic():
            until = None
        messages = await self.look(want, self._first_brokers(want, waits=until is not None))
        if messages or until is None:
            return messages
        key = LineKey(request.topic, request.group, request.ordered, request.broker, request.queue_id)
        been_here = False
        while True:
            waiter = self.waiters.join(key, until, first=been_here)
            self._arrival_watch.watch(waiter, want.brokers)
            broker = await self.waiters.wait(waiter)
            if broker is None:
                return []
            been_here = True
            outcome = GONE
            try:
                if broker:
                    messages = await self.look(want, [broker])
                else:
                    want = await self._admitted(context, request)
                    messages = await self.look(want, want.brokers)
                outcome = want.rest if messages else NOTHING
            except _NO_ANSWER:
                outcome = NOTHING
            finally:
                waiter.looked(outcome)
            if messages:
                return messages
            if self._clock.monotonic() >= until:
                return []
            with contextlib.suppress(*_NO_ANSWER):
                want = await self._admitted(context, request)  # brokers come and go

    # -- inside -------------------------------------------------------------------------------

    async def _admitted(self, context: Context, request: Pop) -> PopAttempt:
        """The attempt for a pop; raises the error with which this topic or group refuses it now."""
        route = await self._routes.of(request.topic)
        return _attempt(context, request, await self._groups.of(request.group), route)

    def _first_brokers(self, want: PopAttempt, *, waits: bool) -> list[str]:
        """Those that likely have messages; a waiting caller learns of the others by their notifications.

        A repeated receive of an ordered group gets messages that it already holds, for which no broker
        sends a notification: it tries all brokers.
        """
        request = want.request
        brokers = want.brokers
        if len(brokers) > 1:
            self._turn += 1
            turn = self._turn % len(brokers)
            brokers = [*brokers[turn:], *brokers[:turn]]
        shelf = request.topic, request.group
        had = [broker for broker in brokers if self._recent.had(shelf, broker)]
        rest = [broker for broker in brokers if broker not in had]
        # A caller that always finds messages would never try the other brokers: those are due now and then.
        due = [broker for broker in rest if had and self._recent.is_due(shelf, broker)]
        if waits and not (request.ordered and request.attempt_id):
            brokers = [*due, *had]
        else:
            brokers = [*due, *had, *(broker for broker in rest if broker not in due)]
        return brokers

    async def look(self, want: PopAttempt, brokers: Sequence[str]) -> list[StoredMessage]:
        """Try one broker after the other until one returns messages; raises if no broker responds.

        If a response is lost, its messages come back after their invisible time, so it is safe to try
        other brokers. It is also safe after a refusal: a broker may not know the group, because it was down
        when the group was created, or may forbid reading, because it is being removed from the cluster. If
        the request itself is invalid, all brokers refuse it.
        """
        failure: GatewayError | None = None
        refusals: dict[str, GatewayError] = {}
        messages: list[StoredMessage] = []
        group = want.request.group
        answered = len(brokers) < len(want.brokers)
        for broker in brokers:
            try:
                messages = await self._take(want, broker)
            except GatewayError as error:
                self._recent.failed((want.request.topic, group), broker)
                if failure is None or isinstance(failure, _NO_ANSWER):
                    failure = error
                if isinstance(error, _REFUSED):
                    refusals[broker] = error
                continue
            self.unserved.served(group, broker)
            answered = True
            if messages:
                break
        if answered:
            for broker, refusal in refusals.items():
                self.unserved.refused(group, broker, refusal.sentence)
        elif failure is not None:
            if isinstance(failure, GroupNotFound):
                self._groups.forget(group)
            try:
                raise failure
            finally:
                del failure, refusals  # lest the error holds on to the frame that holds on to it
        return messages

    async def _take(self, want: PopAttempt, broker: str) -> list[StoredMessage]:
        """One pop from one broker. A cancelled caller does not hold any of its messages."""
        request, allowance = want.request, want.context.allowance
        max_bytes = request.max_bytes
        if allowance is not None:
            max_bytes = min(max_bytes, allowance.room())
        room = min(max_bytes, self._settings.max_frame_bytes - _BESIDE_BODIES)
        for look in range(_LOOKS):
            asks = 1 if request.one_per_message_group else min(request.max_messages, MOST_MESSAGES)
            size = self._recent.size_of(request.topic)
            if asks * size > room:
                asks = max(int(room // size), 1)
            try:
                taken = await self._pop_batcher.take(want, broker, asks, max_bytes, size=size)
                break
            except (_TooOld, _TooMuch):
                if look == _LOOKS - 1:
                    raise
        if taken and allowance is not None:
            return self._filter.within(want, taken, allowance)
        return taken

    # -- what `PopBatcher` asks for ------------------------------------------------------------------

    def pop_fields(self, want: PopAttempt, most: int) -> dict[str, str]:
        request = want.request
        passing = request.filter
        fields = {
            "consumerGroup": request.group,
            "topic": request.topic,
            "queueId": str(request.queue_id),
            "maxMsgNums": str(most),
            "invisibleTime": str(request.invisible_ms),
            "pollTime": "0",
            # A broker takes its own time for this one, so that its clock does not matter (4.3, 1).
            "bornTime": "0",
            "initMode": _FROM_LAST if want.config.start_from is StartFrom.LAST else _FROM_FIRST,
            "expType": "SQL92" if passing.kind is FilterKind.SQL92 else "TAG",
            "exp": passing.expression or "*",
            "order": "true" if request.ordered else "false",
        }
        if request.ordered and request.attempt_id:
            fields["attemptId"] = _attempt_of(request.attempt_id)
        return fields

    def read_pop(
        self, want: PopAttempt, broker: str, answer: Command, asked: float, *, late: bool
    ) -> tuple[list[StoredMessage], int]:
        request = want.request
        if answer.code != ResponseCode.SUCCESS and answer.code not in _EMPTY:
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                self._routes.forget(request.topic)
            raise error_of(answer, broker=broker, topic=request.topic, group=request.group)
        if answer.code in _EMPTY and answer.fields.get("popTime", "0") == "0":
            # It had it for more than 500 ms, as one does that stands still for a moment: a header, if there
            # is one, is not filled in. Source: RocketMQ 5.3.3 and 5.5.0,
            # PopMessageRequestHeader.isTimeoutTooMuch.
            raise _TooOld(f"broker {broker} let a pop lie until it was too old to look for messages")
        try:
            info, messages = read_popped(answer, broker, request.topic, self._deliveries.clocks)
        except PeerWireError as error:
            raise BrokerUnavailable(f"what broker {broker} popped cannot be read: {error}") from error
        self._deliveries.clocks.told(broker, info.pop_ms, asked, self._clock.monotonic())
        if not late:
            self._recent.told((request.topic, request.group), broker, with_messages=bool(messages))
        messages = self._filter.passing(want, broker, answer, messages)
        if messages:
            size = sum([len(message.body) for message in messages])
            self._recent.sized(request.topic, size / len(messages))
        return messages, max(info.rest, 0)

    def too_large(self, want: PopAttempt, broker: str, answer: Command, asks: int) -> GatewayError:
        """A broker reads from each queue at least one message, however large all of them are together."""
        why = f"what broker {broker} popped has {answer.skipped} bytes, and cannot be read"
        try:
            receipts = receipts_told(answer, broker, want.request.topic)
        except PeerWireError as error:
            return BrokerUnavailable(f"{why}: {error}")
        # A few large ones among many small ones are hardly seen in the mean, and each look may count as an
        # attempt: so at most a quarter is asked for next.
        least = (self._settings.max_frame_bytes - _BESIDE_BODIES) / max(asks // 4, 1)
        self._recent.too_large(want.request.topic, max(answer.skipped / max(len(receipts), 1), least))
        if asks > 1:
            self._filter.return_unread(want, receipts)
        # Else it would come at once, and again and again.
        return _TooMuch(why)

    def return_popped(self, want: PopAttempt, messages: Sequence[StoredMessage]) -> None:
        self._filter.return_popped_messages(want, messages)

    def suspect(self, broker: str) -> None:
        self._routes.clusters.suspect(broker)

    async def _anything(self, line: Line, broker: str, patience_s: float) -> bool:
        """Whether a broker has messages for a line of waiters, now if too many wait there already.

        Raises the broker's error.
        """
        if not self._long_polls.begin(broker):
            return await self._noticed(line, broker, 0.0)
        try:
            return await self._noticed(line, broker, patience_s)
        finally:
            self._long_polls.end(broker)

    async def _noticed(self, line: Line, broker: str, patience_s: float) -> bool:
        key = line.key
        fields = {
            "consumerGroup": key.group,
            "topic": key.topic,
            "queueId": str(key.queue_id),
            "pollTime": str(int(patience_s * 1000)),
            "bornTime": "0",
            "order": "true" if key.ordered else "false",
        }
        try:
            answer = await self._client.done(
                broker,
                RequestCode.NOTIFICATION,
                fields,
                timeout_s=patience_s + self._settings.request_timeout_s,
                topic=key.topic,
                group=key.group,
            )
        except _REFUSED as error:
            if len(line.brokers) > 1:  # else nobody serves it, and its clients are told
                self.unserved.refused(key.group, broker, error.sentence)
            raise
        if answer.fields.get("pollingFull") == "true":
            raise TooManyRequests(f"broker {broker} has no room for those who wait", known_as="polling full")
        return answer.fields.get("hasMsg") == "true"


def _attempt_of(attempt_id: str) -> str:
    """As a broker is told it: it keeps it with each queue of a group, and writes it down again and again."""
    text = attempt_id.encode("utf-8", "backslashreplace")
    if len(text) <= _LONGEST_ATTEMPT_ID:
        return text.decode()
    return blake2b(text, digest_size=32).hexdigest()


def _check_request(request: Pop) -> None:
    """Raises BadRequest for a pop that cannot be."""
    if request.max_messages < 1:
        raise BadRequest(f"a receive takes at least one message, not {request.max_messages}")
    if not 0 < request.invisible_ms <= LONGEST_INVISIBLE_MS:
        raise BadRequest(
            f"an invisible time of {request.invisible_ms} ms is not possible, the longest is"
            f" {LONGEST_INVISIBLE_MS} ms",
            Fault.ILLEGAL_INVISIBLE_TIME,
        )


def _attempt(context: Context, request: Pop, config: GroupConfig, route: TopicRoute) -> PopAttempt:
    """As `Popper._admitted`, with the settings of the group and the route of this moment."""
    _check_topic(request.topic, request.group)
    if not config.consume_enabled:
        raise Forbidden(f"consumer group {config.name} is not allowed to consume")
    readable = route.readable
    if not readable:
        raise Forbidden(f"topic {request.topic} is not readable")
    brokers = [*readable]
    if request.broker or request.queue_id >= 0:
        brokers = [broker for broker in brokers if request.broker in ("", broker)]
        if request.queue_id >= 0 and not route.mappings:
            brokers = [broker for broker in brokers if request.queue_id < readable[broker].read_queues]
        if not brokers:
            where = f" at broker {shown(request.broker)}" if request.broker else ""
            raise BadRequest(f"topic {request.topic} has no readable queue {request.queue_id}{where}")
    return PopAttempt(context, request, config, route, brokers)


def _check_topic(topic: str, group: str) -> None:
    """Raises Unsupported for a retry topic that only its group's classic consumers may read."""
    if topic.startswith(RETRY_PREFIX) and not may_be_popped(topic, group):
        raise Unsupported(
            f"a pop of {shown(topic)} from a RocketMQ cluster",
            "a broker that is to give such a message back fails at it, and gives nothing back any more",
        )
