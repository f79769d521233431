"""What the fuzz tests say to the machine of HTTP/2, and what must be so after every piece of it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from popgate.testing import frames
from protocols.grpc.http2.events import Called, Cut, Ended, Event, Late, Opened, Roomy, Said, Shape
from protocols.grpc.http2.frames.codes import Http2Error
from protocols.grpc.http2.frames.limits import INFLATED_AT_ONCE, Http2Limits
from protocols.grpc.http2.frames.stream import Stream
from protocols.grpc.http2.grpc_wire import GrpcWire
from protocols.grpc.http2.hpack.decoder import encode_fields
from protocols.grpc.rpcs.dispatcher import SERVICE, STREAMED, UNARY

SHAPES = {f"/{SERVICE}/{what.name}": Shape.ONE for what in (*UNARY, *STREAMED)} | {
    f"/{SERVICE}/Telemetry": Shape.MANY
}
_PIECE = 61
_MOST_MESSAGE = 1 << 20

# Said by grpcio 1.x to a server, byte by byte: three unary calls with metadata, one with gzip, a stream of
# three messages, a streamed answer, a stream that is cancelled, and a method that is not there.
GRPCIO = bytes.fromhex(
    """
    505249202a20485454502f322e300d0a0d0a534d0d0a0d0a0000240400000000000002000000000003000000000004004000
    00000500400000000600004000fe0300000001000004080000000000003f0001000000040100000000000162010400000001
    40053a70617468302f6170616368652e726f636b65746d712e76322e4d6573736167696e67536572766963652f53656e644d
    657373616765400a3a617574686f726974790f3132372e302e302e313a35323933338386400c636f6e74656e742d74797065
    106170706c69636174696f6e2f677270634002746508747261696c6572734014677270632d6163636570742d656e636f6469
    6e67176964656e746974792c206465666c6174652c20677a6970400c677270632d74696d656f7574023553400a757365722d
    6167656e7430677270632d707974686f6e2f312e38352e3120677270632d632f35382e302e3020286c696e75783b20636874
    74703229000e782d6d712d636c69656e742d69640c686f73744031403240616263000e782d6d712d646174652d74696d6510
    3230323630313031543030303030305a000d782d6d712d6c616e677561676506505954484f4e0009782d62696e2d62696e84
    861c17bf00000408000000000100000005000020000100000001000000001b6d65737361676520306d65737361676520306d
    657373616765203000000408000000000000000005000008060000000000d6744dfb67c8c04d000080010400000003c4c383
    86c2c1c0400c677270632d74696d656f757405353031306dbf000e782d6d712d636c69656e742d69640c686f737440314032
    40616263000e782d6d712d646174652d74696d65103230323630313031543030303030305a000d782d6d712d6c616e677561
    676506505954484f4e0009782d62696e2d62696e84861c17bf00000408000000000300000005000020000100000003000000
    001b6d65737361676520316d65737361676520316d65737361676520310000040800000000000000000700006d0104000000
    05c5c48386c3c2c1c0bf000e782d6d712d636c69656e742d69640c686f73744031403240616263000e782d6d712d64617465
    2d74696d65103230323630313031543030303030305a000d782d6d712d6c616e677561676506505954484f4e0009782d6269
    6e2d62696e84861c17bf00000408000000000500000005000020000100000005000000001b6d65737361676520326d657373
    61676520326d6573736167652032000004080000000000000000070000b701040000000740053a706174682f2f6170616368
    652e726f636b65746d712e76322e4d6573736167696e67536572766963652f5175657279526f757465c58386c4c3400d6772
    70632d656e636f64696e6704677a6970c3c0c1000e782d6d712d636c69656e742d69640c686f73744031403240616263000e
    782d6d712d646174652d74696d65103230323630313031543030303030305a000d782d6d712d6c616e677561676506505954
    484f4e0009782d62696e2d62696e84861c17bf0000040800000000070000000500002800010000000701000000231f8b0800
    00000000000363601805a360148c8251300a46c150070044f4c902d0070000000004080000000000000000070000a1010400
    00000940053a706174682e2f6170616368652e726f636b65746d712e76322e4d6573736167696e67536572766963652f5465
    6c656d65747279c78386c6c5c4c2000e782d6d712d636c69656e742d69640c686f73744031403240616263000e782d6d712d
    646174652d74696d65103230323630313031543030303030305a000d782d6d712d6c616e677561676506505954484f4e0009
    782d62696e2d62696e84861c17bf0000040800000000000000000200000800000000000900000000036f6e65000004080000
    0000090000000d00000500000000000900000000000000040800000000000000000d000004080000000009000000050000cd
    00000000000900000000c8746872656574687265657468726565746872656574687265657468726565746872656574687265
    6574687265657468726565746872656574687265657468726565746872656574687265657468726565746872656574687265
    6574687265657468726565746872656574687265657468726565746872656574687265657468726565746872656574687265
    6574687265657468726565746872656574687265657468726565746872656574687265657468726565746872656574687265
    657468726565746872656500000408000000000000000005000004080000000009000000cd00000000010000000900000408
    0000000000000000cd0000bb01040000000b40053a70617468332f6170616368652e726f636b65746d712e76322e4d657373
    6167696e67536572766963652f526563656976654d657373616765c88386c7c6c5400c677270632d74696d656f7574063330
    3130306dc4000e782d6d712d636c69656e742d69640c686f73744031403240616263000e782d6d712d646174652d74696d65
    103230323630313031543030303030305a000d782d6d712d6c616e677561676506505954484f4e0009782d62696e2d62696e
    84861c17bf00000900010000000b0000000004706f6c6c00006c01040000000dc0c98386c8c7c6c4000e782d6d712d636c69
    656e742d69640c686f73744031403240616263000e782d6d712d646174652d74696d65103230323630313031543030303030
    305a000d782d6d712d6c616e677561676506505954484f4e0009782d62696e2d62696e84861c17bf00000408000000000000
    00000200000408000000000d0000000500000408000000000000000005000008060000000000d2adab79b33c139a00000a00
    000000000d00000000056c6174657200000403000000000d000000080000040800000000000000000500003c01040000000f
    40053a706174682c2f6170616368652e726f636b65746d712e76322e4d6573736167696e67536572766963652f4e6f746869
    6e67ca8386c9c8c7c6c500000408000000000f0000000500000600010000000f000000000178000004080000000000000000
    05
    """
)


class Talk:
    """One connection, whose calls are answered in one of several ways each."""

    def __init__(self) -> None:
        self.limits = Http2Limits(max_message_bytes=_MOST_MESSAGE, max_streams=20)
        self.wire = GrpcWire(self.limits, SHAPES)
        self.now = 100.0
        self.told: dict[int, Stream] = {}
        """Calls whose end nobody told yet."""
        self.cut: set[int] = set()
        self.sent = 0
        self.failure: Http2Error | None = None

    def say(self, data: bytes) -> None:
        """Raises AssertionError for what may never be."""
        wire = self.wire
        wire.now = self.now
        wire.receive(data)
        self._hear()
        while wire.inflated >= INFLATED_AT_ONCE:
            wire.go_on()
            self._hear()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wire.tick(self.now)
        self._hear()

    def _hear(self) -> None:
        try:
            while (event := self.wire.next_event()) is not None:
                self._on(event)
        except Http2Error as error:
            assert self.failure is None
            self.failure = error
        self.sent += sum(map(len, self.wire.data_to_send()))
        self.check()

    def _on(self, event: Event) -> None:
        stream = event.stream
        wire = self.wire
        if isinstance(event, Cut | Late):
            # Also of one that was answered, when not all of the answer went out.
            assert stream.told, "the end of a call is told that was not"
            assert stream.id not in self.cut, "the end of a call is told twice"
            self.cut.add(stream.id)
            self.told.pop(stream.id, None)
            return
        if isinstance(event, Called | Opened):
            assert stream.id not in self.told
            self.told[stream.id] = stream
        if not wire.is_open(stream):
            return
        if isinstance(event, Called):
            self._answer(stream, event.message)
        elif isinstance(event, Opened):
            wire.open_answer(stream, metadata=[("x-bin", b"\0\1")])
        elif isinstance(event, Said):
            wire.write(stream, event.message, gzip=len(event.message) % 3 == 2)
            if len(event.message) % 2:
                wire.took(stream)
        elif isinstance(event, Ended):
            self._over(stream)
            wire.finish(stream)
        else:
            assert isinstance(event, Roomy)
            self._over(stream)
            wire.finish(stream, 7, "enough \N{BELL}")

    def _answer(self, stream: Stream, message: bytes) -> None:
        way = len(message) % 4
        if way == 0:
            self._over(stream)
            self.wire.answer(stream, message * 7)
        elif way == 1 and self.wire.write(stream, message * 1_000):
            self._over(stream)
            self.wire.finish(stream)
        elif way == 2:
            self._over(stream)
            self.wire.finish(stream, 5, "there is none", [("why", "because")])
        # Else it waits, until it is cut.

    def _over(self, stream: Stream) -> None:
        self.told.pop(stream.id, None)

    def check(self) -> None:
        wire = self.wire
        streams = wire.streams
        assert len(streams) <= self.limits.max_streams
        assert wire.holds == self.limits.holding.used == sum(one.held for one in streams.values())
        assert bool(wire.holds) is bool(self.limits.holding.holders)
        assert wire.waiting_bytes == sum(one.pending_bytes for one in streams.values())
        assert wire._blocked.keys() <= streams.keys()
        for stream in streams.values():
            assert stream.held >= (len(stream.body) if stream.body is not None else 0)
            assert stream.unread <= self.limits.stream_window
            blocked = stream.pending is not None and stream.window > 0
            assert (stream.id in wire._blocked) is blocked

    def end(self) -> None:
        self.say(b"")
        assert not self.wire.streams
        assert not self.told
        assert (self.wire.holds, self.wire.waiting_bytes) == (0, 0)


def read_http2(data: bytes) -> None:
    """Raises PeerWireError as the machine does, and AssertionError for what may never be."""
    talk = Talk()
    pieces = random.Random(len(data))
    at = turn = 0
    while at < len(data):
        size = pieces.choice((1, _PIECE, 16_384))
        talk.say(data[at : at + size])
        at += size
        turn += 1
        if turn % 7 == 0:
            talk.pass_time(pieces.choice((0.5, 1.0, 5.0)))
    failure = talk.failure
    for seconds in (1.0, 30.0, 61.0):
        talk.pass_time(seconds)
    talk.end()
    if failure is not None:
        raise failure


def packed_frames(sent: bytes) -> bytes:
    """Frames without their lengths and the greeting: kind, flags, stream and length in a byte or two each."""
    return b"".join(
        bytes((frames.KINDS.index(kind), flags, number & 0xFF)) + len(payload).to_bytes(2, "big") + payload
        for kind, flags, number, payload in frames.split(sent.removeprefix(frames.PREFACE))
    )


def _frames(data: bytes) -> Iterator[bytes]:
    while data:
        head, data = data[:5].ljust(5, b"\0"), data[5:]
        size = int.from_bytes(head[3:], "big") % 16_385
        yield frames.frame_of(head[0] % 12, head[2], data[:size], flags=head[1])
        data = data[size:]


def read_http2_frames(data: bytes) -> None:
    """Of `packed_frames`: whatever was changed, what is said are whole frames behind a greeting."""
    read_http2(frames.PREFACE + b"".join(_frames(data)))


BLOCK = encode_fields(
    [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{SERVICE}/SendMessage"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", "5S"),
    ]
)
FRAMES = packed_frames(GRPCIO) + packed_frames(
    b"".join(
        (
            frames.settings({4: 30}),
            frames.headers(17, BLOCK[:20], more=True),
            frames.continuation(17, BLOCK[20:]),
            frames.settings({4: 5, 5: 20_000}),
            frames.window_update(0, 100),
            frames.ping(),
            frames.padded(frames.data(17, frames.framed(bytes(300))[:200]), 3),
            frames.frame("PRIORITY", 17, bytes((0, 0, 0, 15, 5))),
            frames.headers(19, BLOCK, end=True),
            frames.reset(17),
            frames.frame("GOAWAY", 0, bytes(8)),
        )
    )
)
