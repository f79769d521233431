"""brokers.shared.host.commands: what one gateway asks all that share its broker about their clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from brokers.relay import MOST_BYTES, BrokerAnswer, Relayed
from brokers.shared.host import commands
from brokers.shared.host.commands import Commands
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerTimeout,
    BrokerUnavailable,
    ClientTimeout,
    Internal,
    TooManyRequests,
    Unsupported,
)
from popgate.testing.clock import MovableClock
from popgate.wire.frames.codes import RequestCode as Code
from popgate.wire.frames.codes import ResponseCode
from tests.support.waiting import PATIENCE_S, until

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
    monkeypatch.setattr("brokers.shared.guest.members.MOST_OF_GATEWAY", 100)
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
        patched.setattr("brokers.shared.guest.members.MOST_COMMANDS", 0)
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


async def test_why_a_gateway_failed_is_bounded(place: Any, soon: Any) -> None:
    """It is logged, and told to whoever asked."""
    host = await place.open()
    guest = await place.visit()
    guest.on_command(Answering(BrokerUnavailable("x" * 20_000)))
    (failure,) = (await host.ask_gateways(place.context, CONSUMERS, WHO)).failures.values()
    assert "makes no sense" in failure.sentence
    assert len(failure.sentence) < 200
    await soon(lambda: guest._link.reconnects == 1)


async def test_the_hosts_own_side_has_no_more_time_than_guests(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "LOOK_S", 0.05)
    host = await place.open()

    async def never(code: int, fields: Mapping[str, str]) -> BrokerAnswer:
        return await asyncio.get_running_loop().create_future()

    host.on_command(never)
    told = await host.ask_gateways(place.context, CONSUMERS, WHO)
    assert isinstance(told.failures["gateway-0"], BrokerTimeout)


async def test_the_hosts_own_side_answers_no_more_than_guests(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MOST_OF_GATEWAY", 100)
    host = await place.open()
    guest = await place.visit()
    host.on_command(Answering(b"x" * 100))
    guest.on_command(Answering(b"short"))
    told = await guest.ask_gateways(place.context, CONSUMERS, WHO)
    assert bodies(told) == {b"short"}
    assert "the limit is 100" in told.failures["gateway-0"].sentence


async def test_the_host_is_told_until_when_its_answer_is_waited_for(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await place.open()
    guest = await place.visit()
    asked: list[Context] = []

    async def note(context: Context, *_: Any) -> Relayed:
        asked.append(context)
        return Relayed({}, {})

    monkeypatch.setattr(host._commands, "ask", note)
    soon = asyncio.get_running_loop().time() + PATIENCE_S / 2
    for context in (place.context, replace(place.context, deadline=soon)):
        await guest.ask_gateways(context, CONSUMERS, WHO)
    late, early = (context.deadline for context in asked)
    assert late is not None
    assert early is not None
    assert early < late < asyncio.get_running_loop().time() + PATIENCE_S


NOBODY = BrokerAnswer(ResponseCode.CONSUMER_NOT_ONLINE)
BUSY = BrokerAnswer(ResponseCode.SYSTEM_BUSY)
WELL = BrokerAnswer(ResponseCode.SUCCESS)
CLIENT = {"consumerGroup": "readers", "clientId": "c"}


class Having:
    """A guest with a client, or without. Its answer may take until a future is done."""

    def __init__(self, answer: BrokerAnswer | Exception, client_id: str = "c") -> None:
        self.value = answer
        self.client_id = client_id
        self.asked = self.answered = 0
        self.gate: asyncio.Future[None] | None = None

    def has(self, client_id: str) -> bool:
        return client_id == self.client_id

    async def command(self, code: int, fields: Mapping[str, str], timeout_s: float) -> BrokerAnswer:
        self.asked += 1
        if self.gate is not None:
            await self.gate
        self.answered += 1
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


async def asked(code: int, *values: BrokerAnswer | Exception) -> tuple[Relayed, list[int]]:
    """What became of a question to the client of so many gateways, and how often each was asked."""
    guests: list[Any] = [Having(value) for value in values]
    told = await Commands(MovableClock()).ask(Context(), None, guests, code, CLIENT)
    return told, [guest.asked for guest in guests]


async def test_a_gateway_without_the_client_is_asked_nothing() -> None:
    """One that hangs would hold up every question."""
    guests: list[Any] = [Having(WELL, "another"), Having(WELL)]
    await Commands(MovableClock()).ask(Context(), Answering(b""), guests, Code.CONSUME_MESSAGE_DIRECTLY, {})
    assert [guest.asked for guest in guests] == [0, 0]
    told = await Commands(MovableClock()).ask(Context(), None, guests, Code.GET_CONSUMER_RUNNING_INFO, CLIENT)
    assert [guest.asked for guest in guests] == [0, 1]
    assert list(told.answers.values()) == [WELL]


@pytest.mark.parametrize("first", [WELL, BUSY, BrokerTimeout("hangs"), BrokerUnavailable("speaks nonsense")])
async def test_a_message_is_handed_to_one_of_two_clients_of_an_id(first: BrokerAnswer | Exception) -> None:
    told, counts = await asked(Code.CONSUME_MESSAGE_DIRECTLY, NOBODY, first, WELL)
    assert counts == [1, 1, 0]
    assert [*told.answers.values(), *told.failures.values()] == [NOBODY, first]


@pytest.mark.parametrize("first", [NOBODY, BUSY, BrokerTimeout("hangs")])
async def test_what_a_client_runs_is_asked_until_one_says_it(first: BrokerAnswer | Exception) -> None:
    told, counts = await asked(Code.GET_CONSUMER_RUNNING_INFO, first, WELL, WELL)
    assert counts == [1, 1, 0]
    assert WELL in told.answers.values()


async def test_all_commands_together_hold_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MOST_HELD", 100)
    clock = MovableClock()
    host, slow, quick = Commands(clock), Having(BrokerAnswer(0)), Having(BrokerAnswer(0, body=b"x" * 50))
    slow.gate = asyncio.get_running_loop().create_future()
    guests: list[Any] = [quick, slow]
    first = asyncio.ensure_future(host.ask(Context(), None, guests, CONSUMERS, WHO))
    await until(lambda: slow.asked)
    (failure,) = (await host.ask(Context(), None, guests[:1], CONSUMERS, WHO)).failures.values()
    assert "the limit is 100 bytes" in failure.sentence
    slow.gate.set_result(None)
    assert len((await first).answers) == 2
    assert not (await host.ask(Context(), None, guests[:1], CONSUMERS, WHO)).failures


async def test_what_goes_wrong_holds_nothing() -> None:
    host = Commands(MovableClock())
    slow = Having(WELL)
    slow.gate = asyncio.get_running_loop().create_future()
    guests: list[Any] = [Having(RuntimeError("a bug")), slow]
    waiting = asyncio.ensure_future(host.ask(Context(), None, guests, CONSUMERS, WHO))
    await until(lambda: slow.asked)
    slow.gate.set_result(None)
    await until(lambda: slow.answered)
    with pytest.raises(RuntimeError, match="a bug"):
        await waiting
    assert repr(host) == "<Commands open 0 held 0>"


class Slow:
    """A guest that takes as long as it may, by a clock that stands still otherwise."""

    def __init__(self, clock: MovableClock) -> None:
        self.clock = clock
        self.given: list[float] = []

    def has(self, client_id: str) -> bool:
        return True

    async def command(self, code: int, fields: Mapping[str, str], timeout_s: float) -> BrokerAnswer:
        self.given.append(timeout_s)
        self.clock.advance(timeout_s)
        raise BrokerTimeout("silent")


@pytest.mark.parametrize("wait_s", [None, 60.0, 1.0, -1.0])
@pytest.mark.parametrize(
    ("code", "all_s"), [(CONSUMERS, commands.LOOK_S), (Code.GET_CONSUMER_RUNNING_INFO, commands.ASK_S)]
)
async def test_all_gateways_together_have_so_much_time(
    code: int, all_s: float, wait_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less where whoever asks waits less; the answer is to reach it."""
    monkeypatch.setattr(commands, "_AT_ONCE", 1)
    clock = MovableClock()
    guests: list[Any] = [Slow(clock), Slow(clock)]
    context = Context(deadline=None if wait_s is None else clock.monotonic() + wait_s)
    told = await Commands(clock).ask(context, None, guests, code, CLIENT)
    if wait_s is not None:
        all_s = min(all_s, wait_s * 0.8)
    assert [guest.given for guest in guests] == [[pytest.approx(all_s)] if all_s > 0 else [], []]
    assert [type(one) for one in told.failures.values()] == [BrokerTimeout, BrokerTimeout]
