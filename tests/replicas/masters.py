"""A RocketMQ whose master dies while replicas are ended before it; a controller chooses the next one."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator

from popgate.errors import PeerWireError
from popgate.testing.rocketmq import RocketMQ, replicas
from tests.cluster.brokers import chosen, slave_is_current
from tests.cluster.records import Fault
from tests.replicas.ledger import MASTER_LOST, Ledger
from tests.support.waiting import until

BROKER = "broker-a"
_FEWEST, _MOST = 100, 400
"""Between two deaths so many sends are answered."""


@contextlib.asynccontextmanager
async def cluster_of(masters: int) -> AsyncIterator[RocketMQ | None]:
    """One in which so many masters may die; None where none is to. Raises Missing."""
    if not masters:
        yield None
        return
    cluster = RocketMQ(brokers=replicas(BROKER), controllers=True)
    try:
        yield await asyncio.to_thread(cluster.start)
    finally:
        await asyncio.to_thread(cluster.stop)


async def lose_masters(cluster: RocketMQ | None, ledger: Ledger, count: int, seed: int) -> None:
    """Kill the master `count` times; the dead one comes back as the slave of the next one each time."""
    dice = random.Random(f"{seed}/masters")
    for _ in range(count if cluster is not None else 0):
        assert cluster is not None
        await _answered(ledger, dice.randrange(_FEWEST, _MOST))
        await until(lambda: asyncio.to_thread(_current, cluster))
        master = await asyncio.to_thread(cluster.master)
        fault = Fault(time.monotonic(), frozenset((BROKER,)), MASTER_LOST)
        ledger.faults.append(fault)
        await asyncio.to_thread(master.kill)
        await until(lambda master=master: chosen(cluster, master))
        fault.is_over()
        await _answered(ledger, _FEWEST)
        await asyncio.to_thread(master.start)


async def _answered(ledger: Ledger, more: int) -> None:
    wanted = len(ledger.sends) + more
    await until(lambda: len(ledger.sends) >= wanted, what=f"{more} more sends are answered")


def _current(cluster: RocketMQ) -> bool:
    """Whether the slave may become the master: what it has not heard of the topics would be gone."""
    with contextlib.suppress(OSError, PeerWireError, KeyError):
        return cluster.is_followed(BROKER) and slave_is_current(cluster, BROKER)
    return False
