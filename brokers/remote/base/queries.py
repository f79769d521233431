"""How the parts about topics, groups and positions ask: every master, any broker, or the one of a queue."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from brokers.remote.base.component import Facet
from brokers.remote.cluster.queues import Place, place_of
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    PeerWireError,
    TopicNotFound,
    shown,
)
from popgate.wire.codes import RequestCode, ResponseCode
from popgate.wire.parts import load_object
from popgate.wire.remoting import Command
from popgate.wire.routes import TopicRoute

Read = TypeVar("Read")
Answer = TypeVar("Answer")

_could_be_a_name = re.compile(r"[!-~]{1,512}\Z").match
_MOVED = (ResponseCode.NOT_LEADER_FOR_QUEUE, ResponseCode.TOPIC_NOT_EXIST)
NO_SUCCESS: tuple[int, ...] = ()
_READ_TRIES = 3
_LEAST_TIME_S = 0.05


class Asking(Facet):
    """Beside what `callings` does: a route that is asked for first, and what is tried a second time."""

    async def route_of(self, topic: str) -> TopicRoute:
        """Raises TopicNotFound, also for what can be no topic; BrokerUnavailable."""
        if not could_be_a_name(topic):
            raise TopicNotFound(shown(topic))
        return await self.routes.of(topic)

    async def place(self, topic: str, broker: str, queue_id: int) -> Place:
        """Raises TopicNotFound, BadRequest (no such queue, also when it is asked anew), BrokerUnavailable."""
        route = await self.route_of(topic)
        try:
            return place_of(topic, route, broker, queue_id)
        except BadRequest:
            return place_of(topic, await self.routes.now(topic), broker, queue_id)

    async def ask_queue(
        self,
        context: Context | None,
        place: Place,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        reading: bool = False,
        timeout_s: float | None = None,
        also: Iterable[int] = NO_SUCCESS,
    ) -> Command:
        """The answer of the broker that has the queue, with SUCCESS or a code in `also`; else raises.

        A broker that says that it does not have it is believed once: the route is asked for anew. What
        only reads is asked of a slave when the master cannot be reached.
        """
        asked = await self._ask_place(context, place, code, fields, reading=reading, timeout_s=timeout_s)
        if asked.code in _MOVED:
            route = await self.routes.now(place.topic)
            place = place_of(place.topic, route, place.broker, place.queue_id)
            asked = await self._ask_place(context, place, code, fields, reading=reading, timeout_s=timeout_s)
        if asked.code != ResponseCode.SUCCESS and asked.code not in also:
            raise error_of(asked, broker=place.broker, topic=place.topic)
        return asked

    async def _ask_place(
        self,
        context: Context | None,
        place: Place,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        reading: bool,
        timeout_s: float | None,
    ) -> Command:
        fields = {"topic": place.topic, "queueId": str(place.queue_id), **fields}
        if not reading:
            return await self.callings.call(place.broker, code, fields, context=context, timeout_s=timeout_s)
        return await self.read_from(place.broker, code, fields, context=context, timeout_s=timeout_s)

    async def read_from(
        self,
        broker: str,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        context: Context | None = None,
        timeout_s: float | None = None,
    ) -> Command:
        """As `callings.call`, of a slave when the master cannot be reached. Only for what changes nothing.

        All in the time of one request: a master that is silent leaves none for another.
        """
        until = self.clock.monotonic() + self.callings.time_left(context, timeout_s)
        for again in range(_READ_TRIES - 1, -1, -1):
            try:
                left = until - self.clock.monotonic()
                return await self.callings.call(
                    broker, code, fields, context=context, timeout_s=left, reading=True
                )
            except (BrokerUnavailable, BrokerTimeout):
                # The first failure tells that the master is gone; where it is known another one is chosen.
                data = self.routes.clusters.get(broker)
                others = data is not None and len(data.addresses) > 1
                if not (again and others and until - self.clock.monotonic() > _LEAST_TIME_S):
                    raise
        raise BrokerUnavailable(f"broker {broker} cannot be reached")

    def knows_best(self, broker: str) -> bool:
        """Whether it is the broker's master that answers: what a slave has not, the master may have."""
        master = self.routes.master(broker)
        return master is not None and self.links.is_open(master)

    async def rest(self, seconds: float) -> None:
        """Let time pass, by the clock that everything here goes by."""
        await self.within(seconds, asyncio.get_running_loop().create_future())

    async def within(
        self, seconds: float, asking: Coroutine[Any, Any, Read] | asyncio.Future[Read]
    ) -> Read | None:
        """What it comes to; None when it is not done in so many seconds: then it is given up."""
        task = asyncio.ensure_future(asking)
        over = False

        def end() -> None:
            nonlocal over
            over = True
            task.cancel()

        timer = self.clock.call_later(seconds, end)
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if over and not (me is not None and me.cancelling()):
                return None
            raise
        finally:
            timer.cancel()

    async def masters(self) -> list[str]:
        """The brokers of the cluster that can be written to, by name. Raises BrokerUnavailable: none."""
        found = sorted(one.name for one in await self.routes.brokers() if one.master is not None)
        if not found:
            raise BrokerUnavailable("no broker of the cluster has a master now")
        return found

    async def brokers(self) -> list[str]:
        """The brokers of the cluster that can be read from, by name. Raises BrokerUnavailable: none."""
        found = sorted(one.name for one in await self.routes.brokers() if one.addresses)
        if not found:
            raise BrokerUnavailable("no broker of the cluster can be reached")
        return found


def could_be_a_name(text: str) -> bool:
    """Whether a topic or group may be called so; brokers are not asked about anything else."""
    return _could_be_a_name(text) is not None


async def of_each(
    names: Iterable[str], ask: Callable[[str], Awaitable[Answer]]
) -> tuple[dict[str, Answer], dict[str, GatewayError]]:
    """Ask all at once: the answers and the failures, by name. What is no GatewayError is raised."""
    names = list(names)
    results = await asyncio.gather(*(ask(name) for name in names), return_exceptions=True)
    answers: dict[str, Answer] = {}
    failures: dict[str, GatewayError] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, GatewayError):
            failures[name] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            answers[name] = result
    return answers, failures


def worst(failures: Mapping[str, GatewayError]) -> GatewayError:
    """The failure to tell of several: one that says something about the request before 'not reached'."""
    told = list(failures.values())
    return next((one for one in told if not isinstance(one, (BrokerUnavailable, BrokerTimeout))), told[0])


def object_in(answer: Command, broker: str, what: str, read: Callable[[Mapping[str, Any]], Read]) -> Read:
    """What a JSON body says. Raises BrokerUnavailable when it makes no sense."""
    try:
        return read(load_object(answer.body, what))
    except PeerWireError as error:
        raise BrokerUnavailable(f"{what} as broker {broker} tells it makes no sense: {error}") from None


def number_in(answer: Command, broker: str, name: str) -> int:
    """A whole number of the answer's fields. Raises BrokerUnavailable when there is none."""
    text = answer.fields.get(name, "")
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise BrokerUnavailable(f"broker {broker} answered without {name}")
    return int(text)
