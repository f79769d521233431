"""Probes an address as a classic client: a route, where it leads, a message round trip."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Final, Self

from popgate.errors import PeerWireError
from popgate.ids.message_id import make_message_id
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import decode_records
from protocols.adapter import joined
from protocols.probing import SCRATCH, Finding, Level, Wish, nothing_sent, port_trouble

_READ: Final = 64 * 1024
_ADVICE: Final[Mapping[int, str]] = {
    ResponseCode.TOPIC_NOT_EXIST: "it is not made on first use here: name one that is there, --topic",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: f"popgate group create {SCRATCH}",
    ResponseCode.NO_PERMISSION: "the topic or the group does not allow it, or the gateway asks who calls",
    ResponseCode.SYSTEM_BUSY: "a rate or a budget is used up: see policies.rate and budgets",
    ResponseCode.GO_AWAY: "the gateway is stopping",
    ResponseCode.SYSTEM_ERROR: "the gateway's log says more",
}


class RemotingProber:
    """Opens one connection, as a client has, and goes on as far as it gets."""

    async def spoken(self, host: str, port: int, patience_s: float) -> Finding:
        address = joined(host, port)
        try:
            async with _Caller(host, port, patience_s) as caller:
                await caller.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": SCRATCH})
        except (OSError, PeerWireError, EOFError) as error:
            why = "says nothing" if isinstance(error, TimeoutError) else "does not answer as remoting does"
            advice = "check the port: this may be that of gRPC, or of another service; or TLS is spoken there"
            return Finding("remoting", Level.PROBLEM, f"{address} {why}", advice)
        return Finding("remoting", Level.OK, f"{address} speaks remoting")

    async def probe(self, wish: Wish) -> AsyncIterator[Finding]:
        try:
            async with _Caller(wish.host, wish.port, wish.patience_s) as caller:
                async for finding in _look(caller, wish):
                    yield finding
        except (OSError, PeerWireError, EOFError) as error:
            reason = str(error) or type(error).__name__
            yield Finding("round-trip", Level.PROBLEM, f"the connection broke: {reason}")


def make_prober() -> RemotingProber:
    return RemotingProber()


class _Caller:
    """One connection, opened as a context. Raises OSError, PeerWireError, EOFError."""

    def __init__(self, host: str, port: int, patience_s: float) -> None:
        self._place = host, port
        self._patience_s = patience_s
        self._wire = RemotingWire()
        self._opaque = 0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(self._patience_s):
            self._reader, self._writer = await asyncio.open_connection(*self._place)
        return self

    async def __aexit__(self, *_unused: object) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        self._opaque += 1
        self._writer.write(encode_command(Command(code, self._opaque, fields=fields, body=body)))
        async with asyncio.timeout(self._patience_s):
            while True:
                while (command := self._wire.next_event()) is None:
                    data = await self._reader.read(_READ)
                    if not data:
                        raise EOFError("it was closed")
                    self._wire.receive(data)
                if command.is_response and command.opaque == self._opaque:
                    return command


async def _look(caller: _Caller, wish: Wish) -> AsyncIterator[Finding]:
    topic = wish.topic or SCRATCH
    answer = await caller.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code == ResponseCode.TOPIC_NOT_EXIST and wish.write and not wish.topic:
        # As clients do: they send to the brokers of the topic that new ones are made from.
        answer = await caller.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    is_there = True
    if answer.code == ResponseCode.TOPIC_NOT_EXIST and wish.known:
        topic, is_there = wish.known, False
        answer = await caller.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code != ResponseCode.SUCCESS:
        yield _refused("route", answer)
        return
    route = TopicRoute.decode(answer.body)
    queues = sum(queue.write_queues for queue in route.queues)
    yield Finding("route", Level.OK, f"topic {topic} has {queues} queues at {len(route.brokers)} brokers")
    for address in dict.fromkeys(
        address_of_broker for broker in route.brokers for address_of_broker in broker.addresses.values()
    ):
        yield await _advertised(address, wish)
    if not wish.write:
        yield Finding("round-trip", Level.SKIPPED, "nothing is written", "leave out --no-write")
        return
    if not is_there:
        yield nothing_sent(SCRATCH)
        return
    yield await _round_trip(caller, topic, route.brokers[0].name if route.brokers else "")


async def _advertised(address: str, wish: Wish) -> Finding:
    """Clients connect to what the route says, wherever they asked for it."""
    if address == joined(wish.host, wish.port):
        return Finding("advertised", Level.OK, f"clients are told to use {address}, this address")
    host, _, port = address.rpartition(":")
    trouble = None
    if port.isdigit():
        trouble = await port_trouble(host.strip("[]"), int(port), wish.patience_s)
    how = f"say what clients dial: remoting://…?advertised={joined(wish.host, wish.port)}"
    if trouble is None:
        return Finding(
            "advertised",
            Level.WARNING,
            f"clients are told to use {address}, not {joined(wish.host, wish.port)}; it answers here",
            f"if that is not meant: {how}",
        )
    sentence = f"clients are told to use {address}, which cannot be reached from here: {trouble[0]}"
    return Finding("advertised", Level.PROBLEM, sentence, how)


async def _round_trip(caller: _Caller, topic: str, broker: str) -> Finding:
    began = time.monotonic()
    properties = encode_properties({"UNIQ_KEY": make_message_id(), "TAGS": SCRATCH, "WAIT": "true"})
    fields = {"a": SCRATCH, "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": _now_ms(), "h": "0"}
    fields |= {"i": properties.decode(), "j": "0", "k": "false", "m": "false", "n": broker}
    sent = await caller.call(RequestCode.SEND_MESSAGE_V2, fields, began.hex().encode())
    if sent.code != ResponseCode.SUCCESS:
        return _refused("round-trip", sent)
    sent_ms = (time.monotonic() - began) * 1000
    offset = sent.fields.get("queueOffset", "0")
    asked = {"consumerGroup": SCRATCH, "topic": topic, "queueId": sent.fields.get("queueId", "0")}
    asked |= {
        "queueOffset": offset,
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "subVersion": "0",
    }
    asked |= {"suspendTimeoutMillis": "0", "subscription": "*", "expressionType": "TAG", "bname": broker}
    pulled = await caller.call(RequestCode.PULL_MESSAGE, asked)
    if pulled.code != ResponseCode.SUCCESS:
        return _refused("round-trip", pulled)
    if [record.body for record in decode_records(pulled.body)] != [began.hex().encode()]:
        sentence = f"what was sent is not at offset {offset} of its queue"
        return Finding("round-trip", Level.PROBLEM, sentence, "the gateway's log says more")
    taken_ms = (time.monotonic() - began) * 1000
    return Finding("round-trip", Level.OK, f"sent in {sent_ms:.1f} ms; sent and pulled in {taken_ms:.1f} ms")


def _now_ms() -> str:
    return str(time.time_ns() // 1_000_000)


def _refused(check: str, answer: Command) -> Finding:
    known = answer.code in ResponseCode.__members__.values()
    name = ResponseCode(answer.code).name if known else str(answer.code)
    return Finding(
        check, Level.PROBLEM, f"refused: {name}: {answer.remark[:500]}", _ADVICE.get(answer.code, "")
    )
