from popgate.model import (
    DEFAULT_RETRY,
    Bounds,
    CustomizedRetry,
    ExponentialRetry,
    Permission,
    Progress,
    Queue,
    Route,
    TopicConfig,
)


def test_the_default_retries_climb_the_ladder_from_its_third_step() -> None:
    assert [DEFAULT_RETRY.delay_ms(n) for n in (1, 2, 3)] == [10_000, 30_000, 60_000]
    assert DEFAULT_RETRY.delay_ms(16) == DEFAULT_RETRY.delay_ms(1000) == 7_200_000
    assert DEFAULT_RETRY.delay_ms(0) == 10_000


def test_a_customized_ladder_may_be_short() -> None:
    assert [CustomizedRetry((100, 200), first_step=0).delay_ms(n) for n in (1, 2, 3)] == [100, 200, 200]
    assert CustomizedRetry((100,)).delay_ms(1) == 100


def test_exponential_retries_double_up_to_their_limit() -> None:
    retry = ExponentialRetry()
    assert [retry.delay_ms(n) for n in (1, 2, 3)] == [5_000, 10_000, 20_000]
    assert retry.delay_ms(1_000_000) == 7_200_000


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
