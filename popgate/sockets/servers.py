"""Closes asyncio servers without losing connections that were just accepted."""

from __future__ import annotations

import asyncio
from typing import Final

_TURNS: Final = 3
"""Of the loop, from a connection's acceptance until its protocol has it."""


def stop_accepting(server: asyncio.Server) -> None:
    """Accept no more from now on; the port is free when the loop has turned.

    `Server.close` alone drops a connection that was accepted in the same turn of the loop: asyncio's
    transports attach to their server a turn later, which then fails, and leave their socket to the
    garbage collector (CPython 3.11 to 3.13, `Server._attach`; uvloop does not).
    """
    loop = server.get_loop()
    for link in server.sockets:
        loop.remove_reader(link.fileno())
    loop.call_soon(server.close)


async def close_server(server: asyncio.Server) -> None:
    """Stop accepting; afterwards every accepted connection has its protocol. May be repeated."""
    stop_accepting(server)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
