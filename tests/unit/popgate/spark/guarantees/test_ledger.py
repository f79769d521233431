"""popgate.spark.guarantees.ledger: who owns a sink, what is done, and what a topic must be to tell it."""

from __future__ import annotations

from typing import Any

import pytest

from popgate.errors import BrokerTimeout, Forbidden
from popgate.queue_client import QueuePlace
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.guarantees.notes import Noted
from popgate.wire.messages.properties import encode_properties
from tests.unit.popgate.spark.guarantees.broker import LEDGER, OUT, Broker, Death, dying, gone

QUEUE, PLACE = QueuePlace(LEDGER, "b", 0), QueuePlace("t", "b", 0)


def refused(work: Any) -> str:
    with pytest.raises(SparkSourceError) as told:
        work()
    assert told.value.code is Code.LEDGER
    assert "option ledgerTopic = " in str(told.value)
    assert "option sinkId = 's'" in str(told.value)
    return str(told.value)


def test_a_batch_is_opened_where_its_topic_ends() -> None:
    broker = Broker(out=2)
    broker.append(QueuePlace(OUT, "b", 1), b"x", b"")
    opened = broker.ledger().open()
    assert opened.begins == {(OUT, "b", 0): 0, (OUT, "b", 1): 1}
    assert (opened.query, opened.batch, opened.again) == ("", -1, False)
    assert opened.since_ms == broker.now_ms - 1 - 60_000


def test_what_is_done_is_known_to_the_next_opening() -> None:
    broker = Broker()
    ledger = broker.ledger()
    ledger.finish(ledger.open(), "q", 4, 10, 99)
    opened = broker.ledger().open()
    assert (opened.query, opened.batch, opened.rows, opened.checksum) == ("q", 4, 10, 99)
    assert not opened.again


def test_a_batch_that_is_not_done_hands_its_places_on() -> None:
    broker = Broker(out=1)
    ledger = broker.ledger()
    ledger.finish(ledger.open(), "q", 0, 1, 1)
    first = ledger.open()
    broker.append(QueuePlace(OUT, "b", 0), b"a row", b"")
    assert broker.rests == []
    for times in range(2):
        again = broker.ledger().open()
        # The driver before has noticed it by then, and what its tasks sent has shown.
        assert broker.rests == [3.0] * (times + 1)
        assert again.again
        assert again.begins == first.begins == {(OUT, "b", 0): 0}
        assert (again.batch, again.since_ms) == (0, first.since_ms)


def test_sinks_share_a_ledger_and_know_nothing_of_each_other() -> None:
    broker = Broker()
    one, other = (broker.ledger(broker.options(sinkId=name)) for name in ("s", "s:open"))
    opened = one.open()
    assert not other.open().again
    one.finish(opened, "q", 3, 0, 0)
    assert (one.open().batch, other.open().again) == (3, True)


def test_what_matters_is_found_far_from_the_end_and_after_a_compaction() -> None:
    broker = Broker()
    ledger = broker.ledger()
    ledger.finish(ledger.open(), "q", 7, 5, 6)
    other = broker.ledger(broker.options(sinkId="other"))
    for _ in range(300):
        other.open()
    assert ledger.open().batch == 7
    broker.compact(LEDGER)
    assert len(broker.bodies(LEDGER)) == 3
    opened = ledger.open()
    assert (opened.batch, opened.again) == (7, True)


def test_what_retention_takes_of_the_log_beside_is_still_known() -> None:
    """RocketMQ tells the minimum of that log, and keeps in the compacted topic what is older."""
    broker = Broker()
    ledger = broker.ledger()
    ledger.finish(ledger.open(), "q", 7, 5, 6)
    broker.minimums[QUEUE] = len(broker.bodies(LEDGER))
    assert broker.ledger().open().batch == 7


def test_an_opening_takes_the_sink_from_whoever_had_it() -> None:
    broker = Broker()
    ledger = broker.ledger()
    late = ledger.open()
    ledger.open()
    for work in (
        lambda: ledger.begin_task(late, 0),
        lambda: ledger.finish(late, "q", 0, 0, 0),
        lambda: ledger.check_owner(late),
    ):
        assert "another driver has opened a batch since" in refused(work)
    assert ledger.open().batch == -1


