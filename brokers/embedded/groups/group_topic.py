"""The state of one group in one topic: a ledger for each queue, ordered or unordered as the group is."""

from __future__ import annotations

from brokers.embedded.catalog.catalog import Group, QueueState, Topic
from brokers.embedded.groups.ledger import Ledger, LedgerParts
from brokers.embedded.groups.ordered_ledger import OrderedLedger, lane_of
from brokers.embedded.groups.unordered_ledger import UnorderedLedger
from brokers.embedded.storage.keys import (
    PROGRESS,
    UNREAD,
    progress_key,
    progress_value,
    split_progress_key,
    split_progress_value,
)
from popgate.ids.receipt import OF_RETRY_V2, OF_TOPIC
from popgate.model import StartFrom


class GroupTopic:
    """One group's part of one topic.

    `ordered`: of which kind its ledgers are. `attempts`: which receive holds what, in an ordered group, and
    how many more times it was given the same, because it was repeated.
    `retries`: what the group has of its own retry topic of this topic, if there is one; its pops
    of the topic read that too. `main`: of such a retry share, the share that reads it.
    `redelivered`, `dead_lettered`: how many of its messages, since the broker started.
    """

    __slots__ = (
        *("_unknown", "attempts", "dead_lettered", "group", "lane_names", "ledgers", "main", "ordered"),
        *("parts", "redelivered"),
        *("retries", "retries_first"),
        *("topic", "touched", "turn"),
    )

    def __init__(self, topic: Topic, group: Group, parts: LedgerParts) -> None:
        self.topic = topic
        self.group = group
        self.parts = parts
        self.ledgers: dict[int, Ledger] = {}
        self.attempts: dict[str, dict[tuple[int, int], int]] = {}
        self.ordered = False
        self.lane_names: dict[tuple[int, int], bytes | None] = {}
        """While its ledgers become ordered: the message groups of what is unfinished, as far as known."""
        self._unknown: list[tuple[Ledger, int]] | None = None
        self.touched = True
        """Asked for since it was last looked at for being forgotten."""
        self.turn = 0
        self.main: GroupTopic | None = None
        self.retries: GroupTopic | None = None
        self.retries_first = False
        self.redelivered = 0
        self.dead_lettered = 0

    def __repr__(self) -> str:
        return f"<GroupTopic {self.group.name} of {self.topic.name} ledgers {len(self.ledgers)}>"

    @property
    def topic_type(self) -> int:
        """What receipts say of the topic (`popgate.ids.receipt.Receipt`)."""
        return OF_TOPIC if self.main is None else OF_RETRY_V2

    @property
    def shown_topic(self) -> str:
        """What consumers see as the topic of its messages: of a retry, the topic that they subscribe to."""
        return self.topic.name if self.main is None else self.main.topic.name

    def begin(self, only: int | None = None) -> bool:
        """Set the group's start on every queue without a position; returns whether there was one.

        A group that never read the topic starts where its settings say; on queues that were added
        later, it starts at the first message. `only`: the queue whose position is being set; the others
        stay unread.
        """
        if len(self.ledgers) == len(self.topic.queues):
            return False
        missing = [queue for queue in self.topic.queues if queue.queue_id not in self.ledgers]
        anew = not self.ledgers
        for queue in missing:
            offset = self.start_of(queue) if anew else queue.minimum
            ledger = self.ledgers[queue.queue_id] = self._kind()(self, queue, offset)
            ledger.unread = only is not None and queue.queue_id != only
            key = progress_key(self.group.id, self.topic.id, queue.queue_id)
            self.parts.store.put(PROGRESS, key, progress_value(offset, UNREAD if ledger.unread else 0))
        return True

    def become(self, *, ordered: bool, now_ms: int, looks: int) -> bool:
        """Go on with ledgers of the other kind, if the group's setting is not what it was.

        It takes several calls where much is unfinished: False as long as it is not done. One reads
        about `looks` messages, or changes one ledger.
        """
        if self.ordered is ordered:
            return True
        if ordered and not self._know_lanes(looks):
            return False
        for queue_id, old in self.ledgers.items():
            if old.ordered is not ordered:
                new = (OrderedLedger if ordered else UnorderedLedger)(self, old.queue, old.frontier)
                new.first_pop_ms, new.last_pop_ms = old.first_pop_ms, old.last_pop_ms
                new.kept_pop_ms, new.unread = old.kept_pop_ms, old.unread
                entries = dict(old.entries)
                old.close()
                self.ledgers[queue_id] = new
                new.adopt(entries, now_ms)
                if entries:
                    return False
        self.ordered = ordered
        self.lane_names.clear()
        self._unknown = None
        return True

    def _know_lanes(self, looks: int) -> bool:
        """Find the message groups of unfinished messages; returns whether all are known."""
        if self._unknown is None:
            self._unknown = [
                (ledger, offset)
                for ledger in self.ledgers.values()
                for offset, entry in ledger.entries.items()
                if entry.lane is None and not ledger.ordered
            ]
        while self._unknown and looks > 0:
            ledger, offset = self._unknown.pop()
            if offset in ledger.entries:
                self.lane_names[ledger.queue.queue_id, offset], cost = lane_of(ledger, offset)
                looks -= cost
        return not self._unknown

    def start_of(self, queue: QueueState) -> int:
        """Where the group would start on a queue of a topic that it never read."""
        last = self.group.config.start_from is StartFrom.LAST and self.main is None
        return queue.visible if last else queue.minimum

    def remember(self, attempt_id: str, queue_id: int, offset: int) -> None:
        if attempt_id:
            self.attempts.setdefault(attempt_id, {}).setdefault((queue_id, offset), 0)

    def forget(self, attempt_id: str, queue_id: int, offset: int) -> None:
        held = self.attempts.get(attempt_id)
        if held is not None:
            held.pop((queue_id, offset), None)
            if not held:
                del self.attempts[attempt_id]

    def repeat(self, attempt_id: str, queue_id: int, offset: int) -> None:
        """A repeated receive is given what an earlier one holds."""
        self.attempts[attempt_id][queue_id, offset] += 1

    def let_go(self, attempt_id: str, queue_id: int, offset: int) -> bool:
        """One receive of this attempt has not got a message; returns whether no other one of it has it."""
        held = self.attempts.get(attempt_id, {})
        others = held.get((queue_id, offset), 0)
        if others:
            held[queue_id, offset] = others - 1
        return not others

    def recall(self) -> bool:
        """Take up where the store says that the group is; whether it ever read the topic."""
        store, queues = self.parts.store, self.topic.queues
        begin = progress_key(self.group.id, self.topic.id, 0)
        for key, value in store.scan(PROGRESS, begin, begin[:-2] + b"\xff\xff\xff"):
            queue_id = split_progress_key(key)[2]
            if queue_id < len(queues):
                frontier, last_pop_ms = split_progress_value(value)
                ledger = self.ledgers[queue_id] = UnorderedLedger(self, queues[queue_id], frontier)
                ledger.recall_names(last_pop_ms)
        return bool(self.ledgers)

    def is_idle(self) -> bool:
        """Whether all that memory has of it is in the store, and nothing of it happens by itself."""
        return all(ledger.is_idle() for ledger in self.ledgers.values())

    def close(self) -> None:
        """Forget everything in memory; steps that are still under way find nothing here."""
        for ledger in self.ledgers.values():
            ledger.close()
        self.ledgers.clear()

    def _kind(self) -> type[Ledger]:
        return OrderedLedger if self.ordered else UnorderedLedger
