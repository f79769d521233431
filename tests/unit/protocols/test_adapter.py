"""Addresses to listen at, and addresses to tell."""

from __future__ import annotations

import pytest

from protocols.adapter import Listen, joined, parse_advertised, parse_listen


@pytest.mark.parametrize(
    ("url", "listen"),
    [
        ("grpc://127.0.0.1:8081", Listen("grpc", "127.0.0.1", 8081)),
        ("grpc://[::1]:0", Listen("grpc", "::1", 0)),
        ("grpc://localhost:1/?advertised=gw:2", Listen("grpc", "localhost", 1, {"advertised": "gw:2"})),
        ("mqtt://0.0.0.0:1883?a=&b=1", Listen("mqtt", "0.0.0.0", 1883, {"a": "", "b": "1"})),
        ("grpc+unix:/run/a.sock", Listen("grpc", "", 0, {}, "/run/a.sock")),
        ("grpc+unix:///run/a.sock?tls=true", Listen("grpc", "", 0, {"tls": "true"}, "/run/a.sock")),
        ("grpc+unix:a.sock", Listen("grpc", "", 0, {}, "a.sock")),
    ],
)
def test_an_address_is_parsed(url: str, listen: Listen) -> None:
    assert parse_listen(url) == listen


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8081",
        "grpc://127.0.0.1",
        "grpc://:8081",
        "grpc://h:99999",
        "grpc://h:x",
        "grpc://[::1:5",
        "grpc://h:1/path",
        "grpc://u:p@h:1",
        "grpc://h:1?a=1&a=2",
        "grpc+unix:",
        "grpc+unix:?tls=true",
        "grpc+unix:/run/a.sock?a=1&a=2",
        f"grpc+unix:/{'a' * 100}",
    ],
)
def test_what_is_no_address_is_refused_with_its_text(url: str) -> None:
    with pytest.raises(ValueError, match=r"grpc|no address"):
        parse_listen(url)


def test_the_address_is_told_with_the_port_that_was_chosen() -> None:
    assert parse_listen("grpc://[::1]:0?advertised=x").url(4711) == "grpc://[::1]:4711"
    assert parse_listen("grpc+unix:/run/a.sock?mode=660").url(0) == "grpc+unix:/run/a.sock"
    assert joined("a.example", 1) == "a.example:1"


@pytest.mark.parametrize(
    ("text", "address"),
    [("gw:1", ("gw", 1)), ("gw", ("gw", 0)), ("[::1]:5", ("::1", 5)), ("192.0.2.1:80", ("192.0.2.1", 80))],
)
def test_an_advertised_address_may_leave_its_port_to_the_listener(
    text: str, address: tuple[str, int]
) -> None:
    assert parse_advertised(text) == address


@pytest.mark.parametrize("text", ["", "gw:x", "gw:99999", "http://gw:1", "gw:1/x", "u@gw:1"])
def test_an_address_that_cannot_be_told_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no address to advertise"):
        parse_advertised(text)
