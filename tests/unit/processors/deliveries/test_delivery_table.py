from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popgate.model import StoredMessage
from processors.deliveries.delivery_table import Delivery, DeliveryTable, Holder

NOW_MS = 1_700_000_000_000


def stored(receipt: str, *, until_ms: int = NOW_MS + 60_000, attempt: int = 1) -> StoredMessage:
    return StoredMessage("orders", "b", 0, 0, 0, 0, 0, 0, "", 0, "", b"", b"", attempt, receipt, until_ms)


def deliver(
    holdings: DeliveryTable, client: str, *receipts: str, connection: str = "wire", now_ms: int = NOW_MS
) -> Delivery:
    delivery = holdings.deliver(
        *(client, connection, "orders", "readers", [stored(r) for r in receipts]),
        ordered=False,
        hold_ms=60_000,
        now_ms=now_ms,
        due_ms=now_ms + 60_000,
    )
    assert delivery is not None
    return delivery


@pytest.fixture
def holdings() -> DeliveryTable:
    return DeliveryTable(max_held=10, max_clients=3)


def finish(holdings: DeliveryTable, *receipts: str) -> int:
    return holdings.finished("orders", "readers", receipts)


def test_what_is_finished_is_forgotten(holdings: DeliveryTable) -> None:
    delivery = deliver(holdings, "c1", "r1", "r2")
    holdings.renew_at(delivery, NOW_MS + 50_000)
    assert finish(holdings, "r1", "unknown") == 1
    assert holdings.find("orders", "readers", "r2") is delivery
    assert holdings.next_renewal_ms() is not None
    assert finish(holdings, "r2") == 1
    assert holdings.held == 0
    assert not holdings.any_held("orders", "readers")
    assert holdings.next_renewal_ms() is None
    assert holdings.holder("c1") is not None
    assert holdings.forget("c1") == []


def test_deliveries_are_due_once_and_in_time(holdings: DeliveryTable) -> None:
    early, late = deliver(holdings, "c1", "r1"), deliver(holdings, "c2", "r2", connection="other")
    holdings.renew_at(late, NOW_MS + 90_000)
    holdings.renew_at(early, NOW_MS + 50_000)
    first = holdings.next_renewal_ms()
    assert first is not None
    assert NOW_MS + 50_000 < first <= NOW_MS + 50_250
    assert holdings.due(first - 1) == []
    assert holdings.due(first) == [early]
    assert holdings.due(NOW_MS + 100_000) == [late]
    assert holdings.due(NOW_MS + 100_000) == []


def test_putting_on_again_takes_off_before(holdings: DeliveryTable) -> None:
    delivery = deliver(holdings, "c1", "r1")
    holdings.renew_at(delivery, NOW_MS + 1_000)
    holdings.renew_at(delivery, NOW_MS + 9_000)
    assert holdings.due(NOW_MS + 5_000) == []
    assert holdings.due(NOW_MS + 10_000) == [delivery]


def test_a_repeated_receive_keeps_its_first_time(holdings: DeliveryTable) -> None:
    deliver(holdings, "c1", "r1", "r2")
    again = deliver(holdings, "c1", "r1", now_ms=NOW_MS + 5_000)
    assert (again.first_ms, again.due_ms) == (NOW_MS, NOW_MS + 60_000)
    assert holdings.held == 2
    assert finish(holdings, "r1", "r2") == 2
    assert holdings.held == 0


def test_what_a_repeated_receive_has_is_held_when_the_first_one_is_returned(holdings: DeliveryTable) -> None:
    deliver(holdings, "c1", "r1", "r2")
    again = deliver(holdings, "c1", "r1")
    holdings.returned("orders", "readers", ["r1", "r2", "unknown"])
    assert holdings.find("orders", "readers", "r1") is again
    assert holdings.held == 1
    holdings.returned("orders", "readers", ["r1"])
    assert holdings.held == 0
    assert not holdings.any_held("orders", "readers")


