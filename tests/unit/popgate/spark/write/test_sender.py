"""popgate.spark.write.sender: batches, retries and order, with a gateway in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, cast

import pytest

from popgate.errors import (
    BodyTooLarge,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    Forbidden,
    GatewayError,
    Internal,
    TopicNotFound,
)
from popgate.model import Message, Permission, Queue
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.errors import Code, PartlyStored, SparkSourceError
from popgate.spark.options.sink_options import SinkOptions, read_sink_options
from popgate.spark.write.outgoing_rows import Outgoing, PackedRows
from popgate.spark.write.sender import Sender
from popgate.wire.bodies.configs import TopicConfig
from popgate.wire.bodies.routes import QueueData, TopicRoute
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import LARGEST_FRAME, Command, encode_command
from popgate.wire.messages.batches import decode_batch, encode_batch
from processors.policies.queue_selector import GroupsThenTurns


@dataclass
class Gateway:
    """Topics and their queues; what was sent is stored once per id, when it is waited for."""

    topics: dict[str, dict[str, int]]
    """Number of queues by broker, of each topic."""
    failures: list[GatewayError | None] = field(default_factory=list)
    """What each answer in turn is; None, and all after the last: it is stored."""
    closed: list[GatewayError] = field(default_factory=list)
    """Failures of connections that are not made."""
    compacted: GatewayError | bool = False
    """Whether topics are, or what the question for that is answered with."""
    new_topics: int = 2
    """Queues of topics that are made; 0: none are."""
    sends: list[tuple[QueuePlace, list[bytes]]] = field(default_factory=list)
    once: list[bool] = field(default_factory=list)
    """What each send asked for."""
    stored: dict[bytes, QueuePlace] = field(default_factory=dict)
    most_under_way: int = 0
    connections: int = 0
    routes_asked: int = 0
    rests: list[float] = field(default_factory=list)
    looked: list[str] | None = None
    """Topics that were looked into for what has no answer; None: nobody looks."""

    @contextmanager
    def connect(self, options: SinkOptions) -> Iterator[QueueClient]:
        if self.closed:
            error = self.closed.pop(0)
            raise SparkSourceError(Code.GATEWAY, "no connection") from error
        self.connections += 1
        yield cast("QueueClient", Connection(self))

    def sender(self, partition: int = 0, **given: str) -> Sender:
        options = read_sink_options({"endpoints": "a:1", **given})
        looks = self.find_sent if self.looked is not None else None
        return Sender(options, partition, connect=self.connect, rest=self.rests.append, find_sent=looks)

    def find_sent(self, topic: str) -> set[str]:
        assert self.looked is not None
        self.looked.append(topic)
        return {block.decode().split("\x01")[1].strip("\x02") for block in self.stored}

    def write(self, rows: Sequence[Outgoing], partition: int = 0, **given: str) -> int:
        with self.sender(partition, **given) as sender:
            for row in rows:
                sender.add(row)
            return sender.finish()


class Connection:
    """In the place of a QueueClient, and of its connection."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.is_open = gateway, True
        self.under_way: dict[int, tuple[QueuePlace, list[tuple[bytes, bytes]]]] = {}
        self.lost: GatewayError | None = None

    @property
    def connection(self) -> Connection:
        return self

    def close(self) -> None:
        self.is_open = False

    def _check(self) -> None:
        if not self.is_open:
            raise BrokerUnavailable("the connection was lost")

    def route(self, topic: str) -> TopicRoute:
        self._check()
        gateway = self.gateway
        gateway.routes_asked += 1
        if topic == "TBW102":
            return TopicRoute((QueueData("broker-a", 8, 8, perm=7 if gateway.new_topics else 0),), ())
        if topic not in gateway.topics:
            raise TopicNotFound(topic)
        queues = gateway.topics[topic].items()
        return TopicRoute(tuple(QueueData(broker, 9, count) for broker, count in queues), ())

    def topic_config(self, topic: str) -> TopicConfig:
        self._check()
        told = self.gateway.compacted
        if isinstance(told, GatewayError):
            raise told
        return TopicConfig(topic, attributes={"cleanup.policy": "COMPACTION"} if told else {})

    def start_send(self, queue: QueuePlace, messages: Any, *, once: bool, half: bool) -> int:
        assert not half
        self._check()
        # As the real one: it has to fit into a frame.
        fields = {"i": messages[0][1].decode()}
        encode_command(Command(RequestCode.SEND_MESSAGE_V2, 1, fields=fields, body=messages[0][0]))
        gateway = self.gateway
        gateway.sends.append((queue, [body for body, _ in messages]))
        gateway.once.append(once)
        self.under_way[len(gateway.sends)] = queue, list(messages)
        gateway.most_under_way = max(gateway.most_under_way, len(self.under_way))
        return len(gateway.sends)

    def start_send_batch(self, queue: QueuePlace, items: bytes, *, once: bool) -> int:
        messages = [(item.body, item.properties) for item in decode_batch(items)]
        assert len(messages) > 1
        return self.start_send(queue, messages, once=once, half=False)

    def finish_send(self, opaque: int, queue: QueuePlace, *, timeout_s: float) -> None:
        self._check()
        asked, messages = self.under_way.pop(opaque)
        assert (asked, timeout_s) == (queue, 30)
        failure = self.gateway.failures.pop(0) if self.gateway.failures else None
        if isinstance(failure, BrokerUnavailable):
            self.close()
        if failure is None or isinstance(failure, BrokerTimeout):
            self.gateway.topics.setdefault(queue.topic, {queue.broker: self.gateway.new_topics})
            for _, block in messages:
                self.gateway.stored.setdefault(block, queue)
        if failure is not None:
            raise failure


