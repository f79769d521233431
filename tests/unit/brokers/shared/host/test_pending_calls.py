"""brokers.shared.host.pending_calls, guest: what a host does with what friends and others send."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from brokers.shared.codec.calls import (
    ACK,
    DONE,
    FAILED,
    GIVE_BACK,
    POP,
    TOPICS_OF,
    decode,
)
from brokers.shared.codec.errors import ERROR
from brokers.shared.codec.kinds import Sink
from brokers.shared.session.hello import hello_fields, make_nonce
from popgate.context import Context
from popgate.errors import BadRequest, GatewayError, TooManyRequests, Unsupported
from popgate.wire.frames.codes import PortCode, RequestCode
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command


class Raw:
    """A connection that says whatever the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.wire = RemotingWire()
        self.ended = False

    def say(self, *commands: Command) -> None:
        self.writer.write(b"".join(encode_command(command) for command in commands))

    async def hear(self) -> Command | None:
        """The next command; None when the host closed."""
        while (event := self.wire.next_event()) is None:
            if self.ended:
                return None
            data = b""
            with contextlib.suppress(ConnectionError):
                data = await asyncio.wait_for(self.reader.read(65_536), 60)
            self.ended = not data
            self.wire.receive(data)
        return event

    async def meet(self) -> None:
        self.say(Command(PortCode.HELLO, 1, fields=hello_fields(make_nonce(), "raw")))
        hello = await self.hear()
        assert hello is not None
        assert hello.code == DONE
        self.say(Command(PortCode.PROVE, 2, fields={"proof": ""}))
        proved = await self.hear()
        assert proved is not None
        assert proved.code == DONE

    async def fails(self) -> GatewayError:
        answer = await self.hear()
        assert answer is not None
        assert answer.code == FAILED
        return decode(ERROR, answer.body)

    def close(self) -> None:
        self.writer.close()


@pytest.fixture
async def connect(place):
    opened: list[Raw] = []

    async def make(*, met: bool = True) -> Raw:
        reader, writer = await asyncio.open_unix_connection(place.url.partition(":")[2])
        raw = Raw(reader, writer)
        opened.append(raw)
        if met:
            await raw.meet()
        return raw

    yield make
    for raw in opened:
        raw.close()
        with contextlib.suppress(ConnectionError):
            await raw.writer.wait_closed()


def body(call: Any, *args: Any, **named: Any) -> bytes:
    sink = Sink()
    call.write(sink, *args, **named)
    return sink.data()


@pytest.mark.parametrize("code", [TOPICS_OF.code, PortCode.PROVE, PortCode.STATE, RequestCode.HEART_BEAT])
async def test_who_has_not_proved_itself_is_asked_to_and_closed(place, connect, code: int) -> None:
    await place.open()
    raw = await connect(met=False)
    raw.say(Command(code, 5))
    assert isinstance(await raw.fails(), BadRequest)
    assert await raw.hear() is None


async def test_a_second_hello_ends_the_connection(place, connect) -> None:
    await place.open()
    raw = await connect(met=False)
    for number in (1, 2):
        raw.say(Command(PortCode.HELLO, number, fields=hello_fields(make_nonce())))
    assert (await raw.hear()).code == DONE
    await raw.fails()
    assert await raw.hear() is None


async def test_large_frames_are_for_those_who_proved_themselves(place, connect) -> None:
    await place.open()
    raw = await connect(met=False)
    raw.say(Command(PortCode.HELLO, 1, fields=hello_fields(make_nonce()), body=b"x" * 100_000))
    assert await raw.hear() is None
    known = await connect()
    known.say(Command(770_999, 3, body=b"x" * 1_000_000))
    assert isinstance(await known.fails(), Unsupported)


async def test_who_says_nothing_is_closed(place, connect) -> None:
    await place.open(hello_s=0.02)
    raw = await connect(met=False)
    assert await raw.hear() is None


async def test_requests_that_nobody_knows_are_answered_so(place, connect) -> None:
    await place.open()
    raw = await connect()
    raw.say(Command(RequestCode.SEND_MESSAGE, 3), Command(TOPICS_OF.code, 4, body=body(TOPICS_OF, "g")))
    assert isinstance(await raw.fails(), Unsupported)
    answer = await raw.hear()
    assert (answer.code, answer.opaque) == (DONE, 4)