def test_a_done_that_came_too_late_counts_for_nothing() -> None:
    """A driver that looked who owns the sink, stood still, and wrote when another one had come."""
    broker = Broker()
    ledger = broker.ledger()
    late = ledger.open()
    taken: list[Any] = []

    def take_over(name: str, told: Any) -> None:
        if name == "send" and not taken:
            taken.append(None)
            taken[0] = broker.ledger().open()

    broker.before = take_over
    assert "another driver" in refused(lambda: ledger.finish(late, "q", 5, 1, 1))
    opened = ledger.open()
    assert (opened.batch, opened.again) == (-1, True)
    ledger.finish(opened, "q", 0, 1, 1)
    assert ledger.open().batch == 0


def test_a_done_that_came_too_late_takes_the_place_of_no_other() -> None:
    """A compaction leaves the last one of a sink."""
    broker = Broker()
    ledger, other = broker.ledger(), broker.ledger()
    late = ledger.open()
    left = [0, 1]

    def come_first(name: str, told: Any) -> None:
        if name == "send" and left:
            number = left.pop(0)
            held, left[:] = list(left), []
            other.finish(other.open(), "q", number, 1, 1)
            left[:] = held

    broker.before = come_first
    assert "another driver" in refused(lambda: ledger.finish(late, "q", 9, 1, 1))
    assert left == []
    broker.compact(LEDGER)
    opened = ledger.open()
    assert (opened.batch, opened.again) == (1, False)


def test_a_done_that_came_too_late_is_put_right_when_that_failed_at_first() -> None:
    broker = Broker()
    ledger, other = broker.ledger(), broker.ledger()
    late = ledger.open()
    sends: list[Any] = []

    def come_first(name: str, told: Any) -> None:
        if name == "send":
            sends.append(told)
            if len(sends) == 1:
                other.finish(other.open(), "q", 0, 1, 1)
            elif len(sends) == 4:
                raise BrokerTimeout("slow")

    broker.before = come_first
    assert "another driver" in refused(lambda: ledger.finish(late, "q", 9, 1, 1))
    broker.compact(LEDGER)
    assert (ledger.open().batch, len(sends)) == (0, 6)


def test_an_attempt_is_known_behind_one_of_a_driver_that_was_late() -> None:
    broker = Broker()
    ledger, other = broker.ledger(), broker.ledger()
    late = ledger.open()
    opened: list[Any] = []

    def come_first(name: str, told: Any) -> None:
        if name == "send" and not opened:
            opened.append(None)
            opened[0] = other.open()
            assert not other.begin_task(opened[0], 0).came_before

    broker.before = come_first
    assert "another driver" in refused(lambda: ledger.begin_task(late, 0))
    broker.compact(LEDGER)
    assert other.begin_task(opened[0], 0).came_before


def test_an_opening_from_before_topics_were_noted_can_be_read() -> None:
    broker = Broker()
    body = (
        b'{"v":1,"kind":"open","token":"t","query":"q","batch":3,"rows":0,"checksum":0,"begins":{},"since":0,'
        b'"again":false}'
    )
    broker.append(QUEUE, body, encode_properties({"KEYS": "s:open"}))
    opened = broker.ledger().open()
    assert (opened.batch, opened.first, opened.first_offset, opened.again) == (3, "t", 0, True)


