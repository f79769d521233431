"""Vectors: protocol facts 10, and frames that RocketMQ 5.5.0 itself encoded."""

import pytest

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.contract import Wire
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import (
    IS_RESPONSE,
    LARGEST_FRAME,
    VERSION,
    Command,
    RemotingWire,
    TlsSpoken,
    encode_command,
)

JSON, BINARY = Serialization.JSON, Serialization.ROCKETMQ
SMALL_BINARY = bytes.fromhex(
    "00000025 01000021 0069 00 01df 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54"
)
ROUTE_FIELDS = {"topic": "T中", "acceptStandardJsonOnly": "true"}
JAVA_FRAMES = [
    (
        (
            "000000b7000000af7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a2254e4b8ad222c2261636365"
            "70745374616e646172644a736f6e4f6e6c79223a2274727565227d2c22666c6167223a302c226c616e6775616765223a224a415641"
            "222c226f7061717565223a372c2272656d61726b223a22725c225c6e222c2273657269616c697a655479706543757272656e745250"
            "43223a224a534f4e222c2276657273696f6e223a3437397d626f6479"
        ),
        Command(105, 7, 0, ROUTE_FIELDS, b"body", 'r"\n', "JAVA", 479, JSON),
    ),
    (
        (
            "00000065000000617b22636f6465223a3130362c22666c6167223a302c226c616e6775616765223a224a415641222c226f70617175"
            "65223a382c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d"
        ),
        Command(106, 8, language="JAVA", version=479),
    ),
    (
        (
            "000000630000005f7b22636f6465223a302c22666c6167223a312c226c616e6775616765223a224a415641222c226f706171756522"
            "3a392c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d"
        ),
        Command(0, 9, 1, language="JAVA", version=479),
    ),
    (
        (
            "0000004f0100004700690001df00000007000000000000000372220a0000002f0005746f7069630000000454e4b8ad001661636365"
            "70745374616e646172644a736f6e4f6e6c790000000474727565626f6479"
        ),
        Command(105, 7, 0, ROUTE_FIELDS, b"body", 'r"\n', "JAVA", 479, BINARY),
    ),
    (
        "0000001901000015006a0001df00000008000000000000000000000000",
        Command(106, 8, language="JAVA", version=479, serialization=BINARY),
    ),
    (
        "000000190100001500000001df00000009000000010000000000000000",
        Command(0, 9, 1, language="JAVA", version=479, serialization=BINARY),
    ),
]


def drain(wire: Wire[Command]) -> list[Command]:
    return list(iter(wire.next_event, None))


@pytest.mark.parametrize(("written", "command"), JAVA_FRAMES)
def test_frames_are_those_of_java(written: str, command: Command) -> None:
    assert encode_command(command).hex() == written
    wire = RemotingWire()
    wire.receive(bytes.fromhex(written))
    assert drain(wire) == [command]


def test_the_binary_vector() -> None:
    command = Command(105, 7, fields={"topic": "T"}, language="JAVA", serialization=BINARY)
    assert encode_command(command) == SMALL_BINARY


def test_a_json_frame_begins_with_its_two_lengths() -> None:
    """Vector: a header of 123 bytes without a body has the prefix 0000007f 0000007b."""
    bare = len(encode_command(Command(1, remark="x"))) - 8
    frame = encode_command(Command(1, remark="x" * (1 + 123 - bare)))
    assert frame[:8].hex() == "0000007f0000007b"
    assert len(frame) == 131


COMMANDS = [
    Command(RequestCode.POP_MESSAGE, 1, 0, {"topic": "T", "consumerGroup": "g"}),
    Command(RequestCode.SEND_MESSAGE_V2, 2, 0, {"i": "TAGS\x01A\x02"}, b"x" * 3000, serialization=BINARY),
    Command(ResponseCode.TOPIC_NOT_EXIST, -7, 1, {}, b"", "No topic route info"),
    Command(RequestCode.UNLOCK_BATCH_MQ, 3, 2, {}, b"{}"),
]
STREAM = b"".join(map(encode_command, COMMANDS))


