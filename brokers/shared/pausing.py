"""Waiting for a while by the house's clock."""

from __future__ import annotations

import asyncio

from popgate.clock import Clock


async def pause(clock: Clock, seconds: float) -> None:
    over = asyncio.get_running_loop().create_future()

    def ring() -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(seconds, ring)
    try:
        await over
    finally:
        timer.cancel()
