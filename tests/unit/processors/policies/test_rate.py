from __future__ import annotations

import pytest

from popgate.context import Context, Principal
from popgate.kinds import Action, Resource, ResourceKind
from processors.policies.rate import PerClient, Unlimited

TOPIC = Resource(ResourceKind.TOPIC, "orders")


def take(policy: PerClient | Unlimited, client: str, amount: int, now: float) -> float:
    return policy.take(Context(client_id=client), Action.PUBLISH, TOPIC, amount, now)


def test_the_default_grants_everything() -> None:
    assert take(Unlimited(), "c", 1 << 40, 0.0) == 0.0


def test_a_burst_is_granted_and_then_the_rate() -> None:
    policy = PerClient(rate=10, burst=20)
    assert take(policy, "c", 20, 0.0) == 0.0
    wait = take(policy, "c", 1, 0.0)
    assert wait == pytest.approx(0.1)
    assert take(policy, "c", 1, wait) == 0.0


def test_a_batch_larger_than_the_burst_is_not_refused_for_ever() -> None:
    policy = PerClient(rate=10, burst=10)
    assert take(policy, "c", 30, 0.0) == 0.0
    wait = take(policy, "c", 1, 0.0)
    assert wait == pytest.approx(2.1)
    assert take(policy, "c", 1, wait) == 0.0


def test_clients_do_not_take_from_each_other() -> None:
    policy = PerClient(rate=1)
    assert take(policy, "a", 5, 0.0) == 0.0
    assert take(policy, "a", 1, 0.0) > 0.0
    assert take(policy, "b", 1, 0.0) == 0.0


def test_accounts_with_one_client_id_do_not_take_from_each_other() -> None:
    """Anybody may name a client's id; without an id it is the address that counts, whatever the account."""
    policy, anna, bert = PerClient(rate=1), Principal("anna"), Principal("bert")
    for client_id in ("a", ""):
        mine = Context(client_id=client_id, peer="1.2.3.4:1", principal=anna)
        other = Context(client_id=client_id, peer="1.2.3.4:1", principal=bert)
        assert policy.take(mine, Action.PUBLISH, TOPIC, 5, 0.0) == 0.0
        waits = policy.take(other, Action.PUBLISH, TOPIC, 1, 0.0) > 0.0
        assert waits == (client_id == "")


def test_scenario_24_buckets_are_bounded() -> None:
    policy = PerClient(rate=1, max_clients=2)
    for client in ("a", "b"):
        take(policy, client, 100, 0.0)
    assert take(policy, "c", 100, 0.0) == 0.0
    assert take(policy, "d", 1, 0.0) > 0.0
    assert take(policy, "e", 1, 1_000.0) == 0.0
    assert repr(policy).endswith("clients 1>")


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    policy = PerClient(rate=10, burst=10)
    take(policy, "c", 5, 100.0)
    assert take(policy, "c", 1, 50.0) == 0.0
