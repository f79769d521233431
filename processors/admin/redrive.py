"""The dead letters of a group: listed, and returned to the group.

They are in `%DLQ%group`, which is read page by page, so that a hundred thousand of them delay no other
request. Redriven ones stay there until retention removes them, and are left out here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from brokers.capabilities import Redriven, RedrivesDeadLetters
from brokers.port import Broker
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    GatewayError,
    IllegalOffset,
    NotFound,
    TopicNotFound,
    Unsupported,
    shown,
)
from popgate.filters.compiled import compile_filter
from popgate.kinds import Action
from popgate.model import FilterKind, Queue, StoredMessage
from popgate.naming import check_group, dead_letter_topic, pop_retry_topic_v1, pop_retry_topic_v2
from popgate.wire.messages.properties import DLQ_ORIGIN_TOPIC, RETRY_TOPIC, UNIQ_KEY, find_property
from processors.observer import Observer, Watch

_ORIGIN, _RETRY, _ID = DLQ_ORIGIN_TOPIC.encode(), RETRY_TOPIC.encode(), UNIQ_KEY.encode()
_EVERYTHING = compile_filter(FilterKind.TAG, "*")
_PAGE = 64
_PAGE_BYTES = 1 << 20
_MOST_ORIGINS = 10_000
_MOST_LOOKED_AT = 4_096
MOST_AT_ONCE = 256
MOST_SHOWN = 1_000
MOST_IDS = 1_000


@dataclass(slots=True, frozen=True)
class Letter:
    """A dead letter. `origin` is the topic that its group read, empty when it does not say."""

    message: StoredMessage
    message_id: str
    origin: str


@dataclass(slots=True)
class Heap:
    """The dead letters of one origin topic. Times are wall times in ms of their dying."""

    count: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0


@dataclass(slots=True, frozen=True)
class Place:
    """Where a redrive goes on: the index of the queue among those of the topic, and the offset."""

    queue: int
    offset: int


@dataclass(slots=True)
class Moved:
    """What one step of a redrive did. `next` is None when there is nothing more below `until`.

    `moved` in a dry run is what would be: the offset of its copy is -1. `refused`: the letter and why
    it stays where it is.
    """

    moved: list[Redriven] = field(default_factory=list)
    refused: list[tuple[Letter, GatewayError]] = field(default_factory=list)
    next: Place | None = None
    until: list[int] = field(default_factory=list)


class DeadLetters:
    """Of a broker; a part of the processor, with the same steps in every method."""

    def __init__(self, broker: Broker, admit: Callable[..., None], observer: Observer) -> None:
        self._broker = broker
        self._admit = admit
        self._observer = observer
        self._watch_look = Watch(observer, "dead_letters")
        self._watch_redrive = Watch(observer, "redrive")

    async def heaps(self, context: Context, group: str) -> dict[str, Heap]:
        """How many dead letters the group has, by origin topic. Raises IllegalGroup, GroupNotFound."""
        with self._watch_look:
            self._admit(context, Action.GET, group=check_group(group))
            heaps: dict[str, Heap] = {}
            async for letter, _ in self._walk(context, group, Place(0, 0), None):
                origin = letter.origin
                if origin not in heaps and len(heaps) >= _MOST_ORIGINS:
                    origin = ""
                heap = heaps.setdefault(origin, Heap())
                heap.count += 1
                died_ms = letter.message.store_ms
                heap.oldest_ms = min(heap.oldest_ms or died_ms, died_ms)
                heap.newest_ms = max(heap.newest_ms, died_ms)
            return heaps

    async def find(
        self, context: Context, group: str, *, message_id: str = "", topic: str = "", limit: int = 20
    ) -> list[Letter]:
        """Dead letters, oldest first: of this id, of this origin topic, or all; at most `limit`.

        Raises IllegalGroup, GroupNotFound.
        """
        with self._watch_look:
            self._admit(context, Action.GET, group=check_group(group))
            limit = min(max(limit, 1), MOST_SHOWN)
            if message_id:
                letters = [letter for letter, _ in await self._of_id(context, group, message_id)]
                return [candidate for candidate in letters if topic in ("", candidate.origin)][:limit]
            matching = []
            async for letter, _ in self._walk(context, group, Place(0, 0), None):
                if topic in ("", letter.origin):
                    matching.append(letter)
                    if len(matching) == limit:
                        break
            return matching

    async def redrive(
        self,
        context: Context,
        group: str,
        *,
        message_ids: Sequence[str] = (),
        topic: str = "",
        limit: int = MOST_AT_ONCE,
        start: Place | None = None,
        until: Sequence[int] = (),
        dry_run: bool = False,
    ) -> Moved:
        """Redrive up to `limit` dead letters: those of these ids, or all of an origin topic, or all.

        One step: the caller continues from `next`, up to the same `until`, so that messages which become
        dead letters again meanwhile are not redriven endlessly. Repeating a step is safe: no message is
        redriven twice. Raises IllegalGroup, GroupNotFound, BadRequest, Unsupported, and what the broker
        raises.
        """
        with self._watch_redrive:
            self._admit(context, Action.UPDATE, group=check_group(group))
            redrives = self._broker.capability(RedrivesDeadLetters)
            if redrives is None:
                raise Unsupported(
                    "redriving dead letters with this broker",
                    "a RocketMQ cluster takes retries of a group from nobody but itself;"
                    f" consume {dead_letter_topic(group)} like any topic, with a group of its own, or send"
                    " anew what `popgate dead-letter show` prints",
                )
            if (await self._broker.group(group)).broadcast:
                raise Unsupported(f"a redrive to {group}, which is a broadcast group,")
            if len(message_ids) > MOST_IDS:
                raise BadRequest(
                    f"{len(message_ids)} message ids are too many at once, the limit is {MOST_IDS}"
                )
            result = Moved()
            if message_ids:
                chosen = await self._chosen(context, group, message_ids, topic)
            else:
                chosen = await self._next(context, group, topic, limit, start or Place(0, 0), until, result)
            if dry_run:
                result.moved += [Redriven(letter.message_id, letter.origin, "", -1) for letter, _ in chosen]
                return result
            for queue in {queue: None for _, queue in chosen}:
                letters = [letter for letter, of in chosen if of is queue]
                offsets = [letter.message.offset for letter in letters]
                answers = await redrives.redrive(context, group, queue.broker, queue.queue_id, offsets)
                for letter, answer in zip(letters, answers, strict=True):
                    if isinstance(answer, GatewayError):
                        result.refused.append((letter, answer))
                    else:
                        result.moved.append(answer)
        self._observer.redriven(group, len(result.moved))
        return result

    # -- inside -------------------------------------------------------------------------------

    async def _chosen(
        self, context: Context, group: str, message_ids: Sequence[str], topic: str
    ) -> list[tuple[Letter, Queue]]:
        """Raises NotFound when one of them is no dead letter: then nothing is redriven."""
        chosen = []
        for message_id in dict.fromkeys(message_ids):
            pairs = await self._of_id(context, group, message_id)
            pairs = [pair for pair in pairs if topic in ("", pair[0].origin)]
            if not pairs:
                of = f" of topic {topic}" if topic else ""
                raise NotFound(f"group {group} has no dead letter {shown(message_id)}{of}")
            chosen += pairs
        return chosen

    async def _next(
        self,
        context: Context,
        group: str,
        topic: str,
        limit: int,
        start: Place,
        until: Sequence[int],
        result: Moved,
    ) -> list[tuple[Letter, Queue]]:
        """The next dead letters from `start` on; says in `result` where to go on."""
        queues = await self._queues(group)
        ends = list(until) or [
            (await self._broker.bounds(context, dead_letter_topic(group), q.broker, q.queue_id)).maximum
            for q in queues
        ]
        result.until = ends
        limit = min(max(limit, 1), MOST_AT_ONCE)
        chosen: list[tuple[Letter, Queue]] = []
        looked_at = 0
        async for letter, place in self._walk(context, group, start, ends):
            looked_at += 1
            if topic in ("", letter.origin):
                chosen.append((letter, queues[place.queue]))
            if len(chosen) == limit or looked_at == _MOST_LOOKED_AT:
                result.next = Place(place.queue, place.offset + 1)
                break
        return chosen

    async def _walk(
        self, context: Context, group: str, start: Place, ends: Sequence[int] | None
    ) -> AsyncIterator[tuple[Letter, Place]]:
        """Every dead letter that was not redriven, and where it is, from a place on."""
        name = dead_letter_topic(group)
        for at, queue in enumerate(await self._queues(group)):
            if at < start.queue:
                continue
            bounds = await self._broker.bounds(context, name, queue.broker, queue.queue_id)
            offset = max(start.offset if at == start.queue else 0, bounds.minimum)
            end = min(ends[at] if ends is not None and at < len(ends) else bounds.maximum, bounds.maximum)
            while offset < end:
                try:
                    pulled = await self._broker.pull(
                        context,
                        name,
                        queue.broker,
                        queue.queue_id,
                        offset,
                        max_messages=_PAGE,
                        max_bytes=_PAGE_BYTES,
                        passing=_EVERYTHING,
                        wait_until=None,
                    )
                except IllegalOffset as error:  # retention was here meanwhile
                    if error.nearest <= offset:
                        raise
                    offset = error.nearest
                    continue
                marks = await self._marks(group, queue, offset, pulled.next_offset)
                for message in pulled.messages:
                    if offset <= message.offset < end and message.offset not in marks:
                        yield _letter(message, group), Place(at, message.offset)
                if pulled.next_offset <= offset:
                    break  # as of a slave that is behind; other queues may be of other brokers
                offset = pulled.next_offset
                await asyncio.sleep(0)

    async def _of_id(self, context: Context, group: str, message_id: str) -> list[tuple[Letter, Queue]]:
        """The dead letters with this id that were not redriven."""
        queues = {(queue.broker, queue.queue_id): queue for queue in await self._queues(group)}
        if not queues or not message_id.strip():
            return []
        letters = []
        for message in await self._broker.find_by_id(context, dead_letter_topic(group), message_id):
            queue = queues.get((message.broker, message.queue_id))
            if queue is not None and not await self._marks(group, queue, message.offset, message.offset + 1):
                letters.append((_letter(message, group), queue))
        return letters

    async def _queues(self, group: str) -> Sequence[Queue]:
        """The queues of its dead-letter topic; none when it never had dead letters. Raises GroupNotFound."""
        await self._broker.group(group)
        try:
            return (await self._broker.route(dead_letter_topic(group))).queues
        except TopicNotFound:
            return ()

    async def _marks(self, group: str, queue: Queue, begin: int, end: int) -> frozenset[int]:
        redrives = self._broker.capability(RedrivesDeadLetters)
        if redrives is None:
            return frozenset()
        return frozenset(await redrives.redriven(group, queue.broker, queue.queue_id, begin, end))


def _letter(message: StoredMessage, group: str) -> Letter:
    block = message.properties
    origin = find_property(block, _RETRY) or find_property(block, _ORIGIN) or b""
    message_id = find_property(block, _ID) or b""
    topic = origin.decode("utf-8", "replace")
    for make in (pop_retry_topic_v2, pop_retry_topic_v1):
        # A cluster names the retry topic of the attempt that was the last one.
        topic = topic.removeprefix(make(group, ""))
    return Letter(message, message_id.decode("utf-8", "replace"), topic)