def test_what_is_noted_of_topics_is_of_a_batch_whoever_opened_it() -> None:
    broker = Broker()
    ledger = broker.ledger()
    one, two = QueuePlace("one", "b", 0), QueuePlace("two", "b", 0)
    before = ledger.open()
    ledger.note_ends(before, ledger.begin_task(before, 0), 0, ["one", "two"], {one: 3, two: 3})
    ledger.finish(before, "q", 0, 1, 1)
    opened = ledger.open()
    assert ledger.noted(opened) == Noted({}, frozenset(), {})
    ledger.note_ends(opened, ledger.begin_task(opened, 0), 0, ["one"], {one: 5})
    ledger.note_ends(opened, ledger.begin_task(opened, 1), 1, ["one", "two"], {one: 4, two: 9})
    again = broker.ledger().open()
    ledger.note_ends(again, ledger.begin_task(again, 0), 1, ["new"], {})
    known = Noted({one: 4, two: 9}, frozenset({"one", "two", "new"}), {0: 2, 1: 2})
    assert ledger.noted(again) == ledger.noted(opened) == known


@pytest.mark.parametrize("who", ["driver", "driver of the next batch", "attempt"])
def test_a_note_that_came_too_late_takes_the_place_of_no_other(who: str) -> None:
    """A compaction leaves the last one of a key."""
    broker = Broker()
    ledger = broker.ledger()
    opened = ledger.open()
    late = [(opened, ledger.begin_task(opened, 0))]
    for _ in range(2):
        if who == "driver of the next batch":
            ledger.finish(opened, "q", 0, 1, 1)
        opened = opened if who == "attempt" else ledger.open()
        late.append((opened, ledger.begin_task(opened, 0)))
    ledger.note_ends(*late.pop(), 0, ["t"], {PLACE: 1})
    # The one that came first comes last, and the other one stood in between.
    for number, each in enumerate(reversed(late)):
        sentence = refused(
            lambda each=each, number=number: ledger.note_ends(*each, 0, ["t"], {PLACE: 7 + number})
        )
        assert f"another {who.split()[0]}" in sentence
    broker.compact(LEDGER)
    assert ledger.noted(opened).ends == {PLACE: 1}


def test_a_note_that_came_too_late_is_put_right_when_that_failed_or_another_one_came() -> None:
    broker = Broker()
    ledger = broker.ledger()
    opened = ledger.open()
    late, middle, last = (ledger.begin_task(opened, 0) for _ in range(3))
    with pytest.raises(SparkSourceError, match="another attempt"):
        ledger.note_ends(opened, middle, 0, ["t"], {PLACE: 5})
    sends: list[Any] = []

    def come_between(name: str, told: Any) -> None:
        if name == "send":
            sends.append(told)
            if len(sends) == 2:
                raise BrokerTimeout("slow")
            if len(sends) == 4:
                broker.ledger().note_ends(opened, last, 0, ["t"], {PLACE: 1})

    broker.before = come_between
    assert "another attempt" in refused(lambda: ledger.note_ends(opened, late, 0, ["t"], {PLACE: 7}))
    # Its own, what failed, its own, the middle one's, the last one's by itself, and that again.
    assert len(sends) == 6
    broker.compact(LEDGER)
    assert ledger.noted(opened).ends == {PLACE: 1}


def test_of_several_notes_the_one_of_the_latest_attempt_is_put_right() -> None:
    """One in the middle that was late as well died before it could do that."""
    broker = Broker()
    ledger = broker.ledger()
    opened = ledger.open()
    late, middle, last = (ledger.begin_task(opened, 0) for _ in range(3))
    ledger.note_ends(opened, last, 0, ["t"], {PLACE: 1})
    broker.before = dying("pull")
    with pytest.raises(Death):
        ledger.note_ends(opened, middle, 0, ["t"], {PLACE: 5})
    broker.before = lambda _name, _told: None
    assert "another attempt" in refused(lambda: ledger.note_ends(opened, late, 0, ["t"], {PLACE: 7}))
    broker.compact(LEDGER)
    assert ledger.noted(opened).ends == {PLACE: 1}


def test_a_note_of_the_only_attempt_is_written_once_and_read_after() -> None:
    broker = Broker()
    ledger = broker.ledger()
    opened = ledger.open()
    attempt = ledger.begin_task(opened, 0)
    # Other tasks come all the time.
    ledger.begin_task(opened, 1)
    asked: list[str] = []
    broker.before = lambda name, _told: asked.append(name)
    ledger.note_ends(opened, attempt, 0, ["t"], {})
    assert asked == ["connect", "send", "pull"]


