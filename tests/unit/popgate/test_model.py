from popgate.model import (
    Bounds,
    Permission,
    Progress,
    Queue,
    Route,
    TopicConfig,
)


def test_a_route_tells_which_queues_take_and_give() -> None:
    queues = tuple(Queue("b", n, Permission(p)) for n, p in enumerate((0, 2, 4, 6)))
    route = Route("T", (), queues)
    assert [q.queue_id for q in route.writable] == [1, 3]
    assert [q.queue_id for q in route.readable] == [2, 3]


def test_a_topic_has_as_many_queues_as_the_larger_side() -> None:
    assert TopicConfig("T", read_queues=4, write_queues=2).queues == 4


def test_lag_counts_what_is_not_done() -> None:
    progress = Progress("b", 0, committed=3, frontier=7, in_flight=2, waiting=1, bounds=Bounds(0, 10))
    assert progress.lag == 6
