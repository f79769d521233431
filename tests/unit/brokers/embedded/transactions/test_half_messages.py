import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from brokers.embedded.storage.keys import CHECKS, ENDED, HALF, MESSAGES, TIMERS
from popgate.errors import IllegalTransactionId, TooManyRequests, TopicNotFound
from popgate.model import EndTransaction, Message, MessageType, Resolution, TransactionCheck
from popgate.wire.messages.properties import decode_properties
from popgate.wire.messages.records import TRANSACTION_COMMIT, TRANSACTION_MASK

Parts = Any
Make = Callable[..., Parts]
COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK


async def begin(parts: Parts, topic: Any, message_id: str = "m", **options: Any) -> str:
    message = Message(
        topic.name, b"body", message_id, MessageType.TRANSACTION, producer_group=options.pop("group", "")
    )
    message.recovery_ms = options.pop("recovery_ms", 0)
    message.deliver_at_ms = options.pop("deliver_at_ms", 0)
    record = parts.record(topic, message_id, TRAN_MSG="true", **options)
    transaction = parts.halves.add(topic, 0, record, message)
    await parts.store.commit()
    return transaction


def end(parts: Parts, transaction: str, how: Resolution, message_id: str = "m", topic: str = "T") -> None:
    parts.halves.end(EndTransaction(topic, transaction, message_id, how))


class Producer:
    """Answers checks with silence, and can be away."""

    def __init__(self, parts: Parts) -> None:
        self.asked: list[TransactionCheck] = []
        self.there = True
        parts.halves.on_check(self.ask)

    def ask(self, check: TransactionCheck) -> bool:
        if self.there:
            self.asked.append(check)
        return self.there


async def wait(parts: Parts, seconds: float) -> None:
    """Time passes; the parts are ticked whenever they ask for it."""
    end_ms = parts.clock.now_ms() + round(seconds * 1000)
    while (due := parts.halves.deadline()) is not None and due <= end_ms:
        parts.clock.advance(max(due - parts.clock.now_ms(), 0) / 1000)
        await parts.run(parts.halves)
    parts.clock.advance(max(end_ms - parts.clock.now_ms(), 0) / 1000)


def left(parts: Parts, *spaces: str) -> int:
    return sum(1 for space in spaces for _ in parts.store.scan(space, b""))


async def test_a_half_message_is_not_seen_until_it_is_committed(parts: Parts) -> None:
    topic = await parts.topic()
    transaction = await begin(parts, topic, TAGS="a", KEYS="k")
    assert parts.delivered(topic) == []
    end(parts, transaction, COMMIT)
    await parts.store.commit()
    [record] = parts.delivered(topic)
    assert decode_properties(record.properties) == {"UNIQ_KEY": "m", "TAGS": "a", "KEYS": "k"}
    assert (record.topic, record.body, record.offset) == ("T", b"body", 0)
    assert record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    assert record.store_ms == parts.clock.now_ms()
    assert left(parts, HALF) == 0


async def test_a_rolled_back_message_is_never_seen(parts: Parts) -> None:
    topic = await parts.topic()
    transaction = await begin(parts, topic)
    end(parts, transaction, ROLLBACK)
    await parts.store.commit()
    assert parts.delivered(topic) == []
    assert left(parts, HALF) == 0


@pytest.mark.parametrize("how", Resolution)
async def test_ending_again_the_same_way_changes_nothing(parts: Parts, how: Resolution) -> None:
    topic = await parts.topic()
    transaction = await begin(parts, topic)
    end(parts, transaction, how)
    end(parts, transaction, how)  # in the same turn
    await parts.store.commit()
    end(parts, transaction, how)
    await parts.store.commit()
    assert len(parts.delivered(topic)) == (how is COMMIT)


@pytest.mark.parametrize(
    ("first", "second", "told"), [(COMMIT, ROLLBACK, "committed"), (ROLLBACK, COMMIT, "rolled back")]
)
@pytest.mark.parametrize("same_turn", [True, False])
async def test_ending_the_other_way_is_refused_with_what_happened(
    parts: Parts, first: Resolution, second: Resolution, told: str, same_turn: bool
) -> None:
    topic = await parts.topic()
    transaction = await begin(parts, topic)
    end(parts, transaction, first)
    if not same_turn:
        await parts.store.commit()
    with pytest.raises(IllegalTransactionId, match=f"was {told} already"):
        end(parts, transaction, second)
    await parts.store.commit()
    assert len(parts.delivered(topic)) == (first is COMMIT)


async def test_the_half_goes_in_the_same_batch_as_the_message_comes(parts: Parts) -> None:
    topic = await parts.topic()
    transaction = await begin(parts, topic)
    before = parts.store.turn
    end(parts, transaction, COMMIT)
    assert parts.store.turn == before
    assert (left(parts, HALF), left(parts, MESSAGES)) == (2, 0)
    await parts.store.commit()
    assert (left(parts, HALF), left(parts, MESSAGES)) == (0, 1)
    assert parts.store.turn == before + 1