def test_whole() -> None:
    wire = RemotingWire()
    wire.receive(STREAM)
    assert drain(wire) == COMMANDS
    assert wire.next_event() is None


def test_byte_by_byte() -> None:
    wire = RemotingWire()
    seen: list[Command] = []
    for at in range(len(STREAM)):
        wire.receive(STREAM[at : at + 1])
        seen += drain(wire)
    assert seen == COMMANDS


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("cut", [1, 3, 4, 5, 7, 8, 9, 100])
def test_with_trailing_bytes(kind: type, cut: int) -> None:
    wire = RemotingWire()
    wire.receive(kind(STREAM + STREAM[:cut]))
    assert drain(wire) == COMMANDS
    wire.receive(kind(STREAM[cut:]))
    assert drain(wire) == COMMANDS


def test_what_comes_before_anyone_looks_waits() -> None:
    wire = RemotingWire()
    for _ in range(3):
        wire.receive(STREAM[:50])
        wire.receive(STREAM[50:])
    assert drain(wire) == COMMANDS * 3


def test_what_was_given_may_be_written_over() -> None:
    wire = RemotingWire()
    given = bytearray(STREAM)
    wire.receive(given)
    given[:] = bytes(len(given))
    assert drain(wire) == COMMANDS


@pytest.mark.parametrize("cut", [1, 4, 7, 8, 30])
def test_an_end_inside_a_frame_is_told(cut: int) -> None:
    wire = RemotingWire()
    wire.receive(STREAM[:cut])
    assert wire.next_event() is None
    wire.receive(b"")
    with pytest.raises(PeerWireError, match=f"inside a frame, after {cut} bytes"):
        wire.next_event()


def test_an_end_between_frames_is_no_trouble() -> None:
    wire = RemotingWire()
    wire.receive(STREAM)
    wire.receive(b"")
    assert drain(wire) == COMMANDS
    with pytest.raises(LocalWireError):
        wire.receive(b"x")


@pytest.mark.parametrize(
    "start",
    [
        "01000001",
        "7fffffff",
        "ffffffff",
        "00000003",
        "00000000",
        "0000000401000001",
        "0000001000000011",
        "0000001002000001",
        "00000010ff000001",
        "00ffffff00100001",
    ],
)
def test_lengths_that_cannot_be_right_are_refused_at_once(start: str) -> None:
    whole, pieces = RemotingWire(), RemotingWire()
    whole.receive(bytes.fromhex(start))
    with pytest.raises(PeerWireError, match="claims"):
        whole.next_event()
    for byte in bytes.fromhex(start):
        pieces.receive(bytes([byte]))
        try:
            assert pieces.next_event() is None
        except PeerWireError:
            break
    else:
        pytest.fail("nothing was refused")


@pytest.mark.parametrize("said", ["16030100", "1603010200010001fc0303"])
def test_a_handshake_of_tls_is_known_as_such(said: str) -> None:
    wire = RemotingWire()
    wire.receive(bytes.fromhex(said))
    with pytest.raises(TlsSpoken, match="a handshake of TLS"):
        wire.next_event()


def test_a_length_within_the_limit_is_no_handshake() -> None:
    wire = RemotingWire(max_frame=1 << 30)
    wire.receive(bytes.fromhex("16030100"))
    assert wire.next_event() is None


def test_a_frame_may_be_as_large_as_the_limit() -> None:
    command = Command(1, body=b"")
    size = len(encode_command(command)) - 4
    command.body = bytes(1000 - size)
    frame = encode_command(command)
    wire = RemotingWire(max_frame=1000)
    wire.receive(frame)
    assert drain(wire) == [command]
    wire = RemotingWire(max_frame=999)
    wire.receive(frame[:4])
    with pytest.raises(PeerWireError, match="claims 1000 bytes, 4 to 999 are read"):
        wire.next_event()


