"""The registry of clients that are connected to this replica: soft state.

Doors implement `ClientHandle` and register it when a client has sent its settings. Losing an
entry costs a heartbeat, never a message: no request needs one (any-replica, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Protocol

from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import TooManyRequests
from popgate.model import FilterKind, Reading, TransactionCheck
from processors.clients.early_topics import EarlyTopics
from processors.clients.query import ClientQuery
from processors.observer import Latest
from processors.requests import LastSettled

_FRESH_S = 30.0
"""Clients send a heartbeat every 10 s; one that sent none for so long is not proven to be there."""


@unique
class ClientKind(Enum):
    PRODUCER = "producer"
    PUSH_CONSUMER = "push consumer"
    SIMPLE_CONSUMER = "simple consumer"
    PULL_CONSUMER = "pull consumer"


class ClientHandle(Protocol):
    """A client as its door knows it. `topics`: those it publishes to, or subscribes to."""

    @property
    def client_id(self) -> str: ...

    @property
    def key(self) -> str:
        """What it is kept by: `Context.client_key` of its requests, or its id with what it is a member of.

        A classic client has one id for many memberships, each with a handle of its own: a producer
        group and a consumer group of one name must have different keys.
        """
        ...

    @property
    def language(self) -> str: ...

    @property
    def version(self) -> str:
        """Of its library, as it says."""
        ...

    @property
    def kind(self) -> ClientKind: ...

    @property
    def group(self) -> str:
        """The consumer group; empty for producers."""
        ...

    @property
    def producer_group(self) -> str:
        """Of a classic producer, who is asked about half messages of its group; else empty."""
        ...

    @property
    def broadcast(self) -> bool:
        """Whether it is a consumer that keeps its positions itself and gets every message."""
        ...

    @property
    def reading(self) -> Reading:
        """What its door knows of how it reads: UNKNOWN of a classic push consumer that shares messages."""
        ...

    @property
    def topics(self) -> frozenset[str]: ...

    @property
    def subscriptions(self) -> Mapping[str, tuple[FilterKind, str]]:
        """The filters of a consumer by topic, as the client sent them; they may be invalid."""
        ...

    @property
    def connection(self) -> object:
        """What identifies the transport connection: what `connection_of` gives for the client's requests."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the stream to the client is open."""
        ...

    def check_transaction(self, check: TransactionCheck) -> bool:
        """Queue the question on the client's stream; False when it cannot take it."""
        ...

    def ask(self, question: ClientQuery) -> bool:
        """Put a question to the client, and settle it; False when it cannot take it, and nothing follows.

        It fails with ClientNotFound when the client leaves. One that is settled otherwise is forgotten.
        """
        ...

    def reconnect(self) -> bool:
        """Tell the client to reconnect; False when that is not possible now."""
        ...

    def leave_lite(self, lite_topic: str) -> bool:
        """Tell the client that it subscribes to a lite topic no longer; False when it cannot take it."""
        ...

    def refresh(self) -> None:
        """Send the client its settings again, soon; calls until then are combined into one."""
        ...


def connection_of(context: Context) -> object:
    """What identifies the transport connection of a request, to be compared with `==`."""
    return context.connection if context.connection is not None else context.peer


@dataclass(slots=True)
class _Entry:
    handle: ClientHandle
    seen: float
    topics: set[str] = field(default_factory=set)
    settled: LastSettled | None = None


ChangeListener = Callable[[ClientHandle, frozenset[str]], None]
"""Told that a client came or changed; with the topics that it publishes or subscribes to as far as known."""

MembersListener = Callable[[str], None]
"""Told the consumer group that a client joined or left."""

LeaveListener = Callable[[ClientHandle, bool], None]
"""Told that a client left; True: it said so itself, False: its stream broke, or it fell silent."""


