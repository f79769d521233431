"""All group topics: found by topic and group, loaded again after a restart, and evicted when unused."""

from __future__ import annotations

from collections.abc import Iterator

from brokers.embedded.catalog.catalog import Catalog, Group, QueueState, Topic
from brokers.embedded.groups.entries import Entry, decode_entry
from brokers.embedded.groups.group_topic import GroupTopic
from brokers.embedded.groups.ledger import Ledger, LedgerParts
from brokers.embedded.storage.keys import INFLIGHT, PROGRESS, split_inflight_key
from popgate.naming import RETRY_PREFIX, pop_retry_topic_v2

_PAIRS = 256


class GroupTopicIndex:
    """Group topics that are in use, or have messages that are held or rest, by topic and group.

    The others are in the store only, and are loaded when they are requested: a group that no longer reads
    costs no memory.
    """

    def __init__(self, catalogue: Catalog, parts: LedgerParts) -> None:
        self._catalogue = catalogue
        self._parts = parts
        self._shares: dict[int, dict[int, GroupTopic]] = {}

    def __repr__(self) -> str:
        return f"<GroupTopicIndex of {len(self._shares)} topics>"

    def __iter__(self) -> Iterator[GroupTopic]:
        """Those in memory."""
        return (share for shares in self._shares.values() for share in shares.values())

    def load(self, now_ms: int) -> None:
        """Load unfinished messages from the store; those of no topic or group are left to retention."""
        store = self._parts.store
        entries: dict[int, Entry] = {}
        ledger: Ledger | None = None
        last_value, last_entry = b"", Entry(0, 0, 0, False)
        for key, value in store.scan(INFLIGHT, b""):
            group_id, topic_id, queue_id, offset = split_inflight_key(key)
            named = self._find_ledger(topic_id, group_id, queue_id)
            if named is not ledger:
                if ledger is not None:
                    ledger.adopt(entries, now_ms)
                ledger, entries = named, {}
            if ledger is None:
                continue
            if offset >= ledger.frontier:
                store.delete(INFLIGHT, key)  # of a step that failed half-way: it was never delivered
                continue
            if value != last_value:
                last_value, last_entry = value, decode_entry(value)
            entries[offset] = last_entry
        if ledger is not None:
            ledger.adopt(entries, now_ms)

    def get(self, topic_id: int, group_id: int) -> GroupTopic | None:
        """The share, if the group ever read the topic."""
        shares = self._shares.get(topic_id)
        share = shares.get(group_id) if shares is not None else None
        if share is None:
            return self._find(topic_id, group_id)
        share.touched = True
        return share

    def in_memory(self, topic_id: int, group_id: int) -> GroupTopic | None:
        """The share, if it is in use. That makes no use of it."""
        return self._shares.get(topic_id, {}).get(group_id)

    def share(self, topic: Topic, group: Group) -> GroupTopic:
        """The share; an empty one for a group that never read the topic."""
        shares = self._shares.get(topic.id)
        share = shares.get(group.id) if shares is not None else None
        if share is None:
            share = GroupTopic(topic, group, self._parts)
            share.recall()
            self._enter(share)
        share.touched = True
        return share

    def peek(self, topic: Topic, group: Group) -> GroupTopic:
        """The share for reading only: one that is not in memory is not loaded permanently."""
        share = self.in_memory(topic.id, group.id)
        if share is None:
            share = GroupTopic(topic, group, self._parts)
            share.recall()
            retry_topic = self._retry_topic_of(share)
            if retry_topic is not None:
                share.retries = self.in_memory(retry_topic.id, group.id) or GroupTopic(
                    retry_topic, group, self._parts
                )
                if not share.retries.ledgers:
                    share.retries.recall()
                    share.retries.main = share
        return share

    def pairs(self, start: int, most: int) -> tuple[list[tuple[Topic, Group]], int | None]:
        """Topics and the groups that read them, as the store has them, and where to go on; None: nowhere."""
        read = []
        prefixes = self._parts.store.runs(PROGRESS, start.to_bytes(8, "big"), 8, most)
        for prefix in prefixes:
            group = self._catalogue.group_by_id(int.from_bytes(prefix[:4], "big"))
            topic = self._catalogue.topic_by_id(int.from_bytes(prefix[4:], "big"))
            if topic is not None and group is not None:
                read.append((topic, group))
        if len(prefixes) < most:
            return read, None
        return read, int.from_bytes(prefixes[-1], "big") + 1

    def topics_of(self, group: Group) -> set[str]:
        """The topics that a group has read, its retry topics not counted."""
        retries = pop_retry_topic_v2(group.name, "")
        # Topic by topic: a broadcast group may have thousands of groups with shares of one topic.
        here = (shares.get(group.id) for shares in self._shares.values())
        topics = {share.topic for share in here if share is not None and share.ledgers}
        start: int | None = group.id << 32
        while start is not None and start >> 32 == group.id:
            pairs, start = self.pairs(start, _PAIRS)
            topics |= {topic for topic, of in pairs if of is group}
        return {topic.name for topic in topics if not topic.name.startswith(retries)}

    def forget(self, share: GroupTopic) -> bool:
        """Let go of a share that is idle, with its retries; False when it is not, or belongs to another."""
        retries = share.retries
        if share.main is not None or not share.is_idle() or not (retries is None or retries.is_idle()):
            return False
        for group_topic in (share, retries):
            if group_topic is not None:
                shares = self._shares.get(group_topic.topic.id, {})
                if shares.get(group_topic.group.id) is group_topic:
                    del shares[group_topic.group.id]
                    if not shares:
                        del self._shares[group_topic.topic.id]
                group_topic.close()
        return True

    def _find(self, topic_id: int, group_id: int) -> GroupTopic | None:
        """A share that is in the store only."""
        topic, group = self._catalogue.topic_by_id(topic_id), self._catalogue.group_by_id(group_id)
        if topic is None or group is None:
            return None
        share = GroupTopic(topic, group, self._parts)
        if not share.recall():
            return None
        self._enter(share)
        return share

    def _enter(self, share: GroupTopic) -> None:
        self._shares.setdefault(share.topic.id, {})[share.group.id] = share
        self.link_retries(share)
        name = share.topic.name
        of_main = pop_retry_topic_v2(share.group.name, "")
        main = self._catalogue.find_topic(name.removeprefix(of_main)) if name.startswith(of_main) else None
        if main is not None and share.main is None:
            # It is read through the share of the topic that its messages were sent to.
            self.share(main, share.group)

    def _retry_topic_of(self, share: GroupTopic) -> Topic | None:
        return self._catalogue.find_topic(pop_retry_topic_v2(share.group.name, share.topic.name))

    def link_retries(self, share: GroupTopic) -> None:
        """Let a share read the group's retry topic of its topic, if there is one."""
        retry_topic = self._retry_topic_of(share)
        if retry_topic is not None and share.retries is None:
            share.retries = self.share(retry_topic, share.group)
            share.retries.main = share

    def raise_floor(self, topic: Topic, queue: QueueState, now_ms: int) -> None:
        """Retention removed messages from a queue: update the ledgers of all groups."""
        for share in self._shares.get(topic.id, {}).values():
            ledger = share.ledgers.get(queue.queue_id)
            if ledger is not None:
                ledger.raise_floor(now_ms)

    def retry_topics_of(self, owner: Topic | Group) -> list[Topic]:
        """The retry topics of this topic, of all groups; or of this group, of all topics."""
        return [topic for topic in self._catalogue.topics() if owner.name == _owners(topic, owner)]

    def drop_topic(self, topic: Topic) -> None:
        """Forget the shares of a deleted topic."""
        for share in self._shares.pop(topic.id, {}).values():
            if share.main is not None:
                share.main.retries = None
            share.close()

    def drop_group(self, group: Group) -> None:
        """Forget the shares of a deleted group."""
        for shares in self._shares.values():
            share = shares.pop(group.id, None)
            if share is not None:
                share.close()

    def _find_ledger(self, topic_id: int, group_id: int, queue_id: int) -> Ledger | None:
        share = self.get(topic_id, group_id)
        return share.ledgers.get(queue_id) if share is not None else None


def _owners(topic: Topic, owner: Topic | Group) -> str:
    """The name of the topic, or of the group, that a retry topic is for; empty for other topics."""
    if not topic.name.startswith(RETRY_PREFIX):
        return ""
    group, _, main = topic.name.removeprefix(RETRY_PREFIX).partition("+")
    return main if isinstance(owner, Topic) else group if main else ""
