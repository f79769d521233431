"""brokers.remote.transactions.checks: a producer is asked with the id of the newer half message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import IllegalTransactionId
from popgate.model import EndTransaction, Resolution, TransactionCheck
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import decode_properties, encode_properties
from popgate.wire.messages.records import encode_record
from tests.support.waiting import until

CHECK, END = int(RequestCode.CHECK_TRANSACTION_STATE), int(RequestCode.END_TRANSACTION)
LOOK = int(RequestCode.QUERY_MESSAGE)
HOST = pack_host("10.0.0.1:10911")
CONTEXT = Context(client_id="c")
Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]


@pytest.fixture
def master(asking_cluster: Cluster) -> ScriptedPeer:
    master = asking_cluster[1]["broker-a"]
    master.on(END, lambda request: request.answer(0))
    master.on(LOOK, lambda request: request.answer(ResponseCode.QUERY_NOT_FOUND))
    return master


@pytest.fixture
async def broker(make_broker: Any, master: ScriptedPeer) -> Any:
    broker = await make_broker()
    broker.connections.connect(master.address)
    await master.until(lambda: bool(master.connections))
    return broker


def question(
    clock: MovableClock, *, commit_offset: int = 9000, looks: str = "2", **fields: str | None
) -> Command:
    """As 5.5.0 asks."""
    properties = encode_properties(
        {
            "UNIQ_KEY": "01AB",
            "PGROUP": "G",
            "__transactionId__": "01AB",
            "TRAN_MSG": "true",
            "CHECK_IMMUNITY_TIME_IN_SECONDS": "6",
            "TRAN_PREPARED_QUEUE_OFFSET": "8",
            "TRANSACTION_CHECK_TIMES": looks,
            "color": "red",
            "REAL_TOPIC": "T",
            "REAL_QID": "1",
        }
    )
    record = encode_record(
        b"T", 1, 12, commit_offset, b"body", properties, 0, 0, clock.now_ms(), HOST, clock.now_ms() + 5, HOST
    )
    told = {
        "bname": "broker-a",
        "commitLogOffset": str(commit_offset),
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC",
        "msgId": "01AB",
        "tranStateTableOffset": "12",
        "offsetMsgId": "7F000001000045F7000000000000097E",
        "transactionId": "01AB",
        **fields,
    }
    return Command(
        CHECK, fields={name: value for name, value in told.items() if value is not None}, body=record
    )


def checked(broker: Any, answer: Any = True) -> list[TransactionCheck]:
    got: list[TransactionCheck] = []

    def take(check: TransactionCheck) -> Any:
        got.append(check)
        return answer(check) if callable(answer) else answer

    broker.on_check(take)
    return got


async def all_of(got: list[TransactionCheck], count: int) -> None:
    async with asyncio.timeout(60):
        while len(got) < count:
            await asyncio.sleep(0)
    assert len(got) == count


async def figure(broker: Any, name: str, value: float) -> None:
    async with asyncio.timeout(60):
        while broker.figures()[name] != value:
            await asyncio.sleep(0)


async def test_scenario_06_a_check_has_the_message_as_it_will_be_delivered_and_an_id_of_its_own(
    broker: Any, master: ScriptedPeer, clock: MovableClock
) -> None:
    got = checked(broker)
    master.connections[0].say(question(clock))
    await all_of(got, 1)
    (check,) = got
    message = check.message
    assert (check.topic, check.producer_group, check.checks) == ("T", "G", 1)
    assert (message.topic, message.broker, message.queue_id, message.body) == ("T", "broker-a", 1, b"body")
    assert decode_properties(message.properties) == {
        "UNIQ_KEY": "01AB",
        "PGROUP": "G",
        "__transactionId__": "01AB",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "6",
        "color": "red",
    }
    clock.advance(1)
    end = EndTransaction("T", check.transaction_id, "01AB", Resolution.COMMIT, from_check=True)
    await broker.end_transaction(CONTEXT, end)
    (asked,) = master.of(END)
    assert asked.fields["commitLogOffset"] == "9000"
    assert asked.fields["tranStateTableOffset"] == "12"
    assert asked.fields["producerGroup"] == "G"
    assert asked.fields["fromTransactionCheck"] == "true"


async def test_the_id_of_an_older_check_ends_the_newest_half_message(
    broker: Any, master: ScriptedPeer, clock: MovableClock
) -> None:
    got = checked(broker)
    for offset in (9000, 9500):
        master.connections[0].say(question(clock, commit_offset=offset))
    await all_of(got, 2)
    assert [check.checks for check in got] == [1, 2]
    end = EndTransaction("T", got[0].transaction_id, "01AB", Resolution.ROLLBACK, from_check=True)
    await broker.end_transaction(CONTEXT, end)
    assert master.of(END)[0].fields["commitLogOffset"] == "9500"


@pytest.mark.parametrize("resolution", Resolution)
async def test_scenario_05_what_has_ended_is_not_asked_about_and_its_copy_becomes_no_message(
    broker: Any, master: ScriptedPeer, clock: MovableClock, resolution: Resolution
) -> None:
    got = checked(broker)
    master.connections[0].say(question(clock))
    await all_of(got, 1)
    end = EndTransaction("T", got[0].transaction_id, "01AB", resolution)
    await broker.end_transaction(CONTEXT, end)
    master.connections[0].say(question(clock, commit_offset=9900))
    await master.until(lambda: len(master.of(END)) == 2)
    told = master.of(END)[1]
    assert told.is_oneway
    assert (told.fields["commitLogOffset"], told.fields["commitOrRollback"]) == ("9900", "12")
    assert told.fields["fromTransactionCheck"] == "true"
    assert told.fields["bname"] == "broker-a"
    assert len(got) == 1
    assert broker.figures()["checks_settled_total"] == 1
    await broker.end_transaction(CONTEXT, end)
    other = next(one for one in Resolution if one is not resolution)
    with pytest.raises(IllegalTransactionId):
        await broker.end_transaction(CONTEXT, EndTransaction("T", got[0].transaction_id, "01AB", other))


def stored(clock: MovableClock, **other: Any) -> bytes:
    """What the half message of `question` is when it was committed; `other` says what is different."""
    told = {"topic": b"T", "message_id": "01AB", "born_ms": clock.now_ms(), "sys_flag": 8, **other}
    properties = encode_properties({"UNIQ_KEY": told["message_id"], "PGROUP": "G"})
    return encode_record(
        *(told["topic"], 1, 3, 9_700, b"body", properties, told["sys_flag"], 0),
        *(told["born_ms"], HOST, clock.now_ms() + 9, HOST),
    )


async def test_scenario_05_what_another_replica_committed_is_not_asked_about_either(
    broker: Any, master: ScriptedPeer, clock: MovableClock
) -> None:
    """RocketMQ asks though it took the end: it had stored the half message again before that."""
    got = checked(broker)
    master.on(LOOK, lambda request: request.answer(0, body=stored(clock, message_id="02") + stored(clock)))
    master.connections[0].say(question(clock))
    await master.until(lambda: bool(master.of(END)))
    (told,) = master.of(END)
    assert told.is_oneway
    assert (told.fields["commitLogOffset"], told.fields["commitOrRollback"]) == ("9000", "12")
    assert (told.fields["fromTransactionCheck"], told.fields["bname"]) == ("true", "broker-a")
    (looked,) = master.of(LOOK)
    assert (looked.fields["topic"], looked.fields["key"]) == ("T", "01AB")
    assert looked.fields["_UNIQUE_KEY_QUERY"] == "true"
    assert got == []
    assert broker.figures()["checks_settled_total"] == 1


async def test_all_that_a_broker_asks_about_in_one_moment_is_looked_up_and_asked_about(
    broker: Any, master: ScriptedPeer, clock: MovableClock
) -> None:
    got = checked(broker)
    for number in range(300):
        master.connections[0].say(question(clock, commit_offset=9_000 + number))
    await all_of(got, 300)
    assert len(master.of(LOOK)) == 300


@pytest.mark.parametrize("resolution", Resolution)
async def test_scenario_05_two_answers_through_two_replicas_make_one_message(
    broker: Any, master: ScriptedPeer, clock: MovableClock, resolution: Resolution
) -> None:
    """It was asked here and elsewhere, and committed there while the producer here was thinking."""
    got = checked(broker)
    master.connections[0].say(question(clock))
    await all_of(got, 1)
    found = stored(clock)
    master.on(LOOK, lambda request: request.answer(0, body=found))
    end = EndTransaction("T", got[0].transaction_id, "01AB", resolution, from_check=True)
    if resolution is Resolution.COMMIT:
        await broker.end_transaction(CONTEXT, end)
    else:
        with pytest.raises(IllegalTransactionId, match="was committed already"):
            await broker.end_transaction(CONTEXT, end)
    (told,) = master.of(END)
    assert (told.fields["commitLogOffset"], told.fields["commitOrRollback"]) == ("9000", "12")


@pytest.mark.parametrize(
    "other", [{"topic": b"U"}, {"message_id": "02"}, {"born_ms": 5}, {"sys_flag": 0}, None, {}]
)
async def test_what_is_not_known_to_be_committed_is_asked_about(
    broker: Any, master: ScriptedPeer, clock: MovableClock, other: dict[str, Any] | None
) -> None:
    """Of another topic, another message, an older one with its id, no transaction; no answer; nonsense."""
    if other is None:
        master.on(LOOK, lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "no index"))
    else:
        body = stored(clock, **other) if other else stored(clock)[:-1]
        master.on(LOOK, lambda request: request.answer(0, body=body))
    got = checked(broker)
    master.connections[0].say(question(clock))
    await all_of(got, 1)
    assert master.of(END) == []


async def asked_in_vain(
    broker: Any, master: ScriptedPeer, clock: MovableClock, looks: str
) -> list[TransactionCheck]:
    """A broker asks, and does not answer what it is asked in turn."""
    master.on(LOOK, lambda request: None)
    got = checked(broker)
    master.connections[0].say(question(clock, looks=looks))
    await master.until(lambda: bool(master.of(LOOK)))
    clock.advance(broker.settings.request_timeout_s)
    return got


@pytest.mark.parametrize("looks", ["1", "4"])
async def test_scenario_05_nobody_is_asked_while_the_broker_does_not_say_whether_the_message_is_there(
    broker: Any, master: ScriptedPeer, clock: MovableClock, looks: str
) -> None:
    """It asks again, and then it says that: a second commit would have been a second message."""
    got = await asked_in_vain(broker, master, clock, looks)
    await figure(broker, "checks_put_off_total", 1)
    assert (got, broker.figures()["checks_unasked_total"]) == ([], 0)
    found = stored(clock)
    master.on(LOOK, lambda request: request.answer(0, body=found))
    master.connections[0].say(question(clock, looks=looks))
    await figure(broker, "checks_settled_total", 1)
    assert got == []


@pytest.mark.parametrize("looks", ["5", "14", "", "many", "9" * 30])
async def test_a_producer_is_asked_before_a_broker_that_does_not_say_gives_its_message_up(
    broker: Any, master: ScriptedPeer, clock: MovableClock, looks: str
) -> None:
    got = await asked_in_vain(broker, master, clock, looks)
    await all_of(got, 1)


@pytest.mark.parametrize("later", [False, True])
async def test_a_check_that_nobody_can_be_asked_goes_elsewhere_the_next_time(
    broker: Any, master: ScriptedPeer, clock: MovableClock, later: bool
) -> None:
    async def nobody() -> bool:
        return False

    checked(broker, (lambda check: nobody()) if later else False)
    broker.registry.expect_checks("T", "G")
    master.connections[0].say(question(clock))
    await figure(broker, "checks_unasked_total", 1)
    await figure(broker, "clients_registered", 0)


async def test_a_check_before_anybody_listens_is_not_lost_on_us(
    broker: Any, master: ScriptedPeer, clock: MovableClock
) -> None:
    master.connections[0].say(question(clock))
    await figure(broker, "checks_unasked_total", 1)
    got = checked(broker)
    master.connections[0].say(question(clock))
    await all_of(got, 1)
    assert broker.figures()["checks_total"] == 2


async def test_a_check_that_comes_while_the_gateway_stops_is_left_to_others(
    broker: Any, master: ScriptedPeer, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker asks again; a look for the message would outlive the connections."""
    master.on(LOOK, lambda request: None)
    stop = broker.popper.stop

    async def meanwhile() -> None:
        master.connections[0].say(question(clock))
        await until(lambda: broker.figures()["checks_total"] == 1, pause_s=0)
        await stop()

    monkeypatch.setattr(broker.popper, "stop", meanwhile)
    await broker.stop()
    assert not broker._checks._looks


