"""Commands of tools about clients, at the host: all gateways are asked, and their answers merged.

Only the gateway that a client is connected to knows it fully and can ask it: nothing of this is cached here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from brokers.relay import (
    ABOUT_CLIENTS,
    MOST_COMMANDS,
    MOST_OF_GATEWAY,
    MOST_OF_GATEWAYS,
    RELAYED,
    BrokerAnswer,
    CommandHandler,
    Relayed,
    relayed_fields,
)
from brokers.shared.codec.calls import encode
from brokers.shared.host.guest import Guest
from brokers.shared.session.clients import ANSWER
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    Internal,
    TooManyRequests,
    Unsupported,
)
from popgate.wire.frames.codes import ResponseCode

ASK_S: Final = 7.0
"""For all gateways together where clients are asked, who have 5 s."""
LOOK_S: Final = 3.0
"""For all of them where none is: RocketMQ's tools wait 5 s."""
_OF_WAIT: Final = 0.8
"""Of the time for which who asks waits, where that is less: the answer has a way to go."""
MOST_HELD: Final = 32 * 1024 * 1024
"""Bytes of the answers to all commands that are under way."""
_AT_ONCE: Final = 16
"""Gateways that are asked for one command at a time."""

_log = logging.getLogger(__name__)

_Ask = Callable[[float], Awaitable[BrokerAnswer]]
"""Asks a gateway, which has so many seconds."""


class Commands:
    """Asks gateways on behalf of one of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = 0
        self._held = 0
        """Bytes of answers to commands that are under way."""

    def __repr__(self) -> str:
        return f"<Commands open {self._open} held {self._held}>"

    async def ask(
        self,
        context: Context,
        own: CommandHandler | None,
        guests: Sequence[Guest],
        code: int,
        fields: Mapping[str, str],
    ) -> Relayed:
        """As `AsksGateways.ask_gateways`. `own`: who answers for the gateway of this process."""
        if code not in ABOUT_CLIENTS:
            raise Unsupported(f"request code {code} at another gateway, which it is not passed on to")
        passed, command = relayed_fields(code, fields), RELAYED[code]
        if self._open >= MOST_COMMANDS:
            raise TooManyRequests(f"the limit of {MOST_COMMANDS} commands for gateways at a time is reached")
        of_client = "clientId" in command.fields
        if of_client:
            guests = [guest for guest in guests if guest.has(passed.get("clientId", ""))]
        asks: list[_Ask] = [partial(guest.command, code, passed) for guest in guests]
        if own is not None:
            asks.insert(0, partial(_own_answer, own, code, passed))
        one_round = _Round(self, self._clock, ASK_S if command.slow else LOOK_S, context.deadline)
        self._open += 1
        try:
            if of_client:
                relayed = await one_round.in_turn(asks, changes=command.changes)
            else:
                relayed = await one_round.at_once(asks)
        finally:
            self._open -= 1
            self._held -= one_round.taken
        for failure in islice(relayed.failures.values(), 1):
            _log.warning(
                "%d of %d gateways did not answer request code %d about their clients, one of them: %s",
                len(relayed.failures),
                len(asks),
                code,
                failure.sentence,
            )
        return relayed

    def hold(self, size: int) -> None:
        """Raises BrokerUnavailable: all commands together have no room for so many bytes more."""
        if self._held + size > MOST_HELD:
            raise BrokerUnavailable(f"gateways answer more than fits: the limit is {MOST_HELD} bytes")
        self._held += size


class _Round:
    """One command: who was asked answers within a time, and all of them within so many bytes."""

    def __init__(self, commands: Commands, clock: Clock, all_s: float, deadline: float | None) -> None:
        now = clock.monotonic()
        self.taken = 0
        self._commands = commands
        self._clock = clock
        self._all_s = all_s if deadline is None else min(all_s, max(_OF_WAIT * (deadline - now), 0.0))
        self._until = now + self._all_s

    async def at_once(self, asks: Sequence[_Ask]) -> Relayed:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def answer(ask: _Ask) -> BrokerAnswer | GatewayError:
            async with gate:
                return await self._answer(ask)

        # All are waited for, whatever becomes of one: what they hold is let go of afterwards.
        return _relayed(await asyncio.gather(*map(answer, asks), return_exceptions=True))

    async def in_turn(self, asks: Sequence[_Ask], *, changes: bool) -> Relayed:
        """Until one has the client that is meant, and it answered.

        `changes`: until one may have asked it, since clients of two gateways may have one id.
        """
        answers: list[BrokerAnswer | GatewayError] = []
        for ask in asks:
            answer = await self._answer(ask)
            answers.append(answer)
            if isinstance(answer, GatewayError):
                is_over = changes
            else:
                is_over = answer.code == ResponseCode.SUCCESS or (
                    changes and answer.code != ResponseCode.CONSUMER_NOT_ONLINE
                )
            if is_over:
                break
        return _relayed(answers)

    async def _answer(self, ask: _Ask) -> BrokerAnswer | GatewayError:
        try:
            left_s = self._until - self._clock.monotonic()
            if left_s <= 0:
                raise BrokerTimeout(f"other gateways took all of {self._all_s:g} s to answer")
            answer = await ask(left_s)
            size = len(encode(ANSWER, answer))
            if size > MOST_OF_GATEWAY:
                raise BrokerUnavailable(f"a gateway answers {size} bytes, the limit is {MOST_OF_GATEWAY}")
            if self.taken + size > MOST_OF_GATEWAYS:
                raise BrokerUnavailable(
                    f"gateways answer more than fits: the limit is {MOST_OF_GATEWAYS} bytes"
                )
            self._commands.hold(size)
        except GatewayError as error:
            return error
        self.taken += size
        return answer


def _relayed(outcomes: Sequence[BrokerAnswer | BaseException]) -> Relayed:
    """Raises what is no GatewayError."""
    answers: dict[str, BrokerAnswer] = {}
    failures: dict[str, GatewayError] = {}
    for place, outcome in enumerate(outcomes):
        if isinstance(outcome, GatewayError):
            failures[f"gateway-{place}"] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            answers[f"gateway-{place}"] = outcome
    return Relayed(answers, failures)


async def _own_answer(
    handler: CommandHandler, code: int, fields: Mapping[str, str], left_s: float
) -> BrokerAnswer:
    """What a guest's own side does for it (`brokers.shared.guest.members`)."""
    try:
        async with asyncio.timeout(left_s):
            return await handler(code, fields)
    except TimeoutError:
        raise BrokerTimeout(f"the gateway took all of {left_s:.1f} s to answer") from None
    except GatewayError:
        raise
    except Exception:
        _log.exception("answering command %d went wrong", code)
        raise Internal(f"the gateway could not answer request code {code}") from None
