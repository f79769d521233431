"""brokers.shared.guest.host_link: a guest's connection to a host that does what the test says."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from brokers.shared.codec.calls import DONE, encode
from brokers.shared.session.hello import FACTS, HostFacts, hello_fields, make_nonce
from popgate.errors import BrokerUnavailable
from popgate.wire.frames.codes import PortCode
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command


async def test_a_connection_that_ends_with_the_words_that_opened_it_is_none(place) -> None:
    """Both are in one read; a host that is taken for there would have its gateway ready without one."""
    facts = encode(FACTS, HostFacts("stub", place.broker.traits))

    def answer(request: Command) -> bytes:
        if request.code == PortCode.HELLO:
            return encode_command(request.answer(DONE, fields=hello_fields(make_nonce())))
        return encode_command(request.answer(DONE, fields={"proof": ""}, body=facts)) + b"\xff" * 64

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = RemotingWire()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                wire.receive(data)
                while (event := wire.next_event()) is not None:
                    writer.write(answer(event))
        writer.close()

    server = await asyncio.start_unix_server(serve, place.url.removeprefix("unix:"))
    guest = place.make_guest()
    try:
        with pytest.raises(BrokerUnavailable, match="does not speak the remoting protocol"):
            await guest.start()
        assert not guest.figures()["host_connected"]
    finally:
        server.close()
        await server.wait_closed()
