"""A client of the machine, which takes what it says as a whole or byte by byte; what it hears is text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import hpack
import pytest

from popgate.testing import frames
from popgate.testing.frames import framed
from protocols.grpc.http2.events import Called, Event, Said, Shape
from protocols.grpc.http2.frames.codes import Http2Error
from protocols.grpc.http2.frames.limits import INFLATED_AT_ONCE, Http2Limits
from protocols.grpc.http2.frames.stream import Stream
from protocols.grpc.http2.grpc_wire import GrpcWire

SHAPES = {"/one": Shape.ONE, "/many": Shape.MANY}


class Client:
    """The client's side of one `GrpcWire`; it has said its greeting and heard the server's."""

    def __init__(self, *, byte_by_byte: bool, greets: bool = True, **limits: Any) -> None:
        self.limits = Http2Limits(**limits)
        self.wire = GrpcWire(self.limits, SHAPES)
        self._byte_by_byte = byte_by_byte
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self.events: list[str] = []
        self.messages: list[bytes] = []
        self.streams: dict[int, Stream] = {}
        """Those that were told, by number."""
        self.failure: Http2Error | None = None
        if greets:
            self.say(frames.PREFACE, frames.settings())
            self.heard()

    def block(self, *more: tuple[str, str | bytes], path: str = "/one", **instead: str) -> bytes:
        """The headers of a request; `instead` of what they usually are, by name without a colon."""
        fields = {"method": "POST", "scheme": "http", "path": path, "authority": "here", **instead}
        named = [(f":{name}", value) for name, value in fields.items() if value]
        if not any(name == "content-type" for name, _ in more):
            more = (("content-type", "application/grpc"), *more)
        return self.block_of([*named, ("te", "trailers"), *more])

    def block_of(self, fields: Iterable[tuple[str, str | bytes]]) -> bytes:
        return bytes(self._encoder.encode([hpack.NeverIndexedHeaderTuple(*field) for field in fields]))

    def call(self, number: int, *messages: bytes, path: str = "/one", end: bool = True) -> None:
        """A request with its messages."""
        self.say(
            frames.headers(number, self.block(path=path)),
            frames.data(number, b"".join(map(framed, messages)), end=end),
        )

    def say(self, *what: bytes) -> None:
        said = b"".join(what)
        pieces = [said[at : at + 1] for at in range(len(said))] if self._byte_by_byte else [said]
        for piece in pieces:
            self.wire.receive(piece)
            self.note()
            while self.wire.inflated >= INFLATED_AT_ONCE:
                self.wire.go_on()
                self.note()

    def note(self) -> None:
        """Take the events."""
        try:
            while (event := self.wire.next_event()) is not None:
                self._keep(event)
        except Http2Error as error:
            assert self.failure is None, "a failure is told twice"
            self.failure = error

    def _keep(self, event: Event) -> None:
        self.streams[event.stream.id] = event.stream
        if isinstance(event, Called | Said):
            self.messages.append(event.message)
        self.events.append(f"{type(event).__name__} {event.stream.id}")

    def tick(self, now: float) -> None:
        self.wire.tick(now)
        self.note()

    def heard(self) -> list[str]:
        """What was sent since it was last asked."""
        return frames.told(b"".join(self.wire.data_to_send()), self._read_block)

    def _read_block(self, block: bytes) -> str:
        return " ".join(f"{name!s}={value!s}" for name, value in self._decoder.decode(block))


@pytest.fixture(params=["whole", "byte-by-byte"])
def make_client(request: pytest.FixtureRequest) -> Callable[..., Client]:
    """Makes clients; named arguments are limits of the machine."""

    def make(**options: Any) -> Client:
        return Client(byte_by_byte=request.param == "byte-by-byte", **options)

    return make


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()
