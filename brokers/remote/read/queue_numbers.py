"""Numbers of queues, stored at the name servers as settings, in a namespace of the gateway.

Every name server stores them independently, and none compares before it sets. So a gateway that assigns
numbers holds a lease at a broker meanwhile, reads them from all name servers, and writes the result to all
of them. Differences are merged by the rules of `popgate.ids.queue_numbers`: all gateways reach the same
result, even where no lease was available. Sources: protocol facts 5.5 (100, 101, 41); RocketMQ 5.3.3's
KVConfigManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import uuid4

from brokers.numbering import BROKERS, MOST_BROKERS, NumbersQueues
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.read.queue_locks import QueueLocks
from popgate.clock import pause
from popgate.context import Context
from popgate.errors import BrokerBusy, BrokerUnavailable, GatewayError
from popgate.ids.queue_numbers import Numbered, QueueNumbers, joined, may_be_numbered
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command

NAMESPACE: Final = "POPGATE_QUEUE_NUMBERS"
LEASES: Final = "numbers of queues"
"""The name that leases are locked under: no group's name has a blank."""
_TRIES: Final = 20
_PAUSE_S: Final = 0.1
_MOST_KEPT: Final = 16_384

_log = logging.getLogger(__name__)


class QueueNumberStore(NumbersQueues):
    """Numbers for the queues of the cluster."""

    def __init__(self, access: ClusterAccess, locks: QueueLocks) -> None:
        self._settings = access.settings
        self._routes = access.routes
        self._clock = access.clock
        self._connections = access.connections
        self._locks = locks
        self._numbers: dict[str, QueueNumbers] = {}
        """What this process read or gave: with the name servers' it is joined, which may have lost it."""
        self._unkept: set[str] = set()
        """Topics whose numbers could not be read, or not be kept by the name servers, when last tried."""
        self._giving: dict[str, asyncio.Lock] = {}

    async def numbered(self, context: Context, topic: str, queues: Sequence[Numbered]) -> QueueNumbers:
        """Raises BrokerUnavailable, BrokerBusy: another gateway has held the lease for very long."""
        giving = self._giving.setdefault(topic, asyncio.Lock())
        try:
            async with giving:
                return await self._numbered(context, topic, queues)
        except GatewayError:
            self._note_unkept(topic)
            raise
        finally:
            if not giving.locked() and self._giving.get(topic) is giving:
                del self._giving[topic]

    def figures(self) -> dict[str, float]:
        return {"numbers_unkept": float(len(self._unkept))}

    async def _numbered(self, context: Context, topic: str, wanted: Sequence[Numbered]) -> QueueNumbers:
        by_server = await self._read(topic)
        numbers = self._join(topic, by_server)
        queues = _numberable(topic, numbers, wanted)
        if numbers.has_all(queues) and all(record == numbers for record in by_server.values()):
            self._unkept.discard(topic)
            return numbers
        owner = f"popgate-numbers-{uuid4()}"
        try:
            home = await self._lease(context, topic, owner, self._homes(numbers, queues))
        except BrokerUnavailable as error:
            return self._keep_here(topic, numbers, queues, error)
        if home is None:
            if numbers.has_all(queues):
                return numbers
            raise BrokerBusy(f"somebody else gives numbers to the queues of {topic}")
        try:
            by_server = await self._read(topic)
            known = self._join(topic, by_server)
            queues = _numberable(topic, known, wanted)
            numbers = _grown(topic, known, queues)
            try:
                await self._write(topic, numbers, by_server)
            except BrokerUnavailable as error:
                return self._keep_here(topic, known, queues, error)
            self._keep(topic, numbers)
            self._unkept.discard(topic)
            return numbers
        finally:
            await self._end_lease(context, topic, owner, home)

    def _join(self, topic: str, by_server: Mapping[str, QueueNumbers]) -> QueueNumbers:
        known = self._numbers.get(topic, QueueNumbers())
        numbers = joined([known, *by_server.values()])
        if not known.begins(numbers):
            _log.warning("numbers of queues of %s were given twice: %r became %r", topic, known, numbers)
        self._keep(topic, numbers)
        return numbers

    def _keep_here(
        self, topic: str, numbers: QueueNumbers, queues: Sequence[Numbered], error: BrokerUnavailable
    ) -> QueueNumbers:
        """What holds though the name servers cannot have it now. Raises `error`: others may say otherwise.

        Where all queues are of one broker nobody gives other numbers now. This process must not do it later,
        either: clients are told these, and the name of another broker may stand before that one's.
        """
        grown = _grown(topic, numbers, queues)
        if grown != numbers and not grown.are_plain:
            raise error
        if topic not in self._unkept:
            _log.warning("numbers of the queues of %s cannot be kept now: %s", topic, error.sentence)
            self._note_unkept(topic)
        self._keep(topic, grown)
        return grown

    def _note_unkept(self, topic: str) -> None:
        if len(self._unkept) >= _MOST_KEPT:
            self._unkept.clear()
        self._unkept.add(topic)

    def _keep(self, topic: str, numbers: QueueNumbers) -> None:
        if len(self._numbers) >= _MOST_KEPT and topic not in self._numbers:
            self._numbers.clear()
        self._numbers[topic] = numbers

    # -- what name servers have -------------------------------------------------------------------

    async def _read(self, topic: str) -> dict[str, QueueNumbers]:
        """Of each name server that answers. Raises BrokerUnavailable: none does."""
        answers = await self._ask_each(
            self._routes.servers.addresses,
            RequestCode.GET_KV_CONFIG,
            {"namespace": NAMESPACE, "key": topic},
        )
        by_server: dict[str, QueueNumbers] = {}
        for address, answer in answers.items():
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                by_server[address] = QueueNumbers()
            elif answer.code == ResponseCode.SUCCESS:
                try:
                    by_server[address] = QueueNumbers.decode(answer.fields.get("value", ""))
                except ValueError as error:
                    raise BrokerUnavailable(
                        f"{address} has something else as the numbers of the queues of {topic}: {error}"
                    ) from error
        if not by_server:
            raise BrokerUnavailable(f"no name server tells the numbers of the queues of {topic}")
        return by_server

    async def _write(self, topic: str, numbers: QueueNumbers, by_server: Mapping[str, QueueNumbers]) -> None:
        """Tell all that have something else. Raises BrokerUnavailable: fewer than half have it then."""
        behind = [address for address, known in by_server.items() if known != numbers]
        fields = {"namespace": NAMESPACE, "key": topic, "value": numbers.encode()}
        answers = await self._ask_each(behind, RequestCode.PUT_KV_CONFIG, fields)
        taken = [address for address, answer in answers.items() if answer.code == ResponseCode.SUCCESS]
        have, all_there_are = len(by_server) - len(behind) + len(taken), len(self._routes.servers.addresses)
        if have * 2 < all_there_are:
            raise BrokerUnavailable(
                f"{have} of {all_there_are} name servers have the numbers of the queues of {topic},"
                " at least half of them must"
            )

    async def _ask_each(
        self, addresses: Sequence[str], code: int, fields: Mapping[str, str]
    ) -> dict[str, Command]:
        """The answers of those that answer."""
        timeout_s = self._settings.request_timeout_s
        answers = await asyncio.gather(
            *(self._connections.call(address, code, fields, timeout_s=timeout_s) for address in addresses),
            return_exceptions=True,
        )
        by_server: dict[str, Command] = {}
        for address, answer in zip(addresses, answers, strict=True):
            if isinstance(answer, Command):
                by_server[address] = answer
            elif not isinstance(answer, GatewayError):
                raise answer
        return by_server

    # -- who gives numbers ------------------------------------------------------------------------

    def _homes(self, numbers: QueueNumbers, queues: Sequence[Numbered]) -> list[str]:
        """Brokers with a master where a lease may be had, the same one first for all gateways."""
        names = [broker for broker, _ in numbers.queues] + sorted(broker for broker, _ in queues)
        return [name for name in dict.fromkeys(names) if self._routes.master(name) is not None]

    async def _lease(self, context: Context, topic: str, owner: str, homes: Sequence[str]) -> str | None:
        """The broker of the lease; None: another gateway has it. Raises BrokerUnavailable."""
        why = "none has a master"
        for home in homes:
            try:
                for _ in range(_TRIES):
                    if await self._locks.lock_as(context, LEASES, owner, _place(topic, home)):
                        return home
                    await pause(self._clock, _PAUSE_S)
            except GatewayError as error:
                why = error.sentence
                continue
            return None
        raise BrokerUnavailable(f"no broker lets the queues of {topic} be numbered: {why}")

    async def _end_lease(self, context: Context, topic: str, owner: str, home: str) -> None:
        try:
            await self._locks.unlock_as(context, LEASES, owner, _place(topic, home))
        except GatewayError as error:
            _log.debug("the lease for the numbers of %s at %s ends by itself: %s", topic, home, error)


def _numberable(topic: str, numbers: QueueNumbers, queues: Sequence[Numbered]) -> Sequence[Numbered]:
    """Those that have numbers or may get them: no name of a broker makes the record of all unreadable."""
    named = [queue for queue in queues if may_be_numbered(queue[0])]
    if topic != BROKERS:
        return named
    fresh = sorted({queue for queue in named if numbers.number_of(*queue) is None})
    too_many = set(fresh[max(MOST_BROKERS - len(numbers), 0) :])
    return [queue for queue in named if queue not in too_many]


def _grown(topic: str, numbers: QueueNumbers, queues: Sequence[Numbered]) -> QueueNumbers:
    """With numbers for these, as a record says them to whoever reads it. Raises BrokerUnavailable."""
    try:
        grown = numbers.grown(queues)
        return QueueNumbers.decode(grown.encode()) if grown != numbers else numbers
    except ValueError as error:
        raise BrokerUnavailable(f"the queues of {topic} get no numbers: {error}") from error


def _place(topic: str, home: str) -> dict[str, dict[tuple[str, str, int], tuple[str, str, int]]]:
    place = (topic, home, 0)
    return {home: {place: place}}
