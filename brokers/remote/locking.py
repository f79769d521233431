"""Locks of queues, kept by the brokers for 60 s. Source: protocol facts 5.14 and 7.8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brokers.remote.asking import object_in, of_each, worst
from brokers.remote.groups import Groups
from brokers.remote.places import place_of
from popgate.context import Context
from popgate.errors import BadRequest, NotFound
from popgate.wire.codes import RequestCode
from popgate.wire.fastjson import dumps
from popgate.wire.parts import each, number, text

Named = tuple[str, str, int]
_MOST_UNKNOWN = 32
"""Topics that are not there, after which no more are looked up for one call."""


class Locking(Groups):
    """The part of the port's `Offsets` that locks queues.

    Brokers keep what they are asked for as long as they live, whether there is such a queue or not; so
    they are asked only about queues of topics, and for groups, that are there.
    """

    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[Named]
    ) -> list[Named]:
        """Queues whose broker cannot be reached are not locked. Raises BrokerUnavailable if all are such."""
        by_broker = await self._by_broker(group, queues)

        async def ask(broker: str) -> list[Named]:
            body = _body(group, client_id, by_broker[broker])
            answer = await self.callings.done(broker, RequestCode.LOCK_BATCH_MQ, {}, body, context=context)
            return object_in(
                answer, broker, "the locked queues", lambda told: list(each(told, "lockOKMQSet", _queue))
            )

        told, failures = await of_each(by_broker, ask)
        if failures and not told:
            raise worst(failures)
        mine = []
        for broker, locked in told.items():
            got = set(locked)
            mine += [named for key, named in by_broker[broker].items() if key in got]
        return mine

    async def unlock(self, context: Context, group: str, client_id: str, queues: Sequence[Named]) -> None:
        by_broker = await self._by_broker(group, queues)
        _, failures = await of_each(
            by_broker,
            lambda broker: self.callings.done(
                broker,
                RequestCode.UNLOCK_BATCH_MQ,
                {},
                _body(group, client_id, by_broker[broker]),
                context=context,
            ),
        )
        if failures:
            raise worst(failures)

    async def _by_broker(self, group: str, queues: Sequence[Named]) -> dict[str, dict[Named, Named]]:
        """Those that there are, by broker: as the broker knows them, and as they were named here."""
        found: dict[str, dict[Named, Named]] = {}
        try:
            await self.group(group)
        except NotFound:
            return found
        unknown: set[str] = set()
        for topic, broker, queue_id in queues:
            if topic in unknown or len(unknown) > _MOST_UNKNOWN:
                continue
            try:
                place = place_of(topic, await self.route_of(topic), broker, queue_id)
            except NotFound:
                unknown.add(topic)
                continue
            except BadRequest:
                continue
            key = (topic, place.broker, queue_id)
            found.setdefault(place.broker, {})[key] = (topic, broker, queue_id)
        return found


def _body(group: str, client_id: str, queues: Mapping[Named, Named]) -> bytes:
    named = [{"brokerName": broker, "queueId": number, "topic": topic} for topic, broker, number in queues]
    client_id = client_id.encode("utf-8", "replace").decode()
    return dumps({"clientId": client_id, "consumerGroup": group, "mqSet": named, "onlyThisBroker": False})


def _queue(told: Mapping[str, Any]) -> Named:
    return text(told, "topic"), text(told, "brokerName"), number(told, "queueId")