async def test_an_id_that_was_not_given_out_is_refused(parts: Parts) -> None:
    topic = await parts.topic()
    transaction = await begin(parts, topic)
    number, code, message_id = transaction.split(".")
    flipped = ("0" if code[0] != "0" else "1") + code[1:]
    for forged in (
        "",
        "m",
        "..",
        f"{number}.{flipped}.{message_id}",
        f"{int(number, 16) + 1:x}.{code}.{message_id}",
        f"{number}.{code}.other",
        f"{number}.{code[:-2]}.{message_id}",
        "f" * 17 + f".{code}.m",
    ):
        with pytest.raises(IllegalTransactionId, match="was not given out by this broker"):
            end(parts, forged, COMMIT, message_id="")
    with pytest.raises(IllegalTransactionId, match="belongs to message 'm', not to 'other'"):
        end(parts, transaction, COMMIT, message_id="other")
    with pytest.raises(IllegalTransactionId, match="belongs to topic T, not to 'U'"):
        end(parts, transaction, COMMIT, topic="U")
    assert parts.delivered(topic) == []
    end(parts, transaction, COMMIT, message_id="", topic="")
    await parts.store.commit()
    assert len(parts.delivered(topic)) == 1


async def test_an_id_of_another_store_is_refused(make_parts: Make, tmp_path: Any) -> None:
    parts = make_parts()
    transaction = await begin(parts, await parts.topic())
    parts.close()
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    parts = make_parts()
    await parts.topic()
    with pytest.raises(IllegalTransactionId):
        end(parts, transaction, COMMIT)


async def test_an_id_may_hold_any_message_id(parts: Parts) -> None:
    topic = await parts.topic()
    for message_id in ("", "a.b.c", "é\n", "x" * 3000):
        transaction = await begin(parts, topic, message_id)
        end(parts, transaction, COMMIT, message_id)
        await parts.store.commit()
    assert len(parts.delivered(topic)) == 4


async def test_the_first_check_comes_after_the_setting_or_the_messages_own_time(parts: Parts) -> None:
    topic = await parts.topic()
    producer = Producer(parts)
    await begin(parts, topic, "default", group="g")
    await begin(parts, topic, "patient", recovery_ms=20_000, PGROUP="from the property")
    await wait(parts, 5.999)
    assert producer.asked == []
    await wait(parts, 0.001)
    [check] = producer.asked
    assert (check.topic, check.producer_group, check.checks) == ("T", "g", 1)
    assert check.message.body == b"body"
    assert b"UNIQ_KEY\x01default" in check.message.properties
    assert b"TRAN_MSG" in check.message.properties
    await wait(parts, 14)
    assert producer.asked[1].producer_group == "from the property"


async def test_the_id_in_a_check_ends_the_transaction(parts: Parts) -> None:
    topic = await parts.topic()
    producer = Producer(parts)
    transaction = await begin(parts, topic)
    await wait(parts, 6)
    assert producer.asked[0].transaction_id == transaction
    end(parts, transaction, COMMIT)
    await parts.store.commit()
    await wait(parts, 3600)
    assert len(producer.asked) == 1
    assert len(parts.delivered(topic)) == 1


async def test_after_the_last_check_the_message_is_put_where_it_can_be_found(parts: Parts) -> None:
    topic = await parts.topic()
    producer = Producer(parts)
    transaction = await begin(parts, topic, TAGS="a")
    await wait(parts, 6 + 14 * 30)
    assert [check.checks for check in producer.asked] == list(range(1, 16))
    assert parts.catalogue.find_topic("TRANS_CHECK_MAX_TIME_TOPIC") is None
    await wait(parts, 30)
    assert len(producer.asked) == 15
    grave = parts.catalogue.topic("TRANS_CHECK_MAX_TIME_TOPIC")
    [record] = parts.delivered(grave)
    assert record.topic == "TRANS_CHECK_MAX_TIME_TOPIC"
    assert decode_properties(record.properties) == {
        "UNIQ_KEY": "m",
        "TAGS": "a",
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
    }
    for how in Resolution:
        with pytest.raises(IllegalTransactionId, match="given up after too many checks"):
            end(parts, transaction, how)
    assert left(parts, HALF) == 0


async def test_a_check_that_nobody_could_be_asked_does_not_count(parts: Parts) -> None:
    topic = await parts.topic()
    await begin(parts, topic)
    await wait(parts, 3600)  # nobody ever came
    producer = Producer(parts)
    producer.there = False
    await wait(parts, 3600)
    producer.there = True
    await wait(parts, 30)
    assert [check.checks for check in producer.asked] == [1]


