"""Translates requests of clients that name no broker, and the answers to them.

The queue of a number may be gone, because its broker was removed or is down. Clients must continue
with all others, so sends go to another queue, pulls find nothing, and
no position is returned there, lest the client starts elsewhere when the broker is back (RocketMQ 4.9.4's
RebalancePushImpl.computePullFromWhereWithException, RemoteBrokerOffsetStore).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from popgate.clock import pause
from popgate.context import Context
from popgate.errors import BadRequest, GatewayError, PeerWireError, TopicNotFound, shown
from popgate.model import StoredMessage
from popgate.naming import is_derived_topic, is_system_topic
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.bodies.small_bodies import MessageQueue, QueueLocks, decode_locked, encode_locked
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command, names_brokers
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.fields import long_number, number, text
from protocols.remoting.codec.messages import LONG, SHORT
from protocols.remoting.mapped.offsets import is_virtual
from protocols.remoting.requests import DoorContext, Handler, Peer, Request
from protocols.remoting.virtual.views import VIRTUAL_BROKER, View, Views

_HOLD_S: Final = 1.0
"""Before a pull of a queue that is gone is answered."""
_SUSPEND: Final = 0x2
"""The bit of a pull's sysFlag that lets it wait."""
_NO_POSITION: Final = -2
"""Clients up to 4.9.4 read a queue not yet, and ask again 20 s later, where they are told this position."""
_NOWHERE: Final = -1

_Method = Callable[[Request, Handler], Coroutine[Any, Any, Command | None]]


