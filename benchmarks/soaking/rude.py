"""Peers that behave badly: half a greeting, half of a request, nonsense, resets, floods, and who vanishes."""

from __future__ import annotations

import contextlib
import random
import socket
import time

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing import frames
from protocols.grpc.http2.hpack.decoder import encode_fields
from protocols.grpc.rpcs.dispatcher import SERVICE

HELLO = frames.PREFACE + frames.settings() + frames.settings(ack=True)
KEPT = 20
"""So many connections stay open for a while, each as it was left."""
BETWEEN_S = 0.05
TOPIC = "rude"


class Rude:
    """Some twenty peers a second, one in each turn."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._address = host, int(port)
        self._dice = random.Random(1)
        self._kept: list[socket.socket] = []
        self.count = 0

    def turn(self) -> None:
        links = self._kept
        if len(links) >= KEPT:
            link = links.pop(self._dice.randrange(len(links)))
            if self._dice.random() < 0.5:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            link.close()
        with contextlib.suppress(OSError):
            link = socket.create_connection(self._address, timeout=10)
            links.append(link)
            link.sendall(self._said())
        self.count += 1
        time.sleep(BETWEEN_S)

    def end(self) -> None:
        for link in self._kept:
            link.close()

    def _said(self) -> bytes:
        whole = HELLO + b"".join(_receive(number) for number in range(1, 21, 2))
        match self._dice.randrange(8):
            case 0:
                return b""
            case 1:
                return HELLO[: self._dice.randrange(24)]
            case 2:
                return whole[: self._dice.randrange(len(whole))]
            case 3:
                return whole + frames.reset(1) + frames.reset(7)
            case 4:
                return HELLO + b"".join(_receive(n) + frames.reset(n) for n in range(1, 400, 2))
            case 5:
                return HELLO + frames.ping() * 3_000
            case 6:
                return HELLO + self._dice.randbytes(2_000)
            case _:
                return whole


def _receive(number: int) -> bytes:
    block = encode_fields(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{SERVICE}/ReceiveMessage"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("x-mq-client-id", f"rude-{number}"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
            ("grpc-timeout", "30S"),
        ]
    )
    request = rpc.ReceiveMessageRequest(
        group=pb.Resource(name=TOPIC),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=TOPIC), id=-1),
        filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
        invisible_duration=Duration(seconds=30),
        long_polling_timeout=Duration(seconds=20),
        batch_size=32,
    )
    message = frames.framed(request.SerializeToString())
    return frames.headers(number, block) + frames.data(number, message, end=True)
