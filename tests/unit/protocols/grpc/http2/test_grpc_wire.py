"""protocols.grpc.http2.grpc_wire: messages, statuses, deadlines, and what is refused."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest

from popgate.errors import LocalWireError
from popgate.testing.frames import data, framed, headers, ping, reset, settings, split, window_update
from protocols.grpc.http2.frames.limits import HeldBytes

MAKE = Callable[..., Any]
HEADERS = ":status=200 content-type=application/grpc"
MIB = 1024 * 1024
INITIAL_WINDOW = 4


def refusal(client: Any, number: int = 1) -> tuple[str, str]:
    """Status and sentence of a call that was refused without another header."""
    line = next(line for line in client.heard() if line.startswith(f"HEADERS {number} end "))
    told = dict(word.split("=", 1) for word in line.split(" ")[3:] if "=" in word)
    assert (told[":status"], told["content-type"]) == ("200", "application/grpc")
    return told["grpc-status"], unquote(line.partition("grpc-message=")[2])


# -- refusals -------------------------------------------------------------------------------------

BROKEN: list[tuple[str, bytes, str, str]] = [
    ("nothing", b"", "13", "the request has no message"),
    ("half a frame", framed(b"hello")[:4], "13", "the request ends within a message"),
    ("half a message", framed(b"hello")[:-1], "13", "the request ends within a message"),
    ("two messages", framed(b"hello") * 2, "13", "a request of one message has more than one"),
    ("a flag that nobody knows", framed(b"hello", flag=2), "13", "it is not said how"),
    ("compressed by nothing", framed(b"hello", flag=1), "13", "it is not said how"),
]


@pytest.mark.parametrize(
    ("said", "status", "sentence"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_a_request_that_cannot_be_read_is_told_so(
    client: Any, said: bytes, status: str, sentence: str
) -> None:
    client.say(headers(1, client.block()), data(1, said, end=True))
    told = refusal(client)
    assert told[0] == status
    assert sentence in told[1]
    assert (client.events, client.wire.streams, client.failure) == ([], {}, None)


def test_a_request_that_ends_with_its_headers_has_no_message(client: Any) -> None:
    client.say(headers(1, client.block(), end=True))
    assert refusal(client) == ("13", "the request has no message")


def test_a_method_that_is_not_there(client: Any) -> None:
    client.say(headers(1, client.block(path="/ü%")), data(1, framed(b"hello"), end=True))
    assert refusal(client) == ("12", "there is no /ü% here")
    client.say(headers(3, client.block(path="/" + "x" * 1_000)))
    assert len(refusal(client, 3)[1]) < 300


def test_a_broken_stream_of_many_is_cut_with_its_reason(client: Any) -> None:
    client.say(headers(1, client.block(path="/many")), data(1, framed(b"hello") + framed(b"x", flag=9)))
    assert client.events == ["Opened 1", "Said 1", "Cut 1"]
    assert refusal(client)[0] == "13"


# -- sizes ----------------------------------------------------------------------------------------


def test_a_message_as_large_as_may_be_and_one_byte_larger(make_client: MAKE) -> None:
    client = make_client(max_message_bytes=1_000)
    client.call(1, bytes(1_000))
    assert client.messages == [bytes(1_000)]
    client.say(headers(3, client.block()), data(3, framed(bytes(1_001))[:5]))
    assert refusal(client, 3) == ("8", "the message has 1001 bytes, the limit is 1000")
    client.call(5, bytes(1_001))
    assert refusal(client, 5) == ("8", "the message has 1001 bytes, the limit is 1000")


def test_what_all_connections_hold_of_requests_is_bounded(make_client: MAKE) -> None:
    holding = HeldBytes(1_000)
    first, second = (make_client(holding=holding) for _ in range(2))
    first.say(headers(1, first.block()), data(1, framed(bytes(10_000))[:900]))
    second.say(headers(1, second.block()), data(1, framed(bytes(10_000))[:200]))
    status, sentence = refusal(first)
    assert (status, "try again" in sentence) == ("8", True), "who holds most makes room"
    assert (holding.used, first.wire.holds, second.wire.holds) == (200, 0, 200)
    second.say(reset(1))
    assert (holding.used, first.wire.holds) == (0, 0)


def test_a_connection_may_hold_one_request_larger_than_the_bound(make_client: MAKE) -> None:
    holding = HeldBytes(1_000)
    client = make_client(holding=holding)
    client.call(1, bytes(10_000))
    assert client.messages == [bytes(10_000)]
    assert holding.used == 0


# -- gzip -----------------------------------------------------------------------------------------


def packed(client: Any, message: bytes, encoding: str = "gzip") -> None:
    block = client.block(("grpc-encoding", encoding), path="/one")
    client.say(headers(1, block), data(1, framed(message, flag=1), end=True))


def test_a_compressed_request(client: Any) -> None:
    packed(client, gzip.compress(b"hello" * 1_000))
    assert client.messages == [b"hello" * 1_000]


def test_messages_of_a_stream_are_compressed_one_by_one(client: Any) -> None:
    client.say(headers(1, client.block(("grpc-encoding", "gzip"), path="/many")))
    client.say(data(1, framed(gzip.compress(b"a"), flag=1) + framed(b"b")))
    assert client.messages == [b"a", b"b"]


WRONG: list[tuple[str, bytes, str, str]] = [
    ("no gzip", b"hello", "13", "cannot be read"),
    ("zlib", zlib.compress(b"hello"), "13", "cannot be read"),
    ("no end", gzip.compress(b"hello" * 100)[:-4], "13", "no end"),
    ("more behind", gzip.compress(b"hello") + b"x", "13", "something behind"),
    ("a wrong sum", gzip.compress(b"hello")[:-8] + bytes(8), "13", "cannot be read"),
    ("a bomb", gzip.compress(bytes(8 * MIB)), "8", f"more than {MIB} bytes"),
]


@pytest.mark.parametrize(
    ("message", "status", "sentence"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_compressed_nonsense(make_client: MAKE, message: bytes, status: str, sentence: str) -> None:
    client = make_client(max_message_bytes=MIB)
    packed(client, message)
    told = refusal(client)
    assert told[0] == status
    assert sentence in told[1]
    assert client.messages == []


def test_another_compression_is_told_which_there_are(client: Any) -> None:
    packed(client, b"hello", "snappy")
    [line] = client.heard()
    assert line.startswith(f"HEADERS 1 end {HEADERS} grpc-status=12 ")
    assert line.endswith(" grpc-accept-encoding=identity,gzip")


def test_compressed_answers(client: Any) -> None:
    client.call(1, b"")
    client.wire.write(client.streams[1], b"hello" * 100, gzip=True)
    client.wire.finish(client.streams[1])
    told = list(split(b"".join(client.wire.data_to_send())))
    assert [kind for kind, *_ in told] == ["HEADERS", "DATA", "HEADERS"]
    assert b"grpc-encoding\x04gzip" in told[0][3]
    message = told[1][3]
    assert message[:5] == framed(message[5:], flag=1)[:5]
    assert gzip.decompress(message[5:]) == b"hello" * 100


# -- statuses and metadata ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "sent"),
    [
        ("all is well", "all is well"),
        ("100% of ü and 文\n", "100%25 of %C3%BC and %E6%96%87%0A"),
        ("\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n",
         "%09%0Atest with whitespace%0D%0Aand Unicode BMP %E2%98%BA and non-BMP %F0%9F%98%88%09%0A"),
        ("a\udcff", "a?"),
        ("", ""),
    ],
)  # fmt: skip
def test_sentences_are_carried_whatever_they_are(client: Any, sentence: str, sent: str) -> None:
    for number in (1, 3):
        client.call(number, b"")
    client.wire.finish(client.streams[1], 5, sentence)
    assert client.heard() == [f"HEADERS 1 end {HEADERS} grpc-status=5 grpc-message={sent}"]
    client.wire.write(client.streams[3], b"")
    client.wire.finish(client.streams[3], 5, sentence)
    assert client.heard()[-1] == f"HEADERS 3 end grpc-status=5 grpc-message={sent}"


def test_long_sentences_are_cut_and_fit_in_a_frame(client: Any) -> None:
    client.call(1, b"")
    client.wire.finish(client.streams[1], 2, "😈" * 100_000)
    [line] = client.heard()
    assert unquote(line.partition("grpc-message=")[2]) == "😈" * 1_024


def test_metadata_in_front_of_an_answer_and_behind_it(client: Any) -> None:
    client.call(1, b"")
    client.wire.open_answer(client.streams[1], metadata=[("a", "b"), ("c-bin", b"\xab\xab\xab\xab")])
    client.wire.open_answer(client.streams[1], metadata=[("too", "late")])
    client.wire.write(client.streams[1], b"")
    client.wire.finish(client.streams[1], metadata=[("d-bin", b"\0\1\2"), ("e", "f")])
    lines = client.heard()
    assert lines[0] == f"HEADERS 1 {HEADERS} a=b c-bin=q6urqw"
    assert lines[2] == "HEADERS 1 end grpc-status=0 d-bin=AAEC e=f"


def test_an_answer_behind_headers_of_its_own(client: Any) -> None:
    client.call(1, b"")
    client.wire.open_answer(client.streams[1], metadata=[("a", "b")])
    client.wire.answer(client.streams[1], b"hello")
    assert client.heard() == [
        f"HEADERS 1 {HEADERS} a=b",
        f"DATA 1 {framed(b'hello')!r}",
        "HEADERS 1 end grpc-status=0",
    ]


def test_metadata_of_an_error(client: Any) -> None:
    client.call(1, b"")
    client.wire.finish(client.streams[1], 3, "no", [("why", "because")])
    assert client.heard() == [f"HEADERS 1 end {HEADERS} grpc-status=3 grpc-message=no why=because"]


def test_metadata_that_cannot_be_sent_is_refused_and_the_call_goes_on(client: Any) -> None:
    client.call(1, b"")
    with pytest.raises(LocalWireError):
        client.wire.open_answer(client.streams[1], metadata=[("a", "line\nbreak")])
    with pytest.raises(LocalWireError):
        client.wire.finish(client.streams[1], metadata=[("Capital", "b")])
    client.wire.answer(client.streams[1], b"")
    assert client.heard()[-1] == "HEADERS 1 end grpc-status=0"


def test_what_is_over_cannot_be_answered(client: Any) -> None:
    client.call(1, b"")
    client.wire.answer(client.streams[1], b"")
    for late in (
        lambda stream: client.wire.answer(stream, b""),
        lambda stream: client.wire.write(stream, b""),
        client.wire.open_answer,
        client.wire.finish,
    ):
        with pytest.raises(LocalWireError):
            late(client.streams[1])
    assert not client.wire.is_open(client.streams[1])
    assert len(client.heard()) == 3


def test_what_waits_to_be_sent_is_over_for_who_answers(client: Any) -> None:
    client.say(settings({INITIAL_WINDOW: 0}))
    client.call(1, b"")
    client.wire.answer(client.streams[1], b"hello")
    assert not client.wire.is_open(client.streams[1])
    client.heard()
    client.say(window_update(1, 100))
    assert client.heard() == [f"DATA 1 {framed(b'hello')!r}", "HEADERS 1 end grpc-status=0"]


# -- deadlines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2S", 2), ("1H", 3_600), ("2M", 120), ("2500m", 2.5), ("1500000u", 1.5), ("99999999n", 0.099_999_999)],
)
def test_deadlines(client: Any, text: str, seconds: float) -> None:
    client.wire.now = 1_000.0
    client.say(headers(1, client.block(("grpc-timeout", text))), data(1, framed(b""), end=True))
    assert client.streams[1].deadline == pytest.approx(1_000 + seconds)
    client.tick(999.9 + seconds)
    assert client.events == ["Called 1"]
    client.tick(1_000.1 + seconds)
    assert client.events == ["Called 1", "Late 1"]
    assert refusal(client) == ("4", "the deadline of the call has passed")
    client.tick(1_000.2 + seconds)
    assert client.events == ["Called 1", "Late 1"]


@pytest.mark.parametrize("text", ["", "S", "2", "2s", "-2S", "2.5S", "123456789S", "²S", " 2S"])
def test_what_is_no_deadline(client: Any, text: str) -> None:
    client.say(headers(1, client.block(("grpc-timeout", text))), data(1, framed(b""), end=True))
    if text:
        assert refusal(client) == ("13", "the header grpc-timeout is malformed")
        assert client.events == []
    else:
        assert (client.events, client.streams[1].deadline) == (["Called 1"], None)


def test_a_deadline_passes_while_the_request_still_comes(client: Any) -> None:
    client.wire.now = 1_000.0
    client.say(headers(1, client.block(("grpc-timeout", "2S"))), data(1, framed(bytes(100))[:50]))
    client.tick(1_003.0)
    assert refusal(client)[0] == "4"
    assert (client.events, client.wire.holds, client.wire.streams) == ([], 0, {})


def test_a_deadline_passes_while_the_answer_waits_for_room(client: Any) -> None:
    client.say(settings({INITIAL_WINDOW: 3}))
    client.wire.now = 1_000.0
    client.say(headers(1, client.block(("grpc-timeout", "2S"))), data(1, framed(b""), end=True))
    client.wire.write(client.streams[1], b"hello")
    client.heard()
    client.tick(1_003.0)
    assert client.heard()[-1] == "RST_STREAM 1 CANCEL"
    assert (client.events, client.wire.waiting_bytes) == (["Called 1", "Late 1"], 0)


# -- time -----------------------------------------------------------------------------------------


def live(client: Any, since: float, until: float, *said: bytes) -> None:
    """Let time pass in seconds, with a sign of life in each."""
    now = since
    while now < until:
        now += 1.0
        client.say(*said, ping())
        client.tick(now)


def test_who_does_not_greet_is_given_up(make_client: MAKE) -> None:
    client = make_client(greets=False, greeting_s=10.0)
    client.tick(1_000.0)
    client.tick(1_009.0)
    assert client.failure is None
    client.tick(1_010.0)
    assert client.heard()[-1] == "GOAWAY 0 SETTINGS_TIMEOUT: no greeting came"
    assert client.failure is not None


def test_who_has_not_greeted_holds_up_no_drain(make_client: MAKE) -> None:
    """It has asked for nothing, and may have been opened for no more than a look at the port."""
    client = make_client(greets=False, greeting_s=10.0)
    client.tick(1_000.0)
    client.wire.leave(1_000.0)
    client.tick(1_000.5)
    assert not client.wire.left
    client.tick(1_001.0)
    assert client.wire.left
    assert client.failure is None


def test_who_opens_during_a_drain_and_does_not_greet_is_left(make_client: MAKE) -> None:
    """It is told to go when it waits for an answer, which it never does, or when others were told."""
    client = make_client(greets=False, greeting_s=10.0)
    client.tick(1_000.0)
    client.wire.leave(1_000.0, 0.5)
    client.tick(1_001.0)
    assert not client.wire.left
    client.tick(1_002.0)
    assert client.wire.left
    assert client.failure is None


def test_silence_is_asked_for_a_sign_of_life(make_client: MAKE) -> None:
    client = make_client(ping_s=20.0)
    client.call(1, b"")
    client.tick(1_000.0)
    client.tick(1_019.0)
    assert client.heard() == []
    client.tick(1_020.0)
    assert client.heard() == ["PING popgate?"]
    client.say(ping(b"popgate?", ack=True))
    client.tick(1_021.0)
    client.tick(1_040.0)
    assert client.heard() == []
    client.tick(1_041.0)
    client.tick(1_050.0)
    assert (client.heard(), client.failure) == (["PING popgate?"], None)
    client.tick(1_051.0)
    assert client.heard() == ["GOAWAY 1 NO_ERROR: no sign of life came"]
    assert client.events == ["Called 1", "Cut 1"]
    assert client.failure is not None


def test_a_request_that_stands_still_is_cut(make_client: MAKE) -> None:
    client = make_client(slow_s=60.0)
    client.tick(1_000.0)
    client.say(headers(1, client.block()), data(1, framed(bytes(9_000))[:50]))
    client.say(headers(3, client.block()))
    live(client, 1_000.0, 1_050.0)
    client.say(data(1, bytes(5_000)))
    live(client, 1_050.0, 1_061.0)
    assert [line for line in client.heard() if line.startswith("RST")] == ["RST_STREAM 3 CANCEL"]
    live(client, 1_061.0, 1_110.0)
    assert list(client.wire.streams) == [1]
    live(client, 1_110.0, 1_112.0)
    assert [line for line in client.heard() if line.startswith("RST")] == ["RST_STREAM 1 CANCEL"]
    assert (client.wire.holds, client.events) == (0, [])


def test_an_answer_that_nobody_takes_is_cut(make_client: MAKE) -> None:
    client = make_client(slow_s=60.0)
    client.say(settings({INITIAL_WINDOW: 10}))
    client.tick(1_000.0)
    client.call(1, b"")
    client.wire.write(client.streams[1], bytes(9_000))
    live(client, 1_000.0, 1_059.0)
    client.say(window_update(1, 5_000))
    live(client, 1_059.0, 1_119.0)
    assert list(client.wire.streams) == [1]
    live(client, 1_119.0, 1_121.0)
    assert client.events == ["Called 1", "Cut 1"]
    assert client.wire.waiting_bytes == 0


def test_calls_that_wait_for_their_answers_are_left_alone(make_client: MAKE) -> None:
    client = make_client(slow_s=60.0)
    client.tick(1_000.0)
    client.call(1, b"")
    client.say(headers(3, client.block(path="/many")))
    live(client, 1_000.0, 5_000.0)
    assert list(client.wire.streams) == [1, 3]
    assert client.events == ["Called 1", "Opened 3"]


@pytest.mark.parametrize("piece", [b"\0\0", b"\0\0\x0a\x01\x00\0\0\0\1abc"])
def test_a_frame_that_stands_still_ends_the_connection(make_client: MAKE, piece: bytes) -> None:
    client = make_client(slow_s=60.0, ping_s=1e9)
    client.say(piece)
    client.tick(1_000.0)
    client.tick(1_001.0)
    client.tick(1_060.0)
    assert client.failure is None
    client.tick(1_061.0)
    assert client.heard() == ["GOAWAY 0 ENHANCE_YOUR_CALM: the rest of a frame did not come"]


# -- leaving --------------------------------------------------------------------------------------

FIRST = "GOAWAY 2147483647 NO_ERROR: the gateway asks its clients to connect anew"


def test_leaving_in_two_steps(client: Any) -> None:
    client.say(headers(1, client.block(path="/many")))
    client.wire.leave(1_000.0)
    client.wire.leave(1_000.0)
    assert client.heard() == [FIRST, "PING popgate-"]
    client.call(3, b"on its way")
    assert client.events == ["Opened 1", "Called 3"]
    client.say(ping(b"popgate-", ack=True))
    assert client.heard() == ["GOAWAY 3 NO_ERROR"]
    client.call(5, b"too late")
    assert client.heard() == ["RST_STREAM 5 REFUSED_STREAM"]
    client.wire.answer(client.streams[3], b"")
    assert not client.wire.left, "a stream is open"
    client.wire.write(client.streams[1], b"still here")
    client.wire.finish(client.streams[1])
    assert client.wire.left
    assert client.events == ["Opened 1", "Called 3"]


def test_who_does_not_answer_is_served_for_five_seconds_and_left(client: Any) -> None:
    """A machine that stands still for a moment has not read the first farewell, and means its calls well."""
    client.tick(999.0)
    client.wire.leave(1_000.0)
    client.tick(1_004.9)
    assert client.heard() == [FIRST, "PING popgate-"]
    assert not client.wire.left
    client.call(1, b"written before it read anything")
    assert client.events == ["Called 1"]
    client.wire.answer(client.streams[1], b"")
    client.heard()
    client.tick(1_005.1)
    assert client.heard() == ["GOAWAY 1 NO_ERROR"]
    assert client.wire.left
    client.say(ping(b"popgate-", ack=True))
    client.tick(1_006.0)
    assert client.heard() == []


def test_a_farewell_never_promises_more_than_the_one_before(client: Any) -> None:
    client.call(1, b"hello")
    client.wire.leave(1_000.0)
    client.say(ping(b"popgate-", ack=True))
    client.call(3, b"too late")
    client.say(data(0, b""))
    assert client.heard()[-1] == f"GOAWAY 1 PROTOCOL_ERROR: {client.failure}"


def test_an_old_connection_leaves_by_itself(make_client: MAKE) -> None:
    client = make_client(age_s=100.0, ping_s=1e9)
    client.tick(1_000.0)
    client.tick(1_089.0)
    client.tick(1_111.0)
    assert client.heard() == [], "it waits for a request"
    client.tick(1_112.0)
    assert client.heard() == [FIRST, "PING popgate-"]


def test_who_waits_for_an_answer_reads_first_that_he_is_to_go(client: Any) -> None:
    """Then he begins no request on this connection: one without retries would fail (`enable_retries`)."""
    client.say(headers(1, client.block(path="/many")))
    client.wire.leave(1_000.0, 0.5)
    assert (client.heard(), client.wire.leaving) == ([], False)
    client.call(3, b"asked")
    assert client.heard() == [FIRST, "PING popgate-"]
    client.wire.answer(client.streams[3], b"answer")
    client.wire.write(client.streams[1], b"another")
    assert client.heard() == []
    assert not client.wire.has_to_send
    client.say(ping(b"popgate-", ack=True))
    assert client.wire.has_to_send
    answered = client.heard()
    assert answered[:2] == [
        "HEADERS 3 :status=200 content-type=application/grpc",
        f"DATA 3 {framed(b'answer')!r}",
    ]
    assert answered[-1] == "GOAWAY 3 NO_ERROR"


def test_who_waits_already_is_told_at_once(client: Any) -> None:
    client.call(1, b"asked")
    client.wire.leave(1_000.0, 0.5)
    assert client.heard() == [FIRST, "PING popgate-"]


def test_who_asks_nothing_is_told_in_the_end(client: Any) -> None:
    client.tick(1_000.0)
    client.wire.leave(1_000.0, 0.5)
    client.tick(1_000.4)
    assert client.heard() == []
    client.tick(1_000.5)
    assert client.heard() == [FIRST, "PING popgate-"]


def test_who_answers_no_ping_waits_a_second_for_his_answer(client: Any) -> None:
    client.tick(1_000.0)
    client.call(1, b"asked")
    client.wire.leave(1_000.0)
    client.wire.answer(client.streams[1], b"")
    client.tick(1_000.9)
    assert client.heard() == [FIRST, "PING popgate-"]
    client.tick(1_001.0)
    assert client.heard()[0] == "HEADERS 1 :status=200 content-type=application/grpc"


def test_no_more_than_a_mebibyte_is_held_back(make_client: MAKE) -> None:
    client = make_client()
    client.say(settings({INITIAL_WINDOW: 1 << 30}), window_update(0, 1 << 30))
    client.call(1, b"asked")
    client.wire.leave(1_000.0)
    client.heard()
    for _ in range(64):
        client.wire.write(client.streams[1], bytes(16_000))
    assert not client.wire.has_to_send
    assert client.wire.data_to_send() == []
    client.wire.write(client.streams[1], bytes(64_000))
    assert client.wire.has_to_send
    assert sum(map(len, client.wire.data_to_send())) > 64 * 16_000 + 64_000
    assert client.wire.unsent == 0


def test_what_was_in_front_of_the_farewell_is_not_counted_as_held_back(client: Any) -> None:
    """It would keep those waiting that have something to write."""
    client.call(1, b"asked")
    client.wire.write(client.streams[1], b"before")
    client.wire.leave(1_000.0)
    client.heard()
    assert client.wire.unsent == 0


def test_a_connection_is_closed_when_its_last_answer_has_been_read(client: Any) -> None:
    client.call(1, b"asked")
    client.wire.leave(1_000.0)
    client.wire.answer(client.streams[1], b"")
    client.say(ping(b"popgate-", ack=True))
    assert client.wire.left
    assert not client.wire.may_close(1_000.1)
    assert client.heard()[-2:] == ["GOAWAY 1 NO_ERROR", "PING popgate."]
    assert not client.wire.may_close(1_000.2)
    client.say(ping(b"popgate.", ack=True))
    assert client.wire.may_close(1_000.3)
    assert client.heard() == []


def test_who_does_not_say_that_he_read_the_last_answer_has_a_second(client: Any) -> None:
    client.call(1, b"asked")
    client.wire.leave(1_000.0)
    client.wire.answer(client.streams[1], b"")
    client.say(ping(b"popgate-", ack=True))
    assert not client.wire.may_close(1_000.1)
    client.tick(1_001.0)
    assert not client.wire.may_close(1_001.0)
    client.tick(1_001.2)
    assert client.wire.may_close(1_001.2)


def test_who_was_answered_nothing_is_not_waited_for(client: Any) -> None:
    client.wire.leave(1_000.0)
    client.say(ping(b"popgate-", ack=True))
    assert client.wire.left
    assert client.wire.may_close(1_000.1)


def test_what_is_wrong_is_told_also_while_answers_are_held_back(client: Any) -> None:
    client.wire.leave(1_000.0)
    client.say(data(0, b""))
    assert client.heard()[-1] == f"GOAWAY 0 PROTOCOL_ERROR: {client.failure}"


def test_connections_of_one_age_do_not_leave_together(make_client: MAKE) -> None:
    wires = [make_client(age_s=100.0, ping_s=1e9).wire for _ in range(200)]

    def leaving(now: float) -> int:
        for wire in wires:
            # Without a request, each leaves a second after it is due.
            wire.tick(now - 1)
            wire.tick(now)
        return sum(wire.leaving for wire in wires)

    assert leaving(1_000.0) == leaving(1_089.9) == 0
    assert leaving(1_095.0) > 0, "none in the first quarter of the time between"
    assert leaving(1_105.0) < 200, "none in the last"
    assert leaving(1_111.1) == 200


def test_what_an_old_connection_has_under_way_gets_its_time_and_no_more(make_client: MAKE) -> None:
    client = make_client(age_s=100.0, age_grace_s=30.0, ping_s=1e9)
    client.say(settings({INITIAL_WINDOW: 10}))
    client.tick(1_000.0)
    client.say(headers(1, client.block(path="/many")))
    for number in (3, 5):
        client.call(number, b"")
    client.wire.write(client.streams[3], bytes(100))
    client.tick(1_111.0)
    client.tick(1_140.0)
    client.wire.answer(client.streams[5], b"")
    client.heard()
    assert (sorted(client.wire.streams), client.wire.left) == ([1, 3], False)
    client.tick(1_141.0)
    status = f"HEADERS 1 end {HEADERS} grpc-status=14 grpc-message=the connection is as old as it may be"
    assert client.heard() == [status, "RST_STREAM 1 NO_ERROR", "RST_STREAM 3 CANCEL"]
    assert client.events[-2:] == ["Cut 1", "Cut 3"]
    assert (client.wire.left, client.failure) == (True, None)


def test_who_leaves_for_another_reason_is_not_cut(make_client: MAKE) -> None:
    client = make_client(age_s=100.0, age_grace_s=30.0, ping_s=1e9)
    client.tick(1_000.0)
    client.say(headers(1, client.block(path="/many")))
    client.wire.leave(1_050.0)
    client.tick(2_000.0)
    assert client.wire.streams


def test_without_an_age_nothing_leaves(make_client: MAKE) -> None:
    client = make_client(ping_s=1e9)
    client.tick(1_000.0)
    client.tick(1e9)
    assert client.heard() == []


def test_an_unasked_answer_to_a_ping_is_nothing(client: Any) -> None:
    client.say(ping(b"popgate-", ack=True), ping(b"whatever", ack=True))
    client.wire.leave(1_000.0)
    client.say(ping(b"whatever", ack=True))
    assert client.heard() == [FIRST, "PING popgate-"]


def test_several_messages_share_frames_as_long_as_there_is_room(client: Any) -> None:
    client.call(1, b"")
    stream, wire = client.streams[1], client.wire
    assert wire.write_some(stream, [b"one", b"two", b""]) == 3
    assert client.heard() == [
        "HEADERS 1 :status=200 content-type=application/grpc",
        f"DATA 1 {framed(b'one') + framed(b'two') + framed(b'')!r}",
    ]
    many = [bytes(6000)] * 20
    taken = wire.write_some(stream, many)
    # Two of them fit into a frame, and ten into what is left of the window.
    assert taken == (65_535 - 21) // 6005 == 10
    assert client.heard() == ["DATA 1 12010 bytes"] * 5
    assert wire.write_some(stream, many) == 0
    assert wire.write_some(stream, [b"small"]) == 1
    assert not wire.write(stream, bytes(6000))
    assert wire.write_some(stream, [b""]) == 0, "nothing comes before what waits"


def test_a_message_above_the_size_of_a_frame_is_not_written_with_others(client: Any) -> None:
    client.call(1, b"")
    assert client.wire.write_some(client.streams[1], [b"one", bytes(16_384), b"two"]) == 1
    assert client.wire.write_some(client.streams[1], [bytes(16_384)]) == 0
    assert client.wire.write_some(client.streams[1], [bytes(16_379)]) == 1
