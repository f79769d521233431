"""Decides which groups' classic push consumers are mapped onto pop; all others stay on true pull.

A group is mapped while the settings name it, every member that the broker knows comes through a gateway,
none is known to need true pull, and at least one classic member is proven concurrent. This is evaluated
when members change, and every few seconds while a classic member is connected. It is soft state: replicas
reach the same decision by asking the same broker, and while they differ messages may be delivered twice,
but none is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from brokers.capabilities import GroupMember, TellsConsumers
from brokers.port import Broker
from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.kinds import Action
from popgate.model import GroupConfig, Reading
from popgate.naming import check_group
from processors.clients.client_registry import ClientHandle, ClientRegistry
from processors.members.mapping_rules import Choice as Choice
from processors.members.mapping_rules import NamedGroups, choose, hindrance, unfit

_EVERY_S: Final = 5.0
"""So often a group is judged while a classic member is here: who joins elsewhere may not be told at once."""
_REST_S: Final = 0.1
"""Between two rounds of judging: when a crowd joins, it is judged a few times and not for each."""
_FRESH_S: Final = 1.0
_REMEMBERED_S: Final = 60.0
"""So long the fact about a member is kept whose connection broke: with its next heartbeat it is back."""
_MOST_LOOSE: Final = 16_384
_AT_ONCE: Final = 32

_WEIGHTS: Final = {
    Reading.UNKNOWN: 0,
    Reading.CONCURRENT: 1,
    Reading.NEUTRAL: 2,
    Reading.TRUE_PULL: 3,
}
"""Of two facts about a member the one that counts."""
NOBODY: Final = Choice(False, "no classic consumer of it is connected here")

_log = logging.getLogger(__name__)


class MappedGroups:
    """`settings`: of a group, as they are now. `admit`: the processor's admission."""

    def __init__(
        self,
        broker: Broker,
        clients: ClientRegistry,
        clock: Clock,
        names: NamedGroups,
        settings: Callable[[str], Awaitable[GroupConfig]],
        admit: Callable[..., None],
    ) -> None:
        self._tells = broker.capability(TellsConsumers)
        self._clients = clients
        self._clock = clock
        self._names = names
        self._settings = settings
        self._admit = admit
        self._choices: dict[str, Choice] = {}
        """Of groups with a classic member here that the settings name."""
        self._judged_at: dict[str, float] = {}
        self._mapped: set[str] = set()
        self._facts: dict[str, Reading] = {}
        self._loose: dict[str, float] = {}
        """Until when the fact is kept of a member that is not here, by key, oldest first."""
        self._told: list[Callable[[str, bool], None]] = []
        self._due: dict[str, None] = {}
        self._under_way: dict[str, asyncio.Task[Choice]] = {}
        self._round: asyncio.Task[None] | None = None
        self._next: Timer | None = None
        self._tick: Timer | None = None
        self._stopped = False
        self.on_reading: Callable[[ClientHandle], None] = _nobody_registers
        """Told a member of this replica of which more is known now: brokers are to know it."""

    def __repr__(self) -> str:
        return f"<MappedGroups mapped {len(self._mapped)} of {len(self._choices)} facts {len(self._facts)}>"

    def figures(self) -> dict[str, float]:
        """Of groups that the settings name and that have a classic member here."""
        return {
            "groups_mapped": len(self._mapped),
            "groups_pulled": len(self._choices) - len(self._mapped),
        }

    def start(self) -> None:
        self._clients.on_judge = self._changed

    async def stop(self) -> None:
        self._stopped = True
        self._clients.on_judge = _nobody_judges
        for timer in (self._next, self._tick):
            if timer is not None:
                timer.cancel()
        self._next = self._tick = None
        ending = [*self._under_way.values(), *([self._round] if self._round is not None else [])]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def is_mapped(self, group: str) -> bool:
        """As it was judged last; False while that is not known."""
        return group in self._mapped

    def is_judged_anew(self, group: str) -> bool:
        """Whether something changed that may make another choice of it, in a moment."""
        return group in self._due or group in self._under_way

    def may_map(self, group: str) -> bool:
        """Whether the settings name the group."""
        return self._names.may_map(group)

    def choice(self, group: str) -> Choice:
        """As it was judged last."""
        if why := self._names.why_not(group):
            return Choice(False, why)
        known = self._choices.get(group)
        return known if known is not None else NOBODY

    def choices(self) -> dict[str, Choice]:
        """Of all groups that the settings name and that have a classic member here."""
        return dict(self._choices)

    async def judge(self, context: Context, group: str, *, action: Action = Action.SUBSCRIBE) -> Choice:
        """Ask the broker for the group's members now. If it cannot answer, the choice stays as it was.

        `action`: what the caller does with the group, which needs permission. Raises IllegalGroup, Forbidden.
        """
        self._admit(context, action, group=check_group(group))
        if why := self._names.why_not(group):
            return Choice(False, why)
        return await self._judged(group) if not self._stopped else self.choice(group)

    async def current(self, context: Context, group: str) -> Choice:
        """As `judge`, for frequent callers: a recent result is reused if nothing has changed since."""
        judged = self._judged_at.get(group, float("-inf"))
        changed = group in self._due or group in self._under_way
        if changed or self._clock.monotonic() - judged >= _FRESH_S:
            return await self.judge(context, group)
        self._admit(context, Action.SUBSCRIBE, group=group)
        return self._choices[group]

    def reading_of(self, handle: ClientHandle) -> Reading:
        """How a consumer of this replica reads; where its group cannot be mapped a classic one pulls."""
        known = handle.reading
        if known is not Reading.UNKNOWN:
            return known
        fact = self._facts.get(handle.key, known)
        return fact if fact is Reading.NEUTRAL or self._names.may_map(handle.group) else Reading.TRUE_PULL

    def told(self, key: str, reading: Reading) -> None:
        """A fact about a member of this replica, by the key of its handle; it may not be known yet.

        As long as it is here it counts for more that a member needs true pull than that it pops (NEUTRAL),
        and that for more than that it is concurrent: who pops may pull some topics, too.
        """
        known = self._facts.get(key, Reading.UNKNOWN)
        if _WEIGHTS[reading] <= _WEIGHTS[known]:
            return
        handle = self._clients.get(key)
        if handle is None:
            if self._names:
                self._keep_loose(key, reading)
            return
        if handle.reading is not Reading.UNKNOWN:
            return
        if reading is not Reading.NEUTRAL and not self._names.may_map(handle.group):
            return
        self._facts[key] = reading
        self.on_reading(handle)
        if reading is Reading.TRUE_PULL and handle.group in self._mapped:
            # Nobody needs to be asked, and nothing it asks next is to be mapped.
            self._keep(handle.group, Choice(False, hindrance(self._members_here(handle.group))))
        self._changed(handle.group)

    def left(self, key: str, *, said_so: bool) -> None:
        """A client is gone, or another one is known by its key."""
        if key not in self._facts or self._clients.get(key) is not None:
            return
        if said_so:
            del self._facts[key]
            self._loose.pop(key, None)
        else:
            self._keep_loose(key, self._facts[key])

    def on_switch(self, listener: Callable[[str, bool], None]) -> Callable[[], None]:
        """Register a listener for groups that become mapped or unmapped.

        The returned function removes the listener; call it once.
        """
        self._told.append(listener)
        return partial(self._told.remove, listener)

    # -- inside -------------------------------------------------------------------------------

    def _keep_loose(self, key: str, reading: Reading) -> None:
        self._loose.pop(key, None)
        if len(self._loose) >= _MOST_LOOSE:
            oldest = next(iter(self._loose))
            del self._loose[oldest]
            self._facts.pop(oldest, None)
        self._facts[key] = reading
        self._loose[key] = self._clock.monotonic() + _REMEMBERED_S
        self._arm_tick()

    def _forget_loose(self) -> None:
        """Of members that came back the facts stay, of the others not for ever."""
        now = self._clock.monotonic()
        for key in [key for key, until in self._loose.items() if until <= now]:
            del self._loose[key]
            if self._clients.get(key) is None:
                self._facts.pop(key, None)

    def _changed(self, group: str) -> None:
        """Members of a group joined, left, or are known better, here or elsewhere."""
        if self._stopped or not self._names.may_map(group):
            return
        self._due[group] = None
        if self._round is None and self._next is None:
            self._begin_round()

    def _begin_round(self) -> None:
        self._next = None
        if self._due and not self._stopped:
            self._round = asyncio.get_running_loop().create_task(self._judge_due())

    async def _judge_due(self) -> None:
        due = list(self._due)
        try:
            for at in range(0, len(due), _AT_ONCE):
                await asyncio.gather(*(self._judge_changed(group) for group in due[at : at + _AT_ONCE]))
        except Exception:
            _log.exception("how groups read could not be judged")
        finally:
            self._round = None
            if not self._stopped:
                self._next = self._clock.call_later(_REST_S, self._begin_round)

    async def _judge_changed(self, group: str) -> None:
        self._due.pop(group, None)
        if self._classic_here(group):
            await self._judged(group, anew=True)
        else:
            self._keep(group, NOBODY)

    def _arm_tick(self) -> None:
        if self._tick is None and not self._stopped:
            self._tick = self._clock.call_later(_EVERY_S, self._ticked)

    def _ticked(self) -> None:
        self._tick = None
        self._forget_loose()
        if self._choices or self._loose:
            self._arm_tick()
        for group in self._choices:
            self._changed(group)

    async def _judged(self, group: str, *, anew: bool = False) -> Choice:
        """One request at a time for a group. `anew`: a request in progress may not see the last change."""
        task = self._under_way.get(group)
        if task is not None and anew:
            await asyncio.wait([task])
            task = self._under_way.get(group)
        if task is None or task.done():  # what it knew is old already
            task = self._under_way[group] = asyncio.get_running_loop().create_task(self._ask(group))
            task.add_done_callback(partial(self._asked, group))
        # Others may wait for it, too.
        return await asyncio.shield(task)

    def _asked(self, group: str, task: asyncio.Task[Choice]) -> None:
        if self._under_way.get(group) is task:
            del self._under_way[group]

    async def _ask(self, group: str) -> Choice:
        try:
            why = unfit(await self._settings(group))
            elsewhere: Sequence[GroupMember] = ()
            if not why and self._tells is not None:
                elsewhere = await self._tells.members(group)
        except GatewayError as error:
            # Who is here is known all the same.
            why = hindrance(self._members_here(group))
            if not why and group in self._choices:
                return self._keep(group, self._choices[group])
            return self._keep(group, Choice(False, why or f"who is in it is not known: {error.sentence}"))
        choice = Choice(False, why) if why else choose([*self._members_here(group), *elsewhere])
        return self._keep(group, choice)

    def _members_here(self, group: str) -> list[GroupMember]:
        here = self._clients.consumers_of(group)
        return [GroupMember(client.client_id, True, self.reading_of(client)) for client in here]

    def _classic_here(self, group: str) -> bool:
        return any(client.reading is not Reading.NEUTRAL for client in self._clients.consumers_of(group))

    def _keep(self, group: str, choice: Choice) -> Choice:
        """Keep the result while a classic member is connected, and notify listeners when it changes."""
        if self._classic_here(group):
            self._choices[group] = choice
            self._judged_at[group] = self._clock.monotonic()
            mapped = choice.mapped
            self._arm_tick()
        else:
            self._choices.pop(group, None)
            self._judged_at.pop(group, None)
            mapped = False
        if mapped is not (group in self._mapped):
            (self._mapped.add if mapped else self._mapped.discard)(group)
            now = "mapped onto pop" if mapped else "on true pull"
            _log.info("group %s is %s now: %s", group, now, choice.why)
            for listener in tuple(self._told):
                try:
                    listener(group, mapped)
                except Exception:
                    _log.exception("how group %s reads now could not be told", group)
        return choice


def _nobody_registers(_handle: ClientHandle) -> None:
    """Until a broker wants to know."""


def _nobody_judges(_group: str) -> None:
    """Not any more."""
