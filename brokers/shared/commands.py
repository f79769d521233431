"""Commands of tools about clients, at the host: it asks all gateways, its own too, and gathers their answers.

Only the gateway that a client is connected to knows all of it, and can ask it: nothing of this is kept here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from brokers.relaying import (
    ABOUT_CLIENTS,
    MOST_COMMANDS,
    MOST_OF_GATEWAYS,
    RELAYED,
    BrokerAnswer,
    CommandHandler,
    Relayed,
    relayed_fields,
)
from brokers.shared.calls import encode
from brokers.shared.guests import Guest
from brokers.shared.membership import ANSWER
from popgate.clock import Clock
from popgate.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    Internal,
    TooManyRequests,
    Unsupported,
)

ASK_S: Final = 7.0
"""For all gateways together where clients are asked, who have 5 s; whoever waits for the host has 10 s."""
LOOK_S: Final = 3.0
"""For all of them where none is: RocketMQ's tools wait 5 s."""
_AT_ONCE: Final = 16
"""Gateways that are asked for one command at a time: so many answers may be here that are not counted yet."""

_log = logging.getLogger(__name__)

_Ask = Callable[[float], Awaitable[BrokerAnswer]]
"""Asks a gateway, which has so many seconds."""


class Commands:
    """Asks gateways on behalf of one of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = 0

    def __repr__(self) -> str:
        return f"<Commands open {self._open}>"

    async def ask(
        self, own: CommandHandler | None, guests: Sequence[Guest], code: int, fields: Mapping[str, str]
    ) -> Relayed:
        """As `AsksGateways.ask_gateways`. `own`: who answers for the gateway of this process."""
        if code not in ABOUT_CLIENTS:
            raise Unsupported(f"request code {code} at another gateway, which it is not passed on to")
        told = relayed_fields(code, fields)
        if self._open >= MOST_COMMANDS:
            raise TooManyRequests(f"the limit of {MOST_COMMANDS} commands for gateways at a time is reached")
        asks: list[_Ask] = [partial(guest.command, code, told) for guest in guests]
        if own is not None:
            asks.insert(0, partial(_own_answer, own, code, told))
        self._open += 1
        try:
            relayed = await self._gathered(asks, ASK_S if RELAYED[code].slow else LOOK_S)
        finally:
            self._open -= 1
        for failure in islice(relayed.failures.values(), 1):
            _log.warning(
                "%d of %d gateways did not answer request code %d about their clients, one of them: %s",
                len(relayed.failures),
                len(asks),
                code,
                failure.sentence,
            )
        return relayed

    async def _gathered(self, asks: Sequence[_Ask], all_s: float) -> Relayed:
        until = self._clock.monotonic() + all_s
        gate = asyncio.Semaphore(_AT_ONCE)
        taken = 0

        async def answer(ask: _Ask) -> BrokerAnswer | GatewayError:
            nonlocal taken
            try:
                async with gate:
                    left_s = until - self._clock.monotonic()
                    if left_s <= 0:
                        raise BrokerTimeout(f"other gateways took all of {all_s:g} s to answer")
                    found = await ask(left_s)
                size = len(encode(ANSWER, found))
                if taken + size > MOST_OF_GATEWAYS:
                    raise BrokerUnavailable(
                        f"gateways answer more than fits: the limit is {MOST_OF_GATEWAYS} bytes"
                    )
            except GatewayError as error:
                return error
            taken += size
            return found

        answers: dict[str, BrokerAnswer] = {}
        failures: dict[str, GatewayError] = {}
        for place, found in enumerate(await asyncio.gather(*map(answer, asks))):
            if isinstance(found, GatewayError):
                failures[f"gateway-{place}"] = found
            else:
                answers[f"gateway-{place}"] = found
        return Relayed(answers, failures)


async def _own_answer(
    handler: CommandHandler, code: int, fields: Mapping[str, str], _left_s: float
) -> BrokerAnswer:
    """The handler sees to its time itself."""
    try:
        return await handler(code, fields)
    except GatewayError:
        raise
    except Exception:
        _log.exception("answering command %d went wrong", code)
        raise Internal(f"the gateway could not answer request code {code}") from None
