from __future__ import annotations

from dataclasses import replace

import pytest

from popgate.context import Context
from popgate.errors import BadRequest, Fault, Forbidden, IllegalFilter
from popgate.model import FilterKind, GroupConfig
from processors.consume.receive_rules import check_change, is_go, is_node, pop_of, wait_until
from processors.limits import Limits
from processors.requests import Receive

LIMITS = Limits()
GROUP = GroupConfig("readers")
ASKED = Receive("orders", "readers", invisible_ms=30_000)


@pytest.mark.parametrize(
    ("invisible_ms", "taken"),
    [(10_000, True), (43_200_000, True), (9_999, False), (43_200_001, False), (-1, False)],
)
def test_a_receive_hides_for_ten_seconds_to_twelve_hours(invisible_ms: int, taken: bool) -> None:
    request = replace(ASKED, invisible_ms=invisible_ms)
    if taken:
        assert pop_of(Context(), request, GROUP, LIMITS, 0.0).invisible_ms == invisible_ms
        return
    with pytest.raises(BadRequest, match=f"{invisible_ms} ms, .* 10000 ms and at most 43200000 ms") as caught:
        pop_of(Context(), request, GROUP, LIMITS, 0.0)
    assert caught.value.fault is Fault.ILLEGAL_INVISIBLE_TIME


def test_scenario_01_a_consumer_that_does_not_renew_gets_the_whole_consume_timeout() -> None:
    group = replace(GROUP, consume_timeout_ms=600_000)
    for request in (replace(ASKED, invisible_ms=1, auto_renew=True), replace(ASKED, invisible_ms=None)):
        assert pop_of(Context(), request, group, LIMITS, 0.0).invisible_ms == 600_000


@pytest.mark.parametrize(("asked", "given"), [(-3, 1), (0, 1), (1, 1), (32, 32), (33, 32), (1 << 40, 32)])
def test_a_batch_is_cut_to_thirty_two(asked: int, given: int) -> None:
    assert pop_of(Context(), replace(ASKED, max_messages=asked), GROUP, LIMITS, 0.0).max_messages == given


def test_a_group_that_is_switched_off_receives_nothing() -> None:
    with pytest.raises(Forbidden, match="readers is not allowed to consume"):
        pop_of(Context(), ASKED, replace(GROUP, consume_enabled=False), LIMITS, 0.0)


def test_an_illegal_filter_is_told_and_a_legal_one_compiled_once() -> None:
    with pytest.raises(IllegalFilter):
        pop_of(Context(), replace(ASKED, filter_expression="||"), GROUP, LIMITS, 0.0)
    with pytest.raises(IllegalFilter):
        pop_of(
            Context(),
            replace(ASKED, filter_kind=FilterKind.SQL92, filter_expression="a >"),
            GROUP,
            LIMITS,
            0.0,
        )
    request = replace(ASKED, filter_expression="hot || cold")
    first, second = (pop_of(Context(), request, GROUP, LIMITS, 0.0).filter for _ in range(2))
    assert first is second


def test_order_comes_from_the_group_and_go_gets_one_message_of_each_message_group() -> None:
    ordered = replace(GROUP, ordered=True)
    for language, group, one in (
        ("GO", ordered, True),
        ("go", ordered, True),
        ("JAVA", ordered, False),
        ("GO", GROUP, False),
    ):
        pop = pop_of(Context(language=language), ASKED, group, LIMITS, 0.0)
        assert (pop.ordered, pop.one_per_message_group) == (group.ordered, one)


def test_a_repeatable_receive_and_its_queue_reach_the_broker() -> None:
    request = replace(ASKED, attempt_id="again", broker="b", queue_id=3)
    pop = pop_of(Context(), request, GROUP, LIMITS, 0.0)
    assert (pop.attempt_id, pop.broker, pop.queue_id) == ("again", "b", 3)


@pytest.mark.parametrize(
    ("wait_s", "left", "waits"),
    [
        (1.0, None, 1.0),
        (1.0, 30.0, 1.0),
        (0.0, 30.0, None),
        (None, None, 20.0),
        (None, 10.0, 9.75),
        (None, 100.0, 20.0),
        (300.0, None, 20.0),
        (20.0, 20.0, 19.75),
        (1.0, 1.0, 0.8),
        (5.0, 0.0, None),
        (5.0, -3.0, None),
        (float("inf"), None, 20.0),
        (None, 1e12, 20.0),
    ],
)
def test_scenario_25_an_empty_poll_is_answered_before_the_deadline(
    wait_s: float | None, left: float | None, waits: float | None
) -> None:
    now = 1_000.0
    deadline = None if left is None else now + left
    until = wait_until(Context(deadline=deadline), wait_s, LIMITS, now)
    assert until == (None if waits is None else pytest.approx(now + waits))


@pytest.mark.parametrize(("left", "waits"), [(40.0, 39.0), (5.0, 4.0), (1.0, 0.8)])
def test_rust_whose_polls_are_as_long_as_their_deadlines_has_a_longer_margin(
    left: float, waits: float
) -> None:
    context = Context(deadline=1_000.0 + left, language="RUST")
    limits = replace(LIMITS, max_wait_s=60.0)
    assert wait_until(context, left, limits, 1_000.0) == pytest.approx(1_000.0 + waits)


@pytest.mark.parametrize("wait_s", [-1.0, float("nan")])
def test_a_wait_that_is_no_time_is_an_illegal_polling_time(wait_s: float) -> None:
    with pytest.raises(BadRequest, match="at least 0 s") as caught:
        wait_until(Context(), wait_s, LIMITS, 0.0)
    assert caught.value.fault is Fault.ILLEGAL_POLLING_TIME


@pytest.mark.parametrize("invisible_ms", [-1, 43_200_001])
def test_a_change_outside_zero_to_twelve_hours_is_refused(invisible_ms: int) -> None:
    with pytest.raises(BadRequest, match="at least 0 ms and at most 43200000 ms") as caught:
        check_change(invisible_ms, LIMITS)
    assert caught.value.fault is Fault.ILLEGAL_INVISIBLE_TIME
    check_change(0, LIMITS)
    check_change(43_200_000, LIMITS)


def test_clients_with_habits_are_known_by_their_language() -> None:
    assert is_go(Context(language="Golang"))
    assert is_node(Context(language="node_js"))
    assert is_node(Context(language="HTTP", door="grpc"))
    assert not is_node(Context(language="HTTP", door="http"))
    assert not is_node(Context(language="JAVA", door="grpc"))