async def test_a_half_message_nobody_asks_about_is_given_up_at_its_greatest_age(parts: Parts) -> None:
    topic = await parts.topic()
    await begin(parts, topic)
    await wait(parts, 72 * 3600 - 31)
    assert parts.catalogue.find_topic("TRANS_CHECK_MAX_TIME_TOPIC") is None
    await wait(parts, 62)
    assert len(parts.delivered(parts.catalogue.topic("TRANS_CHECK_MAX_TIME_TOPIC"))) == 1
    assert parts.delivered(topic) == []


async def test_a_handler_that_fails_counts_as_nobody(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    await begin(parts, await parts.topic())

    def broken(_: TransactionCheck) -> bool:
        raise RuntimeError("bug")

    parts.halves.on_check(broken)
    await wait(parts, 100)
    assert "asking about message m failed" in caplog.text
    producer = Producer(parts)
    await wait(parts, 30)
    assert producer.asked[0].checks == 1


async def test_a_message_waits_on_when_it_cannot_be_given_up(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(parts)
    transaction = await begin(parts, await parts.topic())

    def full(_: object) -> None:
        raise TooManyRequests("there are enough topics")

    monkeypatch.setattr(parts.catalogue, "ensure_topic", full)
    await wait(parts, 1000)
    assert len(producer.asked) == 15
    assert "waits on: there are enough topics" in caplog.text
    end(parts, transaction, COMMIT)
    await parts.store.commit()
    assert len(parts.delivered(parts.catalogue.topic("T"))) == 1


async def test_half_messages_and_their_check_times_survive_a_restart(make_parts: Make) -> None:
    parts = make_parts()
    producer = Producer(parts)
    await begin(parts, await parts.topic())
    await wait(parts, 10)
    assert len(producer.asked) == 1
    parts = make_parts()
    producer = Producer(parts)
    await wait(parts, 25)
    assert producer.asked == []
    await wait(parts, 1)
    [check] = producer.asked
    assert check.checks == 2
    parts = make_parts()
    end(parts, check.transaction_id, COMMIT)
    await parts.store.commit()
    parts = make_parts()
    end(parts, check.transaction_id, COMMIT)
    with pytest.raises(IllegalTransactionId, match="committed already"):
        end(parts, check.transaction_id, ROLLBACK)
    assert len(parts.delivered(parts.catalogue.topic("T"))) == 1


async def test_how_it_ended_is_forgotten_after_a_while_and_nothing_is_left(make_parts: Make) -> None:
    parts = make_parts(transaction_end_kept_ms=60_000)
    topic = await parts.topic()
    transaction = await begin(parts, topic)
    end(parts, transaction, COMMIT)
    await parts.store.commit()
    await wait(parts, 59.9)
    end(parts, transaction, COMMIT)
    await parts.store.commit()
    await wait(parts, 0.1)
    assert left(parts, HALF, ENDED, CHECKS) == 0
    with pytest.raises(IllegalTransactionId, match="ended long ago"):
        end(parts, transaction, COMMIT)
    assert len(parts.delivered(topic)) == 1
    # The numbers begin anew with the store empty, and still none comes twice.
    parts = make_parts()
    other = await begin(parts, parts.catalogue.topic("T"), "other")
    assert int(other.split(".")[0], 16) > int(transaction.split(".")[0], 16)


async def test_a_check_and_an_end_in_one_turn_leave_one_truth(parts: Parts) -> None:
    topic = await parts.topic()
    producer = Producer(parts)
    transaction = await begin(parts, topic)
    parts.clock.advance(6)
    parts.halves.tick(parts.clock.now_ms())
    end(parts, transaction, COMMIT)
    await parts.store.commit()
    assert left(parts, CHECKS) == 1  # when to forget it
    await wait(parts, 3600)
    assert len(producer.asked) == 1
    end(parts, transaction, COMMIT)
    assert len(parts.delivered(topic)) == 1


async def test_an_end_before_a_check_in_one_turn_is_not_asked_about(parts: Parts) -> None:
    topic = await parts.topic()
    producer = Producer(parts)
    transaction = await begin(parts, topic)
    parts.clock.advance(6)
    end(parts, transaction, ROLLBACK)
    parts.halves.tick(parts.clock.now_ms())
    await parts.store.commit()
    await wait(parts, 3600)
    assert producer.asked == []


async def test_a_delayed_transaction_is_delivered_at_its_time_after_the_commit(parts: Parts) -> None:
    topic = await parts.topic()
    due = parts.clock.now_ms() + 60_000
    transaction = await begin(parts, topic, deliver_at_ms=due, TIMER_DELIVER_MS=str(due))
    parts.clock.advance(1)
    end(parts, transaction, COMMIT)
    end(parts, transaction, COMMIT)
    await parts.store.commit()
    assert (left(parts, HALF), left(parts, TIMERS)) == (0, 1)
    assert parts.delivered(topic) == []
    assert parts.timers.deadline() == due
    parts.clock.advance(59)
    await parts.run(parts.timers)
    [record] = parts.delivered(topic)
    assert decode_properties(record.properties) == {"UNIQ_KEY": "m", "TIMER_DELIVER_MS": str(due)}


async def test_a_delayed_transaction_committed_late_is_delivered_at_once(parts: Parts) -> None:
    topic = await parts.topic()
    transaction = await begin(parts, topic, deliver_at_ms=parts.clock.now_ms() + 1000)
    parts.clock.advance(2)
    end(parts, transaction, COMMIT)
    await parts.store.commit()
    assert len(parts.delivered(topic)) == 1


async def test_transactions_of_a_deleted_topic_end_nowhere(parts: Parts) -> None:
    topic = await parts.topic()
    producer = Producer(parts)
    transaction = await begin(parts, topic)
    parts.catalogue.delete_topic("T")
    again = await parts.topic()
    with pytest.raises(TopicNotFound):
        end(parts, transaction, COMMIT)
    await wait(parts, 100)
    assert producer.asked == []
    assert parts.delivered(again) == []
    assert left(parts, HALF, CHECKS) == 0


async def test_many_open_transactions_are_asked_about_in_slices(make_parts: Make) -> None:
    parts = make_parts(max_due=20)
    topic = await parts.topic()
    producer = Producer(parts)
    for number in range(50):
        await begin(parts, topic, f"m{number}")
    parts.clock.advance(6)
    parts.halves.tick(parts.clock.now_ms())
    await parts.store.commit()
    assert len(producer.asked) == 20
    assert parts.halves.deadline() <= parts.clock.now_ms()
    assert await parts.run(parts.halves) == 2
    assert len(producer.asked) == 50


async def test_large_half_messages_make_small_slices(make_parts: Make) -> None:
    parts = make_parts(max_due_bytes=100)
    topic = await parts.topic()
    producer = Producer(parts)
    for number in range(50):
        await begin(parts, topic, f"m{number}")
    parts.clock.advance(6)
    parts.halves.tick(parts.clock.now_ms())
    assert len(producer.asked) == 16


async def test_the_secret_stays_when_the_store_is_read_again(parts: Parts) -> None:
    topic = await parts.topic()
    transaction = await begin(parts, topic)
    parts.load()
    end(parts, transaction, COMMIT, topic="T")
    await parts.store.commit()
    assert len(parts.delivered(parts.catalogue.topic("T"))) == 1


async def test_a_check_that_is_answered_later_counts_when_somebody_was_asked(parts: Parts) -> None:
    asking: list[asyncio.Future[bool]] = []
    numbers: list[int] = []

    def ask(check: TransactionCheck) -> asyncio.Future[bool]:
        numbers.append(check.checks)
        asking.append(asyncio.get_running_loop().create_future())
        return asking[-1]

    parts.halves.on_check(ask)
    topic = await parts.topic()
    transaction = await begin(parts, topic)
    for answer in (False, True, None, True):
        before = len(asking)
        while len(asking) == before:
            await wait(parts, 10)
        if answer is None:
            asking[-1].set_exception(KeyError("a bug elsewhere"))
        else:
            asking[-1].set_result(answer)
        await wait(parts, 0)
        await asyncio.sleep(0)
        await parts.store.commit()
    assert numbers == [1, 1, 2, 2]
    end(parts, transaction, COMMIT)
    await parts.store.commit()


async def test_an_answer_for_a_transaction_that_ended_meanwhile_changes_nothing(parts: Parts) -> None:
    asking: list[asyncio.Future[bool]] = []

    def ask(check: TransactionCheck) -> asyncio.Future[bool]:
        asking.append(asyncio.get_running_loop().create_future())
        return asking[-1]

    parts.halves.on_check(ask)
    transaction = await begin(parts, await parts.topic())
    while not asking:
        await wait(parts, 10)
    end(parts, transaction, COMMIT)
    await parts.store.commit()
    asking[0].set_result(True)
    await asyncio.sleep(0)
    await parts.store.commit()
    assert left(parts, HALF) == 0


async def test_who_is_asked_when_the_broker_stops_is_not_waited_for(parts: Parts) -> None:
    asking: list[asyncio.Future[bool]] = []

    def ask(check: TransactionCheck) -> asyncio.Future[bool]:
        asking.append(asyncio.get_running_loop().create_future())
        return asking[-1]

    parts.halves.on_check(ask)
    await begin(parts, await parts.topic())
    while not asking:
        await wait(parts, 10)
    parts.halves.stop_asking()
    assert asking[0].cancelled()
    await asyncio.sleep(0)