@pytest.mark.parametrize("topics", [b'"one"', b"[1]", b"{}"])
def test_a_note_of_no_topics_is_no_record(topics: bytes) -> None:
    broker = Broker()
    opened = broker.ledger().open()
    body = b'{"v":1,"kind":"ends","first":"%s","partition":0,"number":0,"ends":{},"topics":%s}'
    body %= (opened.first.encode(), topics)
    broker.append(QUEUE, body, encode_properties({"KEYS": "s:ends:0.0"}))
    assert "offset 1 is no record of this connector" in refused(lambda: broker.ledger().noted(opened))


def test_a_ledger_that_was_made_anew_during_a_batch_is_told() -> None:
    broker = Broker()
    ledger = broker.ledger()
    broker.append(QUEUE, b"nonsense", b"")
    opened = ledger.open()
    attempt = ledger.begin_task(opened, 0)
    for size, says in (
        (0, "it ends at 0, and the batch"),
        (1, "it ends at 1, and"),
        (9, "its record is not"),
    ):
        broker.queues[QUEUE] = []
        for _ in range(size):
            broker.append(QUEUE, b"nonsense", b"")
        for work in (
            lambda: ledger.begin_task(opened, 0),
            lambda: ledger.finish(opened, "q", 0, 0, 0),
            lambda: ledger.check_owner(opened, attempt),
        ):
            sentence = refused(work)
            assert "the ledger was made anew while a batch was written" in sentence
            assert "when the query is started again, with this sinkId too, it is sent as a whole" in sentence
            assert says in sentence
        assert len(broker.queues[QUEUE]) == size


def test_a_ledger_may_show_its_end_late() -> None:
    """As a broker of RocketMQ does."""
    broker = Broker()
    ledger = broker.ledger()
    opened = ledger.open()
    held = broker.queues[QUEUE]
    broker.queues[QUEUE] = []

    class Rests(list[float]):
        def append(self, seconds: float) -> None:
            super().append(seconds)
            if len(self) == 3:
                broker.queues[QUEUE] = held

    broker.rests = Rests()
    ledger = broker.ledger()
    assert not ledger.begin_task(opened, 0).came_before
    assert broker.rests == [0.1] * 3


@pytest.mark.parametrize("lacking", [1, 300])
def test_what_a_slave_lacks_is_waited_for_while_its_master_is_away(lacking: int) -> None:
    """The master is lost just after it told where the ledger ends."""
    broker = Broker()
    ledger = broker.ledger(broker.options(sendTimeoutMs="100"))
    ledger.finish(ledger.open(), "q", 4, 1, 1)
    for _ in range(lacking):
        broker.ledger(broker.options(sinkId="other")).open()
    lost: list[str] = []

    def lose(name: str, _told: Any) -> None:
        if name == "pull" and not lost:
            lost.append(name)
            broker.lacking[QUEUE] = lacking
        elif name == "connect":
            broker.lacking.clear()

    broker.before = lose
    assert ledger.open().batch == 4
    assert lost


@pytest.mark.parametrize("fails", [False, True])
def test_an_opening_that_another_one_came_before_is_made_anew(fails: bool) -> None:
    broker = Broker(out=1)
    ledger, other = broker.ledger(), broker.ledger()
    ledger.finish(ledger.open(), "q", 0, 1, 1)
    sends: list[Any] = []

    def come_first(name: str, told: Any) -> None:
        if name == "send":
            sends.append(told)
            if len(sends) == 1:
                other.finish(other.open(), "q", 1, 2, 2)
            elif fails and len(sends) == 4:
                raise BrokerTimeout("slow")

    broker.before = come_first
    opened = ledger.open()
    # It had read that batch 0 was the last one, and what it wrote then is no state of the sink.
    assert (opened.batch, opened.again) == (1, False)
    assert opened.offset == len(broker.queues[QUEUE]) - 1
    assert len(sends) == 4 + fails