def test_what_is_left_of_a_cut_answer_is_not_held_by_a_repetition_that_is_cut_as_well(
    holdings: DeliveryTable,
) -> None:
    """The client dropped what it had of the first one: that is over, and not another answer that has it."""
    deliver(holdings, "c1", "r1", "r2")
    holdings.returned("orders", "readers", ["r2"])
    deliver(holdings, "c1", "r1")
    holdings.returned("orders", "readers", ["r1"])
    assert holdings.held == 0


def test_a_cut_repetition_hides_no_earlier_answer_that_is_still_being_written(
    holdings: DeliveryTable,
) -> None:
    deliver(holdings, "c1", "r1", "r2")
    deliver(holdings, "c1", "r1", "r2", "r3")
    holdings.returned("orders", "readers", ["r3"])
    last = deliver(holdings, "c1", "r1")
    holdings.returned("orders", "readers", ["r1", "r2"])  # of the first one
    assert holdings.find("orders", "readers", "r1") is last


def test_scenario_24_what_is_held_is_bounded(holdings: DeliveryTable) -> None:
    deliver(holdings, "c1", *(f"r{n}" for n in range(8)))
    refused = holdings.deliver(
        *("c1", "wire", "orders", "readers", [stored(f"s{n}") for n in range(3)]),
        ordered=False,
        hold_ms=1,
        now_ms=NOW_MS,
        due_ms=NOW_MS + 1,
    )
    assert refused is None
    assert holdings.held == 8
    holder = holdings.holder("c1")
    assert holder is not None
    assert holder.spread


def test_scenario_24_clients_are_bounded_and_idle_ones_make_room(holdings: DeliveryTable) -> None:
    for name in ("c1", "c2", "c3"):
        assert holdings.seen(name, name) is not None
    deliver(holdings, "c3", "r1", connection="c3")
    assert holdings.seen("c4", "c4") is not None
    assert holdings.holder("c1") is None
    assert holdings.holder("c3") is not None
    for name in ("c5", "c6"):
        holdings.seen(name, name)
    assert len([n for n in range(7) if holdings.holder(f"c{n}")]) <= 3


def test_a_client_that_is_gone_leaves_what_it_held(holdings: DeliveryTable) -> None:
    delivery = deliver(holdings, "c1", "r1", "r2")
    holdings.renew_at(delivery, NOW_MS + 5)
    delivery.newest["r1"] = "newer"
    (left,) = holdings.forget("c1")
    assert left.newest == {"r1": "newer", "r2": "r2"}
    assert holdings.held == 0
    assert holdings.next_renewal_ms() is None
    assert holdings.holder("c1") is None


def test_a_client_seen_on_a_second_connection_while_it_holds_is_spread(holdings: DeliveryTable) -> None:
    deliver(holdings, "c1", "r1")
    holder = holdings.seen("c1", "second")
    assert holder is not None
    assert holder.spread
    finish(holdings, "r1")
    holder = holdings.seen("c1", "second")
    assert holder is not None
    assert not holder.spread


def test_clients_on_one_connection_share_it(holdings: DeliveryTable) -> None:
    deliver(holdings, "c1", "r1")
    deliver(holdings, "c2", "r2")
    deliver(holdings, "c3", "r3", connection="own")
    shared = {name: holder.shared for name in ("c1", "c2", "c3") if (holder := holdings.holder(name))}
    assert shared == {"c1": True, "c2": True, "c3": False}


def test_a_client_that_strays_to_the_connection_of_another_makes_it_shared(holdings: DeliveryTable) -> None:
    deliver(holdings, "c1", "r1", connection="one")
    deliver(holdings, "c2", "r2", connection="two")
    holdings.seen("c1", "two")
    holder = holdings.holder("c2")
    assert holder is not None
    assert holder.shared


def test_the_longest_held_is_told(holdings: DeliveryTable) -> None:
    assert holdings.longest_held_ms(NOW_MS) == 0
    deliver(holdings, "c1", "r1")
    deliver(holdings, "c1", "r2", now_ms=NOW_MS + 400)
    assert holdings.longest_held_ms(NOW_MS + 1_000) == 1_000


