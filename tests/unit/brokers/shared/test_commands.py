"""brokers.shared.commands: what one gateway asks all that share its broker about their clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from brokers.relaying import MOST_BYTES, BrokerAnswer
from brokers.shared import commands
from brokers.shared.commands import Commands
from popgate.errors import (
    BadRequest,
    BrokerTimeout,
    BrokerUnavailable,
    ClientTimeout,
    GatewayError,
    Internal,
    TooManyRequests,
    Unsupported,
)
from popgate.testing.clock import MovableClock
from popgate.wire.codes import RequestCode as Code

CONSUMERS = Code.GET_CONSUMER_CONNECTION_LIST
WHO = {"consumerGroup": "readers"}


def bodies(relayed: Any) -> set[bytes]:
    return {answer.body for answer in relayed.answers.values()}


class Answering:
    """Who answers for a gateway: always the same, or with a failure. `asked` is what came."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.asked: list[tuple[int, dict[str, str]]] = []
        self.value = answer

    async def __call__(self, code: int, fields: Mapping[str, str]) -> BrokerAnswer:
        self.asked.append((code, dict(fields)))
        if isinstance(self.value, Exception):
            raise self.value
        return BrokerAnswer(7, "why", {"a": "b"}, self.value)


async def test_all_gateways_are_asked_by_whichever_of_them(place: Any) -> None:
    host = await place.open()
    one, other = await place.visit(), await place.visit()
    answering = [Answering(name) for name in (b"host", b"one", b"other")]
    for gateway, handler in zip((host, one, other), answering, strict=True):
        gateway.on_command(handler)
    for asker in (host, one, other):
        told = await asker.ask_gateways(place.context, CONSUMERS, {**WHO, "AccessKey": "secret"})
        assert bodies(told) == {b"host", b"one", b"other"}
        assert not told.failures
        assert told.answers["gateway-0"] == BrokerAnswer(7, "why", {"a": "b"}, b"host")
    for handler in answering:
        assert handler.asked == [(CONSUMERS, WHO)] * 3, "only what the command has"