def rows(*numbers: int, topic: str = "t", **more: Any) -> list[Outgoing]:
    return [Outgoing(number, topic, b"%d" % number, b"id%d" % number, **more) for number in numbers]


def sizes(gateway: Gateway) -> list[int]:
    return [len(bodies) for _, bodies in gateway.sends]


def test_rows_go_in_batches_to_the_queues_in_turn() -> None:
    gateway = Gateway({"t": {"broker-a": 2, "broker-b": 1}})
    assert gateway.write(rows(*range(10)), sendBatchRows="4") == 10
    assert sizes(gateway) == [4, 4, 2]
    assert len({queue for queue, _ in gateway.sends}) == 3
    assert sorted(gateway.stored) == sorted(b"id%d" % number for number in range(10))
    assert gateway.routes_asked == 1


def test_tasks_begin_at_queues_of_their_own() -> None:
    first = []
    for partition in range(3):
        gateway = Gateway({"t": {"broker-a": 3}})
        gateway.write(rows(0), partition)
        first.append(gateway.sends[0][0].queue_id)
    assert sorted(first) == [0, 1, 2]


def test_a_batch_has_so_many_bytes_at_most_but_one_message_may_be_larger() -> None:
    gateway = Gateway({"t": {"broker-a": 1}})
    large = Outgoing(4, "t", b"x" * 50, b"id4")
    gateway.write([*rows(*range(4)), large, *rows(5, 6)], sendBatchBytes="8")
    assert sizes(gateway) == [2, 2, 1, 2]


@pytest.mark.parametrize("column", ["body", "properties"])
def test_a_row_that_is_larger_than_a_request_is_refused_by_its_number(column: str) -> None:
    gateway = Gateway({"t": {"broker-a": 1}})
    large = b"x" * LARGEST_FRAME
    row = Outgoing(4, "t", large, b"id4") if column == "body" else Outgoing(4, "t", large[: 3 << 20], large)
    with pytest.raises(SparkSourceError, match=f"row 4 of partition 7: column {column} is too large") as told:
        gateway.write([*rows(0, 1), row], 7)
    assert told.value.code is Code.ILLEGAL_ROW


def test_of_a_batch_that_is_stored_in_part_the_rest_is_sent_again() -> None:
    gateway = Gateway({"t": {"broker-a": 1}})
    gateway.failures = [PartlyStored(BrokerBusy("busy"), {"1", "3"})]
    told = [Outgoing(at, "t", b"%d" % at, b"UNIQ_KEY\x01%d\x02" % at, group="g") for at in range(5)]
    assert gateway.write(told) == 5
    assert [bodies for _, bodies in gateway.sends] == [[b"0", b"1", b"2", b"3", b"4"], [b"0", b"2", b"4"]]


def test_so_many_batches_are_under_way_at_a_time() -> None:
    gateway = Gateway({"t": {"broker-a": 4}})
    gateway.write(rows(*range(20)), sendBatchRows="1", sendInFlight="3")
    assert gateway.most_under_way == 3


