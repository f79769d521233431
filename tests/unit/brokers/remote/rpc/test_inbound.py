"""brokers.remote.rpc.inbound: what brokers ask the gateway."""

from __future__ import annotations

import asyncio
import logging

import pytest

from brokers.remote.rpc.inbound import InboundRequests
from popgate.errors import BrokerBusy, NotFound
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command, encode_command

ONEWAY = 2


def ask(answering: InboundRequests, code: int, flag: int = 0) -> list[Command]:
    told: list[Command] = []

    def answer(command: Command) -> None:
        encode_command(command)
        told.append(command)

    answering.take("b:1", 0, Command(code, 5, flag), answer)
    return told


def test_a_handler_may_say_nothing_and_oneway_requests_get_nothing() -> None:
    answering = InboundRequests(4)
    answering.handlers[1] = lambda address, link, request: None
    answering.handlers[2] = lambda address, link, request: request.answer(0)
    assert ask(answering, 1) == []
    assert ask(answering, 2, ONEWAY) == []
    assert ask(answering, 9, ONEWAY) == []
    assert [one.opaque for one in ask(answering, 2)] == [5]


def test_what_a_handler_raises_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    def missing(address: str, link: int, request: Command) -> Command:
        raise NotFound("no such client")

    def broken(address: str, link: int, request: Command) -> Command:
        raise KeyError("secret")

    answering = InboundRequests(4)
    answering.handlers.update({1: missing, 2: broken})
    (told,) = ask(answering, 1)
    assert (told.code, told.remark) == (ResponseCode.SYSTEM_ERROR, "request 1: no such client")
    with caplog.at_level(logging.ERROR):
        (told,) = ask(answering, 2)
    assert "secret" not in told.remark
    assert "request 2 of b:1 could not be answered" in caplog.text


def test_an_answer_that_fits_into_no_frame_is_told() -> None:
    answering = InboundRequests(4)
    answering.handlers[1] = lambda address, link, request: request.answer(0, body=bytes(17 << 20))
    (told,) = ask(answering, 1)
    assert "fits into no frame" in told.remark


def test_an_answer_that_cannot_be_queued_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    def full(command: Command) -> None:
        raise BrokerBusy("full")

    answering = InboundRequests(4)
    answering.handlers[1] = lambda address, link, request: request.answer(0)
    answering.take("b:1", 0, Command(1), full)
    assert "an answer is dropped: full" in caplog.text


async def test_only_so_many_are_answered_at_a_time() -> None:
    going = asyncio.Event()

    async def wait(address: str, link: int, request: Command) -> Command:
        await going.wait()
        return request.answer(0)

    answering = InboundRequests(2)
    answering.handlers[1] = wait
    told = [ask(answering, 1) for _ in range(3)]
    assert [len(one) for one in told] == [0, 0, 1]
    assert told[2][0].code == ResponseCode.SYSTEM_BUSY
    going.set()
    while not (told[0] and told[1]):
        await asyncio.sleep(0)
    assert told[0][0].code == 0
    going.clear()
    ask(answering, 1)
    await answering.close()