@pytest.mark.parametrize("pieces", [1, 7, 64, 10_000])
def test_an_answer_above_the_limit_is_skipped_where_that_is_wanted(pieces: int) -> None:
    before, behind = (Command(0, opaque, IS_RESPONSE, body=b"small") for opaque in (1, 3))
    large = Command(0, 2, IS_RESPONSE, {"restNum": "4"}, b"l" * 1_000)
    data = b"".join(map(encode_command, (before, large, behind)))
    wire = RemotingWire(max_frame=500, skips=True)
    told = []
    for at in range(0, len(data), pieces):
        wire.receive(data[at : at + pieces])
        told += drain(wire)
    large.body, large.skipped = b"", 1_000
    assert told == [before, large, behind]
    assert wire.unfinished == 0


def test_a_request_above_the_limit_is_never_skipped() -> None:
    wire = RemotingWire(max_frame=500, skips=True)
    wire.receive(encode_command(Command(1, body=bytes(1_000))))
    with pytest.raises(PeerWireError, match="a request has"):
        wire.next_event()


@pytest.mark.parametrize("said", ["16030100", "15030100", "48545450", "7fffffff", "00001000ff000001"])
def test_what_is_no_answer_is_not_skipped(said: str) -> None:
    wire = RemotingWire(max_frame=500, skips=True)
    wire.receive(bytes.fromhex(said))
    with pytest.raises(PeerWireError):
        wire.next_event()


def test_an_end_inside_an_answer_that_is_skipped_is_told() -> None:
    wire = RemotingWire(max_frame=500, skips=True)
    wire.receive(encode_command(Command(0, 2, IS_RESPONSE, body=bytes(1_000)))[:20])
    assert wire.next_event() is None
    wire.receive(b"")
    with pytest.raises(PeerWireError, match="ended inside a frame"):
        wire.next_event()


def test_an_error_stays() -> None:
    wire = RemotingWire()
    bad = (8).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"nope"
    wire.receive(STREAM + bad + STREAM)
    assert [wire.next_event() for _ in COMMANDS] == COMMANDS
    with pytest.raises(PeerWireError, match="JSON") as first:
        wire.next_event()
    wire.receive(STREAM)
    with pytest.raises(PeerWireError) as second:
        wire.next_event()
    assert first.value is second.value


def test_what_is_sent_is_taken_once() -> None:
    wire = RemotingWire()
    for command in COMMANDS:
        wire.send(command)
    assert b"".join(wire.data_to_send()) == STREAM
    assert wire.data_to_send() == []


def test_a_frame_above_the_limit_is_not_sent() -> None:
    with pytest.raises(LocalWireError, match=f"remoting takes {LARGEST_FRAME}"):
        encode_command(Command(1, body=bytes(LARGEST_FRAME)))


def test_a_code_that_the_encoding_cannot_carry_is_not_sent() -> None:
    with pytest.raises(LocalWireError, match="cannot carry the code 200050"):
        RemotingWire().send(Command(RequestCode.POP_MESSAGE, serialization=BINARY))


@pytest.mark.parametrize("way", Serialization)
def test_an_answer_belongs_to_its_request(way: Serialization) -> None:
    request = Command(14, 99, 0, {"topic": "T"}, b"b", language="GO", version=401, serialization=way)
    answer = request.answer(ResponseCode.QUERY_NOT_FOUND, "why", {"offset": "0"}, b"body")
    assert (answer.is_response, answer.is_oneway) == (True, False)
    assert (request.is_response, request.is_oneway) == (False, False)
    assert (answer.code, answer.opaque, answer.remark) == (22, 99, "why")
    assert (answer.fields, answer.body, answer.serialization) == ({"offset": "0"}, b"body", way)
    assert (answer.language, answer.version) == ("PYTHON", VERSION)


def test_answers_share_no_fields() -> None:
    fields = {"a": "b"}
    answer = Command(1).answer(0, fields=fields)
    answer.fields["c"] = "d"
    assert fields == {"a": "b"}
    assert Command(1).answer(0).fields == {}