def test_what_fails_for_now_is_sent_again_as_it_was() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [BrokerBusy("busy"), None, BrokerTimeout("slow"), None])
    assert gateway.write(rows(*range(4)), sendBatchRows="2") == 4
    assert [bodies[0] for _, bodies in gateway.sends] == [b"0", b"2", b"0", b"2"]
    assert len(gateway.stored) == 4
    # After a time-out nobody knows whether the connection still leads anywhere.
    assert gateway.connections == 2


def test_all_that_was_under_way_on_a_lost_connection_is_sent_on_the_next() -> None:
    gateway = Gateway({"t": {"broker-a": 2}}, [BrokerUnavailable("gone")])
    with gateway.sender(sendBatchRows="1") as sender:
        for row in rows(*range(3)):
            sender.add(row)
        gateway.closed = [BrokerUnavailable("not yet"), BrokerTimeout("not yet")]
        assert sender.finish() == 3
    assert sorted(gateway.stored) == [b"id0", b"id1", b"id2"]
    assert gateway.connections == 2
    # Once for the loss, once for each connection that was not made; the others do not wait for theirs.
    assert gateway.rests == [0.1, 0.2, 0.4]


def test_what_fails_for_good_is_told_with_its_fault_and_its_rows() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [None, BodyTooLarge(9, 8)])
    with pytest.raises(SparkSourceError) as told:
        gateway.write(rows(*range(5)), 7, sendBatchRows="2")
    assert told.value.code is Code.GATEWAY
    sentence = str(told.value)
    assert "] BODY_TOO_LARGE: " in sentence
    assert "rows 2 to 3 of partition 7 to topic t" in sentence
    assert "option endpoints = ('a:1',)" in sentence


def test_there_is_a_bound_for_how_often_something_is_sent() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [BrokerBusy("busy")] * 100)
    given = {"send.numRetries": "3", "send.retryIntervalMs": "10"}
    with pytest.raises(
        SparkSourceError, match=r"BROKER_BUSY: busy \(row 0 .*tried 4 times \(option send.num"
    ):
        gateway.write(rows(0), **given)
    assert gateway.rests == [0.01, 0.02, 0.04]


def test_a_gateway_that_is_not_there_is_asked_so_often_too() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, closed=[BrokerUnavailable("refused")] * 3)
    assert gateway.write(rows(0), **{"send.numRetries": "3"}) == 1
    gateway.closed = [BrokerUnavailable("refused")] * 9
    with pytest.raises(SparkSourceError, match=r"BROKER_UNAVAILABLE: refused .*tried 4 times"):
        gateway.write(rows(0), **{"send.numRetries": "3"})


def test_rests_grow_to_a_bound() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [BrokerBusy("busy")] * 40)
    gateway.write(rows(0), **{"send.numRetries": "40"})
    assert gateway.rests[:3] == [0.1, 0.2, 0.4]
    assert set(gateway.rests[6:]) == {5.0}


def test_of_a_queue_one_batch_of_message_groups_is_under_way() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [None, BrokerBusy("busy"), None])
    gateway.write(rows(*range(6), group="g"), sendBatchRows="2")
    assert gateway.most_under_way == 1
    assert [bodies for _, bodies in gateway.sends] == [
        *([b"0", b"1"], [b"2", b"3"], [b"2", b"3"], [b"4", b"5"]),
    ]
    assert list(gateway.stored) == [b"id%d" % number for number in range(6)]


def test_a_message_group_has_the_queue_that_other_producers_give_it() -> None:
    gateway = Gateway({"t": {"broker-a": 5, "broker-b": 3}})
    groups = [f"group {number}" for number in range(40)]
    gateway.write([row for number, group in enumerate(groups) for row in rows(number, group=group)])
    queues = [
        Queue(broker, number, Permission.WRITE)
        for broker, most in gateway.topics["t"].items()
        for number in range(most)
    ]
    for number, group in enumerate(groups):
        picked = GroupsThenTurns().pick(Message("t", b"", message_group=group), queues, 0.0)
        assert gateway.stored[b"id%d" % number] == ("t", picked.broker, picked.queue_id)