async def test_arguments_that_cannot_be_read_are_answered_so(place, connect) -> None:
    await place.open()
    raw = await connect()
    raw.say(Command(POP.code, 3, body=b"\xff" * 50))
    assert isinstance(await raw.fails(), BadRequest)
    raw.say(Command(TOPICS_OF.code, 4, body=body(TOPICS_OF, "g") + b"\0"))
    assert isinstance(await raw.fails(), BadRequest)


async def test_a_number_that_is_under_way_twice_ends_the_connection(place, connect, soon) -> None:
    await place.open()
    raw = await connect()
    request = Command(POP.code, 7, body=body(POP, Context(), place.request()))
    raw.say(request, request)
    assert await raw.hear() is None
    await soon(lambda: not place.broker.pops or place.broker.cancelled)


async def test_more_calls_than_there_may_be_are_refused(place, connect, soon) -> None:
    await place.open(max_in_flight=2)
    raw = await connect()
    raw.say(*(Command(POP.code, n, body=body(POP, Context(), place.request())) for n in (3, 4, 5)))
    assert isinstance(await raw.fails(), TooManyRequests)
    await soon(lambda: len(place.broker.pops) == 2)


async def test_a_lost_connection_cancels_what_was_under_way(place, connect, soon) -> None:
    host = await place.open()
    raw = await connect()
    raw.say(*(Command(POP.code, n, body=body(POP, Context(), place.request())) for n in (3, 4)))
    await soon(lambda: len(place.broker.pops) == 2)
    raw.close()
    await soon(lambda: place.broker.cancelled == ["pop", "pop"])
    await soon(lambda: host.figures()["shared_guests"] == 0)


async def test_what_was_taken_and_not_written_is_given_back(place, connect, soon, stored) -> None:
    """A guest that does not read: answers wait at the host, and go back when it is lost."""
    host = await place.open()
    raw = await connect()
    numbers = range(3, 23)
    raw.say(*(Command(POP.code, n, body=body(POP, Context(), place.request())) for n in numbers))
    await soon(lambda: len(place.broker.pops) == len(numbers))
    for number in numbers:
        place.broker.feed(stored(b"x" * 1_000_000, str(number)))
    await soon(lambda: host.figures()["shared_calls"] == 0)
    raw.writer.transport.abort()
    await soon(lambda: place.broker.given_back)
    assert set(place.broker.given_back) < {str(number) for number in numbers}, "the first may be there"
    assert host.figures()["shared_given_back_total"] == len(place.broker.given_back)


async def test_a_guest_that_does_not_read_is_given_no_more(place, connect, soon, stored) -> None:
    await place.open(max_queued_bytes=3_000_000)
    raw = await connect()
    numbers = range(3, 33)
    raw.say(*(Command(POP.code, n, body=body(POP, Context(), place.request())) for n in numbers))
    await soon(lambda: len(place.broker.pops) == len(numbers))
    refused = 0
    for number in numbers:
        place.broker.feed(stored(b"x" * 500_000, str(number)))
        await asyncio.sleep(0)
    for _ in numbers:
        answer = await raw.hear()
        refused += answer.code == FAILED
    assert 0 < refused < len(numbers)


async def test_what_nobody_wants_an_answer_to_gets_none(place, connect, soon) -> None:
    await place.open()
    raw = await connect()
    told = body(GIVE_BACK, Context(), "t", "g", ["one"])
    raw.say(
        Command(GIVE_BACK.code, 3, flag=2, body=told), Command(TOPICS_OF.code, 4, body=body(TOPICS_OF, "g"))
    )
    answer = await raw.hear()
    assert answer.opaque == 4
    assert place.broker.given_back == ["one"]


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_said_is_answered_or_ends_the_connection(place, connect, seed: int, caplog) -> None:
    """No foreign exception comes out of the host, and it serves others on."""
    chance = random.Random(seed)
    await place.open()
    good = body(POP, Context(client_id="c"), place.request(wait_s=None))
    for _ in range(10):
        raw = await connect()
        for number in range(3, 8):
            data = bytearray(chance.choice([good, body(ACK, Context(), "t", "g", ["a", "b"])]))
            for _ in range(chance.randint(1, 5)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            raw.say(
                Command(chance.choice(list(PortCode)), number, chance.choice([0, 1, 2]), body=bytes(data))
            )
        raw.writer.write(chance.randbytes(chance.randint(0, 20)))
        raw.close()
    guest = await place.visit()
    assert await guest.topics_of("g") == ["g"]
    assert "went wrong" not in caplog.text
