"""popgate.spark.guarantees.notes: topics that rows name, which come to be, or get queues, during a batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from popgate.errors import BrokerBusy, BrokerTimeout, BrokerUnavailable
from popgate.queue_client import QueuePlace
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.guarantees.notes import Note, Noted, noted
from popgate.spark.guarantees.openings import Opened
from tests.unit.popgate.spark.guarantees.broker import LEDGER, Broker, Death, dying, rows_name_topics

SMALL = {"sendBatchRows": "1", "sendInFlight": "1"}
ONE, TWO, OTHER = QueuePlace("t", "b", 0), QueuePlace("t", "b", 1), QueuePlace("other", "b", 0)
TOPIC, BOTH = frozenset({"t"}), frozenset({"t", "other"})


def to(topic: str, *bodies: str) -> list[dict[str, str]]:
    return [{"topic": topic, "body": body} for body in bodies]


def broker_of(**topics: int) -> Broker:
    broker = Broker(**topics)
    rows_name_topics(broker)
    return broker


def nothing(_name: str, _told: Any) -> None:
    pass


def test_the_least_of_each_queue_counts() -> None:
    known = noted([Note(0, 0, TOPIC, {ONE: 5}), Note(1, 3, BOTH, {ONE: 4, OTHER: 9})])
    assert known == Noted({ONE: 4, OTHER: 9}, BOTH, {0: 1, 1: 4})


@pytest.mark.parametrize("turned", [False, True])
def test_a_queue_that_one_of_them_lacks_is_not_known(turned: bool) -> None:
    lacks, has = Note(0, 0, TOPIC, {ONE: 2}), Note(1, 0, BOTH, {ONE: 3, TWO: 1, OTHER: 0})
    notes = [has, lacks] if turned else [lacks, has]
    assert noted(notes) == Noted({ONE: 2, OTHER: 0}, BOTH, {0: 1, 1: 1})
    assert noted([*notes, Note(2, 0, TOPIC, {})]).ends == {OTHER: 0}


def test_beside_a_note_that_does_not_say_its_topics_nothing_is_known() -> None:
    known = noted([Note(0, 1, None, {ONE: 2}), Note(1, 0, TOPIC, {ONE: 3})])
    assert known == Noted({}, TOPIC, {0: 2, 1: 1})
    assert Note.decode(Note(0, 1, None, {ONE: 2}).encode()) == Note(0, 1, None, {ONE: 2})


def test_rows_are_found_in_a_topic_that_another_task_of_the_batch_made() -> None:
    broker = broker_of()
    tasks = [to("n", "a"), to("n", "b")]
    opened = broker.ledger().open()
    for at, rows in enumerate(tasks):
        broker.task(opened, rows, partition=at)
    opened = broker.ledger().open()
    broker.commit(*(broker.task(opened, rows, partition=at) for at, rows in enumerate(tasks)))
    assert sorted(broker.bodies("n")) == ["a", "b"]


def test_an_attempt_finds_the_rows_of_the_one_before_in_a_topic_that_it_made() -> None:
    broker = broker_of()
    told = to("n", "a", "c", "d")
    opened = broker.ledger().open()
    broker.before = dying("send", 4)
    with pytest.raises(Death):
        broker.task(opened, told, **SMALL)
    broker.before = nothing
    other = broker.task(opened, to("n", "b"), partition=1)
    broker.commit(broker.task(opened, told, **SMALL), other)
    assert sorted(broker.bodies("n")) == ["a", "b", "c", "d"]


def test_rows_are_found_in_a_queue_that_a_topic_got_during_the_batch() -> None:
    broker = broker_of(t=1)
    tasks = [to("t", "a", "c"), to("t", "b")]
    opened = broker.ledger().open()

    def grow(name: str, told: Any) -> None:
        if name == "send" and told[0].topic == "t":
            broker.before = nothing
            broker.make("t", 2)
            raise BrokerBusy("busy")

    broker.before = grow
    for at, rows in enumerate(tasks):
        broker.task(opened, rows, partition=at, sendBatchRows="1")
    assert broker.queues[TWO]
    opened = broker.ledger().open()
    broker.commit(*(broker.task(opened, rows, partition=at) for at, rows in enumerate(tasks)))
    assert sorted(broker.bodies("t")) == ["a", "b", "c"]


def replace_before_it_notes(
    broker: Broker, opened: Opened, told: list[dict[str, str]], then: Callable[[], None]
) -> None:
    """When an attempt asks for the queues of t another one sends two rows and dies; then comes `then`."""

    def replace_it(name: str, asked: Any) -> None:
        if name == "queues" and asked == "t":
            broker.before = dying("send", 5)
            with pytest.raises(Death):
                broker.task(opened, told, **SMALL)
            broker.before = nothing
            then()

    broker.before = replace_it


def test_an_attempt_that_was_replaced_before_it_noted_hides_no_rows() -> None:
    """It asks where topics end while the gateway is away, and says it when its successor has sent."""
    broker = broker_of(t=1)
    told, opened = to("t", "a", "b", "c"), broker.ledger().open()

    def be_away() -> None:
        raise BrokerUnavailable("gone")

    replace_before_it_notes(broker, opened, told, be_away)
    with pytest.raises(SparkSourceError, match="another attempt of task 0"):
        broker.task(opened, told, **SMALL)
    assert broker.bodies("t") == ["a", "b"]
    broker.compact(LEDGER)
    broker.commit(broker.task(opened, told, **SMALL))
    assert broker.bodies("t") == ["a", "b", "c"]


def test_an_attempt_that_was_replaced_before_it_noted_notes_nothing() -> None:
    """A compaction may come before it has put right what it wrote in the place of its successor's note."""
    broker = broker_of(t=1)
    told, opened = to("t", "a", "b", "c"), broker.ledger().open()

    def be_slow() -> None:
        broker.now_s += 3

    def compact(name: str, asked: Any) -> None:
        if name == "send" and asked[0].topic == LEDGER:
            broker.compact(LEDGER)

    replace_before_it_notes(broker, opened, told, be_slow)
    broker.after = compact
    with pytest.raises(SparkSourceError, match="another attempt of task 0"):
        broker.task(opened, told, **SMALL)
    broker.commit(broker.task(opened, told, **SMALL))
    assert broker.bodies("t") == ["a", "b", "c"]


