"""What each group has of each topic: a ledger per queue, found again after a restart."""

from __future__ import annotations

from collections.abc import Iterator

from brokers.embedded.entries import Entry, decode_entry
from brokers.embedded.keys import (
    INFLIGHT,
    PROGRESS,
    progress_key,
    progress_value,
    split_inflight_key,
    split_progress_key,
    split_progress_value,
)
from brokers.embedded.ledger import Ledger, LedgerParts
from brokers.embedded.ordered import OrderedLedger
from brokers.embedded.topics import Catalogue, Group, QueueState, Topic
from brokers.embedded.unordered import UnorderedLedger
from popgate.model import StartFrom
from popgate.naming import pop_retry_topic_v2
from popgate.receipt import OF_RETRY_V2, OF_TOPIC


class Share:
    """One group's part of one topic.

    `ordered`: of which kind its ledgers are. `attempts`: which receive holds what, in an ordered group.
    `retries`: what the group has of its own retry topic of this topic, if there is one; its pops
    of the topic read that too. `main`: of such a retry share, the share that reads it.
    `redelivered`, `dead_lettered`: how many of its messages, since the broker started.
    """

    __slots__ = (
        *("attempts", "dead_lettered", "group", "ledgers", "main", "ordered", "parts", "redelivered"),
        *("retries", "retries_first"),
        *("topic", "turn"),
    )

    def __init__(self, topic: Topic, group: Group, parts: LedgerParts) -> None:
        self.topic = topic
        self.group = group
        self.parts = parts
        self.ledgers: dict[int, Ledger] = {}
        self.attempts: dict[str, dict[tuple[int, int], None]] = {}
        self.ordered = False
        self.turn = 0
        self.main: Share | None = None
        self.retries: Share | None = None
        self.retries_first = False
        self.redelivered = 0
        self.dead_lettered = 0

    def __repr__(self) -> str:
        return f"<Share {self.group.name} of {self.topic.name} ledgers {len(self.ledgers)}>"

    @property
    def topic_type(self) -> int:
        """What receipts say of the topic (`popgate.receipt.Receipt`)."""
        return OF_TOPIC if self.main is None else OF_RETRY_V2

    @property
    def shown_topic(self) -> str:
        """What consumers see as the topic of its messages: of a retry, the topic that they subscribe to."""
        return self.topic.name if self.main is None else self.main.topic.name

    def begin(self) -> bool:
        """Fix where the group starts, on every queue it has no position on; whether that was needed.

        A group that never read the topic starts where its settings say; on queues that were added
        since, everything is new to it.
        """
        if len(self.ledgers) == len(self.topic.queues):
            return False
        missing = [queue for queue in self.topic.queues if queue.queue_id not in self.ledgers]
        anew = not self.ledgers
        for queue in missing:
            offset = self.start_of(queue) if anew else queue.minimum
            self.ledgers[queue.queue_id] = self._kind()(self, queue, offset)
            key = progress_key(self.group.id, self.topic.id, queue.queue_id)
            self.parts.store.put(PROGRESS, key, progress_value(offset, 0))
        return True

    def become(self, *, ordered: bool, now_ms: int) -> None:
        """Go on with ledgers of the other kind, if the group's setting is not what it was."""
        if self.ordered is ordered:
            return
        self.ordered = ordered
        for queue_id, old in list(self.ledgers.items()):
            new = self._kind()(self, old.queue, old.frontier)
            new.first_pop_ms, new.last_pop_ms = old.first_pop_ms, old.last_pop_ms
            new.kept_pop_ms = old.kept_pop_ms
            entries = dict(old.entries)
            old.close()
            self.ledgers[queue_id] = new
            new.adopt(entries, now_ms)

    def start_of(self, queue: QueueState) -> int:
        """Where the group would start on a queue of a topic that it never read."""
        last = self.group.config.start_from is StartFrom.LAST and self.main is None
        return queue.visible if last else queue.minimum

    def remember(self, attempt_id: str, queue_id: int, offset: int) -> None:
        if attempt_id:
            self.attempts.setdefault(attempt_id, {})[queue_id, offset] = None

    def forget(self, attempt_id: str, queue_id: int, offset: int) -> None:
        held = self.attempts.get(attempt_id)
        if held is not None:
            held.pop((queue_id, offset), None)
            if not held:
                del self.attempts[attempt_id]

    def close(self) -> None:
        """Forget everything in memory; steps that are still under way find nothing here."""
        for ledger in self.ledgers.values():
            ledger.close()
        self.ledgers.clear()

    def _kind(self) -> type[Ledger]:
        return OrderedLedger if self.ordered else UnorderedLedger


class Shares:
    """All shares, by topic and group."""

    def __init__(self, catalogue: Catalogue, parts: LedgerParts) -> None:
        self._catalogue = catalogue
        self._parts = parts
        self._shares: dict[int, dict[int, Share]] = {}

    def __repr__(self) -> str:
        return f"<Shares of {len(self._shares)} topics>"

    def __iter__(self) -> Iterator[Share]:
        return (share for shares in self._shares.values() for share in shares.values())

    def load(self, now_ms: int) -> None:
        """Find the ledgers again in the store; what belongs to no topic or group is left to retention."""
        store = self._parts.store
        for key, value in store.scan(PROGRESS, b""):
            group_id, topic_id, queue_id = split_progress_key(key)
            topic, group = self._catalogue.topic_by_id(topic_id), self._catalogue.group_by_id(group_id)
            if topic is not None and group is not None and queue_id < len(topic.queues):
                share = self.share(topic, group)
                frontier, last_pop_ms = split_progress_value(value)
                found = share.ledgers[queue_id] = UnorderedLedger(share, topic.queues[queue_id], frontier)
                found.recall_names(last_pop_ms)
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

    def get(self, topic_id: int, group_id: int) -> Share | None:
        shares = self._shares.get(topic_id)
        return shares.get(group_id) if shares is not None else None

    def share(self, topic: Topic, group: Group) -> Share:
        shares = self._shares.get(topic.id)
        if shares is None:
            shares = self._shares[topic.id] = {}
        share = shares.get(group.id)
        if share is None:
            share = shares[group.id] = Share(topic, group, self._parts)
            self.link_retries(share)
        return share

    def link_retries(self, share: Share) -> None:
        """Let a share read the group's retry topic of its topic, if there is one."""
        retry_topic = self._catalogue.find_topic(pop_retry_topic_v2(share.group.name, share.topic.name))
        if retry_topic is not None and share.retries is None:
            share.retries = self.share(retry_topic, share.group)
            share.retries.main = share

    def raise_floor(self, topic: Topic, queue: QueueState, now_ms: int) -> None:
        """Retention removed messages from a queue: tell all who have something of it."""
        for share in self._shares.get(topic.id, {}).values():
            ledger = share.ledgers.get(queue.queue_id)
            if ledger is not None:
                ledger.raise_floor(now_ms)

    def retries_of(self, owner: Topic | Group) -> list[Share]:
        """What groups have of retry topics: of this topic, or of all topics but this group only."""
        return [
            share.retries
            for share in self
            if share.retries is not None and (share.topic is owner or share.group is owner)
        ]

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
