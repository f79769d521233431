"""Peers that mean harm: what each costs is bounded, and told by its kind. Bytes in, and a moved clock."""

from __future__ import annotations

import gc
import gzip
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from popgate.testing.frames import (
    PREFACE,
    continuation,
    data,
    frame,
    frame_of,
    framed,
    headers,
    ping,
    reset,
    settings,
    window_update,
)
from protocols.grpc.http2.frames.codes import ErrorCode, Flood, FloodError, Http2Error
from protocols.grpc.http2.frames.limits import HeldBytes
from protocols.grpc.http2.grpc_wire import GrpcWire
from tests.unit.protocols.grpc.http2.conftest import Client

MAKE = Callable[..., Any]
INITIAL_WINDOW, MAX_FRAME = 4, 5
MIB = 1 << 20
MESSAGE = framed(b"hello")
CLAIM = b"\0" + (130 * MIB).to_bytes(4, "big")


@pytest.fixture
def whole() -> Callable[..., Client]:
    """Makes clients that say everything in one piece: for what is much."""

    def make(**options: Any) -> Client:
        client = Client(byte_by_byte=False, **options)
        client.tick(1_000.0)
        return client

    return make


def begin(client: Client, number: int, *more: tuple[str, str | bytes], path: str = "/one") -> bytes:
    return headers(number, client.block(*more, path=path))


# -- floods ---------------------------------------------------------------------------------------


def rapid_reset(client: Client, turn: int) -> None:
    number = 2 * turn + 101
    client.say(begin(client, number), data(number, MESSAGE, end=True), reset(number))


def made_reset(client: Client, turn: int) -> None:
    """The server resets the stream, since the content is not as long as it was said to be."""
    number = 2 * turn + 101
    client.say(begin(client, number, ("content-length", "7")), data(number, MESSAGE, end=True))


def malformed(client: Client, turn: int) -> None:
    client.say(headers(2 * turn + 101, client.block_of([(":method", "POST")])))


def too_many(client: Client, turn: int) -> None:
    """A stream above the limit."""
    client.say(begin(client, 2 * turn + 101))


def headers_of_a_reset_one(client: Client, turn: int) -> None:
    if not turn:
        client.say(begin(client, 99), window_update(99, 0))
    client.say(begin(client, 99))


def late(client: Client, turn: int) -> None:
    """A stream behind the farewell."""
    if not turn:
        client.wire.leave(1_000.0)
        client.say(ping(b"popgate-", ack=True))
    client.say(begin(client, 2 * turn + 101))


FLOODS: list[tuple[str, Callable[[Client, int], None] | bytes, Flood]] = [
    ("rapid reset", rapid_reset, Flood.RESETS),
    ("resets by us", made_reset, Flood.RESETS),
    ("malformed headers", malformed, Flood.RESETS),
    ("streams above the limit", too_many, Flood.RESETS),
    ("settings", settings({MAX_FRAME: 20_000}), Flood.SETTINGS),
    ("empty settings", settings(), Flood.SETTINGS),
    ("answers to settings", settings(ack=True), Flood.EMPTY_FRAMES),
    ("pings", ping(), Flood.PINGS),
    ("answers to pings", ping(ack=True), Flood.EMPTY_FRAMES),
    ("signs of life that nobody asked for", ping(b"popgate?", ack=True), Flood.EMPTY_FRAMES),
    ("empty data", data(1), Flood.EMPTY_FRAMES),
    ("empty data for what was cut off", data(5), Flood.EMPTY_FRAMES),
    ("padding only", frame("DATA", 1, bytes((3, 0, 0, 0)), flags=8), Flood.EMPTY_FRAMES),
    ("headers of what was cut off", headers_of_a_reset_one, Flood.EMPTY_FRAMES),
    ("streams behind the farewell", late, Flood.EMPTY_FRAMES),
    ("resets of what is over", reset(3), Flood.EMPTY_FRAMES),
    ("farewells", frame("GOAWAY", 0, bytes(8)), Flood.EMPTY_FRAMES),
    ("unknown frames", frame_of(0xFA, 1, b"x"), Flood.EMPTY_FRAMES),
    ("priorities", frame("PRIORITY", 1, bytes((0, 0, 0, 0, 7))), Flood.PRIORITIES),
    ("windows", window_update(0, 1), Flood.WINDOW_UPDATES),
    ("windows of a stream", window_update(1, 1), Flood.WINDOW_UPDATES),
    ("windows of what is over", window_update(3, 1), Flood.WINDOW_UPDATES),
]


