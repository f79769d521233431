"""brokers.shared.session.addresses: where a host listens and a guest connects."""

from __future__ import annotations

import pytest

from brokers.shared.session.addresses import Address, parse_hosted, parse_listening
from popgate.errors import BadRequest


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("tcp://127.0.0.1:0", Address("127.0.0.1", 0)),
        ("tcp://[::1]:8084", Address("::1", 8084)),
        ("tcp://0.0.0.0:8084/", Address("0.0.0.0", 8084)),
        ("unix:/run/s.sock", Address(path="/run/s.sock")),
        ("unix:///run/s.sock", Address(path="/run/s.sock")),
        ("unix:here.sock", Address(path="here.sock")),
    ],
)
def test_a_host_listens_where_it_is_told(url: str, address: Address) -> None:
    assert parse_listening(url) == address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("popgate://host-1:8084", Address("host-1", 8084)),
        ("popgate://[::1]:8084", Address("::1", 8084)),
        ("popgate+unix:/run/s.sock", Address(path="/run/s.sock")),
    ],
)
def test_a_guest_connects_where_it_is_told(url: str, address: Address) -> None:
    assert parse_hosted(url) == address


@pytest.mark.parametrize(
    "url",
    [
        *("", "tcp:", "tcp://", "tcp://host", "tcp://h:99999", "tcp://h:1/path", "tcp://u@h:1"),
        *("tcp://h:1?a=b", "unix:", f"unix:/{'x' * 200}", "unix:/a\0b", "http://h:1", "popgate://h:1"),
    ],
)
def test_what_is_no_place_to_listen_at_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_listening(url)


@pytest.mark.parametrize("url", ["popgate:", "popgate://h", "popgate://h:0", "popgate+unix:", "tcp://h:1/x"])
def test_what_is_no_host_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_hosted(url)


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("unix:/s", True),
        ("tcp://localhost:1", True),
        ("tcp://127.3.2.1:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://10.0.0.1:1", False),
        ("tcp://gateway:1", False),
    ],
)
def test_who_else_gets_there_is_known(url: str, private: bool) -> None:
    assert parse_listening(url).is_private is private


def test_an_address_is_told_as_it_is_written() -> None:
    assert str(Address("::1", 5)) == "tcp://[::1]:5"
    assert str(Address("h", 5)) == "tcp://h:5"
    assert str(Address(path="/s")) == "unix:/s"
