"""processors.members.mapped_groups: which groups are mapped, judged anew when something changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brokers.capabilities import GroupMember, TellsConsumers
from brokers.client_registration import ConnectedClient, RegistersClients
from popgate.context import Context
from popgate.errors import BrokerUnavailable, Forbidden, IllegalGroup
from popgate.kinds import Action
from popgate.model import GroupConfig, Reading
from popgate.testing.clock import MovableClock
from processors.limits import Limits
from processors.members.mapped_groups import MappedGroups
from processors.messaging import MessagingProcessor
from processors.policies.registry import Policies

CONTEXT = Context(client_id="c", door="remoting")
UNKNOWN, CONCURRENT, PULL = Reading.UNKNOWN, Reading.CONCURRENT, Reading.TRUE_PULL
NAMED = Limits(mapped_groups=("readers", "others"), pulled_groups=("others",))


@pytest.fixture
def cluster(broker: Any) -> Any:
    """The fake broker, which knows clients: those of this replica, and `elsewhere` those of others."""

    class Knowing(type(broker), TellsConsumers, RegistersClients):  # type: ignore[misc]
        def __init__(self, clock: MovableClock) -> None:
            super().__init__(clock)
            self.here: dict[str, ConnectedClient] = {}
            self.elsewhere: list[GroupMember] = []
            self.questions = 0
            self.handler: Any = None
            self.held: asyncio.Event | None = None

        async def consumers(self, group: str) -> list[str]:
            return [one.client_id for one in await self.members(group)]

        async def members(self, group: str) -> list[GroupMember]:
            self.questions += 1
            if self.held is not None:
                await self.held.wait()
            await self._called("members", group)
            here = [one for one in self.here.values() if one.group == group]
            return [
                *(GroupMember(one.client_id, True, one.reading) for one in here),
                *(self.elsewhere if group == "readers" else []),
            ]

        def on_members(self, handler: Any) -> None:
            self.handler = handler

        def client_is_here(self, client: ConnectedClient) -> None:
            self.here[client.key] = client

        def client_left(self, key: str) -> None:
            self.here.pop(key, None)

        def on_question(self, asker: Any) -> None:
            """Nobody asks."""

    knowing = Knowing(broker.clock)
    knowing.kept_groups, knowing.kept_topics = broker.kept_groups, broker.kept_topics
    for name in ("others", "plain"):
        knowing.kept_groups[name] = GroupConfig(name)
    return knowing


class House:
    """A processor whose settings name groups, with classic clients."""

    def __init__(self, processor: MessagingProcessor, clock: MovableClock, make_client: Any) -> None:
        self.processor = processor
        self.clock = clock
        self.make_client = make_client
        self.mapping: MappedGroups = processor.mapped_groups
        self.switches: list[tuple[str, bool]] = []
        self.mapping.on_switch(lambda group, mapped: self.switches.append((group, mapped)))

    def join(self, name: str, group: str = "readers", reading: Reading = UNKNOWN, **more: Any) -> Any:
        client = self.make_client(name, group=group, key=f"{name} {group}", reading=reading, **more)
        self.processor.clients.register(client)
        return client

    async def turn(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def settle(self, seconds: float = 0.5) -> None:
        """All that is judged because of what happened is judged after this."""
        await self.clock.run(seconds, self.turn)


@pytest.fixture
async def house(cluster: Any, clock: MovableClock, make_client: Any) -> Any:
    processor = MessagingProcessor(cluster, clock=clock, limits=NAMED)
    await processor.start()
    yield House(processor, clock, make_client)
    await processor.stop()


async def test_a_group_is_mapped_once_a_member_has_shown_that_it_is_concurrent(house: House) -> None:
    house.join("one")
    await house.settle()
    assert not house.mapping.is_mapped("readers")
    assert "has pulled yet" in house.mapping.choice("readers").why
    house.mapping.told("one readers", CONCURRENT)
    await house.settle()
    assert house.mapping.is_mapped("readers")
    assert house.mapping.choice("readers").mapped
    assert house.switches == [("readers", True)]
    figures = house.processor.figures()
    assert (figures["groups_mapped"], figures["groups_pulled"]) == (1, 0)


async def test_one_who_fails_to_hear_of_a_switch_keeps_nobody_from_it(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[bool] = []

    def fails(group: str, mapped: bool) -> None:
        raise RuntimeError("not today")

    house.mapping.on_switch(fails)
    house.mapping.on_switch(lambda group, mapped: heard.append(mapped))
    house.join("one")
    house.mapping.told("one readers", CONCURRENT)
    await house.settle()
    house.mapping.told("one readers", PULL)
    assert heard == [True, False]
    assert "could not be told" in caplog.text


async def test_only_groups_that_the_settings_name_are_judged(house: House, cluster: Any) -> None:
    for group in ("others", "plain"):
        house.join("one", group)
        house.mapping.told(f"one {group}", CONCURRENT)
    await house.settle(20)
    assert cluster.questions == 0
    assert house.switches == []
    for group, setting in (("others", "pulled_groups names"), ("plain", "mapped_groups does not name")):
        assert setting in house.mapping.choice(group).why
        assert setting in (await house.mapping.judge(CONTEXT, group)).why
        assert not house.mapping.is_mapped(group)
        # Other replicas may name it: they are told that it is not mapped here.
        assert cluster.here[f"one {group}"].reading is PULL
        assert not cluster.here[f"one {group}"].may_map
    assert house.mapping.choices() == {}


async def test_the_broker_is_told_how_a_member_reads(house: House, cluster: Any) -> None:
    house.join("one")
    house.join("popping", reading=Reading.NEUTRAL)
    assert [(each.reading, each.may_map) for each in cluster.here.values()] == [
        (UNKNOWN, True),
        (Reading.NEUTRAL, True),
    ]
    house.mapping.told("one readers", CONCURRENT)
    assert cluster.here["one readers"].reading is CONCURRENT
    house.mapping.told("one readers", PULL)
    assert cluster.here["one readers"].reading is PULL
    house.mapping.told("one readers", CONCURRENT)
    assert cluster.here["one readers"].reading is PULL
    house.mapping.told("popping readers", PULL)
    assert cluster.here["popping readers"].reading is Reading.NEUTRAL


async def test_one_that_needs_true_pull_ends_it_before_anything_is_asked(house: House, cluster: Any) -> None:
    house.join("one")
    house.join("orderly")
    house.mapping.told("one readers", CONCURRENT)
    await house.settle()
    assert house.mapping.is_mapped("readers")
    asked = cluster.questions
    house.mapping.told("orderly readers", PULL)
    assert not house.mapping.is_mapped("readers")
    assert cluster.questions == asked
    assert house.switches == [("readers", True), ("readers", False)]
    await house.settle()
    assert "client 'orderly' needs true pull" in house.mapping.choice("readers").why
    house.processor.clients.unregister("orderly readers")
    await house.settle()
    assert house.mapping.is_mapped("readers")


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (GroupMember("far", False, UNKNOWN), "client 'far' is connected to the brokers themselves"),
        (GroupMember("far", True, PULL), "client 'far' needs true pull"),
    ],
)
async def test_members_elsewhere_count_as_those_here(
    house: House, cluster: Any, member: GroupMember, why: str
) -> None:
    house.join("one")
    cluster.elsewhere = [GroupMember("other", True, CONCURRENT)]
    await house.settle()
    assert house.mapping.is_mapped("readers")  # proven by the one elsewhere
    cluster.elsewhere.append(member)
    cluster.handler("readers")
    await house.settle()
    assert not house.mapping.is_mapped("readers")
    assert why in house.mapping.choice("readers").why
    cluster.elsewhere.pop()
    await house.settle(6)  # nobody said that it left
    assert house.mapping.is_mapped("readers")
    assert [mapped for _, mapped in house.switches] == [True, False, True]


async def test_who_asks_is_answered_from_what_is_so_now(house: House, cluster: Any) -> None:
    house.join("one")
    cluster.elsewhere = [GroupMember("other", True, CONCURRENT)]
    assert (await house.mapping.judge(CONTEXT, "readers")).mapped
    cluster.elsewhere.append(GroupMember("far", False, UNKNOWN))
    assert not (await house.mapping.judge(CONTEXT, "readers")).mapped
    assert not house.mapping.is_mapped("readers")


async def test_who_asks_often_is_told_what_was_judged_a_moment_ago(
    house: House, cluster: Any, clock: MovableClock
) -> None:
    house.join("one")
    await house.settle()
    asked = cluster.questions
    for _ in range(10):
        assert not (await house.mapping.current(CONTEXT, "readers")).mapped
    assert cluster.questions == asked
    house.mapping.told("one readers", CONCURRENT)
    assert (await house.mapping.current(CONTEXT, "readers")).mapped
    await house.settle()
    cluster.elsewhere.append(GroupMember("far", False, UNKNOWN))
    assert (await house.mapping.current(CONTEXT, "readers")).mapped
    clock.advance(1)
    assert not (await house.mapping.current(CONTEXT, "readers")).mapped
    house.processor.clients.unregister("one readers")
    asked = cluster.questions
    assert not (await house.mapping.current(CONTEXT, "readers")).mapped
    assert cluster.questions == asked + 1


async def test_many_who_ask_at_once_are_one_question(house: House, cluster: Any) -> None:
    house.join("one")
    await house.settle()
    house.mapping.told("one readers", CONCURRENT)
    asked, cluster.held = cluster.questions, asyncio.Event()
    waiting = [asyncio.ensure_future(house.mapping.judge(CONTEXT, "readers")) for _ in range(50)]
    await house.turn()
    waiting[0].cancel()
    await house.turn()
    cluster.held.set()
    choices = await asyncio.gather(*waiting[1:])
    assert all(choice.mapped for choice in choices)
    # One for all of them, and one because of the fact that may have come too late for it.
    assert cluster.questions - asked <= 2
    await house.settle()


async def test_what_changes_during_a_question_is_asked_again(house: House, cluster: Any) -> None:
    house.join("one")
    await house.settle()
    house.mapping.told("one readers", CONCURRENT)
    cluster.held = asyncio.Event()
    await house.settle()
    cluster.elsewhere.append(GroupMember("far", False, UNKNOWN))
    cluster.handler("readers")
    cluster.held.set()
    await house.settle(1)
    assert not house.mapping.is_mapped("readers")


async def test_a_broker_that_cannot_be_asked_leaves_the_choice_as_it_was(house: House, cluster: Any) -> None:
    house.join("one")
    cluster.failure = BrokerUnavailable("it is away")
    choice = await house.mapping.judge(CONTEXT, "readers")
    assert not choice.mapped
    assert "who is in it is not known" in choice.why
    cluster.failure = None
    house.mapping.told("one readers", CONCURRENT)
    await house.settle()
    assert house.mapping.is_mapped("readers")
    cluster.failure = BrokerUnavailable("it is away")
    await house.settle(30)
    assert house.mapping.is_mapped("readers")
    house.join("active", reading=PULL)  # that is known without the broker
    await house.settle()
    assert not house.mapping.is_mapped("readers")


async def test_nothing_is_kept_of_a_group_without_a_classic_member_here(house: House, cluster: Any) -> None:
    cluster.elsewhere = [GroupMember("other", True, CONCURRENT)]
    house.join("popping", reading=Reading.NEUTRAL)
    await house.settle(20)
    assert cluster.questions == 0
    assert "no classic consumer of it is connected here" in house.mapping.choice("readers").why
    assert (await house.mapping.judge(CONTEXT, "readers")).mapped  # who asks is told
    assert not house.mapping.is_mapped("readers")
    house.join("one")
    await house.settle()
    assert house.mapping.is_mapped("readers")
    house.processor.clients.unregister("one readers")
    await house.settle()
    assert not house.mapping.is_mapped("readers")
    assert house.switches == [("readers", True), ("readers", False)]
    asked = cluster.questions
    await house.settle(60)
    assert cluster.questions == asked
    assert house.mapping.choices() == {}


async def test_a_group_whose_settings_do_not_fit_is_not_mapped(house: House, cluster: Any) -> None:
    cluster.kept_groups["readers"] = replace(cluster.kept_groups["readers"], ordered=True)
    house.join("one")
    house.mapping.told("one readers", CONCURRENT)
    await house.settle()
    assert house.mapping.choice("readers").why == "it is an ordered group"
    assert not house.mapping.is_mapped("readers")


async def test_a_member_whose_connection_broke_need_not_show_itself_again(house: House) -> None:
    client = house.join("one")
    house.mapping.told("one readers", CONCURRENT)
    await house.settle()
    house.processor.clients.lost(client)
    await house.settle(50)
    assert not house.mapping.is_mapped("readers")
    again = house.join("one")
    await house.settle(60)
    assert house.mapping.is_mapped("readers")
    house.processor.clients.lost(again)
    await house.settle(70)
    house.join("one")
    await house.settle()
    assert not house.mapping.is_mapped("readers")  # who knows what it is by now


async def test_one_that_said_good_bye_begins_anew(house: House) -> None:
    house.join("one")
    house.mapping.told("one readers", PULL)
    house.processor.clients.unregister("one readers")
    house.join("one")
    house.mapping.told("one readers", CONCURRENT)
    await house.settle()
    assert house.mapping.is_mapped("readers")


async def test_one_that_pops_is_known_as_such_in_any_group(house: House, cluster: Any) -> None:
    for group in ("readers", "plain"):
        house.join("one", group)
        house.mapping.told(f"one {group}", CONCURRENT)
        house.mapping.told(f"one {group}", Reading.NEUTRAL)
        assert cluster.here[f"one {group}"].reading is Reading.NEUTRAL
        house.mapping.told(f"one {group}", CONCURRENT)  # it pulls its retries
        assert cluster.here[f"one {group}"].reading is Reading.NEUTRAL
    await house.settle()
    assert not house.mapping.is_mapped("readers")
    house.join("two")
    house.mapping.told("two readers", CONCURRENT)
    await house.settle()
    assert house.mapping.is_mapped("readers")
    house.mapping.told("one readers", PULL)
    assert not house.mapping.is_mapped("readers")


async def test_a_lock_may_come_before_the_heartbeat(house: House, cluster: Any) -> None:
    house.mapping.told("one readers", PULL)
    house.join("one")
    assert cluster.here["one readers"].reading is PULL


async def test_facts_about_nobody_are_bounded(house: House) -> None:
    for number in range(20_000):
        house.mapping.told(f"nobody{number} readers", PULL)
    assert "facts 16384" in repr(house.mapping)
    await house.settle(120)
    assert "facts 0" in repr(house.mapping)


async def test_a_gateway_that_maps_nothing_remembers_nothing(cluster: Any, clock: MovableClock) -> None:
    processor = MessagingProcessor(cluster, clock=clock)
    await processor.start()
    processor.mapped_groups.told("one readers", PULL)
    assert "facts 0" in repr(processor.mapped_groups)
    await processor.stop()


async def test_a_broker_that_knows_nobody_is_not_asked(
    make_processor: Callable[..., MessagingProcessor], clock: MovableClock, make_client: Any
) -> None:
    processor = make_processor(NAMED)
    await processor.start()
    house = House(processor, clock, make_client)
    house.join("one")
    house.mapping.told("one readers", CONCURRENT)
    assert (await house.mapping.judge(CONTEXT, "readers")).mapped
    await processor.stop()
    assert not (await house.mapping.judge(CONTEXT, "others")).mapped
    assert (await house.mapping.judge(CONTEXT, "readers")).mapped  # as it was


async def test_a_change_of_what_a_client_is_is_judged(house: House) -> None:
    house.join("one")
    house.mapping.told("one readers", CONCURRENT)
    await house.settle()
    house.join("one", reading=PULL)  # broadcasting from now on
    await house.settle()
    assert not house.mapping.is_mapped("readers")


async def test_who_may_not_read_the_group_is_told_nothing(cluster: Any, clock: MovableClock) -> None:
    class Nobody:
        def allows(self, context: Any, action: Action, resource: Any, now: float) -> bool:
            return False

    policies = Policies(authorizer=Nobody())
    processor = MessagingProcessor(cluster, clock=clock, limits=NAMED, policies=policies)
    with pytest.raises(Forbidden):
        await processor.mapped_groups.judge(CONTEXT, "readers")
    with pytest.raises(IllegalGroup):
        await processor.mapped_groups.judge(CONTEXT, "no group")


async def test_who_may_only_look_at_a_group_is_told_how_it_reads(cluster: Any, clock: MovableClock) -> None:
    class Looking:
        def allows(self, context: Any, action: Any, resource: Any, now: float) -> bool:
            return action is Action.GET

    policies = Policies(authorizer=Looking())
    processor = MessagingProcessor(cluster, clock=clock, limits=NAMED, policies=policies)
    with pytest.raises(Forbidden):
        await processor.mapped_groups.judge(CONTEXT, "readers")
    assert not (await processor.mapped_groups.judge(CONTEXT, "readers", action=Action.GET)).mapped