def test_a_message_group_that_goes_alone_comes_after_its_batch() -> None:
    gateway = Gateway({"t": {"broker-a": 1}})
    gateway.write([*rows(0, 1, group="g"), *rows(2, group="g", alone=True), *rows(3, group="g")])
    assert [bodies for _, bodies in gateway.sends] == [[b"0", b"1"], [b"2"], [b"3"]]


def keyed(*keys: str) -> list[Outgoing]:
    return [
        Outgoing(
            number,
            "t",
            b"%b%d" % (key.encode(), number),
            b"KEYS\x01%b\x02N\x01%d\x02" % (key.encode(), number),
        )
        for number, key in enumerate(keys)
    ]


def test_in_a_compacted_topic_a_key_has_one_queue_and_its_rows_are_in_order() -> None:
    gateway = Gateway({"t": {"broker-a": 4}}, [None, BrokerBusy("busy")], compacted=True)
    rows_ = keyed(*"abcdefgh" * 4)
    assert gateway.write(rows_, sendBatchRows="2") == 32
    for key in "abcdefgh":
        own = [row for row in rows_ if row.body.startswith(key.encode())]
        assert len({gateway.stored[row.block] for row in own}) == 1
        assert [block for block in gateway.stored if block.startswith(b"KEYS\x01" + key.encode())] == [
            row.block for row in own
        ]
    # Where the groups of that name are.
    grouped = Gateway({"t": {"broker-a": 4}})
    grouped.write(rows(0, group="c"))
    assert gateway.stored[rows_[2].block] == grouped.stored[b"id0"]
    # A row may name its queue, and is in order there.
    placed = Gateway({"t": {"broker-a": 4}}, compacted=True)
    placed.write([row._replace(queue_id=3) for row in keyed("a", "b", "a")], sendBatchRows="1")
    assert {queue.queue_id for queue, _ in placed.sends} == {3}
    assert placed.most_under_way == 1


def test_in_a_compacted_topic_all_that_comes_again_is_stored_again() -> None:
    """A broker may have forgotten the id of the first row of a key, and know that of the last one."""
    for is_compacted in (True, False):
        gateway = Gateway({"t": {"a": 1}}, compacted=is_compacted, failures=[BrokerUnavailable("gone")])
        gateway.write(keyed("a", "a"))
        assert gateway.once == [not is_compacted] * 2


def test_keys_have_no_order_where_nothing_is_compacted_or_nobody_may_know() -> None:
    for told in (False, Forbidden("no"), Internal("why?")):
        gateway = Gateway({"t": {"broker-a": 4}}, compacted=told)
        gateway.write(keyed(*"aaaa"), sendBatchRows="1")
        assert len(set(gateway.stored.values())) == 4
        assert gateway.rests == []


def test_in_a_compacted_topic_nothing_is_left_out_that_has_no_answer() -> None:
    """What a later row of the same request took away would come behind it."""
    gateway = Gateway({"t": {"broker-a": 1}}, [BrokerTimeout("slow")], compacted=True, looked=[])
    assert gateway.write(keyed("a", "a")) == 2
    assert (sizes(gateway), gateway.looked) == ([2, 2], [])


def test_a_row_may_name_its_queue() -> None:
    gateway = Gateway({"t": {"broker-a": 2, "broker-b": 1}})
    gateway.write([*rows(0, queue_id=1), *rows(1, queue_id=0, broker="broker-b")])
    assert gateway.stored == {b"id0": ("t", "broker-a", 1), b"id1": ("t", "broker-b", 0)}


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"queue_id": 0}, r"queue of several brokers \(broker-a, broker-b\): broker_name says of which"),
        ({"queue_id": 5}, "the topic t has no such queue to write to"),
        ({"queue_id": 1, "broker": "broker-b"}, "no such queue at broker broker-b"),
    ],
)
def test_a_queue_that_is_none_is_refused(named: dict[str, Any], says: str) -> None:
    gateway = Gateway({"t": {"broker-a": 2, "broker-b": 1}})
    with pytest.raises(SparkSourceError, match=says) as refused:
        gateway.write(rows(3, **named), 1)
    assert refused.value.code is Code.ILLEGAL_ROW
    assert "row 3 of partition 1: column queue_id is" in str(refused.value)


def test_what_has_no_place_in_a_batch_goes_alone_and_where_the_gateway_says() -> None:
    gateway = Gateway({"t": {"broker-a": 2}})
    gateway.write([*rows(0), *rows(1, 2, alone=True), *rows(3)])
    assert sorted(sizes(gateway)) == [1, 1, 2]
    assert {gateway.stored[b"id1"].queue_id, gateway.stored[b"id2"].queue_id} == {-1}


