from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from processors.policies.backoff import Exponential
from processors.policies.rate import PerClient
from processors.policies.registry import Policies, PolicyNotFound, make_policy, names_of


def test_every_kind_of_the_house_can_be_made_by_name() -> None:
    defaults = Policies()
    made = {
        "identity": (make_policy("identity", "anyone"), defaults.authenticator),
        "permission": (make_policy("permission", "everything"), defaults.authorizer),
        "rate": (make_policy("rate", "unlimited"), defaults.rate),
        "backoff": (make_policy("backoff", "exponential"), defaults.backoff),
        "picking": (make_policy("picking", "groups-then-turns"), defaults.queues),
    }
    assert all(type(policy) is type(default) for policy, default in made.values())


def test_options_reach_the_policy() -> None:
    assert repr(make_policy("rate", "per-client", {"rate": 5.0, "burst": 9.0})) == repr(
        PerClient(rate=5.0, burst=9.0)
    )
    with pytest.raises(TypeError):
        make_policy("rate", "per-client", {"speed": 5.0})
    with pytest.raises(ValueError, match="above 0"):
        make_policy("rate", "per-client", {"rate": 0})


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(PolicyNotFound, match="did you mean 'per-client'"):
        make_policy("rate", "per-clients")
    with pytest.raises(PolicyNotFound, match="there are per-client, unlimited"):
        make_policy("rate", "zzz")
    with pytest.raises(PolicyNotFound, match="no kind of policy 'colour'"):
        make_policy("colour", "blue")


def test_an_installed_package_can_offer_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("patient", "processors.policies.backoff:Exponential", "popgate.policies.backoff")

    def installed(*, group: str) -> EntryPoints:
        return EntryPoints([point] if group == point.group else [])

    monkeypatch.setattr("importlib.metadata.entry_points", installed)
    assert names_of("backoff") == ["exponential", "patient"]
    assert isinstance(make_policy("backoff", "patient", {"initial": 1.0}), Exponential)
