"""The queues of a topic by their numbers, as seen by clients that name no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from popgate.context import Context
from popgate.errors import GatewayError
from popgate.ids.queue_numbers import Numbered, QueueNumbers, may_be_numbered
from popgate.model import Permission, Queue
from popgate.wire.bodies.routes import QueueData
from protocols.remoting.codec.marks import Marks
from protocols.remoting.queue_cache import Places
from protocols.remoting.requests import DoorContext
from protocols.remoting.routing import Brokers

VIRTUAL_BROKER: Final = "popgate-queues"
"""What the one broker is called in their routes."""
_AGAIN_S: Final = 1.0
"""Before what could not be numbered is tried again, and before an unknown number is looked for again."""
_REFRESH_S: Final = 120.0
"""After which it is looked whether all gateways still say the same."""
_MOST: Final = 16_384


class View:
    """A topic: the numbers of its queues, including removed ones, and the existing queues."""

    __slots__ = ("_there", "_writable", "due", "looked_at", "numbers", "queues")

    def __init__(
        self, numbers: QueueNumbers, queues: Sequence[Queue], looked_at: float = 0.0, due: float = 0.0
    ) -> None:
        self.numbers = numbers
        self.queues = queues
        self.looked_at = looked_at
        self.due = due
        self._there: Mapping[Numbered, Permission] = {
            (queue.broker, queue.queue_id): queue.permission for queue in queues
        }
        self._writable = [number for number in range(len(numbers)) if self._may(number, Permission.WRITE)]

    def __repr__(self) -> str:
        return f"<View {self.numbers!r} there {len(self._there)}>"

    @property
    def is_virtual(self) -> bool:
        """Whether its queues are not simply those of one broker."""
        return not self.numbers.are_plain

    def queue_of(self, number: int) -> Numbered | None:
        """Also for a removed queue."""
        return self.numbers.queue_of(number)

    def readable(self, number: int) -> Numbered | None:
        return self.numbers.queue_of(number) if self._may(number, Permission.READ) else None

    def writable(self, number: int) -> Numbered | None:
        """Where to write for a client that chose a number: there, or where all of its kind go instead.

        What was to go to a queue that is gone always goes to the same one while the same are there, so that
        the order of what belongs together stays. None: nothing may be written.
        """
        if not self._may(number, Permission.WRITE):
            if not self._writable:
                return None
            number = self._writable[number % len(self._writable)]
        return self.numbers.queue_of(number)

    def told(self) -> QueueData:
        """For a route. Numbers of queues that are gone are among them where later ones are there."""
        readable = [number for number in range(len(self.numbers)) if self._may(number, Permission.READ)]
        reads = readable[-1] + 1 if readable else 0
        writes = self._writable[-1] + 1 if self._writable else 0
        permission = (Permission.READ if reads else 0) | (Permission.WRITE if writes else 0)
        return QueueData(VIRTUAL_BROKER, reads or writes, writes or reads, int(permission))

    def _may(self, number: int, permission: Permission) -> bool:
        queue = self.numbers.queue_of(number)
        return queue is not None and bool(self._there.get(queue, Permission(0)) & permission)


class Views:
    """Views of topics and of the brokers' numbers, kept for as long as nothing changes."""

    def __init__(self, door_context: DoorContext) -> None:
        self._clock = door_context.clock
        self._numbering = door_context.processor.queue_numbering
        self._places = Places(door_context)
        self._brokers = Brokers(door_context)
        self._known: dict[str, View] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._marks = Marks(QueueNumbers())
        self._marks_due = float("-inf")

    def __repr__(self) -> str:
        return f"<Views {len(self._known)} {self._marks!r}>"

    @property
    def are_needed(self) -> bool:
        """Whether there may be several brokers."""
        return self._numbering.is_kept

    async def of(self, context: Context, topic: str, *, number: int = 0) -> View:
        """A topic that is there; `number` is looked for elsewhere if it is not known here.

        Raises TopicNotFound, BrokerUnavailable.
        """
        queues = await self._places.of(context, topic)
        view = self._known.get(topic)
        if view is not None and self._holds(view, queues, number):
            return view
        lock = self._asking.setdefault(topic, asyncio.Lock())
        try:
            async with lock:
                view = self._known.get(topic)
                if view is None or not self._holds(view, queues, number):
                    view = await self._look(context, topic, queues, view)
            return view
        finally:
            if self._asking.get(topic) is lock and not lock.locked():
                del self._asking[topic]

    def cached(self, topic: str) -> View | None:
        return self._known.get(topic)

    async def marks(self, context: Context, brokers: Sequence[str] = ()) -> Marks:
        """With numbers for all brokers that are known, and for these, that may have some.

        Raises BrokerUnavailable.
        """
        named = {*brokers, *(broker.name for broker in await self._brokers.known())}
        names = {broker for broker in named if may_be_numbered(broker)}
        now = self._clock.monotonic()
        if now < self._marks_due and self._marks.has_all(names):
            return self._marks
        before, self._marks_due = self._marks_due, now + _REFRESH_S
        try:
            self._marks = Marks(await self._numbering.brokers(context, sorted(names)))
        except GatewayError:
            self._marks_due = before
            if not self._marks.has_all(names):
                raise
            self._marks_due = self._clock.monotonic() + _REFRESH_S
        return self._marks

    async def cluster(self, context: Context) -> str:
        """The name of one that there is."""
        known = await self._brokers.known()
        return known[0].cluster if known else ""

    # -- inside -------------------------------------------------------------------------------

    def _holds(self, view: View, queues: Sequence[Queue], number: int) -> bool:
        now = self._clock.monotonic()
        if now >= view.due:
            return False
        if view.queues is not queues and tuple(view.queues) != tuple(queues):
            return False
        return number < len(view.numbers) or now < view.looked_at + _AGAIN_S

    async def _look(self, context: Context, topic: str, queues: Sequence[Queue], before: View | None) -> View:
        now = self._clock.monotonic()
        if before is not None:
            # Meanwhile the others go on with what is known.
            before.due = now + _REFRESH_S
        named = [(queue.broker, queue.queue_id) for queue in queues]
        try:
            numbers = await self._numbering.queues(context, topic, named)
            due = now + _REFRESH_S
        except GatewayError:
            if before is None:
                raise
            # Queues without a number wait; those that have one are served.
            numbers, now = before.numbers, self._clock.monotonic()
            due = now + (_REFRESH_S if numbers.has_all(named) else _AGAIN_S)
        view = View(numbers, queues, self._clock.monotonic(), due)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[topic] = view
        return view
