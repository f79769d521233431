"""Pulls, commits and sent-back messages of members of groups that are mapped onto pop.

A pull takes messages by pop and numbers them; a commit of such a number acknowledges all below it; a message
that is sent back is hidden for the requested delay. In any doubt a message is redelivered: nothing is
acknowledged that its client did not commit here. Sources: protocol facts 5.5, 5.13, 7.8; any-replica,
section 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import uuid4

from popgate.clock import pause
from popgate.errors import BadRequest, TooManyRequests
from popgate.model import Pulled, SendBack, StoredMessage
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command
from processors.consume.receive_rules import surely_held_until
from processors.members.mapped_groups import MappedGroups
from processors.requests import Pull, Receive
from protocols.drain import LongPolls
from protocols.remoting.codec.fields import long_number
from protocols.remoting.codec.marks import Origin
from protocols.remoting.codec.records import encode_numbered
from protocols.remoting.mapped.answers import MOST_BYTES, fitting, key_of, nothing, numbered
from protocols.remoting.mapped.auto_renewal import HOLD_MS, MappedRenewal
from protocols.remoting.mapped.holdings import ConnectionHoldings, PlaceIndex
from protocols.remoting.mapped.offsets import (
    MOST_WINDOW,
    Fate,
    Held,
    QueueHoldings,
    QueueKey,
    is_virtual,
)
from protocols.remoting.mapped.pull_decision import Members, PullDecision, nobody
from protocols.remoting.mapped.retries import Retries, reads_apart
from protocols.remoting.mapped.send_back import MappedSendBack
from protocols.remoting.mapped.settlement import (
    GONE,
    RESTARTED,
    SWITCHED,
    UNREAD,
    MappedSettlement,
)
from protocols.remoting.requests import DoorContext, Peer, Request
from protocols.remoting.routing import Brokers

_COMMIT: Final = 0x1
"""The bit of sysFlag that says that a pull brings a position along."""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0
_LAST_WORDS_S: Final = 1.0
"""Java clients from 5.5.0 on may tell their last positions behind their good-bye."""
_REST_S: Final = 0.2
"""Before a pull is answered with nothing while the gateway drains."""
_MOST_ENDING: Final = 4 * MOST_WINDOW
"""Messages of a queue that are to be acknowledged, above which nothing is taken: the broker is in trouble."""


class Mapped(PullDecision):
    """The messages that clients of mapped groups hold through one door, and their settlement."""

    def __init__(
        self, door_context: DoorContext, members: Members = nobody, groups: MappedGroups | None = None
    ) -> None:
        super().__init__(door_context, members, groups)
        self._door_context = door_context
        door_context.ends.callback(self._groups.on_switch(self.switched))
        self._brokers = Brokers(door_context)
        self._connections: dict[Peer, ConnectionHoldings] = {}
        self._index = PlaceIndex()
        self._ending = MappedSettlement(door_context.processor, door_context.clock, self._index)
        door_context.ends.callback(
            self._closed, door_context.processor.retry_reclaimer.after(self._ending.all_told)
        )
        self._renewing = MappedRenewal(door_context.processor, door_context.clock, self._ending.settle)
        self._polls = LongPolls()
        self._returning = MappedSendBack(door_context, self._index, self._ending)
        door_context.ends.callback(door_context.processor.door_figures.add(self.figures))
        self.pauses = 0
        """Pulls that met a full window, since the start."""

    def __repr__(self) -> str:
        return f"<Mapped connections {len(self._connections)} {self._index!r} {self._renewing!r}>"

    def figures(self) -> dict[str, float]:
        """For the metrics."""
        return {
            "mapped_held": self._index.held,
            "mapped_window_pauses_total": self.pauses,
            "mapped_renewed_total": self._renewing.renewed,
            **{f"mapped_given_back_{cause}_total": n for cause, n in self._ending.given_back.items()},
        }

    def left(self, peer: Peer, group: str) -> None:
        """A client of this connection left the group, with it or before; its last commits may follow."""
        self.leaves(peer, group)
        connection = self._connections.get(peer)
        if connection is not None and not self.members(peer, group):
            self._call_back(connection, group)
            self._clock.call_later(_LAST_WORDS_S, partial(self._left, peer, connection, group))
        self.proofs.left(peer, group)

    def _left(self, peer: Peer, connection: ConnectionHoldings, group: str) -> None:
        if not connection.gone and not self.members(peer, group):
            self._release(connection, group, GONE)

    def switched(self, group: str, mapped: bool) -> None:
        """The group is on true pull from now on, or mapped. The `on_switch` listener."""
        if not mapped:
            for peer, connection in self._connections.items():
                if self.members(peer, group):  # else it has just left
                    self._release(connection, group, SWITCHED)

    def drain(self) -> None:
        """Answer what waits, and take no more.

        What clients hold stays theirs until their connection ends: what they finish until then does not
        come again.
        """
        self._polls.end()

    def _closed(self, forget: Callable[[], None]) -> None:
        """The door is closed. A move of a group's unfinished messages waits for settlements in progress."""
        telling = asyncio.get_running_loop().create_task(self._ending.all_told())
        self._door_context.processor.settlement.finishes(telling)
        telling.add_done_callback(lambda _: forget())

    # -- pulls ------------------------------------------------------------------------------------

    async def pull(self, request: Request, asked: Pull, flags: int) -> Command:
        """Take messages of the queue. Raises as `MessagingProcessor.receive`."""
        if asked.queue_id < 0:
            raise BadRequest(f"the queue id {asked.queue_id} is out of range")
        connection = self._connection(request)
        queue = connection.queue(key_of(asked))
        if queue is None:
            raise TooManyRequests("this connection reads too many queues")
        queue.heard = self._clock.monotonic()
        queue.turn += 1
        turn = queue.turn
        if queue.waits is not None:
            # Its client has given it up.
            self._polls.call_back(queue.waits)
            queue.waits = None
        virtual = is_virtual(asked.offset)
        if flags & _COMMIT:
            done = long_number(request.fields, "commitOffset", -1)
            # Who asks for what he says he finished did not get it.
            self._finish(request.peer, connection, queue, min(done, asked.offset) if virtual else done)
        if virtual:
            self._ending.give_back(connection, queue.asked(asked.offset), UNREAD)
        else:
            self._ending.give_back(connection, queue.restart(self._clock.now_ms()), RESTARTED)
        begins = asked.offset if virtual else queue.next
        if not virtual and not await self._beginnings.begun(request.context, asked):
            # With a number it would take what is there, from wherever: it is to ask for its position again.
            return nothing(request, queue, asked.offset)
        now = self._clock.monotonic()
        room = queue.room(now) if len(queue.ending) < _MOST_ENDING else 0
        if room < 1:
            return await self._pause(request, queue, begins)
        origin = await self._brokers.origin(request.context)
        messages = await self._receive(request, queue, turn, asked, room)
        if not messages:
            if self._polls.ended:
                await pause(self._clock, _REST_S)
            return nothing(request, queue, begins)
        until = surely_held_until(now, self._clock.monotonic(), HOLD_MS)
        taken = queue.take(
            [
                (message.receipt, message.broker, message.commit_offset, message.attempt)
                for message in messages
            ],
            self._clock.monotonic(),
            until,
        )
        self._index.add(connection, taken)
        wanted = queue.turn == turn and not connection.gone and self.maps(request.peer, queue.key.group)
        if not wanted or not connection.put_back(queue):
            self._lose(connection, taken, UNREAD)
            return nothing(request, queue, begins)
        return self._deliver(request, connection, messages, taken, origin)

    def reads_apart(self, asked: Pull) -> bool:
        """Whether a queue of a mapped group is none that is popped: `retries`."""
        return reads_apart(self._processor, key_of(asked))

    async def pull_apart(self, request: Request, asked: Pull, flags: int) -> Pulled:
        """What comes next in such a queue; `asked` begins where the group is from then on.

        Raises as `MessagingProcessor.pull`.
        """
        connection, key = self._connection(request), key_of(asked)
        self.seeks.pulls(request.peer, key)
        if flags & _COMMIT:
            done = long_number(request.fields, "commitOffset", -1)
            await connection.retries.commit(connection.context, key, -1 if is_virtual(done) else done)
        return await connection.retries.pull(request.context, asked, key, self._polls)

    async def _receive(
        self, request: Request, queue: QueueHoldings, turn: int, asked: Pull, room: int
    ) -> list[StoredMessage]:
        """Nothing when another pull came meanwhile."""
        if queue.turn != turn:
            return []
        receive = Receive(
            asked.topic,
            queue.key.group,
            asked.filter_kind,
            asked.filter_expression,
            max_messages=max(min(asked.max_messages, room), 1),
            invisible_ms=HOLD_MS,
            wait_s=asked.wait_s if asked.wait_s is not None else 0.0,
            broker=asked.broker,
            queue_id=asked.queue_id,
            max_bytes=min(max(asked.max_bytes, 1), MOST_BYTES),
        )
        queue.waits = asyncio.current_task()
        try:
            return await self._polls.wait(self._processor.receive(request.context, receive)) or []
        finally:
            if queue.turn == turn:
                queue.waits = None

    def _deliver(
        self,
        request: Request,
        connection: ConnectionHoldings,
        messages: Sequence[StoredMessage],
        taken: list[Held],
        origin: Origin,
    ) -> Command:
        queue = taken[0].queue
        fits = fitting(messages)
        try:
            if fits < len(taken):
                self._lose(connection, taken[fits:], UNREAD)
                messages, taken = messages[:fits], taken[:fits]
            numbers = [held.number for held in taken]
            translated = request.as_told(messages)
            queue_id = queue.key.queue_id if request.told is None else translated[0].queue_id
            body = encode_numbered(translated, numbers, queue_id, origin)
        except Exception:
            self._lose(connection, taken, UNREAD)
            raise
        self._renewing.delivered(connection, taken)
        request.unwritten = partial(self._lose, connection, taken, UNREAD)
        fields = numbered(queue, taken[-1].number + 1)
        return request.command.answer(ResponseCode.SUCCESS, "FOUND", fields, body)

    async def _pause(self, request: Request, queue: QueueHoldings, begins: int) -> Command:
        """Its client holds the maximum: its next pull shows whether it has finished some."""
        self.pauses += 1
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(queue.pauses, 10), _LONGEST_PAUSE_S)
        queue.pauses += 1
        await pause(self._clock, pause_s)
        return request.command.answer(
            ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", numbered(queue, begins)
        )

    # -- commits, and what is sent back --------------------------------------------------------------

    async def commit(
        self, request: Request, group: str, queue: tuple[str, str, int], offset: int
    ) -> int | None:
        """Acknowledge all messages below a number. Returns an offset that is a position to be stored.

        An unknown number has no effect: its messages are redelivered, or finished. The same applies to
        an earlier position, which a client commits repeatedly until it has finished a message.
        Raises BrokerUnavailable.
        """
        peer, key = request.peer, QueueKey(group, *queue)
        connection = self._connections.get(peer)
        if is_virtual(offset):
            await self.commit_number(request, group, key.topic, key.queue_id, offset, broker=key.broker)
            return None
        if connection is not None and (held := connection.queues.get(key)) is not None:
            held.heard = self._clock.monotonic()
        if not self.maps(peer, group):
            # Clients say it every 5 s, and wait for no answer: one that has yet to say who it is may be a
            # member. Tools wait.
            early = request.command.is_oneway and self._groups.may_map(group)
            known = not early or self.tells_as_member(peer, group) or self.pulls_by_itself(peer, group)
            return offset if known else None
        if connection is not None:
            await connection.retries.commit(connection.context, key, offset)
        return None

    @asynccontextmanager
    async def resetting(
        self, group: str, topic: str, queues: Container[tuple[str, int]] | None = None
    ) -> AsyncIterator[None]:
        """While an operator resets a group on all queues of a topic, its retries too, or on some of them.

        What clients held before is over then: it is skipped, or comes by the new position. Where a broker
        does not forget it, it would come besides; so does what a pop brings that is under way now.
        """
        async with self.resets.under_way(group, topic):
            held = [
                (connection, delivery)
                for connection in self._connections.values()
                for queue in connection.of_group(group)
                if queue.key.topic == topic
                and (queues is None or (queue.key.broker, queue.key.queue_id) in queues)
                and not reads_apart(self._processor, queue.key)
                for delivery in queue.held.values()
            ]
            yield
            for connection, delivery in held:
                if delivery.queue.drop(delivery, Fate.FINISHED):
                    self._ending.acknowledge(connection, (delivery,))

    async def commit_number(
        self, request: Request, group: str, topic: str, queue_id: int, number: int, *, broker: str = ""
    ) -> None:
        """Acknowledge all messages below a number.

        They count as finished before the first await, because the client's next request may unregister it.
        Without a broker the only one that the client reads is meant. Raises BrokerUnavailable.
        """
        connection = self._connections.get(request.peer)
        held = connection.find(group, topic, queue_id, broker) if connection is not None else None
        if connection is not None and held is not None:
            held.heard = self._clock.monotonic()
            self._finish(request.peer, connection, held, number)
            await self._ending.settled(held, number)

    async def send_back(self, request: Request, back: SendBack) -> bool:
        """Hide a message for the delay asked for, or make it a dead letter. False: it is not held here.

        An empty broker is any. Raises as `MessagingProcessor.change_invisible`: then it is still held.
        """
        return await self._returning.send_back(request, back, self._connections.get(request.peer))

    def _finish(self, peer: Peer, connection: ConnectionHoldings, queue: QueueHoldings, number: int) -> None:
        if is_virtual(number):
            self.seeks.numbers(peer, queue.key)
        done = queue.commit(number)
        if done:
            queue.finished(len(done), self._clock.monotonic())
            self._ending.acknowledge(connection, done)

    # -- connections ----------------------------------------------------------------------------------

    def _connection(self, request: Request) -> ConnectionHoldings:
        peer = request.peer
        connection = self._connections.get(peer)
        if connection is None:
            context = replace(request.context, allowance=None, deadline=None)
            connection = self._connections[peer] = ConnectionHoldings(
                context, Retries(self._door_context, f"popgate-retries-{uuid4()}")
            )
            peer.on_gone(partial(self._gone, peer))
        return connection

    def _gone(self, peer: Peer) -> None:
        connection = self._connections.pop(peer, None)
        if connection is None:
            return
        connection.gone = True
        for group in connection.groups | connection.retries.groups:
            self._release(connection, group, GONE)

    def _call_back(self, connection: ConnectionHoldings, group: str) -> None:
        """Who waits for more of a group waits in vain."""
        for queue in connection.of_group(group):
            queue.turn += 1
            if queue.waits is not None:
                self._polls.call_back(queue.waits)
                queue.waits = None

    def _release(self, connection: ConnectionHoldings, group: str, cause: str) -> None:
        """What is held of a group goes back as well."""
        self._call_back(connection, group)
        connection.retries.release(connection.context, group)
        for queue in connection.of_group(group):
            self._ending.give_back(connection, queue.free_all(), cause)

    def _lose(self, connection: ConnectionHoldings, taken: Sequence[Held], cause: str) -> None:
        """These never reached their client."""
        lost = [delivery for delivery in taken if delivery.queue.drop(delivery, Fate.FREED)]
        self._ending.give_back(connection, lost, cause)
