"""Where a group begins that starts from the last message, on a topic that it never read.

A broker takes its own initial position for that, which is the first message while the topic is young and
the one before the last later (protocol facts 4.3, 4). So the position is set before the first pop, on
all queues; those that a topic gets later are then read from their first message.
"""

from __future__ import annotations

import asyncio

from brokers.remote.asking import of_each, worst
from brokers.remote.callings import Callings
from brokers.remote.places import Place, places_of
from brokers.remote.spent import Spent
from popgate.model import Permission
from popgate.wire.codes import RequestCode, ResponseCode
from popgate.wire.routes import TopicRoute

_MOST = 8_192


class Beginnings:
    """Remembers which groups have begun on which topics; asking again costs a request per queue."""

    def __init__(self, callings: Callings) -> None:
        self._callings = callings
        self._begun = Spent(_MOST)
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Beginnings {len(self._begun)} asking {len(self._asking)}>"

    async def begin(self, group: str, topic: str, route: TopicRoute) -> None:
        """See to it that the group has a position on the topic. Raises what brokers fail with."""
        if f"{group} {topic}" in self._begun:
            return
        key = group, topic
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.get_running_loop().create_task(
                self._begin(group, topic, route)
            )
            task.add_done_callback(lambda done: self._asked(key, done))
        await asyncio.shield(task)

    def forget(self) -> None:
        """A topic or a group was deleted: what is made anew begins anew."""
        self._begun = Spent(_MOST)

    def _asked(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # whoever waits for it is told

    async def _begin(self, group: str, topic: str, route: TopicRoute) -> None:
        readable = [place for place in places_of(topic, route) if place.permission & Permission.READ]
        places = {f"{place.broker} {place.queue_id}": place for place in readable}
        known, failures = await of_each(places, lambda name: self._has_position(group, places[name]))
        # One position is enough to know that it has begun, whoever else cannot be asked now.
        if not any(known.values()):
            if failures:
                raise worst(failures)
            await asyncio.gather(*(self._set(group, place) for place in readable))
        self._begun.add(f"{group} {topic}")

    async def _has_position(self, group: str, place: Place) -> bool:
        fields = {**_fields(place), "consumerGroup": group, "setZeroIfNotFound": "false"}
        answer = await self._callings.done(
            place.broker,
            RequestCode.QUERY_CONSUMER_OFFSET,
            fields,
            topic=place.topic,
            group=group,
            also=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return answer.code == ResponseCode.SUCCESS

    async def _set(self, group: str, place: Place) -> None:
        told = await self._callings.done(
            place.broker, RequestCode.GET_MAX_OFFSET, _fields(place), topic=place.topic
        )
        fields = {**_fields(place), "consumerGroup": group, "commitOffset": told.fields.get("offset", "")}
        await self._callings.done(
            place.broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields, topic=place.topic, group=group
        )


def _fields(place: Place) -> dict[str, str]:
    return {"topic": place.topic, "queueId": str(place.queue_id)}