async def test_a_handler_that_fails_does_not_stop_the_checks(
    broker: Any, master: ScriptedPeer, clock: MovableClock, caplog: Any
) -> None:
    def broken(check: TransactionCheck) -> bool:
        raise RuntimeError("a bug in a handler")

    broker.on_check(broken)
    master.connections[0].say(question(clock))
    async with asyncio.timeout(60):
        while not any("could not be answered" in one.message for one in caplog.records):
            await asyncio.sleep(0)
    got = checked(broker)
    master.connections[0].say(question(clock))
    await all_of(got, 1)
    assert broker.figures()["checks_total"] == 2


async def test_a_broker_that_does_not_say_its_name_is_known_by_its_address(
    broker: Any, master: ScriptedPeer, clock: MovableClock
) -> None:
    got = checked(broker)
    master.connections[0].say(question(clock, bname=None))
    await all_of(got, 1)
    assert got[0].message.broker == "broker-a"


async def test_scenario_24_what_is_no_check_is_counted_and_told_of_once(
    broker: Any, master: ScriptedPeer, clock: MovableClock, caplog: Any
) -> None:
    got = checked(broker)
    good = question(clock)
    bad = [
        Command(CHECK),
        Command(CHECK, fields=good.fields, body=good.body[:-3]),
        question(clock, commitLogOffset="-1"),
        question(clock, commitLogOffset="9" * 19),
        question(clock, tranStateTableOffset="x"),
        question(clock, tranStateTableOffset=None),
    ]
    for one in bad:
        master.connections[0].say(one)
    master.connections[0].say(good)
    await figure(broker, "checks_total", len(bad) + 1)
    assert broker.figures()["checks_unreadable_total"] == len(bad)
    await all_of(got, 1)
    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1
