"""What a unary call over our HTTP/2 does not cost: no task, no timer, no line of the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any

import pytest

from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing import MovableClock, frames
from popgate.testing.frames import PREFACE, framed, settings
from protocols.grpc.http2.hpack.decoder import encode_fields
from tests.support.waiting import PATIENCE_S

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
    (":authority", "127.0.0.1:8081"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("grpc-timeout", "60S"),
    ("x-mq-client-id", "client-1"),
    ("x-mq-language", "JAVA"),
    ("x-mq-client-version", "5.2.0"),
]


class Peer:
    """A socket that is read and written without a task or a timer of its own."""

    def __init__(self) -> None:
        self._link = socket.socket()
        self._link.setblocking(False)
        self._rest = b""
        """What came of a frame that is not there as a whole."""
        self._loop = asyncio.get_running_loop()

    async def dial(self, port: int) -> None:
        await self._loop.sock_connect(self._link, ("127.0.0.1", port))
        await self.say(PREFACE + settings() + settings(ack=True))

    async def say(self, said: bytes) -> None:
        await self._loop.sock_sendall(self._link, said)

    async def answers(self, count: int) -> list[bytes]:
        """The messages of the next answers, once each has its end."""
        found, ended = [], 0
        while ended < count:
            some = await self._loop.sock_recv(self._link, 1 << 20)
            assert some, "the gateway closed the connection"
            whole, self._rest = frames.whole_and_rest(self._rest + some)
            for kind, flags, number, payload in frames.split(whole):
                if kind == "DATA":
                    found.append(payload[5:])
                ended += bool(number and flags & 1)
        return found

    def close(self) -> None:
        self._link.close()


def send(number: int) -> bytes:
    """A call that sends one message."""
    message = pb.Message(
        topic=pb.Resource(name="t"),
        body=b"hello",
        system_properties=pb.SystemProperties(message_id=make_message_id()),
    )
    request = rpc.SendMessageRequest(messages=[message]).SerializeToString()
    return frames.headers(number, encode_fields(HEADERS)) + frames.data(number, framed(request), end=True)


async def test_a_send_makes_no_task_no_timer_and_no_record(
    town: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await town.gateway()
    loop = asyncio.get_running_loop()
    server = gateway.adapter._server
    made: list[str] = []
    call_at, call_later = loop.call_at, MovableClock.call_later

    def noted_at(when: float, callback: Any, *args: Any, **more: Any) -> Any:
        if callback != server._tick:  # one for all connections, whether or not there are calls
            made.append(f"timer {callback!r}")
        return call_at(when, callback, *args, **more)

    def noted_later(clock: MovableClock, delay: float, callback: Any) -> Any:
        made.append(f"timer {callback!r}")
        return call_later(clock, delay, callback)

    def noted_task(of: asyncio.AbstractEventLoop, work: Any, **more: Any) -> Any:
        made.append(f"task {work!r}")
        return asyncio.Task(work, loop=of, **more)

    async with asyncio.timeout(PATIENCE_S):  # its own timer is made before any is noted
        with contextlib.closing(Peer()) as peer:
            await peer.dial(gateway.port)
            await peer.say(send(1))  # it makes the topic
            await peer.answers(1)
            caplog.clear()
            caplog.set_level(logging.DEBUG)
            monkeypatch.setattr(loop, "call_at", noted_at)
            monkeypatch.setattr(MovableClock, "call_later", noted_later)
            loop.set_task_factory(noted_task)
            try:
                await peer.say(send(3))
                told = await peer.answers(1)
                # Several that come at once, too.
                await peer.say(send(5) + send(7) + send(9))
                told += await peer.answers(3)
                assert made == []
                assert caplog.records == []
                # What is noted here is noted.
                await loop.create_task(peer.say(b""))
                loop.call_later(PATIENCE_S, peer.close).cancel()
                gateway.clock.call_later(PATIENCE_S, peer.close).cancel()
                assert [one.partition(" ")[0] for one in made] == ["task", "timer", "timer"]
            finally:
                loop.set_task_factory(None)
    codes = [rpc.SendMessageResponse.FromString(one).status.code for one in told]
    assert codes == [pb.Code.OK] * 4
