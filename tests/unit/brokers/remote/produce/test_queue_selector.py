"""Which queue takes a message."""

from __future__ import annotations

from collections import Counter

import pytest

from brokers.remote.produce.broker_latency import BrokerLatency
from brokers.remote.produce.queue_selector import QueueSelector, Target, writable_queues, zones_of
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.bodies.static_topics import QueueMapping

QUEUES = tuple(Target(broker, queue_id) for broker in ("a", "b", "c") for queue_id in range(4))


@pytest.fixture
def latency() -> BrokerLatency:
    return BrokerLatency()


@pytest.fixture
def picker(latency) -> QueueSelector:
    return QueueSelector(latency, "")


def broker(name: str, *addresses: str, zone: str = "", first: int = 0) -> BrokerData:
    return BrokerData("c", name, dict(enumerate(addresses, first)), zone)


def test_queues_to_write_to_are_sorted_and_have_a_master():
    route = TopicRoute(
        (QueueData("b", 2, 3), QueueData("a", 1, 1), QueueData("slave", 4, 4), QueueData("drained", 4, 4, 4)),
        (broker("a", "h:1"), broker("b", "h:2"), broker("slave", "h:3", first=1), broker("drained", "h:4")),
    )
    assert writable_queues("T", route) == (("a", 0), ("b", 0), ("b", 1), ("b", 2))


def test_queues_of_a_static_topic_are_those_of_their_leaders():
    mappings = {
        "a": QueueMapping("T", "__global__", 3, "a", 1, current={0: 0, 1: 1, 2: 2}),
        "b": QueueMapping("T", "__global__", 3, "b", 2, current={1: 0}),
    }
    route = TopicRoute(
        (QueueData("a", 3, 3), QueueData("b", 1, 1)), (broker("a", "h:1"), broker("b", "h:2")), "", mappings
    )
    assert writable_queues("T", route) == (("a", 0), ("b", 1), ("a", 2))


def test_messages_take_turns_over_all_queues(picker):
    got = Counter(picker.pick(QUEUES, {}, 0.0) for _ in range(120))
    assert set(got) == set(QUEUES)
    assert set(got.values()) == {10}


def test_a_message_group_has_one_queue_the_same_in_every_process(latency):
    chosen = {
        QueueSelector(latency, "").pick(QUEUES[:8], {}, 0.0, message_group="order-2") for _ in range(20)
    }
    assert chosen == {QUEUES[2]}  # protocol facts 10: order-2 of 8 is 2
    assert QueueSelector(latency, "").pick(QUEUES[:4], {}, 0.0, message_group="order-1") == QUEUES[3]


def test_a_message_group_stays_where_it_is_also_when_its_broker_is_in_trouble(picker, latency):
    there = picker.pick(QUEUES, {}, 0.0, message_group="g")
    latency.failed(there.broker, 0.0)
    assert picker.pick(QUEUES, {}, 0.0, message_group="g") == there
    assert picker.pick(QUEUES, {}, 0.0, message_group="g", without={there.broker}) is None


def test_a_broker_in_trouble_is_left_alone_for_a_while(picker, latency):
    latency.failed("b", 0.0)
    assert {picker.pick(QUEUES, {}, 1.0).broker for _ in range(60)} == {"a", "c"}
    assert {picker.pick(QUEUES, {}, 11.0).broker for _ in range(60)} == {"a", "b", "c"}


def test_when_all_are_in_trouble_all_are_chosen(picker, latency):
    for name in "abc":
        latency.failed(name, 0.0)
    assert {picker.pick(QUEUES, {}, 1.0).broker for _ in range(60)} == {"a", "b", "c"}


def test_brokers_that_failed_are_not_asked_again(picker):
    assert {picker.pick(QUEUES, {}, 0.0, without={"a", "c"}).broker for _ in range(20)} == {"b"}
    assert picker.pick(QUEUES, {}, 0.0, without={"a", "b", "c"}) is None


def test_the_same_zone_comes_first_as_long_as_it_is_well(latency):
    picker = QueueSelector(latency, "east")
    zones = {"a": "west", "b": "east"}
    assert {picker.pick(QUEUES, zones, 0.0).broker for _ in range(60)} == {"b"}
    latency.failed("b", 0.0)
    assert {picker.pick(QUEUES, zones, 0.0).broker for _ in range(60)} == {"a", "c"}
    assert {picker.pick(QUEUES, {"a": "west"}, 20.0).broker for _ in range(60)} == {"a", "b", "c"}
    assert picker.pick(QUEUES, zones, 20.0, without={"b"}).broker in {"a", "c"}


def test_a_priority_is_the_number_of_a_queue(picker):
    assert {picker.pick(QUEUES, {}, 0.0, priority=1) for _ in range(30)} == {("a", 1), ("b", 1), ("c", 1)}
    assert {picker.pick(QUEUES, {}, 0.0, priority=99).queue_id for _ in range(30)} == {3}


def test_zones_are_those_of_the_route():
    route = TopicRoute((), (broker("a", "h:1", zone="east"), broker("b", "h:2")))
    assert zones_of(route) == {"a": "east"}
