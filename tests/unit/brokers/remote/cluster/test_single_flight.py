"""Waiting for what others wait for, too."""

from __future__ import annotations

import asyncio

import pytest

from brokers.remote.cluster.single_flight import shared
from popgate.errors import BrokerUnavailable


async def test_a_caller_that_is_cancelled_leaves_the_others_theirs():
    asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ask() -> int:
        return await asked

    task = asyncio.ensure_future(ask())
    one, two = asyncio.ensure_future(shared(task)), asyncio.ensure_future(shared(task))
    await asyncio.sleep(0)
    one.cancel()
    asked.set_result(5)
    assert await two == 5
    with pytest.raises(asyncio.CancelledError):
        await one


async def test_a_task_that_is_cancelled_does_not_cancel_its_callers():
    task = asyncio.ensure_future(asyncio.get_running_loop().create_future())
    waiting = asyncio.ensure_future(shared(task))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(BrokerUnavailable):
        await waiting
