"""popgate.spark.guarantees.replay and commit: each row once, whoever died where.

The broker of these tests stores whatever it is sent: no window of ids helps.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from popgate.errors import BrokerTimeout, BrokerUnavailable, Forbidden, GatewayError, TopicNotFound
from popgate.queue_client import QueuePlace
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.guarantees.commit import Outcome
from popgate.spark.guarantees.half_messages import drop_halves
from popgate.spark.guarantees.openings import Opened
from popgate.spark.options.sink_options import BY_VERSION
from tests.unit.popgate.spark.guarantees.broker import (
    LEDGER,
    OUT,
    Broker,
    Death,
    dying,
    gone,
    rows,
    rows_name_topics,
)

SMALL = {"sendBatchRows": "1", "sendInFlight": "1"}
NUMBERS = [str(number) for number in range(10)]


def refused(code: Code, work: Any) -> str:
    with pytest.raises(SparkSourceError) as told:
        work()
    assert told.value.code is code, told.value
    return str(told.value)


def test_batches_follow_one_another_and_nobody_looks_for_rows() -> None:
    broker = Broker(out=2)
    pulls: list[Any] = []
    broker.before = lambda name, told: pulls.append(told) if name == "pull" and told[0].topic == OUT else None
    for number in range(3):
        outcomes = broker.batch(number, [f"{number}a", f"{number}b"], [f"{number}c"])
        assert [(one.rows, one.sent, one.skipped) for one in outcomes] == [(2, 2, False), (1, 1, False)]
    assert sorted(broker.bodies()) == ["0a", "0b", "0c", "1a", "1b", "1c", "2a", "2b", "2c"]
    assert pulls == []
    assert set(broker.once) == {True}


@pytest.mark.parametrize("sends", [1, 2, 5, 10])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_dies_while_its_rows_go_out_sends_the_rest_when_it_comes_again(
    sends: int, when: str
) -> None:
    broker = Broker(out=2)
    broker.batch(0, ["earlier"])
    opened = broker.ledger().open()
    broker.make("other", 1)
    # The first send is the record of the task.
    setattr(broker, when, dying("send", sends + 1))
    with pytest.raises(Death):
        broker.task(opened, rows(*NUMBERS), batch=1, **SMALL)
    assert 0 < len(broker.bodies()) <= 11
    setattr(broker, when, lambda _name, _told: None)
    before = len(broker.bodies())
    [outcome] = broker.batch(1, NUMBERS, **SMALL)
    assert outcome.sent == 11 - before
    assert sorted(broker.bodies()) == sorted([*NUMBERS, "earlier"])


@pytest.mark.parametrize("sends", [2, 3, 5])
@pytest.mark.parametrize("when", ["before", "after"])
def test_rows_that_went_out_many_at_a_time_are_known_again(sends: int, when: str) -> None:
    """Packed the first time, and one by one when they come again."""
    told = [str(number % 150) for number in range(400)]
    broker = Broker(out=2)
    opened = broker.ledger().open()
    # The first send is the record of the task.
    setattr(broker, when, dying("send", sends))
    with pytest.raises(Death):
        broker.task(opened, rows(*told), sendBatchRows="100", sendInFlight="1")
    setattr(broker, when, lambda _name, _told: None)
    before = len(broker.bodies())
    assert before == (sends - 2 + (when == "after")) * 100
    [outcome] = broker.batch(0, told)
    assert (outcome.rows, outcome.sent) == (400, 400 - before)
    [again] = broker.batch(0, told)
    assert (again.rows, again.checksum, again.skipped) == (400, outcome.checksum, True)
    assert Counter(broker.bodies()) == Counter(told)


def test_a_driver_that_dies_before_the_batch_is_done_sends_nothing_again() -> None:
    broker = Broker(out=1)
    opened = broker.ledger().open()
    broker.task(opened, rows("a", "a", "b"))
    [outcome] = broker.batch(0, ["a", "a", "b"])
    assert (outcome.rows, outcome.sent, outcome.skipped) == (3, 0, False)
    assert broker.bodies() == ["a", "a", "b"]


def test_a_driver_that_dies_between_the_ledger_and_its_checkpoint_sends_nothing_again() -> None:
    broker = Broker(out=1)
    broker.batch(0, ["a", "b"])
    for _ in range(2):
        [outcome] = broker.batch(0, ["b", "a"])
        assert (outcome.rows, outcome.sent, outcome.skipped) == (2, 0, True)
    # And if it dies while it does that, too.
    broker.ledger().open()
    assert broker.batch(0, ["a", "b"])[0].skipped
    assert broker.batch(1, ["c"])[0].sent == 1
    assert broker.bodies() == ["a", "b", "c"]


def test_rows_that_come_in_another_order_are_known_again() -> None:
    """As after a shuffle. Those that say the same are counted."""
    broker = Broker(out=2)
    opened = broker.ledger().open()
    broker.before = dying("send", 6)
    with pytest.raises(Death):
        broker.task(opened, rows("a", "b", "a", "c", "d", "a"), **SMALL)
    broker.before = lambda _name, _told: None
    assert Counter(broker.bodies()) == {"a": 2, "b": 1, "c": 1}
    broker.batch(0, ["d", "a", "a", "a", "c", "b"], **SMALL)
    assert Counter(broker.bodies()) == {"a": 3, "b": 1, "c": 1, "d": 1}


def test_a_task_that_is_tried_again_sends_the_rest() -> None:
    """The number of the attempt says nothing: it begins anew when Spark runs a stage again."""
    broker = Broker(out=1)
    opened = broker.ledger().open()
    broker.before = dying("send", 4)
    with pytest.raises(Death):
        broker.task(opened, rows("a", "b", "c"), **SMALL)
    broker.before = lambda _name, _told: None
    other = broker.task(opened, rows("a", "b"), partition=1)
    again = broker.task(opened, rows("a", "b", "c"), **SMALL)
    assert (other.outcome.sent, again.outcome.sent) == (2, 1)
    # What was on its way when the attempt before died has shown by the time it is looked for.
    assert broker.rests == [3.0]
    broker.commit(other, again)
    assert Counter(broker.bodies()) == {"a": 2, "b": 2, "c": 1}


def test_an_answer_that_was_lost_with_its_task_is_no_second_row() -> None:
    broker = Broker(out=1)
    opened = broker.ledger().open()
    broker.after = dying("send", 2)
    with pytest.raises(Death):
        broker.task(opened, rows("a"))
    broker.after = lambda _name, _told: None
    assert broker.bodies() == ["a"]
    assert broker.batch(0, ["a"])[0].sent == 0


def test_a_driver_whose_sink_was_taken_over_sends_and_commits_nothing() -> None:
    broker = Broker(out=1)
    late = broker.ledger().open()
    part = broker.task(late, rows("a"))
    broker.batch(0, ["a"], ["b"])
    assert "another driver" in refused(Code.LEDGER, lambda: broker.task(late, rows("b"), partition=1))
    assert "another driver" in refused(Code.LEDGER, lambda: broker.commit(part))
    assert sorted(broker.bodies()) == ["a", "b"]


@pytest.mark.parametrize("who", ["driver", "attempt"])
def test_a_task_that_was_replaced_stops_within_a_second(who: str) -> None:
    broker = Broker(out=1)
    opened = broker.ledger().open()
    checks: list[Any] = []

    def replace_it(name: str, told: Any) -> None:
        if name == "maximums":
            checks.append(told)
        if name != "send" or told[0].topic != OUT:
            return
        broker.now_s += 0.3
        if len(broker.bodies()) == 4:
            ledger = broker.ledger()
            if who == "driver":
                ledger.open()
            else:
                ledger.begin_task(opened, 0)

    broker.before = replace_it
    sentence = refused(Code.LEDGER, lambda: broker.task(opened, rows(*NUMBERS * 2), **SMALL))
    assert f"another {who}" in sentence
    assert len(broker.bodies()) == 7
    assert len(checks) < 8


def test_a_task_that_is_the_only_one_goes_on() -> None:
    broker = Broker(out=1)

    def pass_time(name: str, told: Any) -> None:
        broker.now_s += 0.5 if name == "send" else 0

    broker.before = pass_time
    opened = broker.ledger().open()
    first = broker.task(opened, rows(*NUMBERS), **SMALL)
    # Other tasks and other sinks write into the ledger all the time.
    broker.ledger(broker.options(sinkId="other")).open()
    second = broker.task(opened, rows(*NUMBERS), partition=1, **SMALL)
    broker.commit(first, second)
    assert sorted(broker.bodies()) == sorted(NUMBERS * 2)


def test_one_that_came_between_is_noticed_when_its_record_is_gone() -> None:
    """It comes between the look and the record of another one, and a compaction before the next look."""
    broker = Broker(out=1)
    broker.batch(0, ["0"])

    def come_first(opens: Callable[[], Opened], bodies: str, partition: int) -> None:
        """And send some rows, when the next record is on its way."""

        def come(name: str, told: Any) -> None:
            if name == "send" and told[0].topic == LEDGER:
                broker.before = dying("send", 4)
                with pytest.raises(Death):
                    broker.task(opens(), rows(*bodies), batch=1, partition=partition, **SMALL)
                broker.before, broker.after = _nothing, compact

        broker.before = come

    def compact(name: str, told: Any) -> None:
        if name == "send" and told[0].topic == LEDGER:
            broker.compact(LEDGER)
            broker.after = _nothing

    come_first(lambda: broker.ledger().open(), "abc", partition=0)
    opened = broker.ledger().open()
    broker.task(opened, rows("a", "b", "c"), batch=1, **SMALL)
    assert broker.bodies() == ["0", "a", "b", "c"]
    come_first(lambda: opened, "def", partition=1)
    broker.task(opened, rows("d", "e", "f"), batch=1, partition=1, **SMALL)
    assert broker.bodies() == ["0", *"abcdef"]


def test_a_batch_whose_rows_are_shared_out_otherwise_is_refused() -> None:
    broker = Broker(out=1)
    opened = broker.ledger().open()
    broker.task(opened, rows("a", "b"), partition=0)
    again = broker.ledger().open()
    sentence = refused(Code.REPLAY, lambda: broker.task(again, rows("a"), partition=0))
    assert "an earlier attempt sent 1 rows of partition 0" in sentence
    assert "dedupeKeyColumn" in sentence
    assert broker.bodies() == ["a", "b"]


def test_rows_with_a_key_may_be_shared_out_otherwise() -> None:
    broker = Broker(out=2)
    opened = broker.ledger().open()
    keyed = [{"body": each, "key": each} for each in ("a", "b", "c")]
    broker.task(opened, keyed[:2], dedupeKeyColumn="key")
    again = broker.ledger().open()
    parts = [
        broker.task(again, [keyed[at]], partition=number, dedupeKeyColumn="key")
        for number, at in enumerate((2, 0, 1))
    ]
    broker.commit(*parts, dedupeKeyColumn="key")
    assert sorted(broker.bodies()) == ["a", "b", "c"]


def test_a_key_that_another_topic_has_is_no_row_of_this_one() -> None:
    """One query makes two topics of its rows, and dies between them."""
    broker = Broker(one=1, two=1)
    rows_name_topics(broker)
    given = {"dedupeKeyColumn": "key"}
    told = [{"topic": topic, "key": key, "body": key} for topic in ("one", "two") for key in "ab"]
    broker.task(broker.ledger().open(), told[:3], **given)
    part = broker.task(broker.ledger().open(), told, **given)
    assert part.outcome.sent == 1
    assert [broker.bodies(topic) for topic in ("one", "two")] == [["a", "b"], ["a", "b"]]
    # Half messages as well: one that is delivered in another topic is not delivered in this one.
    given["deliveryGuarantee"] = "transactional"
    given["sendInFlight"] = "1"
    part = broker.task(broker.ledger().open(), told, batch=1, **given)
    fail = [BrokerUnavailable("gone")]

    def lose(name: str, _half: Any) -> None:
        if name == "end" and len(broker.ended) == 1 and fail:
            raise fail.pop()

    broker.before = lose
    broker.commit(part, **given)
    assert [broker.bodies(topic) for topic in ("one", "two")] == [["a", "b"] * 2] * 2


def test_a_key_of_an_earlier_batch_is_another_row() -> None:
    broker = Broker(one=1)
    rows_name_topics(broker)
    told = [{"topic": "one", "key": "k", "body": "first"}]
    part = broker.task(broker.ledger().open(), told, dedupeKeyColumn="key")
    broker.commit(part, dedupeKeyColumn="key")
    broker.ledger().open()
    told = [{"topic": "one", "key": "k", "body": "second"}]
    # What came in the minute before the batch is looked at, too.
    part = broker.task(broker.ledger().open(), told, batch=1, dedupeKeyColumn="key")
    assert (part.outcome.sent, broker.bodies("one")) == (1, ["first", "second"])


@pytest.mark.parametrize("guarantee", ["effectively-once", "transactional"])
def test_a_batch_with_fewer_partitions_than_it_had_is_refused(guarantee: str) -> None:
    broker = Broker(out=1)
    given = {"deliveryGuarantee": guarantee}
    opened = broker.ledger().open()
    parts = [broker.task(opened, rows(body), partition=at, **given) for at, body in enumerate("abc")]
    if guarantee == "transactional":
        broker.after = dying("end", 3)
        with pytest.raises(Death):
            broker.commit(*parts, **given)
        broker.after = _nothing
    sent, ended = broker.bodies(), len(broker.ended)
    sentence = refused(Code.REPLAY, lambda: broker.batch(0, ["a"], ["b", "c"], **given))
    assert "sent rows of partition 2, and the batch has 2 partitions now" in sentence
    if guarantee == "effectively-once":
        assert "With another sinkId the batch is sent as a whole" in sentence
    else:
        assert (broker.bodies(), len(broker.ended)) == (sent, ended)
        broker.batch(0, ["a"], ["b"], ["c"], **given)
        assert sorted(broker.bodies()) == ["a", "b", "c"]


def test_a_checkpoint_that_was_made_anew_is_told() -> None:
    broker = Broker(out=1)
    broker.batch(0, ["a"])
    sentence = refused(Code.LEDGER, lambda: broker.batch(0, ["a"], query="q2"))
    assert "written by the query q, and this is the query q2" in sentence
    assert "Give it another sinkId" in sentence
    assert broker.bodies() == ["a"]


def test_a_checkpoint_that_is_older_than_the_ledger_is_told() -> None:
    broker = Broker(out=1)
    for number in range(3):
        broker.batch(number, [str(number)])
    assert "batch 1 comes again, though batch 2 is done" in refused(
        Code.LEDGER, lambda: broker.batch(1, ["1"])
    )
    # The batch is the last one, and has others than it had.
    assert "was done with 1 rows, and comes again with 2" in refused(
        Code.REPLAY, lambda: broker.batch(2, ["2", "3"])
    )
    assert "comes again with 1, which are others" in refused(Code.REPLAY, lambda: broker.batch(2, ["3"]))
    assert broker.bodies() == ["0", "1", "2"]


def test_a_batch_that_was_begun_stays_so_when_an_earlier_one_comes_again() -> None:
    """The checkpoint is older by one batch than what was written."""
    broker = Broker(out=1)
    broker.batch(0, ["a"])
    opened = broker.ledger().open()
    # The first send is the record of the task.
    broker.before = dying("send", 3)
    with pytest.raises(Death):
        broker.task(opened, rows("b", "c"), batch=1, **SMALL)
    broker.before = lambda _name, _told: None
    assert [broker.batch(0, ["a"])[0].skipped for _ in range(2)] == [True, True]
    assert broker.batch(1, ["b", "c"])[0].sent == 1
    assert broker.bodies() == ["a", "b", "c"]


def numbered(version: int) -> dict[str, Any]:
    """By options, in the place of Spark."""
    return {"query": BY_VERSION, "txnAppId": "s", "txnVersion": str(version)}


def test_a_version_is_written_once_and_none_before_it() -> None:
    broker = Broker(out=1)
    for version, bodies in ((3, ["a", "b"]), (5, ["c"])):
        [outcome] = broker.batch(version, bodies, **numbered(version))
        assert (outcome.sent, outcome.skipped) == (len(bodies), False)
    before = len(broker.queues[QueuePlace(LEDGER, "b", 0)])
    for version, bodies in ((5, ["c"]), (3, ["a", "b"]), (4, ["d", "e"])):
        [outcome] = broker.batch(version, bodies, **numbered(version))
        assert (outcome.rows, outcome.sent, outcome.skipped) == (len(bodies), 0, True)
    assert "was done with 1 rows, and comes again with 2" in refused(
        Code.REPLAY, lambda: broker.batch(5, ["c", "d"], **numbered(5))
    )
    # Whoever writes is not disturbed.
    assert len(broker.queues[QueuePlace(LEDGER, "b", 0)]) == before
    assert broker.batch(6, ["f"], **numbered(6))[0].sent == 1
    assert broker.bodies() == ["a", "b", "c", "f"]


@pytest.mark.parametrize("done", [[], [3]])
def test_a_version_that_was_begun_is_done_before_any_other(done: list[int]) -> None:
    broker = Broker(out=1)
    for version in done:
        broker.batch(version, [str(version)], **numbered(version))
    opened = broker.ledger(broker.options(txnAppId="s", txnVersion="5")).open()
    # The first send is the record of the task.
    broker.before = dying("send", 3)
    with pytest.raises(Death):
        broker.task(opened, rows("a", "b"), batch=5, **numbered(5), **SMALL)
    broker.before = lambda _name, _told: None
    for version, last in ((4, "with the same rows; version 4 counts as done then ("), (6, "the same rows (")):
        told = refused(Code.LEDGER, lambda: broker.batch(version, ["c"], **numbered(version)))  # noqa: B023
        assert f"version 5 was begun, and is not done, so version {version} is not written" in told
        assert last in told
    for version in done:
        assert broker.batch(version, [str(version)], **numbered(version))[0].skipped
    # A query that takes the sink for its own changes nothing in that.
    broker.ledger().open()
    assert "version 5 was begun" in refused(Code.LEDGER, lambda: broker.batch(6, ["c"], **numbered(6)))
    assert broker.batch(5, ["a", "b"], **numbered(5))[0].sent == 1
    assert broker.batch(6, ["c"], **numbered(6))[0].sent == 1
    assert broker.bodies() == [*map(str, done), "a", "b", "c"]


def late(broker: Broker, version: int, meanwhile: Callable[[], object]) -> list[Outcome]:
    """It is opened when another driver has come between, who did not see it."""

    def before(name: str, told: Any) -> None:
        if name == "send" and told[0].topic == LEDGER:
            broker.before = lambda _name, _told: None
            meanwhile()

    broker.before = before
    return broker.batch(version, ["x"], **numbered(version))


def test_a_late_write_of_a_version_leaves_one_that_was_begun() -> None:
    """Else another version had to be written first, and rows of this one would be left out."""
    broker = Broker(out=1)
    broker.batch(4, ["a"], **numbered(4))

    def begin() -> None:
        opened = broker.ledger(broker.options(txnAppId="s", txnVersion="5")).open()
        broker.task(opened, rows("b"), batch=5, **numbered(5))

    assert "version 5 was begun" in refused(Code.LEDGER, lambda: late(broker, 6, begin))
    assert "version 5 was begun" in refused(Code.LEDGER, lambda: broker.batch(6, ["x"], **numbered(6)))
    assert broker.batch(5, ["b", "c"], **numbered(5))[0].sent == 1
    assert broker.batch(6, ["x"], **numbered(6))[0].sent == 1
    assert broker.bodies() == ["a", "b", "c", "x"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_late_write_of_a_version_leaves_one_that_is_done(version: int) -> None:
    broker = Broker(out=1)
    broker.batch(3, ["a"], **numbered(3))
    [outcome] = late(broker, version, lambda: broker.batch(5, ["x"], **numbered(5)))
    assert outcome.skipped
    assert "comes again with 2" in refused(Code.REPLAY, lambda: broker.batch(5, ["x", "y"], **numbered(5)))
    assert broker.batch(6, ["b"], **numbered(6))[0].sent == 1
    assert broker.bodies() == ["a", "x", "b"]


def test_a_sink_has_batches_of_a_query_or_versions() -> None:
    broker = Broker(out=1)
    broker.batch(0, ["a"])
    before = len(broker.queues[QueuePlace(LEDGER, "b", 0)])
    told = refused(Code.LEDGER, lambda: broker.batch(1, ["b"], **numbered(1)))
    assert "written by the query q, which numbers its batches itself: give another txnAppId" in told
    assert "option txnAppId = 's'" in told
    assert len(broker.queues[QueuePlace(LEDGER, "b", 0)]) == before
    other = Broker(out=1)
    other.batch(0, ["a"], **numbered(0))
    assert "written by the query txnVersion" in refused(Code.LEDGER, lambda: other.batch(1, ["b"]))
    assert (broker.bodies(), other.bodies()) == (["a"], ["a"])


def test_messages_of_others_are_no_rows() -> None:
    broker = Broker(out=1)
    opened = broker.ledger().open()
    broker.append(QueuePlace(OUT, "b", 0), b"a", b"UNIQ_KEY\x01theirs\x02")
    broker.append(QueuePlace(OUT, "b", 0), b"a", b"")
    broker.task(opened, rows("b"))
    broker.batch(0, ["b", "a"][:1])
    assert broker.bodies() == ["a", "a", "b"]


def test_what_an_earlier_batch_sent_is_no_row_of_this_one() -> None:
    broker = Broker(out=1)
    broker.batch(0, ["same"])
    opened = broker.ledger().open()
    broker.batch(1, ["same"])
    assert broker.bodies() == ["same", "same"]
    assert opened.batch == 0


def test_rows_that_name_their_topics_are_found_there() -> None:
    broker = Broker(one=1, two=2)
    broker.now_ms = 1_000_000
    earlier = QueuePlace("one", "b", 0)
    broker.append(earlier, b"old", b"")
    broker.now_ms += 120_000
    told = [{"topic": topic, "body": "x"} for topic in ("one", "two", "new", "one")]
    rows_name_topics(broker)
    opened = broker.ledger().open()
    assert opened.begins == {}
    broker.before = dying("send", 7)
    with pytest.raises(Death):
        broker.task(opened, told, **SMALL)
    pulls: list[Any] = []
    broker.before = lambda name, asked: pulls.append(asked) if name == "pull" else None
    again = broker.ledger().open()
    # In another order: rows to two topics that say the same are not taken for one another.
    part = broker.task(again, told[::-1], **SMALL)
    assert part.outcome.sent == 2
    assert [len(broker.bodies(topic)) for topic in ("one", "two", "new")] == [3, 1, 1]
    # What was stored long before the batch is not looked at.
    assert (earlier, 1) in pulls
    assert (earlier, 0) not in pulls


def test_what_only_a_lost_master_has_is_not_sent_again() -> None:
    broker = Broker(out=1)
    opened = broker.ledger().open()
    broker.before = dying("send", 4)
    with pytest.raises(Death):
        broker.task(opened, rows("a", "b", "c"), **SMALL)
    broker.before = _nothing
    broker.lacking[QueuePlace(OUT, "b", 0)] = 1
    assert "no master" in refused(Code.GATEWAY, lambda: broker.task(opened, rows("a", "b", "c"), **SMALL))
    broker.lacking.clear()
    broker.commit(broker.task(opened, rows("a", "b", "c"), **SMALL))
    assert Counter(broker.bodies()) == {"a": 1, "b": 1, "c": 1}


def test_a_queue_that_lost_what_was_sent_is_told() -> None:
    broker = Broker(out=1)
    queue = QueuePlace(OUT, "b", 0)
    opened = broker.ledger().open()
    broker.task(opened, rows("a", "b"))
    broker.minimums[queue] = 1
    assert "keeps nothing before 1, and ended at 0" in refused(
        Code.LEDGER, lambda: broker.batch(0, ["a", "b"])
    )
    broker.minimums[queue] = 0
    for _ in range(3):
        broker.append(queue, b"more", b"")
    broker.batch(0, ["a", "b"])
    broker.ledger().open()
    broker.queues[queue] = []
    sentence = refused(Code.LEDGER, lambda: broker.batch(1, ["c"]))
    assert "ends at 0, and ended at 5" in sentence
    assert "made anew" in sentence


def test_what_is_removed_while_it_is_looked_for_is_told() -> None:
    broker, queue = Broker(out=1), QueuePlace(OUT, "b", 0)
    broker.task(broker.ledger().open(), rows("a", "b"))

    def remove(name: str, told: Any) -> None:
        if name == "pull" and told[0] == queue:
            broker.queues[queue][0] = None
            broker.minimums[queue] = 1

    broker.before = remove
    sentence = refused(Code.LEDGER, lambda: broker.batch(0, ["a", "b"]))
    assert "keeps nothing before 1: 0 to 0 are gone" in sentence
    assert "With another sinkId" in sentence
    assert "failOnDataLoss" not in sentence


def test_topics_that_rows_name_are_noticed_when_they_lose_what_was_sent() -> None:
    broker = Broker(one=2, two=1)
    rows_name_topics(broker)
    queue = QueuePlace("two", "b", 0)
    told = [{"topic": topic, "body": str(at)} for at, topic in enumerate(["one"] * 4 + ["two"] * 4)]
    for _ in range(3):
        broker.append(queue, b"earlier", b"")

    def again(partition: int = 0) -> Any:
        return broker.task(broker.ledger().open(), told, partition=partition, **SMALL)

    opened = broker.ledger().open()
    broker.before = dying("send", 10)
    with pytest.raises(Death):
        broker.task(opened, told, **SMALL)
    broker.before = _nothing
    assert len(broker.bodies("two")) == 5
    held = {each: list(broker.queues[each]) for each in broker.queues if each.topic != LEDGER}
    # What the ledger has of that is of the attempt before, and stays so over compactions.
    for _ in range(3):
        broker.compact(LEDGER)
        broker.minimums[queue] = 4
        assert "keeps nothing before 4, and ended at 3" in refused(Code.LEDGER, again)
        broker.minimums[queue] = 0
        broker.queues[queue] = held[queue][:2]
        assert "ends at 2, and ended at 3" in refused(Code.LEDGER, again)
        del broker.queues[queue]
        assert "start the query again when it is" in refused(Code.LEDGER, again)
        broker.queues[queue] = list(held[queue])
    assert {each: broker.queues[each] for each in held} == held
    broker.commit(again())
    found = broker.bodies("one") + broker.bodies("two")
    assert sorted(found) == [*"01234567", *["earlier"] * 3]
    # The next batch has its own.
    broker.minimums[queue] = 5
    broker.commit(broker.task(broker.ledger().open(), told, batch=1))
    broker.ledger().open()
    broker.commit(broker.task(broker.ledger().open(), told, batch=2))
    assert len(broker.bodies("two")) == 15


def test_rows_in_a_topic_that_the_batch_made_are_found_again_and_again() -> None:
    """It ended nowhere when the first attempt noted it, and has rows of that when the next one does."""
    broker = Broker()
    rows_name_topics(broker)
    told = [{"topic": "new", "body": each} for each in NUMBERS]
    for _ in range(6):
        opened, left = broker.ledger().open(), [3]

        def die(name: str, asked: Any, left: list[int] = left) -> None:
            if name == "send" and asked[0].topic == "new":
                left[0] -= 1
                if left[0] == 0:
                    raise Death

        broker.before = die
        with contextlib.suppress(Death):
            broker.task(opened, told, **SMALL)
        broker.before = _nothing
    assert sorted(broker.bodies("new")) == NUMBERS


def test_what_one_attempt_noted_does_not_take_the_place_of_what_another_one_did() -> None:
    broker = Broker(one=1, two=1)
    rows_name_topics(broker)
    told = [{"topic": topic, "body": each} for topic in ("one", "two") for each in "ab"]
    # It dies before its first row; then before the second row of the other topic, which it has noted.
    for times in (4, 7):
        broker.before = dying("send", times)
        with pytest.raises(Death):
            broker.task(broker.ledger().open(), told, **SMALL)
        broker.before = _nothing
    assert (broker.bodies("one"), broker.bodies("two")) == (["a", "b"], ["a"])
    broker.compact(LEDGER)
    broker.minimums[QueuePlace("one", "b", 0)] = 1
    assert "keeps nothing before 1, and ended at 0" in refused(
        Code.LEDGER, lambda: broker.task(broker.ledger().open(), told, **SMALL)
    )


def test_places_that_other_tasks_noted_count_too() -> None:
    """Of rows with keys, which may be shared out otherwise."""
    broker = Broker(one=1)
    rows_name_topics(broker)
    broker.now_ms = 10_000_000
    keyed = [{"topic": "one", "key": key, "body": key} for key in "abc"]
    opened = broker.ledger().open()
    broker.task(opened, keyed[:1], dedupeKeyColumn="key")
    broker.task(opened, keyed[1:], partition=1, dedupeKeyColumn="key")
    opened = broker.ledger().open()
    parts = [broker.task(opened, keyed[at::2], partition=1 - at, dedupeKeyColumn="key") for at in range(2)]
    broker.commit(*parts, dedupeKeyColumn="key")
    assert broker.bodies("one") == ["a", "b", "c"]


def test_topics_are_noted_many_at_a_time_and_once_for_a_task() -> None:
    broker = Broker(**{f"t{number}": 1 for number in range(450)})
    rows_name_topics(broker)
    told = [{"topic": f"t{number % 450}", "body": str(number)} for number in range(900)]
    opened = broker.ledger().open()
    part = broker.task(opened, told)
    # The opening, the task, and three times 200 topics at most.
    assert len(broker.bodies(LEDGER)) == 5
    again = broker.task(opened, told)
    assert (part.outcome.sent, again.outcome.sent, len(broker.bodies(LEDGER))) == (900, 0, 6)


def test_a_queue_that_is_gone_is_waited_for() -> None:
    """Its broker may be down, and what was sent to it cannot be looked at."""
    broker = Broker(out=2)
    broker.task(broker.ledger().open(), rows(*NUMBERS), **SMALL)
    queue = QueuePlace(OUT, "b", 1)
    held = broker.queues.pop(queue)
    assert "start the query again when it is" in refused(Code.LEDGER, lambda: broker.batch(0, NUMBERS))
    broker.queues[queue] = held
    broker.batch(0, NUMBERS)
    assert sorted(broker.bodies()) == NUMBERS


@pytest.mark.parametrize("unread", [1, 2])
def test_rows_in_a_queue_that_cannot_be_read_are_not_sent_again(unread: int) -> None:
    """It has fewer read queues than write queues, or may only be written to."""
    broker = Broker(out=2)
    broker.unread = {QueuePlace(OUT, "b", number) for number in range(2 - unread, 2)}
    broker.task(broker.ledger().open(), rows(*NUMBERS), **SMALL)
    assert sorted(broker.bodies()) == NUMBERS
    assert "cannot be read" in refused(Code.LEDGER, lambda: broker.batch(0, NUMBERS))
    broker.unread.clear()
    broker.batch(0, NUMBERS)
    assert sorted(broker.bodies()) == NUMBERS


def test_a_queue_closed_to_readers_during_a_look_is_noticed() -> None:
    """What can be read and what cannot are told by one answer: of two the queue would be in neither."""
    broker = Broker()
    rows_name_topics(broker)
    told = [{"topic": "new", "body": body} for body in NUMBERS]
    broker.task(broker.ledger().open(), told, **SMALL)
    assert sorted(broker.bodies("new")) == NUMBERS
    opened, asked = broker.ledger().open(), []

    def close(name: str, topic: object) -> None:
        if name in ("route", "queues") and topic == "new":
            asked.append(name)
            broker.unread = {QueuePlace("new", "b", 1)} if len(asked) == 2 else set()

    broker.before = close
    with contextlib.suppress(SparkSourceError):
        broker.task(opened, told, **SMALL)
    assert sorted(broker.bodies("new")) == NUMBERS


def test_a_compacted_topic_gets_all_rows_again_in_their_order() -> None:
    """What a later row of a key took away would come behind it."""
    broker = Broker(out=1)
    broker.compacted.add(OUT)
    told = [{"body": f"{key}{at}", "keys": key} for at, key in enumerate("aab")]
    opened = broker.ledger().open()
    broker.task(opened, told)
    broker.compact(OUT)
    assert broker.bodies() == ["a1", "b2"]
    # A request of the first attempt that comes twice is known.
    assert broker.once == [True]
    broker.once.clear()
    broker.commit(broker.task(broker.ledger().open(), told))
    broker.compact(OUT)
    assert broker.bodies() == ["a1", "b2"]
    # Also where the broker would know the ids again, and keep some of them only.
    assert broker.once == [False]


def test_in_a_compacted_topic_the_last_row_of_a_key_stays_over_deaths_and_lost_answers() -> None:
    for seed in range(30):
        dice = random.Random(seed)
        broker = Broker(out=3)
        broker.compacted.add(OUT)
        told = [{"body": f"{key}{at:02}", "keys": key} for at in range(8) for key in "abcd"]
        given = {"sendBatchRows": str(dice.randint(1, 4)), "sendInFlight": str(dice.randint(1, 4))}
        broker.before, broker.after = dying("send", dice.randint(2, 20)), _losing(dice)
        with contextlib.suppress(Death, SparkSourceError):
            broker.task(broker.ledger().open(), told, **given)
        if dice.random() < 0.5:
            broker.compact(OUT)
        broker.before = _nothing
        broker.commit(broker.task(broker.ledger().open(), told, **{**given, "send.numRetries": "9"}))
        broker.after = _nothing
        broker.compact(OUT)
        assert sorted(broker.bodies()) == ["a07", "b07", "c07", "d07"], seed


def test_half_messages_of_a_key_go_to_one_queue_of_a_compacted_topic() -> None:
    broker = Broker(out=3)
    broker.compacted.add(OUT)
    given = {"deliveryGuarantee": "transactional"}
    for batch in range(4):
        told = [{"body": f"{key}{batch}", "keys": key} for key in "abcd"]
        broker.commit(broker.task(broker.ledger().open(), told, batch=batch, **given), **given)
    broker.compact(OUT)
    assert sorted(broker.bodies()) == ["a3", "b3", "c3", "d3"]


def test_a_topic_that_has_a_route_and_no_settings_is_not_compacted() -> None:
    """As one that is made in that moment; the scan of the next attempt takes it for the same."""
    broker = Broker(out=1)

    def no_settings(name: str, told: Any) -> None:
        if name == "config" and told == OUT:
            raise TopicNotFound(OUT)

    broker.before = no_settings
    broker.task(broker.ledger().open(), rows("a", "b"))
    [outcome] = broker.batch(0, ["a", "b", "c"])
    assert (outcome.sent, broker.bodies()) == (1, ["a", "b", "c"])


def test_message_groups_keep_their_order_over_deaths() -> None:
    dice = random.Random(5)
    for times in range(2, 30):
        broker = Broker(out=3)
        told = [{"body": f"{group}{at:02}", "message_group": group} for at in range(12) for group in "xyz"]
        opened = broker.ledger().open()
        given = {"sendBatchRows": str(dice.randint(1, 4)), "sendInFlight": str(dice.randint(1, 4))}
        if dice.random() < 0.5:
            broker.before = dying("send", times)
        else:
            broker.after = dying("send", times)
        with contextlib.suppress(Death):
            broker.task(opened, told, **given)
        broker.before = broker.after = lambda _name, _told: None
        broker.commit(broker.task(broker.ledger().open(), told, **given))
        for group in "xyz":
            found = [each for each in broker.bodies() if each.startswith(group)]
            assert found == [f"{group}{at:02}" for at in range(12)], (times, given)


@pytest.mark.parametrize("error", [BrokerTimeout("slow"), BrokerUnavailable("gone")])
@pytest.mark.parametrize("stored", [True, False])
def test_a_request_without_an_answer_is_looked_for_before_it_is_sent_again(
    error: GatewayError, stored: bool
) -> None:
    broker = Broker(out=2)
    failures = [error, None, error]

    def fail(name: str, told: Any) -> None:
        if name == "send" and told[0].topic == OUT and failures and (failure := failures.pop(0)):
            raise failure

    if stored:
        broker.after = fail
    else:
        broker.before = fail
    [outcome] = broker.batch(0, NUMBERS, sendBatchRows="2")
    assert outcome.sent == 10
    assert sorted(broker.bodies()) == NUMBERS
    assert failures == []
    assert (1.0 in broker.rests) == stored


def test_deaths_everywhere_leave_each_row_once() -> None:
    """A driver that dies at any request, again and again, and Spark that brings the batch again."""
    for seed in range(60):
        dice = random.Random(seed)
        broker = Broker(out=2)
        bodies = [f"{dice.randint(0, 6)}" for _ in range(12)]
        batches = [bodies[:5], bodies[5:6], [], bodies[6:]]
        for number, batch in enumerate(batches):
            # Committed by Spark: the driver came through, and did not die before it wrote that down.
            while True:
                name = dice.choice(["send", "maximums", "pull", "queues", "config"])
                die = dying(name, dice.randint(1, 9))
                lose = _losing(dice)
                broker.before, broker.after = dice.choice(
                    [(die, _nothing), (_nothing, die), (die, lose), (_nothing, lose)]
                )
                try:
                    dice.shuffle(batch)
                    tasks = [[each for each in batch if int(each) % 2 == at] for at in (0, 1)]
                    broker.batch(number, *tasks, **SMALL)
                except (Death, SparkSourceError):
                    continue
                finally:
                    broker.before = broker.after = _nothing
                if dice.random() < 0.7:
                    break
        assert Counter(broker.bodies()) == Counter(bodies), seed


def _nothing(_name: str, _told: Any) -> None:
    pass


def _losing(dice: random.Random) -> Any:
    """One answer in eight is lost."""

    def lose(name: str, _told: Any) -> None:
        if name == "send" and dice.random() < 0.125:
            raise dice.choice([BrokerTimeout("slow"), BrokerUnavailable("gone")])

    return lose


def test_half_messages_are_seen_when_the_batch_is_committed() -> None:
    broker = Broker(out=2)
    given = {"deliveryGuarantee": "transactional"}
    opened = broker.ledger().open()
    part = broker.task(opened, rows("a", "b"), **given)
    assert broker.bodies() == []
    assert len(part.outcome.halves) == len(broker.halves) == 2
    # A zombie's halves are named in no commit.
    broker.task(opened, rows("a", "b"), **given)
    broker.commit(part, **given)
    assert sorted(broker.bodies()) == ["a", "b"]
    # One that was dropped would be known again by its id, and not come.
    assert set(broker.once) == {False}


def test_a_commit_that_dies_half_way_is_brought_to_its_end_when_the_batch_comes_again() -> None:
    for times in range(1, 5):
        broker = Broker(out=1)
        given = {"deliveryGuarantee": "transactional", "sendInFlight": "1"}
        part = broker.task(broker.ledger().open(), rows("a", "b", "c"), **given)
        broker.after = dying("end", times)
        if times < 4:
            with pytest.raises(Death):
                broker.commit(part, **given)
            assert len(broker.bodies()) == times
        broker.after = _nothing
        broker.batch(0, ["a", "b", "c"], **given)
        assert sorted(broker.bodies()) == ["a", "b", "c"]


def test_an_end_that_was_not_answered_is_not_said_again_when_it_was_done() -> None:
    broker = Broker(out=1)
    given = {"deliveryGuarantee": "transactional", "sendInFlight": "1"}
    part = broker.task(broker.ledger().open(), rows("a", "b"), **given)

    def lose_answer(name: str, told: Any) -> None:
        if name == "end" and len(broker.ended) == 1:
            raise BrokerTimeout("slow")

    broker.after = lose_answer
    broker.commit(part, **given)
    assert sorted(broker.bodies()) == ["a", "b"]
    assert len(broker.ended) == 2


def test_a_commit_without_a_gateway_ends_the_query_and_the_batch_comes_again() -> None:
    broker = Broker(out=1)
    given = {"deliveryGuarantee": "transactional"}
    part = broker.task(broker.ledger().open(), rows("a", "b"), **given)
    broker.before = gone("end", 3)
    sentence = refused(Code.GATEWAY, lambda: broker.commit(part, **given))
    assert "2 of 2 half messages could not be committed" in sentence
    broker.before = _nothing
    broker.halves.clear()
    assert "ILLEGAL_TRANSACTION_ID" in refused(Code.GATEWAY, lambda: broker.commit(part, **given))
    broker.batch(0, ["a", "b"], **given)
    assert sorted(broker.bodies()) == ["a", "b"]


def test_a_driver_that_was_taken_over_commits_no_half_message() -> None:
    broker = Broker(out=1)
    given = {"deliveryGuarantee": "transactional"}
    part = broker.task(broker.ledger().open(), rows("a"), **given)
    broker.ledger().open()
    assert "another driver" in refused(Code.LEDGER, lambda: broker.commit(part, **given))
    assert broker.ended == []


@pytest.mark.parametrize("in_flight", [1, 16])
def test_a_driver_that_is_taken_over_while_it_commits_stops(in_flight: int) -> None:
    broker = Broker(out=1)
    given = {"deliveryGuarantee": "transactional", "sendInFlight": str(in_flight)}
    part = broker.task(broker.ledger().open(), rows(*map(str, range(600))), **given)

    def take_over(name: str, told: Any) -> None:
        if name == "end" and len(broker.ended) == 100:
            broker.now_s += 1
            broker.ledger().open()

    broker.after = take_over
    assert "another driver" in refused(Code.LEDGER, lambda: broker.commit(part, **given))
    # Those that were under way at that moment.
    assert len(broker.ended) == {1: 100, 16: 112}[in_flight]


def test_half_messages_are_delivered_in_their_order_over_failures() -> None:
    broker = Broker(out=1)
    given = {"deliveryGuarantee": "transactional", "sendInFlight": "4", "send.numRetries": "3"}
    part = broker.task(broker.ledger().open(), rows(*NUMBERS), **given)
    broker.before = gone("end", 3)
    broker.commit(part, **given)
    assert broker.bodies() == NUMBERS


def test_an_abort_after_a_commit_that_failed_half_way_takes_nothing_back() -> None:
    """Spark calls it with the messages of all tasks."""
    broker = Broker(out=1)
    given = {"deliveryGuarantee": "transactional", "sendInFlight": "1", "send.numRetries": "0"}
    part = broker.task(broker.ledger().open(), rows("a", "b", "c"), **given)

    def fail(name: str, told: Any) -> None:
        if name == "end" and broker.ended:
            raise Forbidden("no")

    broker.before = fail
    assert "FORBIDDEN" in refused(Code.GATEWAY, lambda: broker.commit(part, **given))
    broker.before = _nothing
    assert drop_halves(part.outcome.halves, broker.options(**given), connect=broker.connect) == 0
    assert broker.bodies() == ["a"]
    assert broker.ended[-3:] == [(100, False), (101, False), (102, False)]
    broker.before = gone("end", 9)
    assert drop_halves(part.outcome.halves, broker.options(**given), connect=broker.connect) == 3
    broker.before = _nothing
    broker.batch(0, ["a", "b", "c"], **given)
    assert sorted(broker.bodies()) == ["a", "b", "c"]
