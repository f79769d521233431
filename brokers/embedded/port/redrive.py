"""Returns dead letters to the group that could not consume them.

The copy in the retry topic and the mark that records it are one batch: whenever the process ends,
the message is either still a dead letter or will be delivered to the group again, never both or neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from brokers.capabilities import Redriven, RedrivesDeadLetters
from brokers.embedded.catalog.catalog import Group, QueueState, Topic
from brokers.embedded.engine.facet import Facet
from brokers.embedded.groups.ledger import Ledger
from brokers.embedded.groups.redrive_marks import mark, marked_ms, marks
from brokers.embedded.port.send_back import retry_config
from popgate.context import Context
from popgate.errors import AlreadyExists, BadRequest, GatewayError, NotFound, TopicNotFound, Unsupported
from popgate.model import TopicConfig
from popgate.naming import dead_letter_topic, pop_retry_topic_v2
from popgate.wire.messages.properties import (
    DLQ_ORIGIN_TOPIC,
    KEYS,
    REDRIVE_COUNT,
    RETRY_TOPIC,
    UNIQ_KEY,
    find_property,
    set_if_room,
)
from popgate.wire.messages.records import Record

_ORIGIN_TOPIC, _RETRY_TOPIC = DLQ_ORIGIN_TOPIC.encode(), RETRY_TOPIC.encode()
_UNIQ_KEY, _KEYS, _COUNT = UNIQ_KEY.encode(), KEYS.encode(), REDRIVE_COUNT.encode()


class RedriveFacet(Facet, RedrivesDeadLetters):
    """`RedrivesDeadLetters` of the embedded broker."""

    _marking: tuple[int, set[tuple[int, int, int]]] = (-1, set())
    """Marks of a turn whose batch is not written: topic id, queue and offset of each."""

    async def redriven(
        self, group: str, broker: str, queue_id: int, begin: int, end: int
    ) -> Mapping[int, int]:
        engine = self._engine
        engine.check_open()
        queue = engine.queue(engine.catalogue.topic(dead_letter_topic(group)), broker, queue_id)
        return marks(engine.store, queue, begin, end)

    async def redrive(
        self, context: Context, group: str, broker: str, queue_id: int, offsets: Sequence[int]
    ) -> list[Redriven | GatewayError]:
        engine = self._engine
        engine.check_writable()
        held_group = engine.catalogue.group(group)
        if held_group.config.broadcast:
            raise Unsupported(f"a redrive to {group}, which is a broadcast group,")
        queue = engine.queue(engine.catalogue.topic(dead_letter_topic(group)), broker, queue_id)
        results: list[Redriven | GatewayError] = []
        grown: dict[Ledger, int] = {}
        try:
            for offset in offsets:
                try:
                    results.append(self._redrive(held_group, queue, offset, grown))
                except GatewayError as error:
                    results.append(error)
        except Exception as error:
            engine.abandon(error)
            raise
        if grown:
            engine.store.after_commit(partial(self._tell, grown))
        await engine.settled()
        return results

    # -- inside -------------------------------------------------------------------------------

    def _redrive(self, group: Group, queue: QueueState, offset: int, grown: dict[Ledger, int]) -> Redriven:
        """Add the copy and the mark to the batch. Raises GatewayError having changed nothing."""
        engine = self._engine
        letter = self._dead_letter(queue, offset)
        if self._marking[0] != engine.store.turn:
            self._marking = (engine.store.turn, set())
        place = (queue.topic.id, queue.queue_id, offset)
        if marked_ms(engine.store, queue, offset) or place in self._marking[1]:
            raise AlreadyExists("a redriven copy of", f"dead letter {offset}")
        block = letter.properties
        origin = find_property(block, _RETRY_TOPIC) or find_property(block, _ORIGIN_TOPIC)
        if origin is None:
            raise BadRequest(f"dead letter {offset} does not say which topic it comes from")
        topic = engine.catalogue.find_topic(origin.decode("utf-8", "replace"))
        if topic is None:
            raise TopicNotFound(origin.decode("utf-8", "replace"))
        if engine.lites.bound(topic.name, group.name) is not None:
            # Nothing reads the retry topic of a group that takes lite topics: its copy would lie unseen.
            raise Unsupported(f"a redrive to {group.name}, which takes lite topics of {topic.name},")
        # What a consumer had sent back it looks for where such messages come again. Its properties need not
        # say so, and one that somebody sent on says it of another group: only such dead letters have a count.
        classic = letter.reconsume_times > 0
        retry_topic, ledger = self._classic_retries(group) if classic else self._retries(group, topic)
        message_id = find_property(block, _UNIQ_KEY) or b""
        copied_to = engine.log.append_new(
            retry_topic,
            0,
            letter.body,
            _counted(block),
            message_id=message_id,
            keys=(find_property(block, _KEYS) or b"").split(),
            now_ms=engine.clock.now_ms(),
            sys_flag=letter.sys_flag,
            flag=letter.flag,
            born_ms=letter.born_ms,
            born_host=letter.born_host,
            store_host=letter.store_host,
        )
        mark(engine.store, queue, offset, engine.clock.now_ms())
        self._marking[1].add(place)
        if ledger is not None:
            grown[ledger] = grown.get(ledger, 0) + 1
        return Redriven(message_id.decode("utf-8", "replace"), topic.name, retry_topic.name, copied_to)

    def _dead_letter(self, queue: QueueState, offset: int) -> Record:
        log, topic = self._engine.log, queue.topic
        record = None
        if queue.minimum <= offset < queue.visible:
            record = log.get(topic, queue.queue_id, offset)
        decoded = log.decoded(topic, queue.queue_id, offset, record) if record is not None else None
        if decoded is None:
            raise NotFound(f"there is no dead letter {offset} in queue {queue.queue_id} of {topic.name}")
        return decoded

    def _classic_retries(self, group: Group) -> tuple[Topic, Ledger | None]:
        """The topic that classic consumers of the group pull what they sent back from."""
        return self._engine.catalogue.ensure_topic(retry_config(group.name), bounded=False), None

    def _retries(self, group: Group, topic: Topic) -> tuple[Topic, Ledger | None]:
        """The group's retry topic of a topic, and what the group has of it: both made on demand."""
        engine = self._engine
        share = engine.shares.share(topic, group)
        share.begin()
        config = _retry_config(group.name, topic.name, topic.config.retention_ms)
        retry_topic = engine.catalogue.ensure_topic(config, bounded=False)
        engine.shares.link_retries(share)
        retries = share.retries
        assert retries is not None  # noqa: S101 - its topic is there, so it was linked
        retries.begin()
        return retry_topic, retries.ledgers[0]

    def _tell(self, grown: dict[Ledger, int]) -> None:
        """The copies can be read: wake who waits for messages of the topic."""
        for ledger, count in grown.items():
            ledger.notice(count)
        self._engine.wake_freed()


def _counted(block: bytes) -> bytes:
    """The properties with the number of redrives; as they were when that is too much for a record."""
    before = find_property(block, _COUNT) or b"0"
    count = int(before) + 1 if before.isdigit() and len(before) <= 9 else 1
    return set_if_room(block, _COUNT, b"%d" % count)


@lru_cache(maxsize=1024)
def _retry_config(group: str, topic: str, retention_ms: int | None) -> TopicConfig:
    """One queue, as RocketMQ's pop retry topics have (protocol facts 4.2); kept as long as its topic."""
    name = pop_retry_topic_v2(group, topic)
    return TopicConfig(name, read_queues=1, write_queues=1, retention_ms=retention_ms)