def test_an_opening_takes_over_what_its_broker_showed_late() -> None:
    """RocketMQ's shows a new end some 300 ms late, here behind openings of another driver and of its own."""
    broker = Broker(out=1)
    before = broker.ledger().open()
    broker.append(QueuePlace(OUT, "b", 0), b"a row", b"")
    held, shown = broker.queues[QUEUE], [0, 0]

    def show_late(name: str, told: Any) -> None:
        if name == "maximums" and QUEUE in told:
            broker.queues[QUEUE] = held[: shown.pop() if shown else 1]
        elif name == "send":
            broker.queues[QUEUE] = held

    broker.before = show_late
    opened = broker.ledger().open()
    assert (opened.again, opened.first, opened.begins) == (True, before.first, before.begins)
    assert len(held) == 3


def test_an_opening_that_was_not_answered_is_no_other_one() -> None:
    broker = Broker(out=1)
    failures = [BrokerTimeout("slow")]

    def lose_answer(name: str, _told: Any) -> None:
        if name == "send" and failures:
            raise failures.pop()

    broker.after = lose_answer
    broker.ledger().open()
    assert len(broker.bodies(LEDGER)) == 2
    assert broker.ledger().open().again


def test_an_opening_of_ones_own_is_all_that_is_known_when_the_others_are_gone() -> None:
    """A compaction took them away in that moment."""
    broker = Broker(out=1)
    ledger, other = broker.ledger(), broker.ledger()
    ledger.finish(ledger.open(), "q", 4, 1, 1)
    sends: list[Any] = []

    def come_first(name: str, _told: Any) -> None:
        if name == "send":
            sends.append(name)
            if len(sends) == 1:
                other.open()
        elif name == "maximums" and len(sends) == 2:
            broker.compact(LEDGER)

    broker.before = come_first
    opened = ledger.open()
    assert (opened.query, opened.batch, opened.again) == ("q", 4, True)


def test_an_opening_sees_the_ledger_as_it_is_at_one_moment() -> None:
    """Another driver writes a batch, and a compaction removes what was to be read, just before it is read."""
    broker = Broker(out=1)
    broker.batch(0, ["a"])

    def come_between(name: str, told: Any) -> None:
        if name == "pull" and told[0] == QUEUE:
            broker.before = lambda _name, _told: None
            broker.batch(1, ["b"])
            broker.compact(LEDGER)
            broker.after = lambda _name, _told: broker.compact(LEDGER)

    broker.before = come_between
    opened = broker.ledger().open()
    assert (opened.query, opened.batch, opened.again) == ("q", 1, False)
    assert broker.batch(1, ["b"])[0].skipped


def test_two_drivers_that_open_all_the_time_are_told() -> None:
    broker = Broker()
    ledger, other = broker.ledger(), broker.ledger()
    busy: list[Any] = []

    def come_first(name: str, told: Any) -> None:
        if name == "send" and not busy:
            busy.append(None)
            other.open()
            busy.clear()

    broker.before = come_first
    assert "several drivers write with this sinkId" in refused(ledger.open)


def test_a_task_knows_whether_an_attempt_of_it_came_before() -> None:
    broker = Broker()
    ledger = broker.ledger()
    opened = ledger.open()
    assert [ledger.begin_task(opened, partition).came_before for partition in (0, 1, 10, 0, 1)] == [
        *(False, False, False, True, True)
    ]
    broker.compact(LEDGER)
    assert ledger.begin_task(opened, 10).came_before
    ledger.finish(opened, "q", 0, 0, 0)
    assert not ledger.begin_task(ledger.open(), 0).came_before


def test_an_attempt_that_came_before_is_known_when_its_record_went_while_that_was_asked_again() -> None:
    """The record of this attempt takes its place, and a compaction may come before the next answer."""
    broker = Broker()
    ledger = broker.ledger()
    opened = ledger.open()
    ledger.begin_task(opened, 0)

    def lose_an_answer(name: str, told: Any) -> None:
        if name == "send" and not broker.rests:
            broker.compact(LEDGER)
            raise BrokerTimeout("slow")

    broker.after = lose_an_answer
    assert ledger.begin_task(opened, 0).came_before
    assert broker.rests == [0.1]


