"""Queues of a route, and who is asked about one."""

from __future__ import annotations

import pytest

from brokers.remote.cluster.queues import Place, place_of, places_of, queues_of
from popgate.errors import BadRequest
from popgate.model import Permission, Queue
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.bodies.static_topics import QueueMapping

READ, WRITE, BOTH = Permission.READ, Permission.WRITE, Permission.READ_WRITE
A = BrokerData("c", "a", {0: "a:1", 1: "a:2"})
B = BrokerData("c", "b", {0: "b:1"})
SLAVES = BrokerData("c", "b", {1: "b:2"})
GONE = BrokerData("c", "b", {})


def route(*queues, brokers=(A, B), **more):
    return TopicRoute(queues, brokers, **more)


def test_queues_come_by_broker_and_number_with_what_is_allowed():
    found = queues_of("t", route(QueueData("b", 1, 1), QueueData("a", 1, 2)))
    assert found == (Queue("a", 0, BOTH), Queue("a", 1, WRITE), Queue("b", 0, BOTH))


@pytest.mark.parametrize(
    ("perm", "allowed"), [(6, BOTH), (4, READ), (2, WRITE), (0, Permission.NONE), (7, BOTH), (14, BOTH)]
)
def test_the_permission_of_the_topic_counts(perm, allowed):
    assert queues_of("t", route(QueueData("a", 1, 1, perm))) == (Queue("a", 0, allowed),)


def test_without_a_master_nothing_is_written_to():
    found = queues_of("t", route(QueueData("a", 1, 1), QueueData("b", 1, 1), brokers=(A, SLAVES)))
    assert found == (Queue("a", 0, BOTH), Queue("b", 0, READ))


def test_brokers_that_cannot_be_reached_at_all_are_left_out():
    assert queues_of("t", route(QueueData("b", 1, 1), QueueData("x", 1, 1), brokers=(GONE,))) == ()


def test_an_order_of_the_name_server_decides_what_is_written_to():
    found = queues_of("t", route(QueueData("a", 2, 2), QueueData("b", 1, 1), order_conf="a:1"))
    assert found == (Queue("a", 0, BOTH), Queue("a", 1, READ), Queue("b", 0, READ))


def test_an_order_that_makes_no_sense_decides_nothing():
    assert queues_of("t", route(QueueData("a", 1, 1), order_conf="what?")) == (Queue("a", 0, BOTH),)


def test_a_queue_is_found_at_its_broker():
    here = route(QueueData("a", 1, 2), QueueData("b", 2, 2))
    assert place_of("t", here, "b", 1) == Place("t", "b", 1, BOTH)
    assert place_of("t", here, "a", 1) == Place("t", "a", 1, WRITE)


def test_where_there_is_one_broker_it_need_not_be_named():
    assert place_of("t", route(QueueData("a", 1, 1)), "", 0) == Place("t", "a", 0, BOTH)
    with pytest.raises(BadRequest):
        place_of("t", route(QueueData("a", 1, 1), QueueData("b", 1, 1)), "", 0)


@pytest.mark.parametrize(
    ("broker", "queue_id"), [("a", 2), ("a", -1), ("a", 1 << 70), ("b", 0), ("x", 0), ("\udcff", 0)]
)
def test_a_queue_that_is_not_there_is_told(broker, queue_id):
    with pytest.raises(BadRequest, match="no queue"):
        place_of("t", route(QueueData("a", 2, 2), brokers=(A,)), broker, queue_id)


def mapping(broker, epoch, current, total=3):
    return QueueMapping("t", "__global__", total, broker, epoch, current=current)


STATIC = route(
    QueueData("a", 2, 2),
    QueueData("b", 4, 4),
    mappings={"a": mapping("a", 5, {0: 0, 2: 1}), "b": mapping("b", 4, {1: 3, 2: 2})},
)


def test_queues_of_a_static_topic_are_with_who_leads_them():
    assert places_of("t", STATIC) == [
        Place("t", "a", 0, BOTH, True),
        Place("t", "b", 1, BOTH, True),
        Place("t", "a", 2, BOTH, True),
    ]


@pytest.mark.parametrize("named", ["a", "b", "__syslo__global__", ""])
def test_a_queue_of_a_static_topic_is_known_by_its_number_alone(named):
    assert place_of("t", STATIC, named, 2) == Place("t", "a", 2, BOTH, True)
    with pytest.raises(BadRequest):
        place_of("t", STATIC, named, 3)


def test_a_static_queue_whose_leader_is_gone_is_not_there():
    here = route(QueueData("b", 4, 4), brokers=(B,), mappings=STATIC.mappings)
    assert [one.queue_id for one in places_of("t", here)] == [1]
    with pytest.raises(BadRequest):
        place_of("t", here, "a", 0)