def opened(make: Callable[..., Client], calm: int) -> Client:
    """1 is open, 3 is over, 5 was cut off by us; so much of each flood is borne from here."""
    client = make(calm=dict.fromkeys(Flood, calm), max_streams=3)
    client.say(begin(client, 1, path="/many"))
    client.call(3, b"")
    client.wire.answer(client.streams[3], b"")
    client.say(begin(client, 5), data(5, MESSAGE * 2))
    client.wire._tally = None
    client.heard()
    return client


@pytest.mark.parametrize(("what", "flood"), [row[1:] for row in FLOODS], ids=[row[0] for row in FLOODS])
def test_a_flood_ends_the_connection(
    whole: Callable[..., Client], what: Callable[[Client, int], None] | bytes, flood: Flood
) -> None:
    client = opened(whole, 50)
    for turn in range(60):
        assert client.failure is None, f"it was cut off after {turn}"
        if isinstance(what, bytes):
            client.say(what)
        else:
            what(client, turn)
        if client.failure is not None:
            break
    assert isinstance(client.failure, FloodError)
    assert (client.failure.flood, client.failure.kind) == (flood, flood.name.lower())
    assert 50 <= turn <= 53
    assert f"{ErrorCode.ENHANCE_YOUR_CALM.name}: {client.failure}" in client.heard()[-1]
    assert not client.wire.streams


@pytest.mark.parametrize(("what", "flood"), [row[1:] for row in FLOODS], ids=[row[0] for row in FLOODS])
def test_what_comes_slowly_is_no_flood(
    whole: Callable[..., Client], what: Callable[[Client, int], None] | bytes, flood: Flood
) -> None:
    client = opened(whole, 50)
    for turn in range(100):
        if turn % 40 == 39:
            client.tick(1_000.0 + turn)
        if isinstance(what, bytes):
            client.say(what)
        else:
            what(client, turn)
    assert client.failure is None


def test_to_end_calls_that_waited_is_no_rapid_reset(whole: Callable[..., Client]) -> None:
    client = whole(calm=dict.fromkeys(Flood, 50))
    for number in range(1, 401, 2):
        client.call(number, b"")
    client.tick(1_001.0)
    client.say(*[reset(number) for number in range(1, 401, 2)])
    assert (client.failure, client.wire.streams) == (None, {})
    assert client.events[-1] == "Cut 399"


def test_the_defaults_bear_what_clients_do(whole: Callable[..., Client]) -> None:
    """As grpcio says it: for each call two windows, and a ping now and then."""
    client = whole()
    for number in range(1, 8_001, 2):
        client.say(begin(client, number), window_update(number, 5), data(number, MESSAGE, end=True))
        client.say(window_update(0, 5), *([ping()] if number % 5 == 0 else []))
        client.wire.answer(client.streams[number], b"fine")
        client.streams.clear()
    assert client.failure is None
    assert len(client.messages) == 4_000


def test_a_connection_that_failed_is_gone_when_it_is_let_go(whole: Callable[..., Client]) -> None:
    """Not when garbage is collected the next time: failures may be many."""

    class Seen(GrpcWire):
        pass

    client = whole(greets=False)
    wire = Seen(client.limits, client.wire._shapes)
    gone = weakref.ref(wire)
    gc.disable()
    try:
        wire.receive(PREFACE + settings() + headers(1, client.block() + b"x" * 3))
        with pytest.raises(Http2Error):
            wire.next_event()
        assert wire.next_event() is None
        del wire
        assert gone() is None
    finally:
        gc.enable()