def test_the_first_message_of_a_topic_makes_it_and_is_waited_for() -> None:
    gateway = Gateway({}, new_topics=2)
    assert gateway.write(rows(*range(9), group="g"), sendBatchRows="4") == 9
    assert sizes(gateway) == [1, 4, 4]
    first, *others = [queue for queue, _ in gateway.sends]
    assert first == ("t", "broker-a", -1)
    assert all(queue.queue_id in (0, 1) for queue in others)


def test_a_topic_that_is_not_there_and_not_made_is_told() -> None:
    gateway = Gateway({}, new_topics=0)
    with pytest.raises(
        SparkSourceError, match=r"TOPIC_NOT_FOUND: .*\(row 0 of partition 0 to topic t, option"
    ):
        gateway.write(rows(0))


def test_a_topic_whose_brokers_restart_is_waited_for() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [TopicNotFound("t"), TopicNotFound("t")])
    assert gateway.write(rows(*range(4)), sendBatchRows="2", sendInFlight="1") == 4
    assert sizes(gateway) == [2, 2, 2, 2]
    assert gateway.rests == [0.1, 0.2]


def test_a_topic_that_is_gone_is_told_after_all_attempts() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [TopicNotFound("t")])
    with gateway.sender(**{"send.numRetries": "3"}) as sender:
        sender.add(*rows(0))
        gateway.topics.clear()
        with pytest.raises(SparkSourceError, match=r"TOPIC_NOT_FOUND: .*, tried 4 times"):
            sender.finish()
    assert len(gateway.sends) == 1


def test_a_topic_that_takes_nothing_is_told() -> None:
    gateway = Gateway({"t": {}})
    with pytest.raises(SparkSourceError, match="FORBIDDEN: topic t has no queue that may be written to"):
        gateway.write(rows(0))


def test_topics_have_batches_of_their_own() -> None:
    gateway = Gateway({"t": {"broker-a": 1}, "s": {"broker-a": 1}})
    assert gateway.write([*rows(0), *rows(1, topic="s"), *rows(2)]) == 3
    assert [(queue.topic, bodies) for queue, bodies in gateway.sends] == [
        ("t", [b"0", b"2"]),
        ("s", [b"1"]),
    ]


def test_nothing_is_sent_after_a_failure() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [Forbidden("no")])
    with pytest.raises(SparkSourceError, match="FORBIDDEN: no"):
        gateway.write(rows(*range(40)), sendBatchRows="1", sendInFlight="8")
    assert len(gateway.sends) == 8


@pytest.mark.parametrize("slow", ["connection", "route"])
def test_nothing_is_sent_when_another_one_came_while_the_way_was_sought(slow: str) -> None:
    gateway = Gateway(
        {"t": {"b": 2}}, failures=[BrokerTimeout("slow") if slow == "connection" else BrokerBusy("")]
    )

    def check() -> None:
        if (gateway.connections if slow == "connection" else gateway.routes_asked) == 2:
            raise SparkSourceError(Code.LEDGER, "another driver has come")

    options = read_sink_options({"endpoints": "a:1"})
    with Sender(options, 0, connect=gateway.connect, rest=gateway.rests.append, check=check) as sender:
        sender.add(rows(0)[0])
        with pytest.raises(SparkSourceError, match="another driver has come"):
            sender.finish()
    assert len(gateway.sends) == 1


def test_a_request_that_may_not_be_out_is_left_when_another_one_came() -> None:
    """What the socket did not take goes out when its answer is awaited, and the next row may take minutes."""
    gateway = Gateway({"t": {"b": 1}})
    checks = [None, SparkSourceError(Code.LEDGER, "another driver has come")]

    def check() -> None:
        if (error := checks.pop(0)) is not None:
            raise error

    options = read_sink_options({"endpoints": "a:1"})
    with Sender(options, 0, connect=gateway.connect, rest=gateway.rests.append, check=check) as sender:
        sender.add(rows(0)[0])
        with pytest.raises(SparkSourceError, match="another driver has come"):
            sender.finish()
    assert (len(gateway.sends), gateway.stored) == (1, {})


