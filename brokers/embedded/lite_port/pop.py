"""The port's `LiteTopics`: subscribe, pop, and settle deliveries of lite topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from brokers.capabilities import LiteGoneHandler
from brokers.embedded.catalog.catalog import Group, Topic
from brokers.embedded.engine.facet import Facet
from brokers.embedded.engine.pop_checks import admit, bytes_for, check_request
from brokers.embedded.groups.pop_attempt import PopAttempt
from brokers.embedded.lite.catalog import LiteTopic
from brokers.embedded.lite.cursor import Cursor
from brokers.embedded.lite.engine import waiting_id
from brokers.embedded.lite.subscriptions import Subscriber
from popgate.context import Context
from popgate.errors import BadRequest, GatewayError, NotFound, shown
from popgate.lite import LITE_BIND_TOPIC, LiteAction, LiteOrigin, LiteSync, LiteTopicState
from popgate.model import Pop, StartFrom, StoredMessage

_NAMES_AT_ONCE = 256
"""Lite topics that a pop looks at before others get a turn."""
_MOST_LISTED = 1_024
Taken = tuple[Cursor, int, list[int]]
"""A place, the name of the delivery, and the offsets."""


class LitePopFacet(Facet):
    """What a group that is bound to a topic does."""

    # -- subscribing --------------------------------------------------------------------------

    async def subscribe_lite(self, context: Context, sync: LiteSync) -> None:
        engine, subscriptions = self._engine, self._engine.lites.subscriptions
        client_key, names = context.client_key, sync.lite_topics
        if sync.action in (LiteAction.REMOVE, LiteAction.CLEAR):
            gone = names if sync.action is LiteAction.REMOVE else None
            subscriptions.remove(client_key, sync.group, sync.topic, gone)
            return
        engine.check_writable()
        topic, group = engine.catalogue.topic(sync.topic), engine.catalogue.group(sync.group)
        if group.config.attributes.get(LITE_BIND_TOPIC) != topic.name:
            raise BadRequest(
                f"consumer group {group.name} takes no lite topics of {topic.name}: its attribute"
                f" {LITE_BIND_TOPIC} must name that topic"
            )
        adds = sync.action is LiteAction.ADD
        if not adds:
            subscriptions.keep_only(client_key, group, topic, names)
        added = subscriptions.add(client_key, group, topic, names, sync.most, claims=adds)
        try:
            changed = self._place_at(group, topic, names if adds else (), added, sync)
        except GatewayError:
            subscriptions.remove(client_key, group.name, topic.name, added)
            raise
        except Exception as error:
            engine.abandon(error)
            raise
        self._offer(client_key, group, topic, added)
        if changed or (added and engine.store.filling):  # somebody else may just have fixed the place
            engine.arm()
            try:
                await engine.settled()
            except GatewayError:
                # Without its place a group that starts at the end would miss what comes next.
                subscriptions.remove(client_key, group.name, topic.name, added)
                raise

    def leave_lite(self, client_key: str, *, said_so: bool) -> None:
        self._engine.lites.subscriptions.left(client_key, said_so=said_so)

    def on_lite_gone(self, handler: LiteGoneHandler) -> None:
        def tell(subscriber: Subscriber, name: str) -> None:
            handler(subscriber.client_key, subscriber.group.name, subscriber.topic.name, name)

        self._engine.lites.subscriptions.on_gone = tell

    def lite_subscriptions(self, client_key: str) -> int:
        return self._engine.lites.subscriptions.of_client(client_key)

    async def lite_topics(self, topic: str, after: str, limit: int) -> list[LiteTopicState]:
        engine = self._engine
        engine.check_open()
        parent, lites = engine.catalogue.topic(topic), engine.lites
        return [
            LiteTopicState(
                lite.name,
                lite.minimum,
                lite.visible,
                lite.last_ms,
                len(lites.subscriptions.of(parent, lite.name)),
            )
            for lite in lites.topics.listed(parent, after, min(limit, _MOST_LISTED))
        ]

    async def delete_lite_topic(self, topic: str, lite_topic: str) -> None:
        engine = self._engine
        engine.check_writable()
        lite = engine.lites.topics.find(engine.catalogue.topic(topic), lite_topic)
        if lite is None:
            raise NotFound(f"topic {topic} has no lite topic {shown(lite_topic)}")
        engine.lites.delete(lite)
        await engine.settled()

    # -- taking -------------------------------------------------------------------------------

    async def pop_lite(self, context: Context, request: Pop) -> list[StoredMessage]:
        engine = self._engine
        until = request.wait_until
        while True:
            check_request(request)
            topic, group = admit(engine, request)
            subscriber = engine.lites.subscriptions.find(context.client_key, group, topic)
            if subscriber is not None:
                want = self._want_of(context, request)
                wanted = want.bytes_left
                taken = self._take_lite(subscriber, want)
                if want.taken:
                    size = wanted - want.bytes_left
                    if context.allowance is not None:
                        context.allowance.add(size)
                    if await self._keep_lite(want, taken):
                        return want.taken
                    if context.allowance is not None:
                        context.allowance.add(-size)
                    continue
                if want.more:
                    await asyncio.sleep(0)
                    continue
            if until is None or engine.clock.monotonic() >= until:
                return []
            key = (group.id, context.client_key)
            if not await engine.waiting.wait(waiting_id(topic), key, until, room=1):
                return []

    def _want_of(self, context: Context, request: Pop) -> PopAttempt:
        engine = self._engine
        want = PopAttempt(
            request,
            engine.settings.name,
            context.client_id,
            now_ms=engine.steady.now_ms(),
            looks=engine.settings.max_scan,
        )
        want.bytes_left = bytes_for(context, request.max_bytes)
        return want

    def _take_lite(self, subscriber: Subscriber, want: PopAttempt) -> list[Taken]:
        """Take what there is now, in memory and in the batch."""
        engine = self._engine
        taken: list[Taken] = []
        try:
            engine.lites.fall_due(want.now_ms)
            self._take_same_lite(subscriber, want, taken)
            names = 0
            while not want.repeated and subscriber.ready and names < _NAMES_AT_ONCE:
                if want.room <= 0 or want.full:
                    break
                names += 1
                self._take_from(subscriber, want, subscriber.ready.popitem(last=False)[0], taken)
            want.more = names == _NAMES_AT_ONCE and bool(subscriber.ready)
        except Exception as error:
            engine.abandon(error)
            raise
        if taken and not want.repeated:
            subscriber.took(want.attempt_id, tuple(place.lite.name for place, _, _ in taken))
        if taken and subscriber.ready:  # there may be something for another receive of the client
            key = (subscriber.group.id, subscriber.client_key)
            engine.waiting.wake(waiting_id(subscriber.topic), key, -1, 1)
        if want.changed or engine.store.filling:
            engine.store.commit()
            engine.arm()
        return taken

    def _take_same_lite(self, subscriber: Subscriber, want: PopAttempt, taken: list[Taken]) -> None:
        """A repeated receive: what the first one still holds."""
        lites = self._engine.lites
        for name in subscriber.attempts.get(want.attempt_id, ()):
            lite = lites.topics.find(subscriber.topic, name)
            if lite is not None and want.room > 0:
                place = lites.place(subscriber.group, lite)
                offsets = place.take_same(want, want.broker)
                if offsets:
                    want.repeated = True
                    taken.append((place, place.entries[offsets[0]].pop_ms, offsets))

    def _take_from(self, subscriber: Subscriber, want: PopAttempt, name: str, taken: list[Taken]) -> None:
        lites = self._engine.lites
        lite = lites.topics.find(subscriber.topic, name)
        if lite is None:
            return
        place = lites.place(subscriber.group, lite)
        before, want.changed = want.changed, False
        offsets = place.take(want, want.broker)
        if offsets:
            taken.append((place, place.entries[offsets[0]].pop_ms, offsets))
        if offsets or want.changed:
            place.settle(want.now_ms)
            before = True
        want.changed = before
        if place.has_work(want.now_ms):
            subscriber.ready[name] = None

    async def _keep_lite(self, want: PopAttempt, taken: list[Taken]) -> bool:
        """Wait until what was taken is written; whether it still is the caller's then.

        A caller who is cancelled meanwhile gives back all that no other receive of its attempt has.
        """
        engine = self._engine
        try:
            await engine.settled()
        except asyncio.CancelledError:
            self._undo_lite(want, taken)
            raise
        if not want.repeated or all(len(self._held_of(delivery)) == len(delivery[2]) for delivery in taken):
            return True
        self._undo_lite(want, taken)
        return False

    def _held_of(self, taken: Taken) -> list[int]:
        """Of what was taken, that which still is held by this delivery."""
        old, pop_ms, offsets = taken
        place = self._place_now(old)
        entries = place.entries if place is not None else {}
        return [
            offset
            for offset in offsets
            if (entry := entries.get(offset)) is not None and entry.held and entry.pop_ms == pop_ms
        ]

    def _place_now(self, old: Cursor) -> Cursor | None:
        """The same place after a wait: memory may have been made anew meanwhile."""
        catalogue, lite = self._engine.catalogue, old.lite
        group, topic = catalogue.group_by_id(old.group.id), catalogue.topic_by_id(lite.topic.id)
        if group is None or topic is None:
            return None
        return self._engine.lites.find_place(group, topic, lite.id)

    def _undo_lite(self, want: PopAttempt, taken: list[Taken]) -> None:
        engine = self._engine
        now_ms = engine.steady.now_ms()
        for delivery in taken:
            place = self._place_now(delivery[0])
            # Read again, it knows no other receives of an attempt: the first one may have what this one got.
            if place is None or (want.repeated and place is not delivery[0]):
                continue
            let_go = [offset for offset in self._held_of(delivery) if place.let_go(offset)]
            for offset in let_go:
                place.free(offset, now_ms)
            if let_go:
                engine.lites.settle(place, now_ms)
        engine.store.commit()

    # -- inside -------------------------------------------------------------------------------

    def _offer(self, client_key: str, group: Group, topic: Topic, added: Sequence[str]) -> None:
        """Let the client look at what it subscribes to now."""
        engine = self._engine
        subscriber = engine.lites.subscriptions.find(client_key, group, topic)
        if subscriber is not None and added:
            subscriber.ready.update(dict.fromkeys(added))
            engine.waiting.wake(waiting_id(topic), (group.id, client_key), -1, 1)

    def _place_at(
        self, group: Group, topic: Topic, named: Sequence[str], added: Sequence[str], sync: LiteSync
    ) -> bool:
        """Fix where the group starts in lite topics that it subscribes to; whether something changed.

        A group that starts behind the last message does so now, also in a lite topic that is yet to come.
        """
        lites = self._engine.lites
        now_ms = self._engine.steady.now_ms()
        last = group.config.start_from is StartFrom.LAST
        if sync.origin is LiteOrigin.LAST and not last:
            return False
        changed = False
        for name in named if sync.origin is not LiteOrigin.LAST else added:
            lite = (
                lites.topics.ensure(topic, name, lites.now_ms()) if last else lites.topics.find(topic, name)
            )
            if lite is None:
                continue
            known = lites.find_place(group, topic, lite.id) is not None
            if sync.origin is LiteOrigin.LAST and known:
                continue
            place = lites.place(group, lite)
            if sync.origin is not LiteOrigin.LAST:
                place.seek(self._origin_of(lite, sync))
            lites.settle(place, now_ms)
            changed = True
        return changed

    def _origin_of(self, lite: LiteTopic, sync: LiteSync) -> int:
        """The offset that is asked for, or the nearest that there is."""
        first, end = lite.minimum, lite.visible
        match sync.origin:
            case LiteOrigin.FIRST | LiteOrigin.LAST:
                return first
            case LiteOrigin.END:
                return end
            case LiteOrigin.OFFSET:
                return min(max(sync.value, first), end)
            case LiteOrigin.TAIL:
                return max(end - max(sync.value, 0), first)
            case LiteOrigin.TIME:
                return self._offset_at(lite, sync.value)

    def _offset_at(self, lite: LiteTopic, time_ms: int) -> int:
        """The first offset stored at or after a time; what is gone counts as before."""
        low, high = lite.minimum, lite.visible
        while low < high:
            middle = (low + high) // 2
            stored_ms = self._engine.lites.topics.stored_ms(lite, middle)
            if stored_ms is None or stored_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        return low
