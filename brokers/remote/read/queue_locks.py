"""Locks and leases of queues, kept by the brokers for 60 s. Source: protocol facts 5.14 and 7.8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brokers.capabilities import LeasesQueues
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import object_in, of_each, worst
from brokers.remote.cluster.queues import place_of
from brokers.remote.metadata.groups import Groups
from popgate.context import Context
from popgate.errors import BadRequest, NotFound
from popgate.wire.frames.codes import RequestCode
from popgate.wire.json_syntax.fastjson import dumps
from popgate.wire.json_syntax.parts import each, number, text

Named = tuple[str, str, int]
_MOST_UNKNOWN = 32
"""Topics that are not there, after which no more are looked up for one call."""
LOCKED_S = 60.0
"""So long a lock lasts that nobody renews."""
_MOST_NOTED = 4_096
_LEASES = "lease of "
"""Before the name that a group's leases are locked under: no group's name has a blank."""


class QueueLocks(LeasesQueues):
    """The part of the port's `Offsets` that locks queues, and `LeasesQueues`.

    Brokers keep what they are asked for as long as they live, whether there is such a queue or not; so
    they are asked only about queues of topics, and for groups, that are there.
    """

    def __init__(self, access: ClusterAccess, groups: Groups) -> None:
        self._access = access
        self._clock = access.clock
        self._client = access.client
        self._groups = groups
        self._locked_until: dict[str, float] = {}
        """Groups whose locks may last so long; soft: one that is not known is met again."""

    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[Named]
    ) -> list[Named]:
        """Queues whose broker cannot be reached are not locked. Raises BrokerUnavailable if all are such."""
        mine = await self.lock_as(context, group, client_id, await self._by_broker(group, queues))
        if mine:
            self.note_locks(group)
        return mine

    async def lease(self, context: Context, group: str, owner: str, queues: Sequence[Named]) -> list[Named]:
        return await self.lock_as(context, _LEASES + group, owner, await self._by_broker(group, queues))

    async def end_lease(self, context: Context, group: str, owner: str, queues: Sequence[Named]) -> None:
        await self.unlock_as(context, _LEASES + group, owner, await self._by_broker(group, queues))

    async def unlock(self, context: Context, group: str, client_id: str, queues: Sequence[Named]) -> None:
        await self.unlock_as(context, group, client_id, await self._by_broker(group, queues))

    async def lock_as(
        self, context: Context, name: str, owner: str, by_broker: Mapping[str, Mapping[Named, Named]]
    ) -> list[Named]:
        async def ask(broker: str) -> list[Named]:
            body = _body(name, owner, by_broker[broker])
            answer = await self._client.done(broker, RequestCode.LOCK_BATCH_MQ, {}, body, context=context)
            return object_in(
                answer, broker, "the locked queues", lambda body: list(each(body, "lockOKMQSet", _queue))
            )

        answers, failures = await of_each(by_broker, ask)
        if failures and not answers:
            raise worst(failures)
        mine = []
        for broker, locked in answers.items():
            got = set(locked)
            mine += [named for key, named in by_broker[broker].items() if key in got]
        return mine

    def may_be_locked(self, group: str) -> bool:
        """Whether this process locked queues for the group recently, or saw that another one did."""
        return self._locked_until.get(group, 0.0) > self._clock.monotonic()

    def note_locks(self, group: str) -> None:
        now = self._clock.monotonic()
        if len(self._locked_until) >= _MOST_NOTED:
            self._locked_until = {name: until for name, until in self._locked_until.items() if until > now}
        self._locked_until[group] = now + LOCKED_S

    async def unlock_as(
        self, context: Context, name: str, owner: str, by_broker: Mapping[str, Mapping[Named, Named]]
    ) -> None:
        _, failures = await of_each(
            by_broker,
            lambda broker: self._client.done(
                broker,
                RequestCode.UNLOCK_BATCH_MQ,
                {},
                _body(name, owner, by_broker[broker]),
                context=context,
            ),
        )
        if failures:
            raise worst(failures)

    async def _by_broker(self, group: str, queues: Sequence[Named]) -> dict[str, dict[Named, Named]]:
        """Those that there are, by broker: as the broker knows them, and as they were named here."""
        by_broker: dict[str, dict[Named, Named]] = {}
        try:
            await self._groups.group(group)
        except NotFound:
            return by_broker
        unknown: set[str] = set()
        for topic, broker, queue_id in queues:
            if topic in unknown or len(unknown) > _MOST_UNKNOWN:
                continue
            try:
                place = place_of(topic, await self._access.routes.of(topic), broker, queue_id)
            except NotFound:
                unknown.add(topic)
                continue
            except BadRequest:
                continue
            key = (topic, place.broker, queue_id)
            by_broker.setdefault(place.broker, {})[key] = (topic, broker, queue_id)
        return by_broker


def _body(group: str, client_id: str, queues: Mapping[Named, Named]) -> bytes:
    named = [{"brokerName": broker, "queueId": number, "topic": topic} for topic, broker, number in queues]
    client_id = client_id.encode("utf-8", "replace").decode()
    return dumps({"clientId": client_id, "consumerGroup": group, "mqSet": named, "onlyThisBroker": False})


def _queue(body: Mapping[str, Any]) -> Named:
    return text(body, "topic"), text(body, "brokerName"), number(body, "queueId")
