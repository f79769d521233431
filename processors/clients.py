"""Who is connected: the register of clients that this replica has met, soft state.

Doors implement `ClientHandle` and bring it here when a client has told its settings. Losing an
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
from popgate.model import FilterKind, TransactionCheck
from processors.questions import Question

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
    def topics(self) -> frozenset[str]: ...

    @property
    def subscriptions(self) -> Mapping[str, tuple[FilterKind, str]]:
        """The filters of a consumer by topic, as it told them; they may be wrong."""
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

    def ask(self, question: Question) -> bool:
        """Put a question to the client, and settle it; False when it cannot take it, and nothing follows.

        It fails with ClientNotFound when the client leaves. One that is settled otherwise is forgotten.
        """
        ...

    def reconnect(self) -> bool:
        """Tell the client to connect anew; False when it cannot take it."""
        ...

    def leave_lite(self, lite_topic: str) -> bool:
        """Tell the client that it subscribes to a lite topic no longer; False when it cannot take it."""
        ...

    def refresh(self) -> None:
        """Tell the client its settings anew, soon, and once for however many calls until then."""
        ...


def connection_of(context: Context) -> object:
    """What identifies the transport connection of a request, to be compared with `==`."""
    return context.connection if context.connection is not None else context.peer


@dataclass(slots=True)
class _Entry:
    handle: ClientHandle
    seen: float
    topics: set[str] = field(default_factory=set)


ChangeListener = Callable[[ClientHandle, frozenset[str]], None]
"""Told that a client came or changed; with the topics that it publishes or subscribes to as far as known."""

LeaveListener = Callable[[ClientHandle, bool], None]
"""Told that a client left; True: it said so itself, False: its stream broke, or it fell silent."""


class Clients:
    """Clients by id, producers by topic, consumers by group. `now` is in loop seconds."""

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
        self._producers: dict[str, dict[str, ClientHandle]] = {}
        self._consumers: dict[str, dict[str, ClientHandle]] = {}
        self._polls: dict[str, int] = {}
        self._max_clients = max_clients
        self._max_topics = max_topics
        self._expiry_s = expiry_s
        self.on_change: ChangeListener = _nobody_looks
        self.on_leave: LeaveListener = _nobody_listens

    def __repr__(self) -> str:
        topics, groups = len(self._producers), len(self._consumers)
        return f"<Clients {len(self._entries)} topics-produced-to {topics} groups {groups}>"

    def __len__(self) -> int:
        return len(self._entries)

    def all(self) -> Iterable[ClientHandle]:
        """Every client known here, in no order."""
        return [entry.handle for entry in self._entries.values()]

    def get(self, client_id: str) -> ClientHandle | None:
        entry = self._entries.get(client_id)
        return entry.handle if entry is not None else None

    def register(self, handle: ClientHandle) -> None:
        """Take in a client, or its newer settings or stream; an older handle of the id is replaced.

        Raises TooManyRequests when the register is full, or the client names too many topics.
        """
        if len(handle.topics) > self._max_topics:
            raise TooManyRequests(
                f"the client names {len(handle.topics)} topics, the limit is {self._max_topics}"
            )
        old = self._entries.get(handle.client_id)
        if old is None and len(self._entries) >= self._max_clients:
            raise TooManyRequests(f"the limit of {self._max_clients} clients is reached", 10.0)
        if old is not None:
            self._unlink(old)
        entry = _Entry(handle, self._clock.monotonic(), set(handle.topics))
        self._entries[handle.client_id] = entry
        if handle.kind is ClientKind.PRODUCER:
            if old is not None and len(entry.topics | old.topics) <= self._max_topics:
                entry.topics |= old.topics
            for topic in entry.topics:
                self._producers.setdefault(topic, {})[handle.client_id] = handle
        elif handle.group:
            self._consumers.setdefault(handle.group, {})[handle.client_id] = handle
        self.on_change(handle, frozenset(entry.topics))

    def unregister(self, client_id: str, handle: ClientHandle | None = None) -> bool:
        """The client said good-bye. With `handle` only if that is still the current one.

        For a stream that broke use `disconnected`. Whether something was removed.
        """
        return self._remove(client_id, handle, left=True)

    def disconnected(self, handle: ClientHandle) -> None:
        """The stream of this handle ended without a good-bye; the client stays known until it expires."""
        entry = self._entries.get(handle.client_id)
        if entry is not None and entry.handle is handle:
            self.on_leave(handle, False)

    def touch(self, client_id: str, now: float) -> bool:
        """A heartbeat; whether the client is known."""
        entry = self._entries.get(client_id)
        if entry is None:
            return False
        entry.seen = now
        return True

    def last_seen(self, client_id: str) -> float:
        """When the client last told its settings or sent a heartbeat; minus infinity when unknown."""
        entry = self._entries.get(client_id)
        return entry.seen if entry is not None else float("-inf")

    def polling(self, client_id: str) -> None:
        """The client waits for messages: it is there until `polled`, also when its stream is not."""
        self._polls[client_id] = self._polls.get(client_id, 0) + 1

    def polled(self, client_id: str) -> None:
        """That wait is over."""
        left = self._polls.pop(client_id) - 1
        if left:
            self._polls[client_id] = left

    def polls(self, client_id: str) -> bool:
        return client_id in self._polls

    def is_there(self, client_id: str) -> bool:
        """Whether there is proof that a known client lives: its stream, a poll, or a fresh heartbeat."""
        entry = self._entries.get(client_id)
        if entry is None:
            return False
        fresh = self._clock.monotonic() - entry.seen < _FRESH_S
        return fresh or client_id in self._polls or entry.handle.alive

    def produces(self, client_id: str, topic: str) -> None:
        """The client sent to `topic`: it can be asked about transactions there."""
        entry = self._entries.get(client_id)
        if entry is None or topic in entry.topics or entry.handle.kind is not ClientKind.PRODUCER:
            return
        if len(entry.topics) < self._max_topics:
            entry.topics.add(topic)
            self._producers.setdefault(topic, {})[client_id] = entry.handle
            self.on_change(entry.handle, frozenset(entry.topics))

    def producers_of(self, topic: str) -> list[ClientHandle]:
        """Producers of the topic, those asked last at the end."""
        return list(self._producers.get(topic, {}).values())

    def rotate(self, topic: str, client_id: str) -> None:
        """This producer was asked: the others come before it next time."""
        producers = self._producers.get(topic)
        if producers is not None and client_id in producers:
            producers[client_id] = producers.pop(client_id)

    def consumers_of(self, group: str) -> list[ClientHandle]:
        return list(self._consumers.get(group, {}).values())

    def expire(self, now: float) -> int:
        """Forget clients without a heartbeat for the expiry time whose stream is closed; how many."""
        silent = [
            client_id
            for client_id, entry in self._entries.items()
            if now - entry.seen >= self._expiry_s and not entry.handle.alive
        ]
        for client_id in silent:
            self._remove(client_id, None, left=False)
        return len(silent)

    def _remove(self, client_id: str, handle: ClientHandle | None, *, left: bool) -> bool:
        entry = self._entries.get(client_id)
        if entry is None or (handle is not None and entry.handle is not handle):
            return False
        del self._entries[client_id]
        self._unlink(entry)
        self.on_leave(entry.handle, left)
        return True

    def _unlink(self, entry: _Entry) -> None:
        for topic in entry.topics:
            _drop(self._producers, topic, entry.handle.client_id)
        if entry.handle.group:
            _drop(self._consumers, entry.handle.group, entry.handle.client_id)


def _drop(table: dict[str, dict[str, ClientHandle]], key: str, client_id: str) -> None:
    clients = table.get(key)
    if clients is not None:
        clients.pop(client_id, None)
        if not clients:
            del table[key]


def _nobody_looks(_handle: ClientHandle, _topics: frozenset[str]) -> None:
    """Until somebody wants to know."""


def _nobody_listens(_handle: ClientHandle, _said_so: bool) -> None:
    """Until the processor listens."""