def test_scenario_02_the_age_of_what_is_held_longest_is_told_by_topic_and_group(
    holdings: DeliveryTable,
) -> None:
    assert holdings.ages_by_group(NOW_MS, 10) == {}
    delivery = deliver(holdings, "c1", "r1")
    deliver(holdings, "c2", "r2", connection="other", now_ms=NOW_MS + 400)
    holdings.renew_at(delivery, NOW_MS + 50_000)
    assert holdings.ages_by_group(NOW_MS + 1_000, 10) == {("orders", "readers"): 1_000}
    assert holdings.ages_by_group(NOW_MS + 1_000, 0) == {}
    finish(holdings, "r1")
    assert holdings.ages_by_group(NOW_MS + 1_000, 10) == {("orders", "readers"): 600}


@pytest.mark.parametrize(
    ("spread", "shared", "finished_here", "said_so", "checked", "freed"),
    [
        (False, False, False, True, True, True),
        (False, True, False, True, True, True),
        (True, False, True, True, True, False),
        (False, False, False, False, True, True),
        (False, True, True, False, True, False),
        (False, False, True, True, False, True),
        (False, False, False, True, False, False),
        (False, True, True, True, False, False),
        (True, False, True, True, False, False),
        (False, False, False, False, False, False),
        (False, False, True, False, False, True),
    ],
)
def test_what_a_client_held_is_freed_only_when_nothing_speaks_against_it(
    spread: bool, shared: bool, finished_here: bool, said_so: bool, checked: bool, freed: bool
) -> None:
    holder = Holder("c1", "wire", spread=spread, shared=shared, finished_here=finished_here)
    assert holder.may_be_freed(said_so=said_so, acks_are_checked=checked) is freed


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.sampled_from("abc"), st.sets(st.integers(0, 9), min_size=1)),
        st.tuples(st.just("finish"), st.just(""), st.sets(st.integers(0, 9))),
        st.tuples(st.just("due"), st.just(""), st.integers(0, 30)),
        st.tuples(st.just("forget"), st.sampled_from("abc"), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_whatever_happens_the_ledger_agrees_with_a_set_of_what_is_held(
    steps: list[tuple[str, str, object]],
) -> None:
    """The model: receipt → client. Renewal never loses a delivery, nothing is held twice."""
    holdings = DeliveryTable(max_held=1000, max_clients=10)
    model: dict[str, str] = {}
    now_ms = NOW_MS
    for step, client, what in steps:
        if step == "deliver":
            receipts = [f"r{n}" for n in sorted(what)]  # type: ignore[call-overload]
            delivery = deliver(holdings, client, *receipts, connection=client, now_ms=now_ms)
            holdings.renew_at(delivery, now_ms + 10_000)
            model.update(dict.fromkeys(receipts, client))
        elif step == "finish":
            receipts = [f"r{n}" for n in what]  # type: ignore[attr-defined]
            known = finish(holdings, *receipts)
            assert known == sum(1 for receipt in receipts if model.pop(receipt, None) is not None)
        elif step == "due":
            now_ms += what * 1000  # type: ignore[operator]
            for delivery in holdings.due(now_ms):
                assert delivery.newest
                holdings.renew_at(delivery, now_ms + 10_000)
        else:
            left = {receipt for delivery in holdings.forget(client) for receipt in delivery.newest}
            assert left == {receipt for receipt, holder in model.items() if holder == client}
            model = {receipt: holder for receipt, holder in model.items() if holder != client}
        assert holdings.held == len(model)
        for receipt, holder in model.items():
            found = holdings.find("orders", "readers", receipt)
            assert found is not None
            assert found.holder.client_key == holder
        assert holdings.any_held("orders", "readers") == bool(model)
        assert (holdings.next_renewal_ms() is not None) == bool(model)
