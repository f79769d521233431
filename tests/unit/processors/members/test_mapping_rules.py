"""processors.members.mapping_rules: whether a group is mapped, from its members and what the settings say."""

from __future__ import annotations

import re

import pytest

from brokers.capabilities import GroupMember
from popgate.lite import LITE_BIND_TOPIC
from popgate.model import GroupConfig, Reading
from processors.members.mapping_rules import NamedGroups, choose, hindrance, unfit

UNKNOWN, CONCURRENT, PULL, NEUTRAL = (
    GroupMember(reading.name.lower(), True, reading)
    for reading in (Reading.UNKNOWN, Reading.CONCURRENT, Reading.TRUE_PULL, Reading.NEUTRAL)
)
DIRECT = GroupMember("direct", False, Reading.UNKNOWN)


@pytest.mark.parametrize(
    ("names", "group", "may"),
    [
        ([], "g", False),
        (["*"], "g", True),
        (["g"], "g", True),
        (["g"], "gg", False),
        (["g.x"], "gax", False),
        (["billing-*", "h"], "billing-", True),
        (["billing-*", "h"], "billing-eu", True),
        (["billing-*", "h"], "a-billing-eu", False),
        (["billing-*", "h"], "h", True),
        (["*-eu-*"], "billing-eu-2", True),
        (["a***b"], "ab", True),
    ],
)
def test_names_may_have_stars(names: list[str], group: str, may: bool) -> None:
    named = NamedGroups(names, [])
    assert bool(named) is bool(names)
    for _ in range(2):
        assert named.may_map(group) is may
    assert named.why_not(group) == ("" if may else "the setting remoting.mapped_groups does not name it")


def test_what_is_to_be_pulled_is_not_mapped() -> None:
    named = NamedGroups(["*"], ["old-*"])
    assert named.may_map("new")
    assert named.why_not("old-one") == "the setting remoting.pulled_groups names it"


def test_names_are_remembered_within_bounds() -> None:
    named = NamedGroups(["g*"], [])
    for number in range(20_000):
        assert named.may_map(f"g{number}")
    assert repr(named) == f"<NamedGroups known {20_000 - 16_384}>"


@pytest.mark.parametrize(
    ("members", "mapped", "why"),
    [
        ([], False, "no classic push consumer"),
        ([NEUTRAL], False, "no classic push consumer"),
        ([UNKNOWN, NEUTRAL], False, "no classic consumer of it has pulled yet"),
        ([CONCURRENT], True, r"all of its clients \(1\)"),
        ([CONCURRENT, UNKNOWN, NEUTRAL, CONCURRENT], True, r"all of its clients \(3\)"),
        ([CONCURRENT, PULL], False, "client 'true_pull' needs true pull"),
        ([CONCURRENT, DIRECT], False, "client 'direct' is connected to the brokers themselves"),
        ([PULL, DIRECT], False, "client 'direct' is connected"),
    ],
)
def test_one_that_hinders_is_enough(members: list[GroupMember], mapped: bool, why: str) -> None:
    choice = choose(members)
    assert choice.mapped is mapped
    assert re.match(why, choice.why), choice.why
    assert bool(hindrance(members)) is (not mapped and choice.why.startswith("client"))


def test_a_client_that_comes_by_two_ways_hinders() -> None:
    assert not choose([CONCURRENT, GroupMember("concurrent", False, Reading.UNKNOWN)]).mapped


def test_a_client_whose_name_is_long_is_told_of_in_bounds() -> None:
    assert len(hindrance([GroupMember("x" * 100_000, False, Reading.UNKNOWN)])) < 1000


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (GroupConfig("g"), ""),
        (GroupConfig("g", ordered=True), "it is an ordered group"),
        (GroupConfig("g", broadcast=True), "it is a broadcast group"),
        (GroupConfig("g", attributes={LITE_BIND_TOPIC: "t"}), "it takes lite topics"),
    ],
)
def test_groups_that_have_an_order_or_cursors_of_their_own_are_not_mapped(
    config: GroupConfig, why: str
) -> None:
    assert unfit(config) == why
