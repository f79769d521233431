"""The machine against the client of the published package `h2`, with windows and frames of many sizes."""

from __future__ import annotations

import random
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from popgate.testing.frames import framed
from protocols.grpc.http2.events import Called, Ended, Event, Opened, Roomy, Said, Shape
from protocols.grpc.http2.frames.limits import Http2Limits
from protocols.grpc.http2.grpc_wire import GrpcWire

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "here"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
Codes = h2.settings.SettingCodes


class Echo:
    """A server that says everything twice, as slowly as its client reads."""

    def __init__(self, limits: Http2Limits) -> None:
        self.wire = GrpcWire(limits, {"/one": Shape.ONE, "/many": Shape.MANY})
        self._waiting: dict[int, list[bytes | None]] = {}

    def hear(self, data: bytes) -> None:
        self.wire.receive(data)
        while (event := self.wire.next_event()) is not None:
            self._on_event(event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Called):
            self.wire.answer(event.stream, event.message * 2)
        elif isinstance(event, Opened):
            self._waiting[event.stream.id] = []
        elif isinstance(event, Said | Ended | Roomy):
            waiting = self._waiting[event.stream.id]
            if not isinstance(event, Roomy):
                waiting.append(event.message if isinstance(event, Said) else None)
                if len(waiting) > 1:
                    return
            elif waiting:
                waiting.pop(0)
            while waiting:
                message = waiting[0]
                self.wire.took(event.stream)
                if message is None:
                    self.wire.finish(event.stream)
                elif not self.wire.write(event.stream, message * 2):
                    return
                waiting.pop(0)


class Caller:
    """The client: sends what there is room for, in frames of chance, and says that it has read."""

    def __init__(self, chance: random.Random, window: int, frame: int) -> None:
        self._chance = chance
        self._connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self._connection.initiate_connection()
        self._connection.update_settings({Codes.INITIAL_WINDOW_SIZE: window, Codes.MAX_FRAME_SIZE: frame})
        self._left: dict[int, bytes] = {}
        self.answers: dict[int, bytes] = {}
        self.statuses: dict[int, str] = {}

    def ask(self, path: str, content: bytes) -> int:
        number = self._connection.get_next_available_stream_id()
        self._connection.send_headers(number, [(":path", path), *REQUEST])
        self._left[number], self.answers[number] = content, b""
        return int(number)

    def hear(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            # One by one: h2 holds a frame against the size that held before the bytes it came with.
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            self._hear_frame(data[at:end])
            at = end

    def _hear_frame(self, data: bytes) -> None:
        for event in self._connection.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self.answers[event.stream_id] += event.data
                self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                told: Any = event.headers
                self.statuses[event.stream_id] = dict(told)["grpc-status"]
            assert not isinstance(event, h2.events.ConnectionTerminated | h2.events.StreamReset)

    def say(self) -> bytes:
        connection = self._connection
        for number in self._chance.sample(sorted(self._left), len(self._left)):
            content = self._left[number]
            room = min(connection.local_flow_control_window(number), connection.max_outbound_frame_size)
            size = min(self._chance.choice((1, 5, 100, 16_384)), room, len(content))
            padding = self._chance.choice((None, 0, 9)) if room >= size + 10 else None
            if size or not content:
                last = size == len(content)
                connection.send_data(number, content[:size], end_stream=last, pad_length=padding)
                self._left[number] = content[size:]
                if last:
                    del self._left[number]
        return bytes(connection.data_to_send())


@pytest.mark.parametrize("seed", range(12))
def test_everything_comes_back_whatever_the_sizes(seed: int) -> None:
    chance = random.Random(seed)
    server = Echo(Http2Limits(stream_window=65_536, connection_window=chance.choice((1, 200_000))))
    window = (1, 7, 5_000, 65_535, 1_000_000)[seed % 5]
    client = Caller(chance, window, chance.choice((16_384, 100_000)))
    wanted: dict[int, bytes] = {}
    for _ in range(6):
        path = chance.choice(("/one", "/many"))
        most = 300 if window < 10 or chance.random() < 0.5 else 50_000
        messages = [chance.randbytes(chance.randrange(most)) for _ in range(1 if path == "/one" else 3)]
        number = client.ask(path, b"".join(map(framed, messages)))
        wanted[number] = b"".join(framed(message * 2) for message in messages)
    idle = 0
    while len(client.statuses) < len(wanted) and idle < 3:
        said = client.say()
        server.hear(said) if said else None
        heard = b"".join(server.wire.data_to_send())
        client.hear(heard)
        idle = idle + 1 if not said and not heard else 0
    assert client.statuses == dict.fromkeys(wanted, "0")
    assert client.answers == wanted
    found: Any = (server.wire.streams, server.wire.waiting_bytes, server.wire.holds)
    assert found == ({}, 0, 0)
