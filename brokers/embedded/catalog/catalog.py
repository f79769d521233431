"""The catalogue: topics and groups by name and by id, and the state of each queue of a topic.

It is held in memory for the hot path and stored as JSON. An id is never assigned again while data of its
former owner may be left, so that a topic created again under an old name has no old data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from brokers.embedded.catalog.cleanup_policy import check_policy, check_same_policy
from brokers.embedded.catalog.config_codec import group_in, group_out, topic_in, topic_out
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.damaged_records import decode_first
from brokers.embedded.storage.keys import (
    COMPACTED,
    COMPACTION_STATE,
    FLOORS,
    GROUPS,
    HIGHEST_U64,
    MESSAGES,
    META,
    MOST_QUEUES,
    MOST_TOPIC_IDS,
    REMOVED,
    REMOVED_GROUP,
    REMOVED_TOPIC,
    TOPICS,
    compaction_key,
    floor_key,
    message_key,
    removed_key,
    sent_mark,
    split_compaction_state,
    split_message_key,
)
from brokers.embedded.storage.store import Store
from popgate.errors import AlreadyExists, BadRequest, GroupNotFound, TooManyRequests, TopicNotFound, shown
from popgate.model import GroupConfig, Permission, TopicConfig

_NEXT_TOPIC_ID = b"next topic id"
_NEXT_GROUP_ID = b"next group id"
_MOST_GROUP_IDS = 1 << 32


class QueueState:
    """The state of one queue of `topic`.

    `minimum`: the first offset kept. `maximum`: the next offset to assign. `visible`: all
    below are committed and can be read. `last_store_ms`: store times of a queue never decrease.
    `holes`: the number of offsets from the minimum on whose messages compaction removed.
    """

    __slots__ = ("holes", "last_store_ms", "maximum", "minimum", "queue_id", "topic", "visible")

    def __init__(self, topic: Topic, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.minimum = 0
        self.maximum = 0
        self.visible = 0
        self.last_store_ms = 0
        self.holes = 0

    @property
    def kept(self) -> int:
        """How many messages there are to be read."""
        return self.visible - self.minimum - self.holes

    def unread_from(self, offset: int) -> int:
        """How many messages there are from an offset on; in the middle of holes it may tell too many."""
        unread = self.visible - max(offset, self.minimum)
        return max(min(unread, self.kept) if self.holes else unread, 0)

    def __repr__(self) -> str:
        place = f"{self.topic.name}/{self.queue_id}"
        return f"<QueueState {place} {self.minimum}..{self.visible}/{self.maximum}>"


class Topic:
    """A topic and its queues. `turn` counts sends, for the choice of a queue; `mark` is that of its ids."""

    __slots__ = ("compacted", "config", "id", "mark", "name", "packed_name", "queues", "turn", "writable")

    def __init__(self, topic_id: int, config: TopicConfig) -> None:
        self.id = topic_id
        self.configure(config)
        self.name = config.name
        self.packed_name = config.name.encode()
        self.mark = sent_mark(topic_id)
        self.queues = [QueueState(self, queue_id) for queue_id in range(config.queues)]
        self.turn = 0

    def __repr__(self) -> str:
        return f"<Topic {self.name} id {self.id} queues {len(self.queues)}>"

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.compacted = config.compacted
        self.writable = bool(config.permission & Permission.WRITE and config.write_queues)
        """Every send asks for this, and sets of flags are slow."""


class Group:
    """A consumer group."""

    __slots__ = ("config", "id", "name")

    def __init__(self, group_id: int, config: GroupConfig) -> None:
        self.id = group_id
        self.config = config
        self.name = config.name

    def __repr__(self) -> str:
        return f"<Group {self.name} id {self.id}>"


class Catalog:
    """All topics and groups. What changes is added to the store's batch; the caller commits."""

    def __init__(self, store: Store, settings: EmbeddedSettings) -> None:
        self._store = store
        self._settings = settings
        self._topics: dict[str, Topic] = {}
        self._topics_by_id: dict[int, Topic] = {}
        self._groups: dict[str, Group] = {}
        self._groups_by_id: dict[int, Group] = {}
        self._next_topic_id = 1
        self._next_group_id = 1

    def __repr__(self) -> str:
        return f"<Catalog topics {len(self._topics)} groups {len(self._groups)}>"

    def load(self) -> None:
        """Read everything from the store, replacing the contents of memory."""
        for known in (self._topics, self._topics_by_id, self._groups, self._groups_by_id):
            known.clear()
        self._next_topic_id = int(self._store.get(META, _NEXT_TOPIC_ID) or 1)
        self._next_group_id = int(self._store.get(META, _NEXT_GROUP_ID) or 1)
        for _, value in self._store.scan(TOPICS, b""):
            stored = json.loads(value)
            self._add_topic(Topic(stored["id"], topic_in(stored)))
        for _, value in self._store.scan(GROUPS, b""):
            stored = json.loads(value)
            self._add_group(Group(stored["id"], group_in(stored)))
        for topic in self._topics.values():
            for queue in topic.queues:
                self._load_queue(topic, queue)

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    @property
    def group_count(self) -> int:
        return len(self._groups)

    # -- topics -------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def find_topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: int) -> Topic | None:
        return self._topics_by_id.get(topic_id)

    def topics(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def create_topic(self, config: TopicConfig, *, bounded: bool = True) -> Topic:
        """Raises AlreadyExists, BadRequest (a number of queues that cannot be), TooManyRequests.

        Topics that the broker makes itself, one per group at most, are not `bounded`.
        """
        if config.name in self._topics:
            raise AlreadyExists("topic", config.name)
        _check_text(config.name)
        _check_queues(config)
        check_policy(config)
        if bounded and len(self._topics) >= self._settings.max_topics:
            raise TooManyRequests(f"there are {len(self._topics)} topics, the limit is reached", 60.0)
        topic = Topic(self._take_topic_id(), config)
        self._add_topic(topic)
        self._store.put(TOPICS, topic.packed_name, topic_out(topic.id, config))
        return topic

    def ensure_topic(self, config: TopicConfig, *, bounded: bool = True) -> Topic:
        """The topic of this name, made now if there is none."""
        return self._topics.get(config.name) or self.create_topic(config, bounded=bounded)

    def update_topic(self, config: TopicConfig) -> Topic:
        """Raises TopicNotFound, BadRequest (fewer queues than there are, another policy of cleaning up)."""
        topic = self.topic(config.name)
        _check_queues(config)
        check_same_policy(topic.config, config)
        if config.queues < len(topic.queues):
            raise BadRequest(
                f"topic {topic.name} has {len(topic.queues)} queues, they cannot become {config.queues}"
            )
        topic.configure(config)
        topic.queues += [QueueState(topic, queue_id) for queue_id in range(len(topic.queues), config.queues)]
        self._store.put(TOPICS, topic.packed_name, topic_out(topic.id, config))
        return topic

    def delete_topic(self, name: str) -> Topic:
        """Forget the topic and its messages. Raises TopicNotFound."""
        topic = self.topic(name)
        del self._topics[name], self._topics_by_id[topic.id]
        self._store.delete(TOPICS, topic.packed_name)
        self._store.delete_range(MESSAGES, message_key(topic.id, 0, 0), message_key(topic.id + 1, 0, 0))
        self._store.delete_range(FLOORS, floor_key(topic.id, 0), floor_key(topic.id + 1, 0))
        self._store.put(REMOVED, removed_key(REMOVED_TOPIC, topic.id), b"")
        return topic

    # -- groups -------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """Raises GroupNotFound."""
        group = self._groups.get(name)
        if group is None:
            raise GroupNotFound(name)
        return group

    def find_group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def group_by_id(self, group_id: int) -> Group | None:
        return self._groups_by_id.get(group_id)

    def groups(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def create_group(self, config: GroupConfig) -> Group:
        """Raises AlreadyExists, TooManyRequests."""
        if config.name in self._groups:
            raise AlreadyExists("group", config.name)
        _check_text(config.name)
        if len(self._groups) >= self._settings.max_groups:
            raise TooManyRequests(f"there are {len(self._groups)} groups, the limit is reached", 60.0)
        group = Group(self._take_group_id(), config)
        self._add_group(group)
        self._store.put(GROUPS, group.name.encode(), group_out(group.id, config))
        return group

    def update_group(self, config: GroupConfig) -> Group:
        """Raises GroupNotFound."""
        group = self.group(config.name)
        group.config = config
        self._store.put(GROUPS, group.name.encode(), group_out(group.id, config))
        return group

    def delete_group(self, name: str) -> Group:
        """Raises GroupNotFound."""
        group = self.group(name)
        del self._groups[name], self._groups_by_id[group.id]
        self._store.delete(GROUPS, name.encode())
        self._store.put(REMOVED, removed_key(REMOVED_GROUP, group.id), b"")
        return group

    # -- inside -------------------------------------------------------------------------------

    def _add_topic(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._topics_by_id[topic.id] = topic

    def _add_group(self, group: Group) -> None:
        self._groups[group.name] = group
        self._groups_by_id[group.id] = group

    def _load_queue(self, topic: Topic, queue: QueueState) -> None:
        floor = self._store.get(FLOORS, floor_key(topic.id, queue.queue_id))
        queue.minimum = int.from_bytes(floor, "big") if floor else 0
        queue.maximum = queue.minimum
        last = self._store.last_below(MESSAGES, message_key(topic.id, queue.queue_id, HIGHEST_U64))
        if last is not None:
            topic_id, queue_id, offset = split_message_key(last[0])
            if (topic_id, queue_id) == (topic.id, queue.queue_id):
                queue.maximum = max(offset + 1, queue.minimum)
                queue.last_store_ms = self._last_store_ms(topic, queue, last)
        queue.visible = queue.maximum
        if topic.compacted:
            state = self._store.get(COMPACTED, compaction_key(topic.id, queue.queue_id, COMPACTION_STATE))
            queue.holes = split_compaction_state(state)[1] if state else 0

    def _last_store_ms(self, topic: Topic, queue: QueueState, last: tuple[bytes, bytes] | None) -> int:
        """Of the last record that is not damaged."""
        while last is not None and last[0] >= message_key(topic.id, queue.queue_id, 0):
            decoded = decode_first(last[1])
            if decoded is not None:
                return decoded.store_ms
            last = self._store.last_below(MESSAGES, last[0])
        return 0

    def _is_being_removed(self, kind: bytes, former_id: int) -> bool:
        """Whether retention has not yet removed all that belonged to the former owner of an id."""
        return self._store.get(REMOVED, removed_key(kind, former_id)) is not None

    def _take_topic_id(self) -> int:
        taken = self._next_topic_id
        while taken in self._topics_by_id or self._is_being_removed(REMOVED_TOPIC, taken):
            taken = taken + 1 if taken + 1 < MOST_TOPIC_IDS else 1
        self._next_topic_id = taken + 1 if taken + 1 < MOST_TOPIC_IDS else 1
        self._store.put(META, _NEXT_TOPIC_ID, b"%d" % self._next_topic_id)
        return taken

    def _take_group_id(self) -> int:
        taken = self._next_group_id
        while taken in self._groups_by_id or self._is_being_removed(REMOVED_GROUP, taken):
            taken = taken + 1 if taken + 1 < _MOST_GROUP_IDS else 1
        self._next_group_id = taken + 1 if taken + 1 < _MOST_GROUP_IDS else 1
        self._store.put(META, _NEXT_GROUP_ID, b"%d" % self._next_group_id)
        return taken


def _check_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"the name {shown(name)} is no text that can be stored") from None


def _check_queues(config: TopicConfig) -> None:
    for count in (config.read_queues, config.write_queues):
        if not 0 <= count <= MOST_QUEUES:
            raise BadRequest(f"a topic has at most {MOST_QUEUES} queues, not {count}")
    if config.queues < 1:
        raise BadRequest("a topic has at least one queue")
