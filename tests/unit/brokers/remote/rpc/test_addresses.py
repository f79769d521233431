"""brokers.remote.rpc.addresses: name servers as people write them."""

from __future__ import annotations

import pytest

from brokers.remote.rpc.addresses import MOST_SERVERS, is_literal, parse_servers, resolve, split_address
from popgate.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("ns-1:9876", ("ns-1:9876",)),
        ("ns-1:9876,ns-2:1234", ("ns-1:9876", "ns-2:1234")),
        ("10.0.0.1:9876;ns_2 ; ns-3.a.svc", ("10.0.0.1:9876", "ns_2:9876", "ns-3.a.svc:9876")),
        ("ns-1,ns-1:9876,", ("ns-1:9876",)),
        ("[::1]:1,[fe80::2]", ("[::1]:1", "[fe80::2]:9876")),
    ],
)
def test_servers_are_listed_with_their_ports(text: str, servers: tuple[str, ...]) -> None:
    assert parse_servers(text) == servers


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a b",
        "ns:",
        "ns:0",
        "ns:70000",
        ":1",
        "::1",
        "[::1",
        "[x]:1",
        "ns:1:2",
        "ns:1\x00",
        "ns/x",
        "ü",
    ],
)
def test_what_names_no_server_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(BadRequest, match="name server") as caught:
        parse_servers(text)
    assert str(caught.value).isprintable()


def test_more_servers_than_anybody_has_are_refused() -> None:
    with pytest.raises(BadRequest, match="too many"):
        parse_servers(",".join(f"ns-{one}" for one in range(MOST_SERVERS + 1)))


def test_addresses_have_two_parts() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("host:80") == ("host", 80)
    for odd in ("host", "host:x", ":80", "host:0"):
        with pytest.raises(ValueError, match="no address"):
            split_address(odd)


def test_an_address_needs_no_looking_up() -> None:
    assert is_literal("10.0.0.1")
    assert is_literal("::1")
    assert not is_literal("localhost")


async def test_a_name_stands_for_its_addresses() -> None:
    assert "127.0.0.1:9876" in await resolve("localhost", 9876)