class ClientRegistry:
    """Clients by key and id, producers by topic or group, consumers by group. `now` is in loop seconds."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_clients: int = 100_000,
        max_topics: int = 1024,
        expiry_s: float = 120.0,
    ) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._ids: dict[str, dict[str, ClientHandle]] = {}
        self._producers: dict[str, dict[str, ClientHandle]] = {}
        self._producer_groups: dict[str, dict[str, ClientHandle]] = {}
        self._consumers: dict[str, dict[str, ClientHandle]] = {}
        self._polls: dict[str, int] = {}
        self._early = EarlyTopics()
        self.max_clients = max_clients
        self.max_topics = max_topics
        self.expiry_s = expiry_s
        self.on_change: ChangeListener = _nobody_looks
        self.on_leave: LeaveListener = _nobody_listens
        self.on_members: Latest[MembersListener] = Latest(_nobody_counts)
        self.on_judge: MembersListener = _nobody_counts
        """The same for who judges how a group reads."""
        self.on_retries: MembersListener = _nobody_counts
        """Told the group of a classic consumer that came, for who moves what came back to it."""

    def __repr__(self) -> str:
        topics, groups = len(self._producers), len(self._consumers)
        return f"<ClientRegistry {len(self._entries)} topics-produced-to {topics} groups {groups}>"

    def __len__(self) -> int:
        return len(self._entries)

    def all(self) -> Iterable[ClientHandle]:
        """Every client known here, in no order."""
        return [entry.handle for entry in self._entries.values()]

    def get(self, key: str) -> ClientHandle | None:
        entry = self._entries.get(key)
        return entry.handle if entry is not None else None

    def of_id(self, client_id: str) -> Iterable[ClientHandle]:
        """Clients of several accounts, and memberships of classic ones, may have one id."""
        return self._ids.get(client_id, {}).values()

    def find(self, client_id: str, group: str = "") -> ClientHandle | None:
        """The client of this id as a consumer of `group`, else as any that can be asked, else as any.

        A consumer sooner than a producer: classic producers can be asked nothing.
        """
        return max(
            self.of_id(client_id),
            key=lambda client: (
                bool(group) and client.group == group,
                client.alive,
                client.kind is not ClientKind.PRODUCER,
            ),
            default=None,
        )

    def register(self, handle: ClientHandle) -> None:
        """Take in a client, or its newer settings or stream; an older handle of the key is replaced.

        Raises TooManyRequests when the register is full, or the client names too many topics.
        """
        if len(handle.topics) > self.max_topics:
            raise TooManyRequests(
                f"the client names {len(handle.topics)} topics, the limit is {self.max_topics}"
            )
        key = handle.key
        old = self._entries.get(key)
        if old is None and len(self._entries) >= self.max_clients:
            raise TooManyRequests(f"the limit of {self.max_clients} clients is reached", 10.0)
        if old is not None:
            self._unlink(old)
        entry = _Entry(handle, self._clock.monotonic(), set(handle.topics))
        entry.settled = old.settled if old is not None else None
        early = self._early.take(key)
        self._entries[key] = entry
        self._ids.setdefault(handle.client_id, {})[key] = handle
        if handle.kind is ClientKind.PRODUCER:
            if old is not None and len(entry.topics | old.topics) <= self.max_topics:
                entry.topics |= old.topics
            if len(entry.topics | early) <= self.max_topics:
                entry.topics |= early
            for topic in entry.topics:
                self._producers.setdefault(topic, {})[key] = handle
            if handle.producer_group:
                self._producer_groups.setdefault(handle.producer_group, {})[key] = handle
        elif handle.group:
            self._consumers.setdefault(handle.group, {})[key] = handle
        self.on_change(handle, frozenset(entry.topics))
        before = old.handle.group if old is not None else ""
        if old is None or before != handle.group or old.handle.reading is not handle.reading:
            if handle.group and handle.reading is not Reading.NEUTRAL:
                self.on_retries(handle.group)
            self.members_changed(*dict.fromkeys((before, handle.group)))

    def unregister(self, key: str, handle: ClientHandle | None = None) -> bool:
        """The client announced its end. With `handle` only if that is still the current one.

        For a stream that broke use `disconnected`. Whether something was removed.
        """
        return self._remove(key, handle, left=True)

    def lost(self, handle: ClientHandle) -> bool:
        """Remove a client that exists only with its connection, because the connection has ended.

        Whether it was known. Nothing happens when there is a newer handle of its key.
        """
        return self._remove(handle.key, handle, left=False)

    def disconnected(self, handle: ClientHandle) -> None:
        """The stream of this handle ended unannounced; the client stays registered until it expires."""
        if self.get(handle.key) is handle:
            self.on_leave(handle, False)

    def touch(self, key: str, now: float) -> bool:
        """A heartbeat; whether the client is known."""
        if (entry := self._entries.get(key)) is None:
            return False
        entry.seen = now
        return True

    def last_seen(self, key: str) -> float:
        """When the client last sent its settings or a heartbeat; minus infinity when unknown."""
        entry = self._entries.get(key)
        return entry.seen if entry is not None else float("-inf")

    def settled(self, key: str, outcome: LastSettled) -> None:
        """Kept until the client settles another delivery, or is forgotten."""
        if (entry := self._entries.get(key)) is not None:
            entry.settled = outcome

    def last_settled(self, key: str) -> LastSettled | None:
        entry = self._entries.get(key)
        return entry.settled if entry is not None else None

    def polling(self, key: str) -> None:
        """The client waits for messages: it is there until `polled`, also when its stream is not."""
        self._polls[key] = self._polls.get(key, 0) + 1

    def polled(self, key: str) -> None:
        """That wait is over."""
        left = self._polls.pop(key) - 1
        if left:
            self._polls[key] = left

    def polls(self, key: str) -> bool:
        return key in self._polls

    def is_there(self, key: str) -> bool:
        """Whether there is proof that a known client lives: its stream, a poll, or a fresh heartbeat."""
        if (entry := self._entries.get(key)) is None:
            return False
        fresh = self._clock.monotonic() - entry.seen < _FRESH_S
        return fresh or key in self._polls or entry.handle.alive

    def produces(self, key: str, topic: str) -> None:
        """The client sent to `topic`: it can be asked about transactions there.

        Classic producers are asked by their groups, and heard of elsewhere.
        """
        if (entry := self._entries.get(key)) is None:
            self._early.add(key, topic)
            return
        if topic in entry.topics or entry.handle.kind is not ClientKind.PRODUCER:
            return
        if len(entry.topics) < self.max_topics:
            entry.topics.add(topic)
            self._producers.setdefault(topic, {})[key] = entry.handle
            self.on_change(entry.handle, frozenset(entry.topics))

    def topics_of(self, client: ClientHandle) -> Iterable[str]:
        """Those that it names; of a producer that names none, those of `produces`."""
        entry = self._entries.get(client.key)
        return client.topics or (entry.topics if entry is not None else ())

    def producers_of(self, topic: str) -> list[ClientHandle]:
        """Producers of the topic, those asked last at the end."""
        return list(self._producers.get(topic, {}).values())

    def producers_in(self, group: str) -> list[ClientHandle]:
        """Classic producers of the producer group, those asked last at the end."""
        return list(self._producer_groups.get(group, {}).values())

    def rotate(self, handle: ClientHandle, topic: str) -> None:
        """This producer was asked about the topic: the others come before it next time."""
        tables = self._producers.get(topic), self._producer_groups.get(handle.producer_group)
        for producers in tables:
            if producers is not None and handle.key in producers:
                producers[handle.key] = producers.pop(handle.key)

    def consumers_of(self, group: str) -> list[ClientHandle]:
        return list(self._consumers.get(group, {}).values())

    def members_changed(self, *groups: str) -> None:
        """Consumers joined or left these groups, here or elsewhere."""
        for group in groups:
            if group:
                self.on_judge(group)
                self.on_members.now(group)

    def expire(self, now: float) -> int:
        """Forget clients without a heartbeat for the expiry time whose stream is closed; how many."""
        silent = [
            key
            for key, entry in self._entries.items()
            if now - entry.seen >= self.expiry_s and not entry.handle.alive
        ]
        for key in silent:
            self._remove(key, None, left=False)
        return len(silent)

    def _remove(self, key: str, handle: ClientHandle | None, *, left: bool) -> bool:
        entry = self._entries.get(key)
        if entry is None or (handle is not None and entry.handle is not handle):
            return False
        del self._entries[key]
        self._unlink(entry)
        self.on_leave(entry.handle, left)
        self.members_changed(entry.handle.group)
        return True

    def _unlink(self, entry: _Entry) -> None:
        handle = entry.handle
        for topic in entry.topics:
            _drop(self._producers, topic, handle.key)
        _drop(self._ids, handle.client_id, handle.key)
        _drop(self._producer_groups, handle.producer_group, handle.key)
        _drop(self._consumers, handle.group, handle.key)


def _drop(table: dict[str, dict[str, ClientHandle]], name: str, key: str) -> None:
    clients = table.get(name)
    if clients is not None:
        clients.pop(key, None)
        if not clients:
            del table[name]


def _nobody_looks(_handle: ClientHandle, _topics: frozenset[str]) -> None:
    """Until somebody wants to know."""


def _nobody_listens(_handle: ClientHandle, _said_so: bool) -> None:
    """Until the processor listens."""


def _nobody_counts(_group: str) -> None:
    """Until somebody wants to know who is in a group."""
