"""protocols.proxy_protocol: who connects, as a balancer says it, and nothing else."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popgate.errors import PeerWireError
from protocols.proxy_protocol import LONGEST_LINE, MOST_MORE, Proxied, ProxyHeader

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def binary(kind: int, family: int, more: bytes) -> bytes:
    return SIGNATURE + bytes((kind, family)) + len(more).to_bytes(2, "big") + more


def places(peer: str, peer_port: int, local: str, local_port: int) -> bytes:
    return ip_address(peer).packed + ip_address(local).packed + struct.pack(">HH", peer_port, local_port)


V4 = Proxied(("203.0.113.7", 5000), ("10.0.0.1", 8080))
V6 = Proxied(("2001:db8::7", 5000), ("::1", 8080))
HEADERS = [
    (b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 8080\r\n", V4),
    (b"PROXY TCP6 2001:db8::7 ::1 5000 8080\r\n", V6),
    (b"PROXY UNKNOWN\r\n", Proxied()),
    (b"PROXY UNKNOWN ffff::1 whatever 1 2\r\n", Proxied()),
    (binary(0x21, 0x11, places("203.0.113.7", 5000, "10.0.0.1", 8080)), V4),
    (binary(0x21, 0x21, places("2001:db8::7", 5000, "::1", 8080)), V6),
    # What a balancer tells beside the addresses is skipped.
    (binary(0x21, 0x11, places("203.0.113.7", 5000, "10.0.0.1", 8080) + b"\x01\x00\x02h2"), V4),
    # Its own connections, to look whether the gateway is well.
    (binary(0x20, 0x00, b""), Proxied()),
    (binary(0x20, 0x11, places("203.0.113.7", 5000, "10.0.0.1", 8080)), Proxied()),
    (binary(0x21, 0x31, bytes(216)), Proxied()),
    (binary(0x21, 0x00, b""), Proxied()),
]


@pytest.mark.parametrize(("header", "told"), HEADERS)
@pytest.mark.parametrize("at_once", [1, 1000])
def test_a_header_and_what_comes_behind_it(header: bytes, told: Proxied, at_once: int) -> None:
    wire = ProxyHeader()
    said = header + b"behind"
    found: list[Proxied] = []
    for start in range(0, len(said), at_once):
        wire.receive(said[start : start + at_once])
        event = wire.next_event()
        if event is not None:
            found.append(event)

    assert found == [told]
    assert wire.rest() == b"behind"
    assert wire.next_event() is None
    assert wire.data_to_send() == []


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n",
        b"\0\0\0\x10",
        b"PROXY\r\n",
        b"PROXY " + b"x" * LONGEST_LINE,
        b"PROXY TCP4 203.0.113.7 10.0.0.1 5000\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 8080 1\r\n",
        b"PROXY TCP4 2001:db8::7 ::1 5000 8080\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 65536\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 -1\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 " + "\u0663".encode() + b"\r\n",
        b"PROXY TCP5 203.0.113.7 10.0.0.1 5000 8080\r\n",
        b"PROXY  TCP4 203.0.113.7 10.0.0.1 5000 8080\r\n",
        b"PROXY TCP4 localhost 10.0.0.1 5000 8080\r\n",
        binary(0x11, 0x11, bytes(12)),
        binary(0x22, 0x11, bytes(12)),
        binary(0x21, 0x11, bytes(11)),
        binary(0x21, 0x21, bytes(35)),
        SIGNATURE + b"\x21\x11" + (MOST_MORE + 1).to_bytes(2, "big"),
    ],
)
def test_what_is_no_header(said: bytes) -> None:
    wire = ProxyHeader()
    wire.receive(said)

    with pytest.raises(PeerWireError):
        wire.next_event()


@pytest.mark.parametrize("header", [header for header, _ in HEADERS])
def test_a_header_that_ends_too_early(header: bytes) -> None:
    wire = ProxyHeader()
    wire.receive(header[:-1])
    assert wire.next_event() is None

    wire.receive(b"")

    with pytest.raises(PeerWireError):
        wire.next_event()


@given(st.sampled_from([header for header, _ in HEADERS]), st.data())
def test_changed_headers_are_read_or_refused(header: bytes, data: st.DataObject) -> None:
    changed = bytearray(header)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    wire = ProxyHeader()
    wire.receive(bytes(changed))
    try:
        told = wire.next_event()
    except PeerWireError:
        return
    if told is not None and told.peer is not None:
        host, port = told.peer
        assert ip_address(host)
        assert 0 <= port <= 0xFFFF
    assert len(wire.rest()) <= len(changed)
