"""brokers.remote.clients.heartbeats: what brokers are told of a client."""

from __future__ import annotations

import pytest

from brokers.client_registration import ConnectedClient
from brokers.remote.clients.heartbeats import heartbeats_of, memberships_of, speaker_of, subscriptions_of
from brokers.remote.clients.link_slots import Membership, Role
from popgate.model import FilterKind
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData


@pytest.mark.parametrize(
    ("language", "told"),
    [("JAVA", "JAVA"), ("GOLANG", "GO"), ("dot_net", "DOTNET"), ("NODE_JS", "NODE_JS"), ("Perl", "OTHER")],
)
def test_a_language_is_told_by_the_name_that_brokers_have_for_it(language: str, told: str) -> None:
    assert speaker_of(ConnectedClient("c", language=language))[0] == told


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("5.0.0", 413),
        ("v5.3.1", 475),
        ("5.3.3", 479),
        ("5.5.0-rc1", 513),
        ("4.9.4", 401),
        ("5.0.10", 479),
        ("6.0.0", 479),
        ("", 479),
    ],
)
def test_a_version_is_told_by_its_number(version: str, number: int) -> None:
    """The numbers of protocol facts 5.3."""
    assert speaker_of(ConnectedClient("c", version=version))[1] == number


def test_a_producers_groups_are_its_topics() -> None:
    client = ConnectedClient("c", topics=frozenset("ba"), producer_groups=frozenset("c"))
    assert memberships_of(client) == [Membership(Role.PRODUCER, name) for name in "abc"]


def test_a_consumer_is_told_with_its_filters() -> None:
    filters = {
        "t": (FilterKind.TAG, "b || a||"),
        "all": (FilterKind.TAG, ""),
        "sql": (FilterKind.SQL92, " a > 1 "),
    }
    client = ConnectedClient("c", group="g", pushed=True, subscriptions=filters)
    (body,) = heartbeats_of(client, memberships_of(client), 7)
    told = HeartbeatData.decode(body)
    assert told == HeartbeatData(
        "c",
        consumers=(
            ConsumerData(
                "g",
                (
                    SubscriptionData("all", "*", version=7),
                    SubscriptionData("sql", "a > 1", "SQL92", version=7),
                    SubscriptionData("t", "b || a||", "TAG", ("a", "b"), (97, 98), 7),
                ),
                "CONSUME_PASSIVELY",
            ),
        ),
    )
    assert subscriptions_of({}, 0) == ()


def test_a_simple_consumer_takes_by_itself() -> None:
    client = ConnectedClient("c", group="g")
    (body,) = heartbeats_of(client, memberships_of(client), 0)
    assert HeartbeatData.decode(body).consumers[0].consume_type == "CONSUME_ACTIVELY"


def test_many_producer_groups_are_told_in_several_heartbeats() -> None:
    client = ConnectedClient("c", topics=frozenset(f"t{n:03}" for n in range(250)))
    told = [HeartbeatData.decode(body) for body in heartbeats_of(client, memberships_of(client), 0)]
    assert [len(one.producer_groups) for one in told] == [100, 100, 50]
    assert {one.client_id for one in told} == {"c"}