# -- headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [b"\x40\x01a\x00" * 4_000, b"\x41\x00" * 8_000, b"\x82" * 16_000])
def test_a_bomb_of_headers_ends_the_connection_before_it_is_read(
    whole: Callable[..., Client], block: bytes
) -> None:
    client = whole()
    client.say(headers(1, block))
    assert isinstance(client.failure, FloodError)
    assert client.failure.kind == "bombs"
    assert not client.wire.streams


def test_references_that_amount_to_much_cost_no_memory(whole: Callable[..., Client]) -> None:
    client = whole()
    client.say(headers(1, b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4_000))
    tracemalloc.start()
    for number in range(3, 43, 2):
        client.say(headers(number, b"\xbe" * 2_000))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert client.failure is None
    assert most < MIB
    assert client.heard().count("HEADERS 41 end :status=431 content-length=0") == 1


def test_headers_above_the_limit_again_and_again_end_the_connection(whole: Callable[..., Client]) -> None:
    client = whole(max_headers_bytes=1_000, calm=dict.fromkeys(Flood, 5))
    for number in range(1, 11, 2):
        client.say(begin(client, number, ("x", "y" * 2_000)))
    assert client.failure is None
    client.say(begin(client, 11, ("x", "y" * 2_000)))
    assert client.failure is not None
    assert client.failure.kind == "bombs"


def test_a_block_in_many_frames_is_cut_off_at_a_little_more_than_may_be(whole: Callable[..., Client]) -> None:
    client = whole(max_headers_bytes=16_384)
    client.say(headers(1, bytes(16_000), more=True), continuation(1, bytes(4_480), more=True))
    assert client.failure is None
    client.say(continuation(1, b"\0", more=True))
    assert client.failure is not None
    assert client.failure.kind == "continuations"


def test_large_headers_are_not_remembered(whole: Callable[..., Client]) -> None:
    client = whole(max_streams=100)
    for number in range(1, 129, 2):
        client.say(begin(client, number, ("x", f"{number}" * 5_000)), reset(number))
    heads = client.wire._heads
    assert heads == {}


def test_half_of_the_headers(make_client: MAKE) -> None:
    client = make_client(slow_s=60.0, ping_s=1e9)
    client.tick(1_000.0)
    client.say(headers(1, client.block()[:9], more=True))
    client.tick(1_001.0)
    client.tick(1_002.0)
    client.tick(1_061.0)
    assert client.failure is None
    client.tick(1_062.0)
    assert client.failure.kind == "slow_requests"


# -- windows --------------------------------------------------------------------------------------


def waiting_calls(client: Client, count: int, size: int = 1_000) -> None:
    for number in range(1, 2 * count, 2):
        client.call(number, b"")
        client.wire.answer(client.streams[number], bytes(size))
    client.heard()


class Counted(GrpcWire):
    """Counts how often it looks whether something can be sent."""

    pumps = 0

    def _pump(self, stream: Any) -> None:
        self.pumps += 1
        super()._pump(stream)


def counted(client: Client) -> Counted:
    wire = Counted(client.limits, client.wire._shapes)
    client.wire = wire
    client.say(PREFACE, settings({INITIAL_WINDOW: 0}))
    return wire


def test_room_in_the_connection_is_not_looked_for_in_streams_without_any(
    whole: Callable[..., Client],
) -> None:
    client = whole(greets=False)
    wire = counted(client)
    waiting_calls(client, 500)
    wire.pumps = 0
    client.say(window_update(0, 1) * 2_000)
    assert (client.failure, wire.pumps) == (None, 0)
    client.say(window_update(7, 2_000))
    assert wire.pumps == 1
    assert 7 not in wire.streams
    client.say(window_update(0, MIB), settings({INITIAL_WINDOW: 2_000}))
    assert not wire.streams
    assert wire.waiting_bytes == 0