class VirtualQueueTranslator:
    """Stands before the rooms. `views` knows the numbers."""

    def __init__(self, door_context: DoorContext, views: Views | None = None) -> None:
        self.views = views if views is not None else Views(door_context)
        self._door_context = door_context
        self._turns = itertools.count()
        self._methods: Mapping[int, _Method] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.SEND_MESSAGE: self._send,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self._committed,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._bound,
            RequestCode.GET_MAX_OFFSET: self._bound,
            RequestCode.GET_MIN_OFFSET: self._bound,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._bound,
            RequestCode.LOCK_BATCH_MQ: self._locks,
            RequestCode.UNLOCK_BATCH_MQ: self._locks,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._at_place,
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
            RequestCode.END_TRANSACTION: self._at_place,
            RequestCode.QUERY_MESSAGE: self._query,
            RequestCode.HEART_BEAT: self._heartbeat,
        }

    def serves(self, command: Command) -> bool:
        """Whether a request comes from a client that names no broker, or only the common one."""
        if command.code not in self._methods or not self.views.are_needed:
            return False
        named = command.fields.get("bname") or command.fields.get("n")
        return not names_brokers(command.version) if not named else named == VIRTUAL_BROKER

    async def serve(self, request: Request, handler: Handler) -> Command | None:
        """The answer of `handler` to what the request means. Raises what it raises, and BrokerUnavailable."""
        return await self._methods[request.command.code](request, handler)

    # -- routes -----------------------------------------------------------------------------------

    async def _route(self, request: Request, handler: Handler) -> Command | None:
        answer = await handler(request)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return answer
        context, topic = request.context, text(request.fields, "topic")
        route = TopicRoute.decode(answer.body)
        with suppress(GatewayError):  # whoever has not sent yet needs no ids
            # While there is one broker, so that it is the first and its places stay as they are.
            await self.views.marks(context)
        try:
            view: View | None = await self.views.of(context, topic)
        except TopicNotFound:
            view = None
        if view is not None and not view.is_virtual:
            # A broker that came this moment has no numbers yet, and is told with the next answer.
            only = {broker for broker, _ in view.numbers.queues}
            queues = [data for data in route.queues if data.broker in only]
            brokers = [broker for broker in route.brokers if broker.name in only]
        elif view is not None or len(route.queues) > 1:
            queues = [view.told() if view is not None else _together(route.queues)]
            cluster, address = await self.views.cluster(context), self._door_context.address(context)
            brokers = [BrokerData(cluster, VIRTUAL_BROKER, {0: address})]
        else:
            return answer
        answer.body = TopicRoute(tuple(queues), tuple(brokers)).encode()
        return answer

    # -- sends ------------------------------------------------------------------------------------

    async def _send(self, request: Request, handler: Handler) -> Command | None:
        names = LONG if request.command.code == RequestCode.SEND_MESSAGE else SHORT
        context, topic = request.context, text(request.fields, names["topic"])
        wanted = number(request.fields, names["queue"])
        view = await self._made(context, topic, wanted)
        if view is None:
            return await handler(request)
        if view.is_virtual:
            queue = view.writable(wanted if wanted >= 0 else next(self._turns))
        else:
            queue = (view.numbers.queues[0][0], wanted) if view.numbers else None
        if queue is None:
            raise Refused(ResponseCode.NO_PERMISSION, f"no queue of topic {shown(topic)} may be written now")
        broker, queue_id = queue
        _say(request, {names["broker"]: broker, names["queue"]: str(queue_id)})
        await self.views.marks(context, [broker])
        answer = await handler(request)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return answer
        fields = answer.fields
        queue_number = view.numbers.number_of(broker, int(fields["queueId"]))
        if view.is_virtual and queue_number is not None:
            fields["queueId"] = str(queue_number)
        return answer

    async def _made(self, context: Context, topic: str, wanted: int) -> View | None:
        """The view of a topic, created on first use; None: the handler reports the error."""
        try:
            return await self.views.of(context, topic, number=wanted)
        except TopicNotFound:
            if is_system_topic(topic) or is_derived_topic(topic):
                return None
        try:
            await self._door_context.processor.route(context, topic)
            return await self.views.of(context, topic)
        except (TopicNotFound, BadRequest):
            return None

    # -- reading ----------------------------------------------------------------------------------

    async def _pull(self, request: Request, handler: Handler) -> Command | None:
        broker = await self._names_queue(request)
        if broker is None:
            return await self._held(request)
        await self._tells(request, [broker])
        return await handler(request)

    async def _held(self, request: Request) -> Command:
        """There is nothing in a queue that is gone; its client is to ask the same again."""
        offset = long_number(request.fields, "queueOffset")
        if number(request.fields, "sysFlag", 0) & _SUSPEND:
            await pause(self._door_context.clock, _HOLD_S)
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(offset),
            "minOffset": "0",
            "maxOffset": str(max(offset, 0)),
        }
        return request.command.answer(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", fields)

    async def _committed(self, request: Request, handler: Handler) -> Command | None:
        if await self._names_queue(request) is None:
            return request.answer({"offset": str(_NO_POSITION)})
        return await handler(request)

    async def _commit(self, request: Request, handler: Handler) -> Command | None:
        """What acknowledges messages does so also where their queue is gone; a position says nothing then."""
        gone = is_virtual(long_number(request.fields, "commitOffset"))
        if await self._names_queue(request, gone=gone) is None:
            return request.answer()
        return await handler(request)

    async def _bound(self, request: Request, handler: Handler) -> Command | None:
        if await self._names_queue(request) is None:
            queue = f"{request.fields['queueId']} of topic {shown(request.fields['topic'])}"
            raise Refused(ResponseCode.SYSTEM_ERROR, f"queue {queue} is not there now")
        return await handler(request)

    async def _names_queue(self, request: Request, *, gone: bool = False) -> str | None:
        """Have the request name the queue that it means; its broker. None: it is not there.

        `gone`: it need not be there any more.
        """
        wanted = number(request.fields, "queueId")
        view = await self.views.of(request.context, text(request.fields, "topic"), number=wanted)
        queue = view.readable(wanted)
        if queue is None and gone:
            queue = view.queue_of(wanted)
        if queue is None and not view.is_virtual and view.numbers:
            # What is wrong with it its broker says.
            queue = view.numbers.queues[0][0], wanted
        if queue is None:
            return None
        _say(request, {"bname": queue[0], "queueId": str(queue[1])})
        return queue[0]

    async def _locks(self, request: Request, handler: Handler) -> Command | None:
        """Queues that are gone are not locked, and so not read."""
        asked = _locks_in(request.command.body)
        if asked is None:
            return await handler(request)
        meant: dict[MessageQueue, MessageQueue] = {}
        for named_queue in asked.queues:
            try:
                view = await self.views.of(request.context, named_queue.topic, number=named_queue.queue_id)
            except TopicNotFound:
                continue
            queue = view.readable(named_queue.queue_id)
            if not view.is_virtual and view.numbers:
                queue = view.numbers.queues[0][0], named_queue.queue_id
            if queue is not None and named_queue.broker in (VIRTUAL_BROKER, queue[0]):
                meant[MessageQueue(named_queue.topic, *queue)] = named_queue
        request.command = replace(request.command, body=replace(asked, queues=tuple(meant)).encode())
        answer = await handler(request)
        if answer is not None and answer.code == ResponseCode.SUCCESS and answer.body:
            answer.body = encode_locked(
                meant[named_queue] for named_queue in decode_locked(answer.body) if named_queue in meant
            )
        return answer

    # -- places in logs -----------------------------------------------------------------------------

    async def _at_place(self, request: Request, handler: Handler) -> Command | None:
        """Translate a request that names a place in a log by its marked number."""
        marks = await self.views.marks(request.context)
        if marks.are_needed:
            field = "commitLogOffset" if request.command.code == RequestCode.END_TRANSACTION else "offset"
            broker, offset = marks.broker_of(long_number(request.fields, field))
            if broker is None:
                raise BadRequest(f"the {field} {shown(request.fields[field])} is of no broker that is known")
            _say(request, {"bname": broker, field: str(offset)})
        return await handler(request)

    async def _view(self, request: Request, handler: Handler) -> Command | None:
        await self._tells(request, [])
        missing: set[str] = set()
        tell = request.told

        def told(messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
            missing.update(message.topic for message in messages if self.views.cached(message.topic) is None)
            return tell(messages) if tell is not None else messages

        request.told = told
        before = request.command
        answer = await self._at_place(request, handler)
        if missing:
            # Which topic it is about the message alone says.
            for topic in missing:
                try:
                    await self.views.of(request.context, topic)
                except GatewayError:
                    return answer
            request.command = before
            answer = await self._at_place(request, handler)
        return answer

    async def _query(self, request: Request, handler: Handler) -> Command | None:
        view: View | None = None
        with suppress(TopicNotFound):
            view = await self.views.of(request.context, text(request.fields, "topic"))
        if view is not None:
            await self._tells(request, [broker for broker, _ in view.numbers.queues])
        return await handler(request)

    async def _heartbeat(self, request: Request, handler: Handler) -> Command | None:
        """Who says that he is there may be asked about a transaction, by the place of its half message."""
        with suppress(GatewayError):  # no reason not to be a member: it is tried again with the next one
            await self.views.marks(request.context)
        return await handler(request)

    async def _tells(self, request: Request, brokers: Sequence[str]) -> None:
        """Return messages with the numbers of their queues; the brokers' numbers must be known, too."""
        marks = await self.views.marks(request.context, brokers)
        if not marks.are_needed:
            return

        def told(messages: Sequence[StoredMessage]) -> list[StoredMessage]:
            return [
                replace(message, queue_id=self._number_of(message.topic, message.broker, message.queue_id))
                for message in messages
            ]

        request.told = told

    # -- what clients are told unasked --------------------------------------------------------------

    def _number_of(self, topic: str, broker: str, queue_id: int) -> int:
        view = self.views.cached(topic)
        if view is None or not view.is_virtual:
            return queue_id
        number = view.numbers.number_of(broker, queue_id)
        return number if number is not None else _NOWHERE

    def names_none(self, peer: Peer) -> bool:
        """Whether a client is one of those."""
        return not names_brokers(peer.version) and self.views.are_needed

    async def positions(
        self, context: Context, topic: str, offsets: Mapping[MessageQueue, int]
    ) -> Mapping[MessageQueue, int]:
        """Positions of a group with the queue numbers of such clients; only queues that have a number."""
        view = await self._known(context, topic)
        if view is None:
            return {}
        if not view.is_virtual:
            return offsets
        numbers = {queue: view.numbers.number_of(queue.broker, queue.queue_id) for queue in offsets}
        return {
            MessageQueue(topic, VIRTUAL_BROKER, numbered): offsets[queue]
            for queue, numbered in numbers.items()
            if numbered is not None
        }

    async def meant(
        self, context: Context, topic: str, offsets: Mapping[MessageQueue, int]
    ) -> Mapping[MessageQueue, int]:
        """The inverse of `positions`: positions that such a client reports, by real queues."""
        view = await self._known(context, topic)
        if view is None:
            return {}
        meant: dict[MessageQueue, int] = {}
        for named_queue, offset in offsets.items():
            # While there was one broker it was called by its own name, and its queues had the same numbers.
            queue = (
                view.queue_of(named_queue.queue_id)
                if named_queue.broker == VIRTUAL_BROKER
                else (named_queue.broker, named_queue.queue_id)
            )
            if queue is not None:
                meant[MessageQueue(topic, *queue)] = offset
        return meant

    async def _known(self, context: Context, topic: str) -> View | None:
        try:
            return await self.views.of(context, topic)
        except GatewayError:
            return None


def _locks_in(body: bytes) -> QueueLocks | None:
    """None: what is wrong with it its handler says."""
    try:
        return QueueLocks.decode(body)
    except PeerWireError:
        return None


def _together(queues: Sequence[QueueData]) -> QueueData:
    """The queues of a topic that does not exist yet: as many as it may get."""
    permission = 0
    for data in queues:
        permission |= data.perm
    reads, writes = sum(data.read_queues for data in queues), sum(data.write_queues for data in queues)
    return QueueData(VIRTUAL_BROKER, reads, writes, permission)


def _say(request: Request, fields: Mapping[str, str]) -> None:
    """In place, because this request is notified if its response is never written."""
    request.command = replace(request.command, fields={**request.fields, **fields})
