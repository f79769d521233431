"""Checks from outside whether clients can reach a gateway and work with it.

This module has what all protocols have in common: names, ports, and the protocol spoken there. Further
checks of a protocol are in `protocols.<scheme>.probing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum, unique
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import LARGEST_FRAME, Command, encode_command
from protocols.adapter import joined
from protocols.schemes import schemes

SCRATCH = "popgate-doctor"
"""The topic and the group of a round trip, always the same ones, so that they do not pile up."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What an HTTP/2 client says first: the preface and empty settings (RFC 9113, 3.4)."""
_SETTINGS_FRAME = 4
_QUESTION = encode_command(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": SCRATCH}))
"""What every name server answers."""


@unique
class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, and may surprise."""
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(slots=True, frozen=True)
class Finding:
    """What one look has shown, and what to do about it (empty when there is nothing to do)."""

    check: str
    level: Level
    what: str
    advice: str = ""


@dataclass(slots=True, frozen=True)
class Wish:
    """What is to be looked at, and how. `topic` empty: a scratch topic. Times in seconds.

    `known`: a topic that is there, for a look at its route only, where the scratch topic is not.
    """

    host: str
    port: int
    patience_s: float = 5.0
    write: bool = True
    topic: str = ""
    known: str = ""


def nothing_sent(topic: str) -> Finding:
    """Of the scratch topic, where topics are not made on first use."""
    return Finding(
        "round-trip",
        Level.SKIPPED,
        f"nothing is sent: topic {topic} is not there, and is not made on first use",
        f"popgate topic create {SCRATCH} and popgate group create {SCRATCH}, or name one: --topic",
    )


class Prober(Protocol):
    """What a protocol can try once it is known to be spoken at an address."""

    async def spoken(self, host: str, port: int, patience_s: float) -> Finding:
        """Whether it is."""
        ...

    def probe(self, wish: Wish) -> AsyncIterator[Finding]: ...


def find_prober(scheme: str) -> Prober:
    """Raises ValueError with a sentence for a scheme that has none."""
    known = [
        known_scheme
        for known_scheme in schemes()
        if find_spec(f"protocols.{known_scheme}.probing") is not None
    ]
    if scheme in known:
        prober: Prober = import_module(f"protocols.{scheme}.probing").make_prober()
        return prober
    raise ValueError(f"addresses of {scheme!r} cannot be looked at; these can: {', '.join(known)}")


async def reach(wish: Wish, prober: Prober) -> AsyncIterator[Finding]:
    """DNS, ports, and whether the right thing is spoken: the last finding is OK if it is."""
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            wish.host, wish.port, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        advice = "check the spelling, and whether this name is known to the DNS where clients run"
        yield Finding("dns", Level.PROBLEM, f"{wish.host} has no address: {reason.lower()}", advice)
        return
    hosts = list(dict.fromkeys(str(entry[4][0]) for entry in addresses))
    if hosts != [wish.host]:
        yield Finding("dns", Level.OK, f"{wish.host} is {', '.join(hosts)}")
    failures = {host: await port_trouble(host, wish.port, wish.patience_s) for host in hosts}
    open_hosts = [host for host, failure in failures.items() if failure is None]
    level = Level.WARNING if open_hosts else Level.PROBLEM
    for host, failure in failures.items():
        address = joined(host, wish.port)
        if failure is None:
            yield Finding("port", Level.OK, f"{address} takes connections")
        else:
            more = "" if not open_hosts else "; clients that choose this address wait, or fail"
            yield Finding("port", level, f"{address}: {failure[0]}", failure[1] + more)
    if open_hosts:
        yield await prober.spoken(open_hosts[0], wish.port, wish.patience_s)


async def port_trouble(host: str, port: int, patience_s: float) -> tuple[str, str] | None:
    """Why no connection can be made, and what to do; None when one can."""
    try:
        async with asyncio.timeout(patience_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return (
            f"no answer in {patience_s:g} s",
            "a firewall or a security group drops packets on the way, or the host is down",
        )
    except ConnectionRefusedError:
        return (
            "nothing listens there",
            "is the gateway running, does it listen beyond loopback, and is this port mapped to it?",
        )
    except OSError as error:
        return ((error.strerror or str(error)).lower(), "there is no way to that address from here")
    except (ValueError, OverflowError):
        # A label of the name is empty or too long; a port above 65535.
        return ("no such host, or no such port, is possible", "check the spelling")
    await _closed(writer)
    return None


async def spoken(host: str, port: int, patience_s: float) -> Finding:
    """Whether an address speaks HTTP/2 without TLS, and if not, what it speaks."""
    address = joined(host, port)
    answer = await _exchange(host, port, _PREFACE, patience_s)
    if answer is not None and len(answer) >= 9 and answer[3] == _SETTINGS_FRAME and answer[5:9] == bytes(4):
        return Finding("http2", Level.OK, f"{address} speaks HTTP/2")
    if answer is not None and answer.startswith(b"HTTP/1"):
        return Finding(
            "http2",
            Level.PROBLEM,
            f"{address} speaks HTTP/1.1, not HTTP/2",
            "is this the admin port? else a proxy in between must pass HTTP/2 (h2c, gRPC) or plain TCP",
        )
    if answer is None or not answer or answer[:2] == b"\x15\x03":
        protocol = await _tls_protocol(host, port, patience_s)
        if protocol is not None:
            return Finding(
                "http2",
                Level.PROBLEM,
                f"{address} speaks TLS ({protocol}), not HTTP/2 in clear text",
                "turn TLS off in what stands before the gateway, or end it there and tell clients to use it",
            )
    if answer is None:
        return Finding(
            "http2",
            Level.PROBLEM,
            f"{address} takes connections and says nothing for {patience_s:g} s",
            "something else listens there, or a proxy before the gateway waits for its own client",
        )
    if not answer and _is_remoting(await _exchange(host, port, _QUESTION, patience_s)):
        return Finding(
            "http2",
            Level.PROBLEM,
            f"{address} speaks remoting, not gRPC",
            "this is the port for classic clients; gRPC's is another one, 8081 unless somebody changed it",
        )
    if not answer:
        return Finding(
            "http2",
            Level.PROBLEM,
            f"{address} closes connections without a word",
            "a load balancer or port mapping whose target does not run, or is not healthy",
        )
    return Finding(
        "http2",
        Level.PROBLEM,
        f"{address} speaks something else: {answer[:16]!r}",
        "check the port: another service listens there",
    )


def _is_remoting(answer: bytes | None) -> bool:
    """Whether this begins as a frame does: its length, and the way in which its header is written."""
    return (
        answer is not None
        and len(answer) >= 8
        and int.from_bytes(answer[:4], "big") <= LARGEST_FRAME
        and answer[4] in tuple(Serialization)
    )


async def _exchange(host: str, port: int, data: bytes, patience_s: float) -> bytes | None:
    """The first bytes of the answer; empty at the end of the connection, None when there is no answer."""
    writer = None
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(data)
            answer = b""
            while len(answer) < 9:
                more = await reader.read(64)
                if not more:
                    break
                answer += more
            return answer
    except TimeoutError:
        return None
    except OSError:
        return b""
    finally:
        if writer is not None:
            await _closed(writer)


async def _tls_protocol(host: str, port: int, patience_s: float) -> str | None:
    """The version of TLS, and the protocol inside if it says; None when it is not TLS."""
    # Nothing is sent that matters, and whose certificate it is does not matter either.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        async with asyncio.timeout(patience_s):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    except (OSError, TimeoutError):
        return None
    secured: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
    spoken = None
    if secured is not None:
        inside = secured.selected_alpn_protocol()
        spoken = f"{secured.version()}{f', {inside}' if inside else ''}"
    await _closed(writer)
    return spoken


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