async def test_a_gateway_that_cannot_answer_holds_up_no_other(
    place: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host = await place.open()
    guests = [await place.visit() for _ in range(4)]
    host.on_command(Answering(RuntimeError("a bug")))
    failures = [ClientTimeout("c", 5.0), RuntimeError("another")]
    for guest, failure in zip(guests, failures, strict=False):
        guest.on_command(Answering(failure))
    guests[2].on_command(Answering(b"well"))  # the last one has nobody who answers
    told = await guests[0].ask_gateways(place.context, CONSUMERS, WHO)
    assert bodies(told) == {b"well"}
    found = sorted(type(one).__name__ for one in told.failures.values())
    assert found == ["ClientTimeout", "Internal", "Internal", "Unsupported"]
    assert isinstance(told.failures["gateway-0"], Internal)
    assert not any("bug" in one.sentence for one in told.failures.values()), "that is for the log"
    assert f"4 of 5 gateways did not answer request code {int(CONSUMERS)}" in caplog.text


async def test_a_gateway_that_leaves_meanwhile_is_one_that_failed(place: Any) -> None:
    host = await place.open()
    guest = await place.visit()
    asked = asyncio.Event()

    async def never(code: int, fields: Mapping[str, str]) -> BrokerAnswer:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    guest.on_command(never)
    waiting = asyncio.ensure_future(host.ask_gateways(place.context, CONSUMERS, WHO))
    await asked.wait()
    await guest.stop()
    told = await waiting
    assert not told.answers
    (failure,) = told.failures.values()
    assert isinstance(failure, BrokerTimeout | BrokerUnavailable)


@pytest.mark.parametrize("code", [Code.GET_BROKER_CONFIG, Code.DELETE_TOPIC_IN_BROKER, 123_456, -1])
async def test_what_is_not_about_clients_is_asked_of_nobody(place: Any, code: int) -> None:
    host = await place.open()
    guest = await place.visit()
    handler = Answering(b"x")
    host.on_command(handler)
    for asker in (host, guest):
        with pytest.raises(Unsupported, match=f"request code {int(code)}"):
            await asker.ask_gateways(place.context, code, {})
    assert not handler.asked


async def test_fields_are_bounded(place: Any) -> None:
    await place.open()
    guest = await place.visit()
    with pytest.raises(BadRequest, match=f"the limit is {MOST_BYTES}"):
        await guest.ask_gateways(place.context, CONSUMERS, {"consumerGroup": "x" * (MOST_BYTES + 1)})


async def test_what_one_gateway_answers_is_bounded(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokers.shared.members.MOST_OF_GATEWAY", 100)
    host = await place.open()
    guest = await place.visit()
    host.on_command(Answering(b"short"))
    guest.on_command(Answering(b"x" * 100))
    told = await guest.ask_gateways(place.context, CONSUMERS, WHO)
    assert bodies(told) == {b"short"}
    (failure,) = told.failures.values()
    assert "the limit is 100" in failure.sentence


async def test_what_all_gateways_answer_is_bounded(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MOST_OF_GATEWAYS", 100)
    host = await place.open()
    guest = await place.visit()
    for gateway in (host, guest):
        gateway.on_command(Answering(b"x" * 50))
    told = await guest.ask_gateways(place.context, CONSUMERS, WHO)
    assert (len(told.answers), len(told.failures)) == (1, 1)
    (failure,) = told.failures.values()
    assert "the limit is 100 bytes" in failure.sentence


async def test_so_many_commands_at_a_time(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host = await place.open()
    guest = await place.visit()
    guest.on_command(Answering(b"x"))
    with monkeypatch.context() as patched:
        patched.setattr("brokers.shared.members.MOST_COMMANDS", 0)
        (failure,) = (await host.ask_gateways(place.context, CONSUMERS, WHO)).failures.values()
        assert isinstance(failure, TooManyRequests)
    with monkeypatch.context() as patched:
        patched.setattr(commands, "MOST_COMMANDS", 0)
        with pytest.raises(TooManyRequests):
            await guest.ask_gateways(place.context, CONSUMERS, WHO)
    assert bodies(await guest.ask_gateways(place.context, CONSUMERS, WHO)) == {b"x"}, "none is counted twice"


async def test_a_gateway_that_speaks_nonsense_is_let_go(
    place: Any, soon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await place.open()
    guest = await place.visit()
    monkeypatch.setattr(guest, "_command", lambda request: request.answer(0, body=b"\xff"))
    (failure,) = (await host.ask_gateways(place.context, CONSUMERS, WHO)).failures.values()
    assert "makes no sense" in failure.sentence
    await soon(lambda: guest._link.reconnects == 1)


class Slow:
    """A guest that takes as long as it may, by a clock that stands still otherwise."""

    def __init__(self, clock: MovableClock) -> None:
        self.clock = clock
        self.given: list[float] = []

    async def command(self, code: int, fields: Mapping[str, str], timeout_s: float) -> BrokerAnswer:
        self.given.append(timeout_s)
        self.clock.advance(timeout_s)
        raise BrokerTimeout("silent")


@pytest.mark.parametrize(
    ("code", "all_s"), [(CONSUMERS, commands.LOOK_S), (Code.GET_CONSUMER_RUNNING_INFO, commands.ASK_S)]
)
async def test_all_gateways_together_have_so_much_time(
    code: int, all_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_AT_ONCE", 1)
    clock = MovableClock()
    guests: list[Any] = [Slow(clock), Slow(clock)]
    told = await Commands(clock).ask(None, guests, code, {})
    assert [guest.given for guest in guests] == [[all_s], []]
    assert [type(one) for one in told.failures.values()] == [BrokerTimeout, BrokerTimeout]


async def test_the_context_of_the_request_bounds_the_wait(place: Any) -> None:
    """A guest whose client has no time left does not wait for gateways that do not answer."""
    host = await place.open()
    guest = await place.visit()

    async def never(code: int, fields: Mapping[str, str]) -> BrokerAnswer:
        return await asyncio.get_running_loop().create_future()

    host.on_command(never)
    late = replace(place.context, deadline=asyncio.get_running_loop().time() - 1)
    with pytest.raises(GatewayError):
        await guest.ask_gateways(late, CONSUMERS, WHO)
