"""brokers.shared.guest.host_link: a guest's connection to a host that does what the test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from brokers.shared.codec.calls import DONE, encode
from brokers.shared.session.hello import AT_ONCE, FACTS, HostFacts, hello_fields, make_nonce
from popgate.errors import BrokerUnavailable
from popgate.wire.frames.codes import PortCode
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command


@contextlib.asynccontextmanager
async def host(place, last_words: bytes) -> AsyncIterator[None]:
    """One that says this with the words that open a connection, in one read."""
    facts = encode(FACTS, HostFacts("stub", place.broker.traits))

    def answer(request: Command) -> bytes:
        if request.code == PortCode.HELLO:
            return encode_command(request.answer(DONE, fields=hello_fields(make_nonce())))
        if request.code != PortCode.PROVE:
            return b""
        return encode_command(request.answer(DONE, fields={"proof": ""}, body=facts)) + last_words

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = RemotingWire()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                wire.receive(data)
                while (event := wire.next_event()) is not None:
                    writer.write(answer(event))
        writer.close()

    server = await asyncio.start_unix_server(serve, place.url.removeprefix("unix:"))
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


async def test_a_connection_that_ends_with_the_words_that_opened_it_is_none(place) -> None:
    """A host that is taken for there would have its gateway ready without one."""
    guest = place.make_guest()
    async with host(place, b"\xff" * 64):
        with pytest.raises(BrokerUnavailable, match="does not speak the remoting protocol"):
            await guest.start()
        assert not guest.figures()["host_connected"]


async def test_a_host_that_stops_with_the_words_that_opened_it_is_none(place) -> None:
    """What is asked waits for the next one, instead of failing at a host that is just going."""
    guest = place.make_guest()
    async with host(place, encode_command(Command(PortCode.LEAVING, 77, body=AT_ONCE))):
        with pytest.raises(BrokerUnavailable, match="its process stops"):
            await guest.start()
        assert not guest.figures()["host_connected"]