def test_what_is_held_back_in_all_has_a_bound() -> None:
    gateway = Gateway({f"t{number}": {"broker-a": 1} for number in range(40)})
    with gateway.sender() as sender:
        for number in range(40):
            sender.add(Outgoing(number, f"t{number}", b"x" * 500_000, b"id%d" % number))
        assert len(gateway.sends) >= 30
        assert sender.finish() == 40


def test_what_has_no_answer_is_looked_for_before_it_is_sent_again() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, looked=[])
    gateway.failures = [BrokerBusy("busy"), None, BrokerTimeout("slow"), None]
    told = [Outgoing(number, "t", b"%d" % number, b"UNIQ_KEY\x01id%d\x02" % number) for number in range(6)]
    assert gateway.write(told, sendBatchRows="2") == 6
    # Two are there though their answer was lost; what a busy broker refused is not.
    assert [bodies for _, bodies in gateway.sends] == [
        *([b"0", b"1"], [b"2", b"3"], [b"4", b"5"], [b"0", b"1"]),
        *([b"4", b"5"],) * (len(gateway.sends) - 4),
    ]
    assert gateway.looked
    assert len(gateway.stored) == 6


def test_a_look_while_the_connection_is_open_says_nothing_of_what_comes_later() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, looked=[])
    gateway.failures = [Internal("why?"), None, BrokerTimeout("slow")]
    told = [Outgoing(number, "t", b"%d" % number, b"UNIQ_KEY\x01id%d\x02" % number) for number in range(2)]
    assert gateway.write(told, sendBatchRows="1", sendInFlight="2") == 2
    # The second is stored when its connection is closed, and was not when the first one was looked for.
    assert sorted(body for _, [body] in gateway.sends) == [b"0", b"0", b"1"]
    assert gateway.looked == ["t", "t"]


def test_one_look_is_enough_for_all_that_went_by_a_connection_that_is_lost() -> None:
    gateway = Gateway({"t": {"broker-a": 2}}, [BrokerUnavailable("gone")], looked=[])
    told = [Outgoing(number, "t", b"%d" % number, b"UNIQ_KEY\x01id%d\x02" % number) for number in range(8)]
    assert gateway.write(told, sendBatchRows="1") == 8
    assert gateway.looked == ["t"]
    assert len(gateway.sends) == 16


def packed(*numbers: int, topic: str = "t", size: int = 1) -> PackedRows:
    """As `rows` would be, with an id of their own."""
    items = [encode_batch([(0, b"x" * size, b"UNIQ_KEY\x01id%d\x02" % number)]) for number in numbers]
    ends = [0, *accumulate(map(len, items))]
    return PackedRows(numbers[0], topic, b"".join(items), ends)


def test_packed_rows_that_fail_are_told_with_their_numbers() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [None, None, Forbidden("no")])
    with gateway.sender(sendBatchRows="4") as sender:
        sender.add_all([*rows(0, 1), packed(*range(2, 12))])
        with pytest.raises(SparkSourceError, match="rows 8 to 11 of partition 0 to topic t"):
            sender.finish()


def test_of_packed_rows_without_an_answer_those_are_sent_again_that_are_not_there() -> None:
    gateway = Gateway({"t": {"broker-a": 1}}, [BrokerTimeout("slow")], looked=[])
    with gateway.sender() as sender:
        sender.add_all([packed(0, 1, 2), *rows(3), packed(4)])
        gateway.stored[b"UNIQ_KEY\x01id1\x02"] = QueuePlace("t", "broker-a", 0)
        gateway.find_sent = lambda topic: {"id1", "id4"}  # type: ignore[method-assign]
        sender._find_sent = gateway.find_sent
        assert sender.finish() == 5
    assert sizes(gateway) == [5, 3]


def test_a_send_is_no_larger_than_brokers_take() -> None:
    """What each message needs in it counts."""
    gateway = Gateway({"t": {"broker-a": 1}})
    with gateway.sender(sendBatchBytes="4m") as sender:
        sender.add_all([packed(*range(600), size=8_000), *rows(600)])
        assert sender.finish() == 601
    most = max(
        len(encode_batch((0, b"x" * 8_000, b"UNIQ_KEY\x01id%d\x02" % number) for number in range(count)))
        for count in sizes(gateway)
    )
    assert (4 << 20) - 50_000 < most <= 4 << 20
