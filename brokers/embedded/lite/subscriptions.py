"""Subscriptions of clients to lite topics: soft state, which clients send again every 30 s.

A client that disconnects keeps its subscriptions for a short time, so that one that comes back over a
new connection need not send them again. Rules: protocol facts 4.10 and scenario 38.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from brokers.embedded.catalog.catalog import Catalog, Group, Topic
from brokers.embedded.settings import EmbeddedSettings
from popgate.clock import Clock
from popgate.errors import LiteSubscriptionQuotaExceeded
from popgate.lite import LITE_SUB_MODEL

_SWEEP_S = 10.0
_MOST_ATTEMPTS = 16
_GRACE_S = 35.0
"""How long a client that is gone may take to come back; it repeats its subscriptions every 30 s."""

Gone = Callable[["Subscriber", str], None]
"""Called with a client and a lite topic that was taken from it."""


class Subscriber:
    """A client of a group, and the lite topics of one topic that it subscribes to.

    `ready`: those of them that may have something for the group; looking tells. `seen` is in loop
    seconds: when it last popped or told its subscriptions. `attempts`: of its last receives, by
    attempt id, what they took from.
    """

    __slots__ = ("attempts", "client_key", "group", "names", "online", "ready", "seen", "topic")

    def __init__(self, client_key: str, group: Group, topic: Topic, seen: float) -> None:
        self.client_key = client_key
        self.group = group
        self.topic = topic
        self.names: dict[str, None] = {}
        self.ready: OrderedDict[str, None] = OrderedDict()
        self.attempts: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self.online = True
        self.seen = seen

    def took(self, attempt_id: str, names: tuple[str, ...]) -> None:
        """Remember what a receive took from, in case that it is repeated."""
        if attempt_id:
            self.attempts[attempt_id] = names
            self.attempts.move_to_end(attempt_id)
            if len(self.attempts) > _MOST_ATTEMPTS:
                self.attempts.popitem(last=False)

    def __repr__(self) -> str:
        state = "online" if self.online else "gone"
        return f"<Subscriber {self.client_key} {state} names {len(self.names)} ready {len(self.ready)}>"


class Subscriptions:
    """All subscribers, by what they are and by what they subscribe to."""

    def __init__(self, clock: Clock, settings: EmbeddedSettings) -> None:
        self.on_gone: Gone = lambda _subscriber, _name: None
        self._clock = clock
        self._settings = settings
        self._clients: dict[str, dict[tuple[str, str], Subscriber]] = {}
        self._by_name: dict[tuple[int, str], dict[Subscriber, None]] = {}
        self._size = 0
        self._sweep_at = clock.monotonic() + _SWEEP_S

    def __repr__(self) -> str:
        return f"<Subscriptions {self._size} of {len(self._clients)} clients>"

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterable[Subscriber]:
        return (subscriber for ones in self._clients.values() for subscriber in ones.values())

    # -- looking ------------------------------------------------------------------------------

    def find(self, client_key: str, group: Group, topic: Topic) -> Subscriber | None:
        """The subscriber, whose sign of life this is; None without subscriptions."""
        subscriber = self._clients.get(client_key, {}).get((group.name, topic.name))
        if subscriber is None or subscriber.group is not group or subscriber.topic is not topic:
            return None
        subscriber.seen = self._clock.monotonic()
        subscriber.online = True
        return subscriber

    def of_client(self, client_key: str) -> int:
        """To how many lite topics a client subscribes."""
        return sum(len(subscriber.names) for subscriber in self._clients.get(client_key, {}).values())

    def of(self, topic: Topic, name: str, group: Group | None = None) -> list[Subscriber]:
        """Who subscribes to a lite topic, in one group or in all."""
        subscribers = self._by_name.get((topic.id, name), ())
        return [subscriber for subscriber in subscribers if group is None or subscriber.group is group]

    def of_group(self, group: Group, topic: Topic) -> list[Subscriber]:
        """All clients of a group that said what they subscribe to of a topic."""
        key = (group.name, topic.name)
        subscribers = [ones[key] for ones in self._clients.values() if key in ones]
        return [
            subscriber
            for subscriber in subscribers
            if subscriber.group is group and subscriber.topic is topic
        ]

    # -- what clients do ----------------------------------------------------------------------

    def add(
        self, client_key: str, group: Group, topic: Topic, names: Sequence[str], most: int, *, claims: bool
    ) -> list[str]:
        """Add subscriptions; returns the new ones.

        In a group of the model Exclusive a client that `claims` takes a lite topic from the client that
        has it; one that does not is told to leave it. Raises LiteSubscriptionQuotaExceeded, having
        added nothing.
        """
        subscriber = self.find(client_key, group, topic)
        known: dict[str, None] = subscriber.names if subscriber is not None else {}
        new = [name for name in dict.fromkeys(names) if name not in known]
        if not new:
            if subscriber is None:
                self._make(client_key, group, topic)
            return []
        self.check_quota(subscriber, new, most)
        subscriber = subscriber or self._make(client_key, group, topic)
        exclusive = group.config.attributes.get(LITE_SUB_MODEL) == "Exclusive"
        added = []
        for name in new:
            if exclusive and not self._clear_way(subscriber, name, claims=claims):
                continue
            subscriber.names[name] = None
            self._by_name.setdefault((topic.id, name), {})[subscriber] = None
            self._size += 1
            added.append(name)
        return added

    def check_quota(self, subscriber: Subscriber | None, new: Sequence[str], most: int) -> None:
        """Raises LiteSubscriptionQuotaExceeded when so many cannot be added."""
        if len(new) + (len(subscriber.names) if subscriber is not None else 0) > most:
            raise LiteSubscriptionQuotaExceeded("a client of this group", most)
        if self._size + len(new) > self._settings.max_lite_subscriptions:
            self.sweep()
            if self._size + len(new) > self._settings.max_lite_subscriptions:
                raise LiteSubscriptionQuotaExceeded(
                    "all clients together", self._settings.max_lite_subscriptions
                )

    def remove(self, client_key: str, group: str, topic: str, names: Iterable[str] | None) -> None:
        """Remove these subscriptions, or all (None). Unknown ones are ignored."""
        subscriber = self._clients.get(client_key, {}).get((group, topic))
        if subscriber is not None:
            for name in list(subscriber.names) if names is None else names:
                self._leave(subscriber, name)
            if names is None:
                self._forget(subscriber)

    def keep_only(self, client_key: str, group: Group, topic: Topic, names: Sequence[str]) -> None:
        """Subscribe no longer to anything else."""
        subscriber = self.find(client_key, group, topic)
        if subscriber is not None and subscriber.names:
            wanted = frozenset(names)
            for name in [name for name in subscriber.names if name not in wanted]:
                self._leave(subscriber, name)

    def left(self, client_key: str, *, said_so: bool) -> None:
        """The client is gone: what it subscribes to is anybody's, and is soon forgotten."""
        silent = self._clock.monotonic() - self._settings.lite_client_expiry_ms / 1000
        for subscriber in list(self._clients.get(client_key, {}).values()):
            subscriber.online = False
            subscriber.seen = min(subscriber.seen, silent + _GRACE_S)
            if said_so:
                for name in list(subscriber.names):
                    self._leave(subscriber, name)
                self._forget(subscriber)

    # -- what the broker does -----------------------------------------------------------------

    def drop_lite(self, topic: Topic, name: str) -> None:
        """The lite topic is gone: notify all subscribers."""
        for subscriber in self.of(topic, name):
            self._leave(subscriber, name)
            self.on_gone(subscriber, name)

    def drop_if(self, gone: Callable[[Subscriber], bool]) -> None:
        """A topic or a group was deleted."""
        for subscriber in [
            candidate for ones in self._clients.values() for candidate in ones.values() if gone(candidate)
        ]:
            self._drop(subscriber)

    def found_again(self, catalogue: Catalog) -> None:
        """Topics and groups were loaded again: subscriptions continue with the new objects.

        What the store has now is unknown, so all subscribers have to look.
        """
        for subscriber in [candidate for ones in self._clients.values() for candidate in ones.values()]:
            group = catalogue.group_by_id(subscriber.group.id)
            topic = catalogue.topic_by_id(subscriber.topic.id)
            if group is None or topic is None:
                self._drop(subscriber)
                continue
            subscriber.group, subscriber.topic = group, topic
            subscriber.ready = OrderedDict.fromkeys(subscriber.names)

    def sweep_due_s(self) -> float | None:
        """The loop time of the next sweep; None when there is nobody."""
        return self._sweep_at if self._clients else None

    def sweep(self) -> None:
        """Remove clients that have neither popped nor sent their subscriptions for too long."""
        now = self._clock.monotonic()
        self._sweep_at = now + _SWEEP_S
        silent = now - self._settings.lite_client_expiry_ms / 1000
        for subscriber in [candidate for ones in self._clients.values() for candidate in ones.values()]:
            if subscriber.seen <= silent:
                for name in list(subscriber.names):
                    self._leave(subscriber, name)
                self._forget(subscriber)

    # -- inside -------------------------------------------------------------------------------

    def _make(self, client_key: str, group: Group, topic: Topic) -> Subscriber:
        if client_key not in self._clients and len(self._clients) >= self._settings.max_lite_subscriptions:
            self.sweep()
            if len(self._clients) >= self._settings.max_lite_subscriptions:
                raise LiteSubscriptionQuotaExceeded(
                    "all clients together", self._settings.max_lite_subscriptions
                )
        mine = self._clients.setdefault(client_key, {})
        old = mine.get((group.name, topic.name))
        if old is not None:  # of a group or a topic that was deleted and made again
            self.remove(client_key, group.name, topic.name, None)
            mine = self._clients.setdefault(client_key, {})
        subscriber = Subscriber(client_key, group, topic, self._clock.monotonic())
        mine[group.name, topic.name] = subscriber
        return subscriber

    def _clear_way(self, subscriber: Subscriber, name: str, *, claims: bool) -> bool:
        """Whether this client may have a lite topic that only one client of its group may have."""
        others = [
            candidate
            for candidate in self.of(subscriber.topic, name, subscriber.group)
            if candidate is not subscriber
        ]
        if not claims and any(other.online for other in others):
            self.on_gone(subscriber, name)
            return False
        for other in others:
            self._leave(other, name)
            self.on_gone(other, name)
        return True

    def _drop(self, subscriber: Subscriber) -> None:
        """Its topic or its group is gone."""
        for name in list(subscriber.names):
            self._leave(subscriber, name)
            self.on_gone(subscriber, name)
        self._forget(subscriber)

    def _leave(self, subscriber: Subscriber, name: str) -> None:
        if name not in subscriber.names:
            return
        del subscriber.names[name]
        subscriber.ready.pop(name, None)
        self._size -= 1
        key = (subscriber.topic.id, name)
        there = self._by_name.get(key)
        if there is not None:
            there.pop(subscriber, None)
            if not there:
                del self._by_name[key]

    def _forget(self, subscriber: Subscriber) -> None:
        mine = self._clients.get(subscriber.client_key, {})
        key = (subscriber.group.name, subscriber.topic.name)
        if mine.get(key) is subscriber:
            del mine[key]
            if not mine:
                del self._clients[subscriber.client_key]