def test_an_attempt_that_came_between_is_known_when_others_went_with_it() -> None:
    """One of another sink before it went, too: the gap begins before the first look, and ends behind it."""
    broker = Broker()
    ledger, other = broker.ledger(), broker.ledger(broker.options(sinkId="other"))
    opened = ledger.open()
    other.open()

    def come_first(name: str, told: Any) -> None:
        if name == "send":
            broker.before = lambda _name, _told: None
            broker.ledger().begin_task(opened, 0)
            broker.after = lose_the_answer

    def lose_the_answer(name: str, told: Any) -> None:
        broker.after = lambda _name, _told: None
        other.open()
        broker.compact(LEDGER)
        raise BrokerTimeout("slow")

    broker.before = come_first
    assert ledger.begin_task(opened, 0).came_before
    assert broker.rests == [3.0, 0.1]


def test_what_fails_for_now_is_asked_again_and_is_no_attempt_more() -> None:
    broker = Broker()
    ledger = broker.ledger()
    opened = ledger.open()

    def lose_answers(name: str, told: Any) -> None:
        if name == "send" and len(broker.rests) < 2:
            raise BrokerTimeout("slow")

    broker.after = lose_answers
    assert not ledger.begin_task(opened, 0).came_before
    assert broker.rests == [0.1, 0.2]
    broker.after = lambda _name, _told: None
    broker.before = gone("connect", 3)
    with pytest.raises(SparkSourceError, match="BROKER_UNAVAILABLE: gone"):
        ledger.open()


def test_a_topic_that_cannot_be_a_ledger_is_refused() -> None:
    broker = Broker(plain=1)
    how = "popgate topic create {} --queues 1 --attribute cleanup.policy=COMPACTION"
    sentence = refused(broker.ledger(broker.options(ledgerTopic="missing")).open)
    assert "the topic is not there" in sentence
    assert how.format("missing") in sentence
    assert "is not compacted" in refused(broker.ledger(broker.options(ledgerTopic="plain")).open)
    broker.make("two", 2)
    broker.compacted.add("two")
    assert "has 2 queues" in refused(broker.ledger(broker.options(ledgerTopic="two")).open)


def test_what_may_not_be_read_is_told_with_the_ledgers_name() -> None:
    broker = Broker()

    def forbid(name: str, told: Any) -> None:
        if name == "config":
            raise Forbidden("no")

    broker.before = forbid
    with pytest.raises(SparkSourceError, match=r"FORBIDDEN: no .*ledgerTopic = ledger"):
        broker.ledger().open()


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b"[]",
        b'{"v":2,"kind":"open"}',
        b'{"v":1,"kind":"done"}',
        b'{"v":1,"kind":"open","token":"t","query":"q","batch":true,"rows":0,"checksum":0,"begins":{},"since":0}',
        b'{"v":1,"kind":"open","token":"t","query":"q","batch":1,"rows":0,"checksum":0,"begins":[],"since":0}',
    ],
)
def test_a_record_that_is_none_ends_the_query(body: bytes) -> None:
    broker = Broker()
    broker.append(QUEUE, body, encode_properties({"KEYS": "s:open"}))
    assert "what stands at offset 0 is no record of this connector" in refused(broker.ledger().open)


def test_what_others_write_into_the_topic_is_nothing() -> None:
    broker = Broker()
    broker.append(QUEUE, b"nonsense", encode_properties({"KEYS": "other"}))
    broker.append(QUEUE, b"nonsense", b"")
    assert not broker.ledger().open().again


def test_a_record_without_a_body_lets_a_sink_begin_anew() -> None:
    broker = Broker()
    ledger = broker.ledger()
    ledger.finish(ledger.open(), "q", 4, 1, 1)
    broker.append(QUEUE, b"", encode_properties({"KEYS": "s:open"}))
    opened = ledger.open()
    assert (opened.query, opened.batch, opened.again) == ("", -1, False)
