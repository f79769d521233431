"""Scenario 12: clients are told an address that they can reach."""

from __future__ import annotations

import pytest

from popgate.context import Context
from popgate.errors import BadRequest, Fault
from popgate.pb.definition_pb2 import Address, AddressScheme, Endpoints
from protocols.grpc.codec.endpoints import dialled_endpoints, fixed_endpoints

IPv4, IPv6, DOMAIN = AddressScheme.IPv4, AddressScheme.IPv6, AddressScheme.DOMAIN_NAME
UNSPECIFIED = AddressScheme.ADDRESS_SCHEME_UNSPECIFIED
HERE = Context(local="127.0.0.1:8081")


def endpoints(scheme: AddressScheme, *addresses: tuple[str, int]) -> Endpoints:
    return Endpoints(scheme=scheme, addresses=[Address(host=host, port=port) for host, port in addresses])


@pytest.mark.parametrize(
    "dialled",
    [
        endpoints(DOMAIN, ("gateway.example.com", 30081)),
        endpoints(IPv4, ("10.0.0.5", 8081)),
        endpoints(IPv4, ("10.0.0.5", 8081), ("10.0.0.6", 8081)),
        endpoints(IPv6, ("::1", 8081)),
        endpoints(DOMAIN, ("127.0.0.1", 8081)),
    ],
)
def test_scenario_12_the_answer_names_what_the_client_dialled(dialled: Endpoints) -> None:
    assert dialled_endpoints(dialled, HERE) == dialled


@pytest.mark.parametrize(
    ("hosts", "scheme"),
    [
        (["10.0.0.5", "10.0.0.6"], IPv4),
        (["::1"], IPv6),
        (["[::1]"], IPv6),
        (["gw"], DOMAIN),
        (["10.0.0.5", "gw"], DOMAIN),
        (["10.0.0.5", "::1"], DOMAIN),
    ],
)
def test_a_scheme_that_is_not_told_is_found(hosts: list[str], scheme: AddressScheme) -> None:
    for told in (UNSPECIFIED, 99):
        answer = dialled_endpoints(endpoints(told, *((host, 1) for host in hosts)), HERE)
        assert answer.scheme == scheme
        assert answer.addresses[0] == Address(host=hosts[0], port=1)


def test_a_domain_name_has_exactly_one_address() -> None:
    answer = dialled_endpoints(endpoints(DOMAIN, ("a", 1), ("b", 2)), HERE)
    assert answer == endpoints(DOMAIN, ("a", 1))


@pytest.mark.parametrize(
    "dialled",
    [
        Endpoints(),
        endpoints(IPv4, ("", 5)),
        endpoints(IPv4, ("10.0.0.1", 0), ("x", 70_000)),
        endpoints(DOMAIN, ("x" * 256, 1)),
    ],
)
def test_without_an_address_the_end_of_the_connection_is_named(dialled: Endpoints) -> None:
    assert dialled_endpoints(dialled, HERE) == endpoints(IPv4, ("127.0.0.1", 8081))
    assert dialled_endpoints(dialled, Context(local="[::1]:9")) == endpoints(IPv6, ("::1", 9))


@pytest.mark.parametrize(
    "local",
    [
        *("", "unix:", "unix:558123456789", "gw:", "gw:\u00b2", "gw:\u0663", "gw:99999999999", "gw:0"),
        *("gw:65536", ":8081", " :8081", "[]:8081", "x" * 256 + ":8081"),
    ],
)
def test_with_nothing_to_go_by_it_is_an_illegal_access_point(local: str) -> None:
    with pytest.raises(BadRequest) as caught:
        dialled_endpoints(Endpoints(), Context(local=local))
    assert caught.value.fault is Fault.ILLEGAL_ACCESS_POINT


def test_a_setting_is_told_in_its_own_form() -> None:
    assert fixed_endpoints("gw.example.com", 81) == endpoints(DOMAIN, ("gw.example.com", 81))
    assert fixed_endpoints("192.0.2.1", 81) == endpoints(IPv4, ("192.0.2.1", 81))