def test_the_ledger_does_not_grow_while_a_topic_cannot_be_made() -> None:
    broker = broker_of()
    opened = broker.ledger().open()

    def die(name: str, told: Any) -> None:
        if name == "send" and told[0].topic == "n":
            raise Death

    broker.before = die
    for _ in range(5):
        with pytest.raises(Death):
            broker.task(opened, to("n", "a"))
    broker.compact(LEDGER)
    # The opening, the last attempt, and one note.
    assert len(broker.bodies(LEDGER)) == 3


@pytest.mark.parametrize("guarantee", ["effectively-once", "transactional"])
def test_deaths_everywhere_leave_each_row_once_in_the_topic_that_it_names(guarantee: str) -> None:
    """Topics are there or come to be; tasks and drivers die, answers are lost, the ledger is compacted."""
    for seed in range(60):
        dice = random.Random(seed)
        broker = broker_of(x=2, y=1)
        given = {"deliveryGuarantee": guarantee, "sendBatchRows": "2", "sendInFlight": "2"}
        topics, want = ["x", "y", "n1", "n2"], Counter[tuple[str, str]]()
        for number in range(3):
            tasks = [
                [(dice.choice(topics), f"{number}{at}{dice.randrange(3)}") for _ in range(dice.randint(1, 6))]
                for at in range(3)
            ]
            want.update(each for rows in tasks for each in rows)
            while True:
                try:
                    _write(broker, dice, number, tasks, given)
                except Death:
                    continue
                except SparkSourceError as error:
                    if error.code is not Code.GATEWAY:
                        raise
                    continue
                # Or the driver died before Spark wrote it down.
                if dice.random() < 0.8:
                    break
        have = Counter((topic, body) for topic in topics for body in broker.bodies(topic))
        assert have == want, seed


def _write(
    broker: Broker,
    dice: random.Random,
    number: int,
    tasks: list[list[tuple[str, str]]],
    given: dict[str, str],
) -> None:
    """A batch by one driver. Raises Death or SparkSourceError as the dice fall."""
    left = [dice.choice([5, 10, 20, 40, 80, 10**6])]

    def fail(_name: str, _told: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Death
        if dice.random() < 0.02:
            raise dice.choice([BrokerTimeout("slow"), BrokerUnavailable("gone")])

    def lose(name: str, _told: Any) -> None:
        if name in ("send", "end") and dice.random() < 0.03:
            raise BrokerTimeout("lost")

    broker.before, broker.after = fail, lose
    try:
        opened = broker.ledger(broker.options(**given)).open()
        parts = []
        for at, rows in enumerate(tasks):
            told = [{"topic": topic, "body": body} for topic, body in dice.sample(rows, len(rows))]
            try:
                parts.append(broker.task(opened, told, batch=number, partition=at, **given))
            except Death:
                # The task alone, and it is tried again.
                left[0] = dice.choice([20, 10**6])
                parts.append(broker.task(opened, told, batch=number, partition=at, **given))
            if dice.random() < 0.3:
                broker.compact(LEDGER)
        broker.commit(*parts, **given)
    finally:
        broker.before = broker.after = nothing