def test_settings_that_change_windows_a_thousand_times_do_so_once(
    whole: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[int] = []
    before = GrpcWire._windows_begin_at

    def change(wire: GrpcWire, size: int) -> None:
        changes.append(size)
        before(wire, size)

    client = whole()
    waiting_calls(client, 10, 100_000)
    monkeypatch.setattr(GrpcWire, "_windows_begin_at", change)
    body = b"".join(b"\0\4" + (size % 7).to_bytes(4, "big") for size in range(2_730))
    client.say(frame("SETTINGS", 0, body))
    assert (client.failure, changes) == (None, [2_729 % 7])


def test_a_large_answer_byte_by_byte(whole: Callable[..., Client]) -> None:
    client = whole(greets=False)
    wire = counted(client)
    waiting_calls(client, 1, 20_000)
    wire.pumps = 0
    for turn in range(20_005):
        client.say(window_update(1, 1))
        sent = wire.data_to_send()
        assert [len(piece) for piece in sent[:2]] == [9, 1]
        assert len(sent) == (2 if turn < 20_004 else 4)
    assert wire.pumps == 20_005
    assert not wire.streams


def test_windows_below_nothing_and_above_everything(whole: Callable[..., Client]) -> None:
    client = whole()
    waiting_calls(client, 1, 100_000)
    for _ in range(20):
        client.say(settings({INITIAL_WINDOW: 0}), settings({INITIAL_WINDOW: 1}))
    assert client.streams[1].window == 1 - 65_535
    assert client.wire._blocked == {}
    client.say(settings({INITIAL_WINDOW: (1 << 31) - 1}))
    assert client.failure is None
    client.say(window_update(1, (1 << 31) - 1))
    assert "RST_STREAM 1 FLOW_CONTROL_ERROR" in client.heard()
    client.say(window_update(0, (1 << 31) - 1), window_update(0, (1 << 31) - 1))
    assert client.failure is not None
    assert client.failure.kind == "flow_control"


def test_an_answer_that_waits_is_not_answered_again(client: Any) -> None:
    """Its client goes on with the request, wrongly: nothing more is said, and nothing breaks."""
    client.say(settings({INITIAL_WINDOW: 3}))
    for number, path in ((1, "/many"), (3, "/many")):
        client.say(begin(client, number, path=path), data(number, MESSAGE))
        client.wire.write(client.streams[number], bytes(100))
        client.wire.finish(client.streams[number])
    client.heard()
    client.say(data(1, framed(b"x", flag=1)), data(3, framed(b"x", flag=9), end=True))
    client.say(data(1, end=True))
    assert client.events == ["Opened 1", "Said 1", "Opened 3", "Said 3"]
    assert client.heard() == []
    client.say(window_update(1, 102), window_update(3, 102))
    said = [line.split()[:2] for line in client.heard()]
    assert said == [["DATA", "1"], ["HEADERS", "1"], ["DATA", "3"], ["HEADERS", "3"]]
    assert not client.wire.streams


def test_a_plain_request_is_answered_once(make_client: MAKE) -> None:
    client = make_client(max_plain_bytes=10)
    client.say(settings({INITIAL_WINDOW: 3}))
    client.say(headers(1, client.block(("content-type", "text/html"))))
    client.say(*[data(1, bytes(20))] * 5, data(1, bytes(20), end=True))
    assert [line.split()[0] for line in client.heard()] == ["SETTINGS", "HEADERS", "DATA"]


# -- what is held ---------------------------------------------------------------------------------


def test_a_message_whose_request_does_not_end_is_held(whole: Callable[..., Client]) -> None:
    holding = HeldBytes(10_000)
    client = whole(holding=holding)
    for number in range(1, 21, 2):
        client.say(begin(client, number), data(number, framed(bytes(1_500))))
    assert holding.used == client.wire.holds == 6 * 1_500
    assert len(client.wire.streams) == 6
    assert client.wire.cut_streams == {"holding": 4}
    client.say(data(max(client.wire.streams), b"", end=True))
    assert holding.used == 5 * 1_500
    client.wire.receive(b"")
    assert (holding.used, holding.holders) == (0, set())


def test_one_connection_cannot_hold_more_than_there_is_for_all(whole: Callable[..., Client]) -> None:
    holding = HeldBytes(100_000)
    client = whole(holding=holding)
    for number in range(1, 201, 2):
        client.say(begin(client, number), data(number, CLAIM + bytes(9_995)))
        assert holding.used <= 100_000
    assert len(client.wire.streams) == 10


def test_who_holds_most_makes_room_for_the_others(whole: Callable[..., Client]) -> None:
    holding = HeldBytes(50_000)
    greedy, modest = whole(holding=holding), whole(holding=holding)
    for number in (1, 3, 5):
        greedy.say(begin(greedy, number), data(number, framed(bytes(MIB))[:16_000]))
    modest.say(begin(modest, 1), data(1, framed(bytes(5_000))[:3_000]))
    assert (greedy.wire.holds, modest.wire.holds) == (32_000, 3_000)
    modest.say(data(1, framed(bytes(5_000))[3_000:], end=True))
    assert modest.messages == [bytes(5_000)]
    refused = [line for line in greedy.heard() if "grpc-status=8" in line]
    assert len(refused) == 1


class Small:
    """Holds little, and gives it up."""

    looks = 0

    def __init__(self, holding: HeldBytes) -> None:
        self._holding = holding
        self._holds = 64
        holding.used += 64
        holding.holders.add(self)

    @property
    def holds(self) -> int:
        Small.looks += 1
        return self._holds

    def give_up(self) -> bool:
        self._holding.used -= self._holds
        self._holds = 0
        self._holding.holders.discard(self)
        return True


def test_those_that_hold_little_are_looked_through_seldom() -> None:
    """There may be 50,000 of them, and each frame of theirs takes a little more than there is room for."""
    holding = HeldBytes(64_000)
    for _ in range(2_000):
        Small(holding)
        if holding.used > holding.most:
            holding.make_room()
    assert 60_000 < holding.used <= 64_000
    assert Small.looks < 100_000


def test_what_nobody_reads_is_held_until_it_is_read(whole: Callable[..., Client]) -> None:
    holding = HeldBytes()
    client = whole(holding=holding)
    client.say(begin(client, 1, path="/many"), data(1, framed(b"ab") * 2_000))
    assert len(client.messages) == 2_000
    assert holding.used == 2_000 * (2 + 64)
    client.wire.took(client.streams[1])
    assert (holding.used, client.wire.holds) == (0, 0)


def test_what_nobody_reads_is_bounded_for_all_streams(whole: Callable[..., Client]) -> None:
    holding = HeldBytes(MIB)
    client = whole(holding=holding, max_streams=200)
    for number in range(1, 201, 2):
        client.say(begin(client, number, path="/many"), *[data(number, framed(b"ab") * 100)] * 5)
        assert holding.used <= MIB
    assert client.failure is None
    assert 20 <= len(client.wire.streams) <= 40
    assert sum(event.startswith("Cut") for event in client.events) == 100 - len(client.wire.streams)


def test_answers_that_nobody_has_room_for_are_bounded(whole: Callable[..., Client]) -> None:
    """Their calls are over: nobody waits with more, as who writes one message after the other does."""
    holding = HeldBytes(MIB)
    greedy, modest = whole(holding=holding), whole(holding=holding)
    for client in (greedy, modest):
        client.say(settings({INITIAL_WINDOW: 0}))
    waiting_calls(modest, 1, 1_000)
    for number in range(1, 201, 2):
        greedy.call(number, b"")
        greedy.wire.answer(greedy.streams[number], bytes(100_000))
        assert greedy.wire.waiting_bytes + modest.wire.waiting_bytes <= MIB
    assert len(greedy.wire.streams) == 10
    assert greedy.wire.cut_streams == {"holding": 90}
    modest.say(window_update(1, 2_000))
    assert "HEADERS 1 end grpc-status=0" in modest.heard()
    greedy.say(settings({INITIAL_WINDOW: MIB}), window_update(0, MIB))
    assert (greedy.wire.streams, holding.used, holding.holders) == ({}, 0, set())


def test_a_claim_costs_nothing(whole: Callable[..., Client]) -> None:
    """1,000 messages that claim 130 MB."""
    client = whole()
    tracemalloc.start()
    for number in range(1, 2_001, 2):
        client.say(begin(client, number), data(number, CLAIM + b"x"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(client.wire.streams) == 1_000
    assert client.wire.holds == 6_000
    assert most < 3 * MIB


def test_a_large_message_byte_by_byte(whole: Callable[..., Client]) -> None:
    client = whole()
    message = bytes(range(256)) * 100
    whole_of_it = framed(message)
    client.say(begin(client, 1), *[data(1, whole_of_it[at : at + 1]) for at in range(len(whole_of_it))])
    client.say(data(1, end=True))
    assert client.messages == [message]
    assert client.wire.holds == 0


def test_all_that_can_be_told_of_what_is_read_at_once(whole: Callable[..., Client]) -> None:
    """64 KiB of the smallest calls and messages."""
    client = whole()
    client.say(begin(client, 1), reset(1))
    block = b"\xbe"
    client.say(*[headers(number, block, end=True) for number in range(3, 65_536 // 5, 2)])
    assert len(client.events) <= 65_536 // 10
    many = whole()
    many.say(begin(many, 1, path="/many"), *[data(1, framed(b"") * 3_200)] * 4)
    assert many.wire.holds == len(many.messages) * 64 == 12_800 * 64


# -- compressed messages --------------------------------------------------------------------------


def bomb(size: int) -> bytes:
    return framed(gzip.compress(bytes(size)), flag=1)


def test_a_compressed_bomb_is_not_unpacked(whole: Callable[..., Client]) -> None:
    client = whole()
    packed = bomb(12 * MIB)
    tracemalloc.start()
    for number in range(1, 21, 2):
        client.say(begin(client, number, ("grpc-encoding", "gzip")), data(number, packed, end=True))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 * MIB
    assert client.messages == []
    assert client.wire.cut_streams == {"bombs": 10}


def test_a_bomb_of_a_stream_is_refused_and_counted(whole: Callable[..., Client]) -> None:
    client = whole(calm=dict.fromkeys(Flood, 2))
    packed = bomb(8 * MIB)
    assert len(packed) < 16_000
    for number in (1, 3):
        client.say(
            begin(client, number, ("grpc-encoding", "gzip"), path="/many"), data(number, packed, end=True)
        )
    assert client.failure is None
    assert [line for line in client.heard() if "grpc-status=8" in line]
    assert client.wire.cut_streams == {"bombs": 2}
    client.say(begin(client, 5, ("grpc-encoding", "gzip")), data(5, packed, end=True))
    assert client.failure is not None
    assert client.failure.kind == "bombs"


def test_what_packs_well_is_no_bomb(whole: Callable[..., Client]) -> None:
    client = whole()
    body = b"".join(b"%d, " % number for number in range(900_000))
    packed = framed(gzip.compress(body), flag=1)
    pieces = [data(1, packed[at : at + 16_384]) for at in range(0, len(packed), 16_384)]
    client.say(begin(client, 1, ("grpc-encoding", "gzip")), *pieces, data(1, end=True))
    client.say(begin(client, 3, ("grpc-encoding", "gzip")), data(3, bomb(4 * MIB), end=True))
    assert client.messages == [body, bytes(4 * MIB)]


# -- time -----------------------------------------------------------------------------------------


def live(client: Client, begins: int, ends: int, each: Callable[[int], None]) -> None:
    for now in range(begins, ends):
        client.say(ping())
        each(now)
        client.tick(float(now))


def test_a_request_of_a_byte_a_second_is_cut(whole: Callable[..., Client]) -> None:
    client = whole(slow_s=60.0)
    client.say(begin(client, 1), begin(client, 3, path="/many"), begin(client, 5))
    client.say(*[data(number, framed(bytes(MIB))[:50]) for number in (1, 3, 5)])

    def drip(now: int) -> None:
        for number in client.wire.streams:
            client.say(data(number, bytes(80 if number == 5 else 1)))

    live(client, 1_001, 1_070, drip)
    assert client.wire.cut_streams == {"slow_requests": 2}
    assert list(client.wire.streams) == [5], "this one is slow, but it comes"
    assert client.events == ["Opened 3", "Cut 3"]


def test_an_answer_that_is_taken_a_byte_a_second_is_cut(whole: Callable[..., Client]) -> None:
    client = whole(slow_s=60.0)
    client.say(settings({INITIAL_WINDOW: 0}))
    waiting_calls(client, 2, MIB)

    def sip(now: int) -> None:
        for number in client.wire.streams:
            client.say(window_update(number, 100 if number == 3 else 1))

    live(client, 1_001, 1_070, sip)
    assert client.wire.cut_streams == {"answers_unread": 1}
    assert list(client.wire.streams) == [3]
    assert client.events[-1] == "Cut 1"


def test_nobody_is_slow_or_silent_to_who_does_not_listen(whole: Callable[..., Client]) -> None:
    client = whole(slow_s=60.0, ping_s=20.0)
    client.say(settings({INITIAL_WINDOW: 0}), begin(client, 1), data(1, CLAIM))
    client.call(3, b"")
    client.wire.answer(client.streams[3], bytes(100))
    client.say(b"\0\0\4")
    client.heard()
    client.wire.deaf = True
    for now in range(1_001, 1_200):
        client.tick(float(now))
    assert (client.failure, client.heard(), list(client.wire.streams)) == (None, [], [1, 3])
    client.wire.deaf = False
    for now in range(1_200, 1_219):
        client.tick(float(now))
    assert (client.failure, client.heard()) == (None, [])
    client.tick(1_219.0)
    assert client.heard() == ["PING popgate?"]


@pytest.mark.parametrize("timeout", ["0n", "00000000H"])
def test_a_deadline_in_the_past_begins_nothing(make_client: MAKE, timeout: str) -> None:
    client = make_client()
    client.say(begin(client, 1, ("grpc-timeout", timeout)), data(1, MESSAGE, end=True))
    assert client.events == []
    assert "grpc-status=4" in client.heard()[-2]


def test_a_peer_that_vanishes_with_1000_open_calls(whole: Callable[..., Client]) -> None:
    client = whole()
    for number in range(1, 2_001, 2):
        client.call(number, b"", path="/one" if number % 4 == 1 else "/many", end=number % 4 == 1)
    client.wire.receive(b"")
    client.note()
    assert sorted(event for event in client.events if event.startswith("Cut")) == sorted(
        f"Cut {number}" for number in range(1, 2_001, 2)
    )
    assert (client.wire.streams, client.wire.holds, client.limits.holding.used) == ({}, 0, 0)


@pytest.mark.parametrize(
    ("said", "after_s", "kind"),
    [
        (b"", 10, "greeting"),
        (PREFACE[:-1], 10, "greeting"),
        (PREFACE + b"\0\0\0\4", 10, "greeting"),
        (PREFACE + settings(), 31, "silence"),
    ],
)
def test_half_open_connections(make_client: MAKE, said: bytes, after_s: int, kind: str) -> None:
    client = make_client(greets=False)
    client.tick(1_000.0)
    client.say(said)
    for now in range(1_001, 1_000 + after_s):
        client.tick(float(now))
    assert client.failure is None
    client.tick(1_000.0 + after_s)
    assert client.failure.kind == kind


def test_kinds_of_nonsense(whole: Callable[..., Client]) -> None:
    told = {}
    for name, said in {
        "protocol": frame("PING", 1, bytes(8)),
        "frame_size": frame("PING", 0, bytes(7)),
        "flow_control": settings({INITIAL_WINDOW: 1 << 31}),
        "compression": headers(1, b"\x80"),
    }.items():
        client = whole()
        client.say(said)
        told[name] = client.failure.kind if client.failure is not None else ""
    assert told == {kind: kind for kind in told}
