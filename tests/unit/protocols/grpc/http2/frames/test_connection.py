"""protocols.grpc.http2.frames.connection and what it is made of: frames in, events and frames out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from popgate.errors import PeerWireError
from popgate.testing.frames import (
    PREFACE,
    continuation,
    data,
    frame,
    frame_of,
    framed,
    headers,
    padded,
    ping,
    reset,
    settings,
    window_update,
)
from protocols.grpc.http2.frames.codes import ErrorCode, FloodError

MAKE = Callable[..., Any]
ANSWER = "HEADERS 1 :status=200 content-type=application/grpc"
FINE = "HEADERS 1 end grpc-status=0"
MESSAGE = framed(b"hello")
ENABLE_PUSH, INITIAL_WINDOW, MAX_FRAME = 2, 4, 5


def test_the_greetings(make_client: MAKE) -> None:
    client = make_client(greets=False, max_streams=7, stream_window=70_000, max_headers_bytes=9_000)
    assert client.heard() == ["SETTINGS 3=7 4=70000 6=9000"]
    client.say(PREFACE, settings({ENABLE_PUSH: 0}))
    assert client.heard() == ["SETTINGS ack"]
    client.say(settings(ack=True), ping(b"how much"))
    assert client.heard() == ["PING ack how much"]
    assert (client.events, client.failure) == ([], None)


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.1", b"\x16\x03\x01\x00\x05"])
def test_what_is_no_greeting_is_refused_at_its_first_wrong_byte(make_client: MAKE, greeting: bytes) -> None:
    client = make_client(greets=False)
    client.say(greeting)
    assert isinstance(client.failure, PeerWireError)
    assert client.heard()[1:] == [f"GOAWAY 0 PROTOCOL_ERROR: {client.failure}"]


# -- a call ---------------------------------------------------------------------------------------


def test_a_call(client: Any) -> None:
    client.call(1, b"hello")
    assert (client.events, client.messages) == (["Called 1"], [b"hello"])
    assert client.heard() == []
    client.wire.answer(client.streams[1], b"there")
    assert client.heard() == [ANSWER, f"DATA 1 {framed(b'there')!r}", FINE]
    assert not client.wire.streams


def test_pieces_of_a_call(client: Any) -> None:
    """Headers in three frames, a message in two, padding, priority, and an end of its own."""
    block = client.block()
    client.say(
        frame("HEADERS", 1, bytes((0, 0, 0, 0, 15)) + block[:10], flags=0x20),
        continuation(1, block[10:20], more=True),
        continuation(1, block[20:]),
        padded(data(1, MESSAGE[:3]), 7),
        data(1, MESSAGE[3:]),
        padded(data(1, end=True), 0),
    )
    assert (client.events, client.messages) == (["Called 1"], [b"hello"])


def test_trailers_of_a_request_are_read_and_end_it(client: Any) -> None:
    client.say(headers(1, client.block()), data(1, MESSAGE))
    assert client.events == []
    client.say(headers(1, client.block_of([("checksum", "7")]), end=True))
    assert client.events == ["Called 1"]


def test_calls_side_by_side_are_answered_in_any_order(client: Any) -> None:
    for number in (1, 3, 5):
        client.say(headers(number, client.block()))
    for number in (5, 1, 3):
        client.say(data(number, framed(str(number).encode()), end=True))
    assert (client.events, client.messages) == (["Called 5", "Called 1", "Called 3"], [b"5", b"1", b"3"])
    for number in (3, 5, 1):
        client.wire.answer(client.streams[number], b"")
    assert [line.split()[1] for line in client.heard()] == ["3"] * 3 + ["5"] * 3 + ["1"] * 3


def test_a_call_of_many_messages_both_ways(client: Any) -> None:
    client.say(headers(1, client.block(path="/many")))
    assert client.events == ["Opened 1"]
    client.wire.open_answer(client.streams[1])
    assert client.heard() == [ANSWER]
    client.say(data(1, framed(b"a") + framed(b"")), data(1, framed(b"c"), end=True))
    assert client.events == ["Opened 1", "Said 1", "Said 1", "Said 1", "Ended 1"]
    assert client.messages == [b"a", b"", b"c"]
    assert client.wire.write(client.streams[1], b"A")
    client.wire.finish(client.streams[1])
    assert client.heard() == [f"DATA 1 {framed(b'A')!r}", FINE]


def test_an_answer_before_the_request_has_ended_tells_its_client_to_save_the_rest(client: Any) -> None:
    client.say(headers(1, client.block(path="/many")))
    client.wire.finish(client.streams[1])
    assert client.heard() == [f"HEADERS 1 end {ANSWER[10:]} grpc-status=0", "RST_STREAM 1 NO_ERROR"]
    client.say(data(1, MESSAGE, end=True), window_update(1, 5), reset(1))
    assert (client.failure, client.heard(), client.events) == (None, [], ["Opened 1"])


def test_a_cut_call_is_told_once(client: Any) -> None:
    client.call(1, b"hello")
    client.say(headers(3, client.block(path="/many")), headers(5, client.block()))
    client.say(reset(1), reset(3), reset(5), reset(1))
    assert client.events == ["Called 1", "Opened 3", "Cut 1", "Cut 3"]
    assert (client.heard(), client.wire.streams) == ([], {})


def test_the_end_of_the_connection_cuts_what_is_open(client: Any) -> None:
    client.call(1, b"hello")
    client.say(headers(3, client.block(path="/many")), headers(5, client.block()))
    client.wire.receive(b"")
    client.note()
    assert client.events == ["Called 1", "Opened 3", "Cut 1", "Cut 3"]
    assert client.wire.over
    assert not client.wire.streams


# -- what is wrong --------------------------------------------------------------------------------

OPEN = "open"
"""The stream 1, of which more is to come."""
ASKED = "asked"
"""The stream 1 has been asked as a whole and not been answered."""
OVER = "over"
"""The stream 1 has been answered."""

CONNECTION_ERRORS: list[tuple[str, str, bytes, str]] = [
    ("a frame that is too large", "", frame("DATA", 1, bytes(16_385)), "FRAME_SIZE_ERROR"),
    ("data of no stream", "", data(0, b"x"), "PROTOCOL_ERROR"),
    ("data of a stream that is not open", "", data(1, b"x"), "PROTOCOL_ERROR"),
    ("data of a stream that is ours", "", data(2, b"x"), "PROTOCOL_ERROR"),
    ("data of a stream that is over", OVER, data(1, b"x"), "STREAM_CLOSED"),
    ("more padding than data", OPEN, frame("DATA", 1, b"\5abcd", flags=8), "PROTOCOL_ERROR"),
    ("padding without a length", OPEN, frame("DATA", 1, b"", flags=8), "PROTOCOL_ERROR"),
    ("headers of no stream", "", headers(0, b"\x82"), "PROTOCOL_ERROR"),
    ("headers of a stream that is ours", "", headers(2, b"\x82"), "PROTOCOL_ERROR"),
    ("headers of a stream that is over", OVER, headers(1, b"\x82"), "STREAM_CLOSED"),
    ("headers too short for priority", "", frame("HEADERS", 1, bytes(4), flags=0x24), "FRAME_SIZE_ERROR"),
    ("a block that is no HPACK", "", headers(1, b"\x80"), "COMPRESSION_ERROR"),
    ("a block that is interrupted", "", headers(1, b"\x82", more=True) + ping(), "PROTOCOL_ERROR"),
    (
        "a block that goes on in another stream",
        "",
        headers(1, b"\x82", more=True) + continuation(3, b"\x82"),
        "PROTOCOL_ERROR",
    ),
    ("a continuation of nothing", "", continuation(1, b"\x82"), "PROTOCOL_ERROR"),
    ("priority of no stream", "", frame("PRIORITY", 0, bytes(5)), "PROTOCOL_ERROR"),
    ("a reset of no stream", "", reset(0), "PROTOCOL_ERROR"),
    ("a reset of a stream that is not open", "", reset(1), "PROTOCOL_ERROR"),
    ("a reset of another size", OPEN, frame("RST_STREAM", 1, bytes(5)), "FRAME_SIZE_ERROR"),
    ("settings of a stream", OPEN, frame("SETTINGS", 1), "PROTOCOL_ERROR"),
    ("settings of another size", "", frame("SETTINGS", 0, bytes(5)), "FRAME_SIZE_ERROR"),
    ("settings confirmed with something", "", frame("SETTINGS", 0, bytes(6), flags=1), "FRAME_SIZE_ERROR"),
    ("an unlawful wish for promises", "", settings({ENABLE_PUSH: 2}), "PROTOCOL_ERROR"),
    ("a window that is too large", "", settings({INITIAL_WINDOW: 1 << 31}), "FLOW_CONTROL_ERROR"),
    ("frames that may be too small", "", settings({MAX_FRAME: 16_383}), "PROTOCOL_ERROR"),
    ("frames that may be too large", "", settings({MAX_FRAME: 1 << 24}), "PROTOCOL_ERROR"),
    ("a promise", OPEN, frame("PUSH_PROMISE", 1, b"\0\0\0\2\x82", flags=4), "PROTOCOL_ERROR"),
    ("a ping of a stream", OPEN, frame("PING", 1, bytes(8)), "PROTOCOL_ERROR"),
    ("a ping of another size", "", frame("PING", 0, bytes(7)), "FRAME_SIZE_ERROR"),
    ("a farewell of a stream", OPEN, frame("GOAWAY", 1, bytes(8)), "PROTOCOL_ERROR"),
    ("a farewell that is too short", "", frame("GOAWAY", 0, bytes(7)), "FRAME_SIZE_ERROR"),
    ("a window update of another size", "", frame("WINDOW_UPDATE", 0, bytes(3)), "FRAME_SIZE_ERROR"),
    ("a window that grows by nothing", "", window_update(0, 0), "PROTOCOL_ERROR"),
    ("a window that grows too large", "", window_update(0, (1 << 31) - 65_535), "FLOW_CONTROL_ERROR"),
    ("a window of a stream that is not open", "", window_update(1, 1), "PROTOCOL_ERROR"),
    (
        "an initial window that makes a grown one too large",
        OPEN,
        window_update(1, (1 << 31) - 1 - 65_535) + settings({INITIAL_WINDOW: 65_536}),
        "FLOW_CONTROL_ERROR",
    ),
]  # fmt: skip


def bring(client: Any, state: str) -> None:
    if state == OPEN:
        client.say(headers(1, client.block()))
    elif state:
        client.call(1, b"hello")
        if state == OVER:
            client.wire.answer(client.streams[1], b"")
    client.heard()


@pytest.mark.parametrize(
    ("state", "said", "code"),
    [row[1:] for row in CONNECTION_ERRORS],
    ids=[row[0] for row in CONNECTION_ERRORS],
)
def test_what_ends_the_connection(make_client: MAKE, state: str, said: bytes, code: str) -> None:
    client = make_client()
    bring(client, state)
    last = 1 if state else 0
    client.say(said, ping(b"not read"))
    assert client.failure is not None
    assert client.failure.code.name == code
    farewell = client.heard()[-1]
    # A header block that cannot be read, or ends elsewhere, opened nothing.
    assert farewell == f"GOAWAY {last} {code}: {client.failure}"
    assert not client.wire.streams
    assert client.events == (["Called 1"] if state == OVER else [])
    client.say(ping())
    assert client.heard() == []


STREAM_ERRORS: list[tuple[str, str, bytes, str]] = [
    ("data behind the end", ASKED, data(1, b"x"), "STREAM_CLOSED"),
    ("headers behind the end", ASKED, headers(1, b"\x82", end=True), "STREAM_CLOSED"),
    ("trailers that do not end their stream", OPEN, headers(1, b""), "PROTOCOL_ERROR"),
    ("trailers with what is none", OPEN, headers(1, b"\x82", end=True), "PROTOCOL_ERROR"),
    ("priority of another size", OPEN, frame("PRIORITY", 1, bytes(4)), "FRAME_SIZE_ERROR"),
    ("a stream that depends on itself", OPEN, frame("PRIORITY", 1, b"\0\0\0\1\0"), "PROTOCOL_ERROR"),
    ("a window that grows by nothing", ASKED, window_update(1, 0), "PROTOCOL_ERROR"),
    ("a window that grows too large", ASKED, window_update(1, (1 << 31) - 65_535), "FLOW_CONTROL_ERROR"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "said", "code"), [row[1:] for row in STREAM_ERRORS], ids=[row[0] for row in STREAM_ERRORS]
)
def test_what_ends_a_stream(make_client: MAKE, state: str, said: bytes, code: str) -> None:
    client = make_client()
    bring(client, state)
    client.say(said, ping(b"is heard"))
    assert client.heard() == [f"RST_STREAM 1 {code}", "PING ack is heard"]
    assert client.events == (["Called 1", "Cut 1"] if state == ASKED else [])
    assert (client.failure, client.wire.streams) == (None, {})
    client.call(3, b"hello")
    assert client.events[-1] == "Called 3"


def test_headers_that_depend_on_themselves_end_their_stream(client: Any) -> None:
    client.say(frame("HEADERS", 1, b"\0\0\0\1\0" + client.block(), flags=0x24), ping(b"is heard"))
    assert client.heard() == ["RST_STREAM 1 PROTOCOL_ERROR", "PING ack is heard"]


def test_headers_in_pieces_that_depend_on_themselves_open_nothing(client: Any) -> None:
    block = client.block()
    client.say(
        frame("HEADERS", 1, b"\0\0\0\1\0" + block[:7], flags=0x20),
        continuation(1, block[7:]),
        data(1, framed(b"hello"), end=True),
    )
    assert client.heard() == ["RST_STREAM 1 PROTOCOL_ERROR"]
    assert (client.events, client.failure, client.wire.streams) == ([], None, {})


METHOD, SCHEME, PATH = (":method", "POST"), (":scheme", "http"), (":path", "/one")
MALFORMED: list[tuple[str, list[tuple[str, str]]]] = [
    ("no path", [METHOD, SCHEME]),
    ("no scheme", [METHOD, PATH]),
    ("no method", [SCHEME, PATH]),
    ("an empty path", [METHOD, SCHEME, (":path", "")]),
    ("two paths", [METHOD, SCHEME, PATH, PATH]),
    ("a status", [METHOD, SCHEME, PATH, (":status", "200")]),
    ("pseudo behind regular", [METHOD, SCHEME, ("te", "trailers"), PATH]),
    ("a capital letter", [METHOD, SCHEME, PATH, ("X-a", "b")]),
    ("a header of connections", [METHOD, SCHEME, PATH, ("connection", "close")]),
    ("another te", [METHOD, SCHEME, PATH, ("te", "gzip")]),
    ("a line's end in a value", [METHOD, SCHEME, PATH, ("x-a", "b\nc")]),
    ("a carriage return in a value", [METHOD, SCHEME, PATH, ("x-a", "b\r")]),
    ("a zero in a value", [METHOD, SCHEME, (":path", "/o\0ne")]),
]


@pytest.mark.parametrize("fields", [row[1] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_malformed_headers_end_their_stream(client: Any, fields: list[tuple[str, str]]) -> None:
    client.say(headers(1, client.block_of(fields), end=True), ping(b"is heard"))
    assert client.heard() == ["RST_STREAM 1 PROTOCOL_ERROR", "PING ack is heard"]
    assert (client.events, client.failure) == ([], None)


def test_malformed_trailers_end_their_stream(client: Any) -> None:
    client.say(headers(1, client.block()), data(1, MESSAGE))
    client.heard()
    client.say(headers(1, client.block_of([("x-a", "b\nc")]), end=True))
    assert client.heard() == ["RST_STREAM 1 PROTOCOL_ERROR"]
    assert (client.events, client.failure) == ([], None)


@pytest.mark.parametrize(
    ("said", "length", "passes"),
    [
        ([MESSAGE], len(MESSAGE), True),
        ([MESSAGE[:4], MESSAGE[4:]], len(MESSAGE), True),
        ([MESSAGE], len(MESSAGE) + 1, False),
        ([MESSAGE[:4], MESSAGE[4:]], len(MESSAGE) - 1, False),
    ],
)
def test_a_content_length_is_that_of_the_content(
    client: Any, said: list[bytes], length: int, passes: bool
) -> None:
    client.say(headers(1, client.block(("content-length", str(length)))))
    client.say(*[data(1, piece) for piece in said], data(1, end=True))
    assert client.heard() == ([] if passes else ["RST_STREAM 1 PROTOCOL_ERROR"])
    assert client.events == (["Called 1"] if passes else [])


# -- what is borne --------------------------------------------------------------------------------

BORNE: list[tuple[str, str, bytes]] = [
    ("a kind of frame that nobody knows", "", frame_of(0xBA, 0, b"whatever", flags=0xFF)),
    ("the same of a stream", OPEN, frame_of(0xBA, 1, b"")),
    ("flags that nobody knows", "", frame("PING", 0, bytes(8), flags=0xF0)),
    ("a setting that nobody knows", "", settings({0xFFFF: 1})),
    ("a bit that is reserved", "", window_update(0, 1)[:5] + b"\x80" + window_update(0, 1)[6:]),
    ("priority of a stream that is not open", "", frame("PRIORITY", 5, bytes(5))),
    ("a window of a stream that is over", OVER, window_update(1, 1)),
    ("a reset of a stream that is over", OVER, reset(1)),
    ("a farewell", OPEN, frame("GOAWAY", 0, bytes(8) + b"bye")),
    ("an empty farewell of a known stream", OPEN, frame("GOAWAY", 0, bytes(8))),
    ("data that nothing is in", OPEN, data(1)),
]  # fmt: skip


@pytest.mark.parametrize(("state", "said"), [row[1:] for row in BORNE], ids=[row[0] for row in BORNE])
def test_what_is_borne(make_client: MAKE, state: str, said: bytes) -> None:
    client = make_client()
    bring(client, state)
    client.say(said)
    client.heard()
    if state == OPEN:
        client.say(data(1, MESSAGE, end=True))
    else:
        client.call(3, b"hello")
    assert (client.failure, client.events[-1].split()[0], client.heard()) == (None, "Called", [])


def test_who_skips_numbers_gives_them_up(client: Any) -> None:
    client.call(5, b"hello")
    client.say(headers(3, client.block()))
    assert client.failure is not None
    assert client.failure.code is ErrorCode.PROTOCOL_ERROR
    assert client.events == ["Called 5", "Cut 5"]


# -- sizes and numbers ----------------------------------------------------------------------------


def test_streams_above_the_limit_are_refused_one_by_one(make_client: MAKE) -> None:
    client = make_client(max_streams=2)
    for number in (1, 3, 5):
        client.call(number, b"hello")
    assert client.heard() == ["RST_STREAM 5 REFUSED_STREAM"]
    assert client.wire.refused_streams == 1
    client.wire.answer(client.streams[1], b"")
    client.call(7, b"hello")
    assert client.events == ["Called 1", "Called 3", "Called 7"]


def test_headers_above_the_limit_are_told_so_and_the_table_stays_in_step(make_client: MAKE) -> None:
    client = make_client(max_headers_bytes=1_000)
    entered = b"\x40\x01x\x02yy"
    client.say(headers(1, client.block(("long", "v" * 1_000)) + entered))
    client.say(data(1, MESSAGE, end=True))
    assert client.heard() == ["HEADERS 1 end :status=431 content-length=0", "RST_STREAM 1 NO_ERROR"]
    client.say(headers(3, client.block() + b"\xbe"), data(3, MESSAGE, end=True))
    assert client.events == ["Called 3"]
    assert client.streams[3].head.text("x") == "yy"


@pytest.mark.parametrize("piece", [b"\x82", b""])
def test_a_header_block_without_an_end_is_a_flood(make_client: MAKE, piece: bytes) -> None:
    client = make_client(max_continuations=3)
    client.say(headers(1, b"\x82", more=True), *[continuation(1, piece, more=True)] * 3)
    assert client.failure is None
    client.say(continuation(1, piece, more=True))
    assert isinstance(client.failure, FloodError)
    assert client.failure.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_block_that_grows_without_an_end_is_a_flood(make_client: MAKE) -> None:
    client = make_client(max_headers_bytes=1_000, max_continuations=100)
    client.say(headers(1, bytes(16_384), more=True))
    assert client.failure is None
    client.say(continuation(1, bytes(4_096), more=True))
    assert client.failure is None
    client.say(continuation(1, b"0", more=True))
    assert isinstance(client.failure, FloodError)


# -- flow control: what comes ---------------------------------------------------------------------


def test_the_connection_may_send_on_when_half_of_its_room_is_used(make_client: MAKE) -> None:
    client = make_client(connection_window=200_000)
    client.say(headers(1, client.block()), data(1, (300_000).to_bytes(5, "big")))
    updates = []
    for _ in range(18):
        client.say(data(1, bytes(16_384)))
        updates += client.heard()
    # 65,535 at first, then twice as much, up to what there may be.
    assert updates[0] == f"WINDOW_UPDATE 0 {131_070 - 65_535 + 5 + 2 * 16_384}"
    assert all(line.startswith("WINDOW_UPDATE 0") for line in updates)
    sent, granted = 5 + 18 * 16_384, sum(int(line.split()[2]) for line in updates)
    assert 100_000 <= 65_535 + granted - sent <= 200_000


def test_more_than_the_connection_has_room_for_ends_it(make_client: MAKE) -> None:
    client = make_client()
    client.wire._may_send = 100
    client.say(headers(1, client.block()), data(1, bytes(101)))
    assert client.failure is not None
    assert client.failure.code is ErrorCode.FLOW_CONTROL_ERROR


def test_more_than_a_stream_has_room_for_ends_it(make_client: MAKE) -> None:
    client = make_client(stream_window=70_000)
    client.say(headers(1, client.block(path="/many")))
    message = framed(bytes(9_995))
    for _ in range(7):
        client.say(data(1, message))
    assert client.failure is None
    client.heard()
    client.say(data(1, b"x"))
    assert client.heard() == ["RST_STREAM 1 FLOW_CONTROL_ERROR"]
    assert client.events == ["Opened 1", *["Said 1"] * 7, "Cut 1"]


def test_a_stream_may_send_on_when_what_came_was_read(make_client: MAKE) -> None:
    client = make_client(stream_window=100_000)
    client.say(headers(1, client.block(path="/many")))
    for _ in range(4):
        client.say(data(1, framed(bytes(9_995))))
        client.wire.took(client.streams[1])
    # Less than half is not worth a frame.
    assert [line for line in client.heard() if line.startswith("WINDOW_UPDATE 1")] == []
    client.say(data(1, framed(bytes(9_995))))
    client.wire.took(client.streams[1])
    client.wire.took(client.streams[1])
    assert client.heard()[-1] == "WINDOW_UPDATE 1 50000"


def test_a_message_larger_than_the_window_comes_in(make_client: MAKE) -> None:
    for path in ("/one", "/many"):
        client = make_client(stream_window=70_000)
        client.say(headers(1, client.block(path=path)))
        message = framed(bytes(500_000))
        room = 65_535
        for at in range(0, len(message), 10_000):
            piece = message[at : at + 10_000]
            room -= len(piece)
            assert room >= 0, "nobody says that there is room"
            client.say(data(1, piece))
            room += sum(int(line.split()[2]) for line in client.heard() if line.startswith("WINDOW_UPDATE 1"))
        client.say(data(1, end=True))
        assert client.messages == [bytes(500_000)]


def test_messages_that_nobody_reads_are_not_made_room_for_by_the_beginning_of_another(
    make_client: MAKE,
) -> None:
    client = make_client(stream_window=70_000)
    client.say(headers(1, client.block(path="/many")))
    message = framed(bytes(9_995))
    rest = message + message[:100]
    client.say(data(1, message[:100]))
    for _ in range(8):
        if client.wire.streams:
            client.say(data(1, message[100:] + rest[10_000:]))
    assert client.heard()[-1] == "RST_STREAM 1 FLOW_CONTROL_ERROR"
    assert len(client.messages) <= 7


def test_padding_uses_room_too(make_client: MAKE) -> None:
    client = make_client(stream_window=70_000)
    client.say(headers(1, client.block(path="/many")))
    for _ in range(273):
        client.say(padded(data(1, framed(b"")[:0]), 255))
    assert client.heard()[-1] != "RST_STREAM 1 FLOW_CONTROL_ERROR"
    for _ in range(2):
        client.say(padded(data(1), 255))
    assert client.heard()[-1] == "RST_STREAM 1 FLOW_CONTROL_ERROR"


# -- flow control: what goes ----------------------------------------------------------------------


def sizes(lines: list[str], number: int = 1) -> list[int]:
    """Of the DATA frames of a stream; what is short is told as it is."""
    found = [line.split(maxsplit=2) for line in lines if line.startswith(f"DATA {number} ")]
    return [int(rest.split()[0]) if rest.endswith(" bytes") else len(eval(rest)) for _, _, rest in found]


def test_an_answer_waits_for_room_in_its_stream(client: Any) -> None:
    client.say(settings({INITIAL_WINDOW: 10}))
    client.call(1, b"")
    client.heard()
    client.wire.answer(client.streams[1], bytes(20))
    assert sizes(client.heard()) == [10]
    client.say(window_update(1, 14))
    assert sizes(client.heard()) == [14]
    client.say(window_update(1, 5))
    assert client.heard() == ["DATA 1 b'\\x00'", FINE]
    assert client.wire.waiting_bytes == 0


def test_an_answer_waits_for_room_in_the_connection(client: Any) -> None:
    client.say(settings({INITIAL_WINDOW: 100_000}))
    for number in (1, 3):
        client.call(number, b"")
    client.heard()
    client.wire.answer(client.streams[1], bytes(50_000))
    client.wire.answer(client.streams[3], bytes(50_000))
    lines = client.heard()
    assert sizes(lines) == [16_384, 16_384, 16_384, 50_005 - 3 * 16_384]
    assert sizes(lines, 3) == [15_530]
    assert client.wire.waiting_bytes == 50_005 - 15_530
    client.say(window_update(0, 1_000_000))
    lines = client.heard()
    assert sum(sizes(lines, 3)) == 50_005 - 15_530
    assert lines[-1] == "HEADERS 3 end grpc-status=0"


def test_those_that_wait_for_the_connection_are_served_in_turn(client: Any) -> None:
    client.say(settings({INITIAL_WINDOW: 1_000_000}))
    for number in (1, 3):
        client.call(number, b"")
    client.wire.answer(client.streams[1], bytes(200_000))
    client.wire.answer(client.streams[3], bytes(200_000))
    client.heard()
    served = []
    for _ in range(4):
        client.say(window_update(0, 1_000))
        served += [line.split()[1] for line in client.heard()]
    assert served == ["1", "3", "1", "3"]


def test_windows_of_open_streams_change_with_the_initial_one(client: Any) -> None:
    client.call(1, b"")
    client.wire.write(client.streams[1], bytes(995))
    client.say(settings({INITIAL_WINDOW: 500}))
    client.heard()
    assert not client.wire.write(client.streams[1], bytes(5)), "the window is below nothing"
    assert client.heard() == []
    client.say(window_update(1, 500))
    assert client.heard() == [], "it is at nothing now"
    client.say(settings({INITIAL_WINDOW: 504}))
    assert client.heard() == ["SETTINGS ack", "DATA 1 b'\\x00\\x00\\x00\\x00'"], (
        "confirmed at once, then sent"
    )
    client.say(window_update(1, 6))
    client.wire.finish(client.streams[1])
    assert client.heard() == ["DATA 1 b'\\x05\\x00\\x00\\x00\\x00\\x00'", FINE]
    assert client.events == ["Called 1", "Roomy 1"]


def test_nothing_is_larger_than_the_peer_takes(client: Any) -> None:
    client.say(settings({INITIAL_WINDOW: 1_000_000, MAX_FRAME: 20_000}), window_update(0, 1_000_000))
    client.call(1, b"")
    client.heard()
    client.wire.answer(client.streams[1], bytes(49_995))
    assert sizes(client.heard()) == [20_000, 20_000, 10_000]


def test_who_writes_is_told_when_there_is_room_again(client: Any) -> None:
    client.say(settings({INITIAL_WINDOW: 10}))
    client.call(1, b"")
    stream = client.streams[1]
    assert client.wire.write(stream, b"12345")
    assert not client.wire.write(stream, b"6")
    client.note()
    assert client.events == ["Called 1"]
    client.say(window_update(1, 5))
    client.note()
    assert client.events == ["Called 1"]
    client.say(window_update(1, 1))
    assert client.events == ["Called 1", "Roomy 1"]


def test_what_waits_for_room_is_forgotten_with_its_stream(client: Any) -> None:
    client.say(settings({INITIAL_WINDOW: 10}))
    for number in (1, 3, 5):
        client.call(number, b"")
        client.wire.answer(client.streams[number], bytes(1_000))
    client.heard()
    assert client.wire.waiting_bytes == 3 * 995
    client.say(reset(1), window_update(3, 0))
    assert client.wire.waiting_bytes == 995
    client.say(ping(), frame("PING", 1, bytes(8)))
    assert (client.wire.waiting_bytes, client.wire.streams) == (0, {})


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("GET", "text/html"),
        ("POST", "application/json"),
        ("GET", "application/grpc"),
        ("POST", "application/grpc-web"),
    ],
)
def test_a_plain_request_is_told_what_is_spoken_here(client: Any, method: str, kind: str) -> None:
    client.say(headers(1, client.block(("content-type", kind), method=method), end=True))
    lines = client.heard()
    assert lines[0].startswith("HEADERS 1 :status=415 content-type=text/plain")
    assert (lines[-1], client.events) == ("DATA 1 end b''", [])


def test_an_answer_to_head_has_no_content(client: Any) -> None:
    client.say(headers(1, client.block(("content-type", "text/html"), method="HEAD"), end=True))
    (line,) = client.heard()
    assert line.startswith("HEADERS 1 end :status=415 content-type=text/plain")
    assert (client.events, client.wire.streams) == ([], {})


def test_a_plain_request_has_not_all_of_its_content_read(make_client: MAKE) -> None:
    client = make_client(max_plain_bytes=1_000)
    client.say(headers(1, client.block(("content-type", "text/html"))), data(1, bytes(1_000)))
    assert client.heard() == []
    client.say(data(1, b"x"))
    lines = client.heard()
    assert lines[0].startswith("HEADERS 1 :status=415")
    assert lines[-1] == "RST_STREAM 1 NO_ERROR"


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;x=1"])
def test_the_names_of_grpc(client: Any, kind: str) -> None:
    client.say(headers(1, client.block(("content-type", kind))), data(1, MESSAGE, end=True))
    assert client.events == ["Called 1"]
