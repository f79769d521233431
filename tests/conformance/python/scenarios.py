"""The scenarios, as far as the official Python client's API goes.

`Scenarios.java` has the same names and tells the same facts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from driver import PATIENCE_S, Run, error_facts, now_ms, whole_id
from rocketmq import FilterExpression, Message, TransactionResolution
from rocketmq.grpc_protocol import Code, FilterType, TransactionSource

UNKNOWN = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
LIMIT = 4 * 1024 * 1024
HOLD_S = 300
"""How long a consumer holds what it acknowledges after an interruption: however long that takes,"""
GIVE_BACK_S = 30
"""and what comes again after it."""
ENOUGH = 1200
"""More than the interpreter's limit of nested calls."""
SCENARIOS: dict[str, Callable[[Run], None]] = {}


def scenario(function: Callable[[Run], None]) -> Callable[[Run], None]:
    SCENARIOS[function.__name__] = function
    return function


def sql(expression: str) -> FilterExpression:
    return FilterExpression(expression, FilterType.SQL)


def pattern(size: int) -> bytes:
    """A body that differs from place to place."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


# sending and receiving


@scenario
def normal(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None})
    properties = {"colour": "blue", "größe": "übergroß 🐇", "spaced key": " a b ", "k" * 200: "v" * 2000}
    full = run.message(topic, "hello", tag="TagA", keys=("k1", "k2"), properties=properties)
    run.sent(producer, full, label="full")
    later = run.message(topic, "grüße, 世界 🌍", tag="标签", keys=("schlüssel",))
    run.sent_as(later, producer.send_async(later).result(), label="async")
    run.sent(producer, run.message(topic, "bare"), label="bare")
    run.receive_until(consumer, 3)
    run.quiet(consumer)


@scenario
def bodies(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None})
    for size in (1, 65_536, LIMIT):
        run.sent(producer, run.message(topic, pattern(size)))
    over = run.message(topic, pattern(LIMIT + 1))
    run.try_to("one byte over", lambda: producer.send(over))
    run.receive_until(consumer, 3, maximum=1)
    run.quiet(consumer)


@scenario
def batch_receive(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None})
    messages = [run.message(topic, f"m{n}") for n in range(80)]
    for message, future in [(message, producer.send_async(message)) for message in messages]:
        run.sent_as(message, future.result())
    run.receive_until(consumer, 80, maximum=100)
    run.quiet(consumer)


@scenario
def early_receive(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    for n in range(8):
        run.sent(producer, run.message(topic, f"m{n}"))
        consumer = run.simple(run["group"], {topic: None})
        run.receive_until(consumer, 1)
        run.close(consumer)


@scenario
def subscriptions(run: Run) -> None:
    one, two = run["topic"], run["topic2"]
    producer = run.producer(one, two)
    consumer = run.simple(run["group"], {one: None}, await_s=1)
    consumer.subscribe(two, FilterExpression("wanted"))
    for topic in (one, two):
        run.sent(producer, run.message(topic, f"{topic} wanted", tag="wanted"))
        run.sent(producer, run.message(topic, f"{topic} other", tag="other"))
    run.receive_until(consumer, 3)
    consumer.unsubscribe(one)
    run.say("unsubscribed")
    for topic in (one, two):
        run.sent(producer, run.message(topic, f"{topic} again", tag="wanted"))
    run.receive_until(consumer, 1)
    run.quiet(consumer)


def _dialling(run: Run) -> None:
    """The client dials `dial`; every address it is told must be that one."""
    topic, endpoint = run["topic"], run["dial"]
    producer = run.producer(topic, endpoint=endpoint)
    consumer = run.simple(run["group"], {topic: None}, endpoint=endpoint)
    receipt = run.sent(producer, run.message(topic, "by name"))
    [message] = run.receive_until(consumer, 1)
    for endpoints in (receipt.message_queue.endpoints, message.endpoints):
        run.say("told", facade=str(endpoints), dialled=endpoint)


@scenario
def by_name(run: Run) -> None:
    _dialling(run)


@scenario
def by_address(run: Run) -> None:
    _dialling(run)


@scenario
def first_use(run: Run) -> None:
    """Topic and group exist for nobody yet; the group is made after the message was sent."""
    topic = run["topic"]
    producer = run.producer()
    run.sent(producer, run.message(topic, "first"))
    consumer = run.simple(run["group"], {topic: None})
    run.receive_until(consumer, 1)
    run.quiet(consumer)


# waiting


@scenario
def empty_poll(run: Run) -> None:
    """A short poll ends while a long one goes on; an arrival ends the long one with its message."""
    topic = run["topic"]
    producer = run.producer(topic)
    patient = run.simple(run["group"], {topic: None}, await_s=20)
    hasty = run.simple(run["group"], {topic: None}, await_s=1)
    thread = threading.Thread(target=lambda: run.receive_until(patient, 1, by="patient"))
    thread.start()
    run.receive(hasty, by="hasty")
    run.receive(hasty, by="hasty")
    run.close(hasty)
    run.sent(producer, run.message(topic, "at last"))
    thread.join()


@scenario
def idle(run: Run) -> None:
    """Consumers of both kinds wait longer than one poll on an empty topic, then a message comes."""
    topic, pushed = run["topic"], run["topic2"]
    seen = threading.Event()

    def consume(message: Message) -> bool:
        run.saw(message, "push")
        seen.set()
        return True

    producer = run.producer(topic, pushed)
    simple = run.simple(run["group"], {topic: None}, await_s=20)
    run.push(run["group2"], {pushed: None}, consume)
    run.receive(simple, by="empty")
    # No wait for a fact: being idle is what is tried here. The push consumer's own first poll, of 20 s
    # as well, began a little later, and nothing in the client tells when it ended.
    time.sleep(4)
    for where in (topic, pushed):
        run.sent(producer, run.message(where, "at last"))
    run.receive_until(simple, 1, by="simple")
    run.wait_for(seen.is_set)


# order


def _in_order(run: Run, groups: str, count: int) -> list[tuple[str, str]]:
    return [(group, f"{group}{n}") for n in range(count) for group in groups]


@scenario
def fifo_simple(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None})
    for group, body in _in_order(run, "abcde", 8):
        run.sent(producer, run.message(topic, body, group=group))
    run.receive_until(consumer, 40)
    run.quiet(consumer)


@scenario
def fifo_held(run: Run) -> None:
    """A held message holds its own message group and no other; when it comes back, order goes on."""
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None}, await_s=1)
    run.sent(producer, run.message(topic, "a0", group="a"))
    [held] = run.receive_until(consumer, 1, invisible_s=60, ack=False, by="first")
    for group, body in (("a", "a1"), ("b", "b0"), ("b", "b1")):
        run.sent(producer, run.message(topic, body, group=group))
    run.receive_until(consumer, 2, by="meanwhile")
    run.receive_until(consumer, 2, by="afterwards")
    run.say("held", id=held.message_id)
    run.quiet(consumer)


@scenario
def fifo_push(run: Run) -> None:
    topic = run["topic"]
    finished: list[str] = []
    failed: list[str] = []

    def consume(message: Message) -> bool:
        body = message.body.decode()
        good = body not in ("a2", "c0") or body in failed
        run.saw(message, consumed=good)
        (finished if good else failed).append(body)
        return good

    run.push(run["group"], {topic: None}, consume)
    producer = run.producer(topic)
    for group, body in _in_order(run, "abcd", 8):
        run.sent(producer, run.message(topic, body, group=group))
    run.wait_for(lambda: len(finished) >= 32)


@scenario
def lite(run: Run) -> None:
    """A client gets the lite topics that it subscribes to, each in its order, and no others."""
    topic = run["topic"]
    finished: list[str] = []
    failed: list[str] = []

    def consume(message: Message) -> bool:
        body = message.body.decode()
        good = body != "room-1 2" or body in failed
        run.saw(message, consumed=good, lite=message.lite_topic)
        (finished if good else failed).append(body)
        return good

    consumer = run.lite(run["group"], topic, consume)
    producer = run.producer(topic)
    run.try_to("an illegal name", lambda: consumer.subscribe_lite("no good"))

    def subscribe(room: str) -> None:
        consumer.subscribe_lite(room)
        consumer.subscribe_lite_all()  # the first call tells the letters of the name, this one the name

    def send(rooms: list[str], numbers: range) -> None:
        for n in numbers:
            for room in rooms:
                message = run.message(topic, f"{room} {n}")
                message.lite_topic = room
                run.sent(producer, message, lite=room)

    subscribe("room-1")
    subscribe("room-2")
    send(["room-1", "room-2", "room-3"], range(5))
    run.wait_for(lambda: len(finished) >= 10)
    run.say("two rooms")
    consumer.unsubscribe_lite("room-2")
    send(["room-1", "room-2"], range(5, 7))
    run.wait_for(lambda: len(finished) >= 12)
    subscribe("room-3")
    run.wait_for(lambda: len(finished) >= 17)


@scenario
def priority(run: Run) -> None:
    """What is more urgent comes first."""
    topic, anything = run["topic"], run["anything"]
    producer = run.producer(topic, anything)
    # Refused by the client itself where the route does not name the type.
    message = run.message(anything, "urgent")
    message.priority = 3
    producer.send(message)
    run.say("anything goes")
    for value in (2, 6, 1, 4):
        for n in range(2):
            message = run.message(topic, f"p{value} {n}")
            message.priority = value
            run.sent(producer, message, priority=value)
    consumer = run.simple(run["group"], {topic: None})
    for _ in range(8):
        for message in run.receive_until(consumer, 1, maximum=1, by="one by one"):
            run.say("urgent", body=message.body.decode(), priority=message.priority)
    run.quiet(consumer)


# time


@scenario
def delay(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None})
    base = int(time.time())
    for body, due_s in (("later", base + 4), ("soon", base + 2), ("past", base - 60)):
        run.sent(producer, run.message(topic, body, due_s=due_s), due=due_s * 1000)
    run.receive_until(consumer, 3)
    run.quiet(consumer)


@scenario
def recall(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None}, await_s=1)
    due = int(time.time()) + 40  # until then one of both is recalled
    doomed = run.sent(producer, run.message(topic, "doomed", due_s=due))
    spared = run.sent(producer, run.message(topic, "spared", due_s=due))
    run.say("recalled", id=producer.recall_message(topic, doomed.recall_handle))
    run.receive_until(consumer, 1)
    run.quiet(consumer, until_ms=(due + 2) * 1000)
    run.try_to("recall again", lambda: producer.recall_message(topic, doomed.recall_handle))
    run.try_to("recall delivered", lambda: producer.recall_message(topic, spared.recall_handle))
    run.try_to("recall nonsense", lambda: producer.recall_message(topic, "nonsense"))


# transactions


@scenario
def transaction(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic, check=lambda message: UNKNOWN)
    consumer = run.simple(run["group"], {topic: None})
    ends = {}
    for body in ("committed", "rolled back"):
        ends[body] = producer.begin_transaction()
        run.sent(producer, run.message(topic, body, tag="t", keys=("k",)), ends[body])
    run.quiet(consumer, by="too early")
    ends["rolled back"].rollback()
    ends["committed"].commit()
    run.say("ended")
    run.receive_until(consumer, 1)
    run.quiet(consumer, until_ms=now_ms() + 4000)


@scenario
def transaction_twice(run: Run) -> None:
    """The same end again is answered OK, the other end and an unknown id are refused."""
    topic = run["topic"]
    producer = run.producer(topic, check=lambda message: UNKNOWN)
    consumer = run.simple(run["group"], {topic: None})
    message = run.message(topic, "once")
    end = producer.begin_transaction()
    receipt = run.sent(producer, message, end)
    run.try_to("commit", end.commit)
    run.try_to("commit again", end.commit)
    run.try_to("roll back after commit", end.rollback)
    run.receive_until(consumer, 1)
    run.quiet(consumer)
    where = receipt.message_queue.endpoints
    source = TransactionSource.SOURCE_CLIENT
    response = producer.end_transaction(where, message, "nonsense", TransactionResolution.COMMIT, source)
    run.say("refused", step="unknown id", error={"code": Code.Name(response.status.code)})


def _told_check(run: Run, message: Message) -> Any:
    run.say("checked", id=whole_id(message), body=message.body.decode(), tag=message.tag or "")
    bad = message.body == b"bad"
    return TransactionResolution.ROLLBACK if bad else TransactionResolution.COMMIT


@scenario
def transaction_check(run: Run) -> None:
    """Nobody ends the transactions; the producer is asked and answers."""
    topic = run["topic"]
    checked: set[bytes] = set()

    def check(message: Message) -> Any:
        told = _told_check(run, message)
        checked.add(message.body)
        return told

    producer = run.producer(topic, check=check)
    consumer = run.simple(run["group"], {topic: None})
    for body in ("good", "bad"):
        run.sent(producer, run.message(topic, body, tag="t"), producer.begin_transaction())
    run.receive_until(consumer, 1)
    run.wait_for(lambda: b"bad" in checked)  # brokers ask about one after the other
    run.quiet(consumer, until_ms=now_ms() + 10_000)


@scenario
def transaction_unnamed(run: Run) -> None:
    """The producer named no topics when it was made."""
    topic = run["topic"]
    producer = run.producer(check=lambda message: _told_check(run, message))
    consumer = run.simple(run["group"], {topic: None})
    run.sent(producer, run.message(topic, "good"), producer.begin_transaction())
    run.receive_until(consumer, 1)


@scenario
def transaction_abandon(run: Run) -> None:
    """Sends a half message and dies at once, the whole process of it."""
    topic = run["topic"]
    producer = run.producer(topic, check=lambda message: _told_check(run, message))
    run.sent(producer, run.message(topic, "orphan"), producer.begin_transaction())
    os._exit(9)


@scenario
def transaction_successor(run: Run) -> None:
    """Another instance of the producer is asked about what a dead one left."""
    topic = run["topic"]
    run.producer(topic, check=lambda message: _told_check(run, message))
    consumer = run.simple(run["group"], {topic: None})
    run.receive_until(consumer, 1)


# filters


@scenario
def tags(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    some = run.simple(run["group"], {topic: FilterExpression("a || c || AaAa")})
    every = run.simple(run["group2"], {topic: FilterExpression("*")})
    for tag in ("a", "b", "c", "BBBB", ""):  # BBBB has the Java hash of AaAa
        run.sent(producer, run.message(topic, tag or "none", tag=tag))
    run.receive_until(some, 2, by="some")
    run.receive_until(every, 5, by="every")
    run.quiet(some)


@scenario
def sql92(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    expression = (
        "(price BETWEEN 10 AND 20 AND colour IN ('red', 'grün')) OR TAGS = 'vip' OR weight IS NOT NULL"
    )
    consumer = run.simple(run["group"], {topic: sql(expression)})
    for body, tag, properties in (
        ("yes: red 10", "", {"price": "10", "colour": "red"}),
        ("yes: grün 20", "", {"price": "20", "colour": "grün"}),
        ("no: red 21", "", {"price": "21", "colour": "red"}),
        ("no: blue 15", "", {"price": "15", "colour": "blue"}),
        ("no: red", "", {"colour": "red"}),
        ("yes: vip", "vip", {}),
        ("yes: weight", "", {"weight": "1"}),
    ):
        run.sent(producer, run.message(topic, body, tag=tag, properties=properties))
    run.receive_until(consumer, 4)
    run.quiet(consumer)
    broken = run.simple(run["group2"], {topic: sql("price >")}, await_s=1)
    run.try_to("illegal expression", lambda: run.receive(broken))


# attempts


@scenario
def redelivery(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None})
    run.sent(producer, run.message(topic, "again"))
    [first] = run.receive_until(consumer, 1, invisible_s=10, ack=False)
    [second] = run.receive_until(consumer, 1, invisible_s=600, ack=False)
    run.try_to("ack by expired handle", lambda: consumer.ack(first))
    run.try_to("change by expired handle", lambda: consumer.change_invisible_duration(first, 30))
    run.acked(consumer, second)
    run.try_to("ack again", lambda: consumer.ack(second))
    run.try_to("ack by malformed handle", lambda: _ack_nonsense(consumer, second))
    run.quiet(consumer)


def _ack_nonsense(consumer: Any, message: Message) -> None:
    message.receipt_handle = "nonsense"  # which the oldest versions do not let us set
    consumer.ack(message)


@scenario
def sent_again(run: Run) -> None:
    """The client writes a new id into the received message when it sends that, and acknowledges by it."""
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None})
    run.sent(producer, run.message(topic, "once more"))
    [received] = run.receive_until(consumer, 1, ack=False)
    run.sent(producer, received)
    run.acked(consumer, received)
    run.receive_until(consumer, 1)
    run.quiet(consumer)


@scenario
def change_invisible(run: Run) -> None:
    """One is held longer than it was received for, the other is given back early."""
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None}, await_s=1)
    for body in ("longer", "shorter"):
        run.sent(producer, run.message(topic, body))
    held = {}
    for message in run.receive_until(consumer, 2, invisible_s=60, ack=False):
        held[message.body.decode()] = message
    start = now_ms()
    consumer.change_invisible_duration(held["longer"], 300)
    run.say("changed", id=held["longer"].message_id, seconds=300)
    consumer.change_invisible_duration(held["shorter"], 1)
    run.say("changed", id=held["shorter"].message_id, seconds=1)
    run.receive_until(consumer, 1, by="early")
    run.quiet(consumer, until_ms=start + 61_000)
    run.acked(consumer, held["longer"])
    run.quiet(consumer)


@scenario
def nack(run: Run) -> None:
    """Negative acknowledgement of a simple consumer: a short invisible time; attempts grow."""
    topic = run["topic"]
    producer = run.producer(topic)
    consumer = run.simple(run["group"], {topic: None})
    run.sent(producer, run.message(topic, "no"))
    for _ in range(3):
        for message in run.receive_until(consumer, 1, ack=False):
            consumer.change_invisible_duration(message, 1)
            run.say("changed", id=message.message_id, seconds=1)
    run.receive_until(consumer, 1)
    run.quiet(consumer)


@scenario
def push_consumer(run: Run) -> None:
    topic = run["topic"]
    seen: set[str] = set()

    def consume(message: Message) -> bool:
        run.saw(message)
        seen.add(message.message_id)
        return True

    run.push(run["group"], {topic: FilterExpression("wanted")}, consume)
    producer = run.producer(topic)
    for n in range(50):
        run.sent(producer, run.message(topic, f"m{n}", tag="wanted"))
        run.sent(producer, run.message(topic, f"other{n}", tag="other"))
    run.wait_for(lambda: len(seen) >= 50)
    run.quiet(run.simple(run["group"], {topic: FilterExpression("wanted")}))


@scenario
def push_shared(run: Run) -> None:
    """Two push consumers of one group share a topic: each message once."""
    topic = run["topic"]
    seen: list[str] = []

    def taking(by: str) -> Callable[[Message], bool]:
        def consume(message: Message) -> bool:
            run.saw(message, by)
            seen.append(message.message_id)
            return True

        return consume

    for by in ("one", "two"):
        run.push(run["group"], {topic: None}, taking(by))
    producer = run.producer(topic)
    for n in range(100):
        run.sent(producer, run.message(topic, f"m{n}"))
    run.wait_for(lambda: len(seen) >= 100)


@scenario
def broadcast(run: Run) -> None:
    """Two consumers of a broadcast group, each there before the first message."""
    topic = run["topic"]
    consumers = {by: run.simple(run["group"], {topic: None}, await_s=1) for by in ("one", "two")}
    for by, consumer in consumers.items():
        run.receive(consumer, by=by)
    producer = run.producer(topic)
    for n in range(20):
        run.sent(producer, run.message(topic, f"m{n}"))
    for by, consumer in consumers.items():
        run.receive_until(consumer, 20, by=by)
        run.quiet(consumer)


@scenario
def push_retry(run: Run) -> None:
    topic = run["topic"]
    consumed = threading.Event()

    def consume(message: Message) -> bool:
        good = message.delivery_attempt >= 3
        run.saw(message, consumed=good)
        if good:
            consumed.set()
        elif message.delivery_attempt == 2:
            raise RuntimeError("a listener that throws has failed as well")
        return good

    run.push(run["group"], {topic: None}, consume)
    producer = run.producer(topic)
    run.sent(producer, run.message(topic, "third time lucky"))
    run.wait_for(consumed.is_set)
    run.quiet(run.simple(run["group"], {topic: None}))


def _dead_letters(run: Run, count: int) -> None:
    """Read the group's dead-letter topic, which exists once the first message is in it."""
    dead = f"%DLQ%{run['group']}"
    found = 0

    def look() -> bool:
        nonlocal found
        consumer = run.simple(run["group2"], {dead: None}, await_s=1)
        try:
            for message in run.receive(consumer, by="dead"):
                run.acked(consumer, message)
                found += 1
        except Exception as error:
            run.say("no dead letters yet", error=error_facts(error))
            time.sleep(0.2)
        run.close(consumer)
        return found >= count

    run.wait_for(look)


@scenario
def dead_letter(run: Run) -> None:
    """Attempts are used up: the message moves to the dead-letter topic."""
    topic = run["topic"]
    attempts: list[int] = []

    def consume(message: Message) -> bool:
        run.saw(message)
        attempts.append(message.delivery_attempt)
        return False

    run.push(run["group"], {topic: None}, consume)
    producer = run.producer(topic)
    run.sent(producer, run.message(topic, "poison", tag="t", keys=("k",), properties={"p": "v"}))
    run.wait_for(lambda: len(attempts) >= 2)
    _dead_letters(run, 1)
    run.quiet(run.simple(run["group"], {topic: None}, await_s=1))


@scenario
def dead_letter_fifo(run: Run) -> None:
    """An ordered consumer uses up the attempts by itself and asks for the dead-letter topic."""
    topic = run["topic"]
    consumed: list[str] = []

    def consume(message: Message) -> bool:
        good = message.body != b"poison"
        run.saw(message, consumed=good)
        if good:
            consumed.append(message.message_id)
        return good

    producer = run.producer(topic)
    for body in ("before", "poison", "after"):
        run.sent(producer, run.message(topic, body, group="a"))
    run.push(run["group"], {topic: None}, consume)
    run.wait_for(lambda: len(consumed) >= 2)
    _dead_letters(run, 1)


@scenario
def many_receives(run: Run) -> None:
    """More receives in a row than the interpreter allows nested calls (demand 40): one for each message."""
    topic = run["topic"]
    seen = threading.Semaphore(0)

    def consume(message: Message) -> bool:
        seen.release()
        return True

    run.push(run["group"], {topic: None}, consume)
    producer = run.producer(topic)
    count = 0
    while count < ENOUGH:
        producer.send(run.message(topic, f"m{count}"))
        if not seen.acquire(timeout=PATIENCE_S):
            break
        count += 1
    run.say("counted", count=count)


# refusals


@scenario
def wrong_type(run: Run) -> None:
    plain, ordered, several = run["topic"], run["topic2"], run["topic3"]
    producer = run.producer(plain, ordered, several, check=lambda message: TransactionResolution.ROLLBACK)
    due = int(time.time()) + 1

    def send(topic: str, **fields: Any) -> Callable[[], Any]:
        return lambda: producer.send(run.message(topic, "x", **fields))

    def half(topic: str) -> Any:
        transaction = producer.begin_transaction()
        producer.send(run.message(topic, "x"), transaction)
        transaction.rollback()

    run.try_to("FIFO to NORMAL", send(plain, group="g"))
    run.try_to("DELAY to NORMAL", send(plain, due_s=due))
    run.try_to("TRANSACTION to NORMAL", lambda: half(plain))
    run.try_to("NORMAL to FIFO", send(ordered))
    run.try_to("NORMAL to several", send(several))
    run.try_to("FIFO to several", send(several, group="g"))
    run.try_to("DELAY to several", send(several, due_s=due))
    run.try_to("TRANSACTION to several", lambda: half(several))


@scenario
def unknown_topic(run: Run) -> None:
    """Creation is off."""
    topic = run["topic"]
    producer = run.producer()
    run.try_to("send", lambda: producer.send(run.message(topic, "x")))
    run.try_to("subscribe", lambda: run.simple(run["group"], {}).subscribe(topic))
    run.try_to("receive", lambda: run.receive(run.simple(run["group"], {topic: None})))


@scenario
def unknown_group(run: Run) -> None:
    """Creation is off; the topic exists, the group does not."""
    consumer = run.simple(run["group"], {run["topic"]: None})
    run.try_to("receive", lambda: run.receive(consumer))


@scenario
def illegal_names(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer()
    run.try_to("topic with a space", lambda: producer.send(run.message("a b", "x")))
    run.try_to("topic too long", lambda: producer.send(run.message("t" * 128, "x")))
    run.try_to("group with a space", lambda: run.simple("a b", {topic: None}))
    run.try_to("group too long", lambda: run.receive(run.simple("g" * 256, {topic: None}, await_s=1)))


@scenario
def illegal_messages(run: Run) -> None:
    topic, ordered, delayed = run["topic"], run["topic2"], run["topic3"]
    producer = run.producer(topic, ordered, delayed)

    def send(step: str, where: str = topic, **fields: Any) -> None:
        run.try_to(step, lambda: producer.send(run.message(where, "x", **fields)))

    send("129 properties", properties={f"p{n}": "v" for n in range(129)})
    send("128 properties", properties={f"p{n}": "v" for n in range(128)})
    send("properties of 16385 bytes", properties={"p": "v" * 16_384})
    send("properties of 16384 bytes", properties={"p": "v" * 16_383})
    send("reserved property", properties={"UNIQ_KEY": "v"})
    send("control character in a property", properties={"p": "a\u0001b"})
    send("control character in the tag", tag="a\u0002b")
    send("control character in a key", keys=("a\u0002b",))
    send("blank key", keys=(" ",))
    send("tag with a bar", tag="a|b")
    send("message group of 64 bytes", ordered, group="g" * 64)
    send("message group of 63 bytes", ordered, group="g" * 63)
    send("delay of 25 hours", delayed, due_s=int(time.time()) + 25 * 3600)
    run.try_to("empty body", lambda: producer.send(run.message(topic, "")))


@scenario
def illegal_receives(run: Run) -> None:
    topic = run["topic"]
    producer = run.producer(topic)
    run.sent(producer, run.message(topic, "x"))
    consumer = run.simple(run["group"], {topic: None}, await_s=1)
    run.try_to("invisible for 9 s", lambda: run.receive(consumer, invisible_s=9))
    run.try_to("invisible for 13 h", lambda: run.receive(consumer, invisible_s=13 * 3600))
    run.try_to("no messages asked", lambda: run.receive(consumer, maximum=0))
    [message] = run.receive_until(consumer, 1, ack=False)
    run.try_to("change to 13 h", lambda: consumer.change_invisible_duration(message, 13 * 3600))
    run.try_to("ack after a refused change", lambda: consumer.ack(message))
    wrong = run.simple(run["group2"], {topic: FilterExpression("||")}, await_s=1)
    run.try_to("tag expression of bars", lambda: run.receive(wrong))


# interruptions


def _patiently(run: Run, action: Callable[[], Any]) -> None:
    """As an application does it: again, until the gateway is back and the action does not answer False."""

    def attempt() -> bool:
        try:
            return action() is not False
        except Exception as error:
            run.say("unanswered", error=error_facts(error))
            time.sleep(0.1)
            return False

    run.wait_for(attempt)


class _Steady(threading.Thread):
    """Sends all the time, whether or not anybody answers."""

    def __init__(self, run: Run, producer: Any, topic: str) -> None:
        super().__init__(daemon=True)
        self._run, self._producer, self._topic = run, producer, topic
        self.stopped = threading.Event()
        self.answered: set[str] = set()

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            message = self._run.message(self._topic, f"m{number}")
            try:
                self.answered.add(self._run.sent(self._producer, message, by="steady").message_id)
            except Exception as error:
                self._run.say("unanswered", error=error_facts(error))
            time.sleep(0.02)

    def answered_more(self) -> Callable[[], bool]:
        goal = len(self.answered) + 10
        return lambda: len(self.answered) >= goal


@scenario
def interrupted(run: Run) -> None:
    """The gateway is stopped and started twice while this goes on; `go` tells each return."""
    topic, held_topic = run["topic"], run["topic2"]
    seen: set[str] = set()

    def consume(message: Message) -> bool:
        run.saw(message, "background")
        seen.add(message.message_id)
        return True

    producer = run.producer(topic, held_topic)
    run.push(run["group"], {topic: None}, consume)
    simple = run.simple(run["group2"], {held_topic: None}, await_s=1)
    steady = _Steady(run, producer, topic)
    steady.start()
    for interruption in ("one", "two"):
        _interruption(run, interruption, producer, simple, steady)
    steady.stopped.set()
    steady.join()
    run.wait_for(lambda: steady.answered <= seen)
    run.quiet(simple)


@scenario
def drained(run: Run) -> None:
    """The gateway begins to drain at `ready`; another one is there at `go`, and the first one drains on."""
    seen: set[str] = set()

    def consume(message: Message) -> bool:
        run.saw(message)
        seen.add(message.message_id)
        return True

    producer = run.producer(run["topic"])
    run.push(run["group"], {run["topic"]: None}, consume)
    steady = _Steady(run, producer, run["topic"])
    steady.start()
    run.wait_for(steady.answered_more())
    run.wait_for(lambda: bool(seen))
    run.say("ready")
    run.go.acquire()
    run.wait_for(steady.answered_more())
    steady.stopped.set()
    steady.join()
    run.wait_for(lambda: steady.answered <= seen)


def _interruption(run: Run, name: str, producer: Any, simple: Any, steady: _Steady) -> None:
    held_topic, delayed_topic, half_topic = run["topic2"], run["topic3"], run["topic4"]
    delayed = run.simple(run["group2"], {delayed_topic: None}, await_s=1)
    halves = run.simple(run["group2"], {half_topic: None}, await_s=1)

    def gather(
        consumer: Any, count: int, by: str, ack: bool = True, hold_s: int = GIVE_BACK_S
    ) -> list[Message]:
        found: list[Message] = []

        def step() -> bool:
            for message in run.receive(consumer, 1, hold_s, by=by):
                found.append(message)
                if ack:
                    run.acked(consumer, message)
            return len(found) >= count

        _patiently(run, step)
        return found

    def checked_producer() -> Any:
        return run.producer(half_topic, check=lambda message: _told_check(run, message))

    for n in range(6):
        run.sent(producer, run.message(held_topic, f"{name} {n}"), by="held")
    held = gather(simple, 3, name, ack=False, hold_s=HOLD_S)
    gather(simple, 3, name, ack=False)
    for message in held[:2]:
        run.acked(simple, message)
    due = int(time.time()) + 6
    run.sent(producer, run.message(delayed_topic, f"{name} delayed", due_s=due), due=due * 1000)
    first = checked_producer()
    run.sent(first, run.message(half_topic, f"{name} half"), first.begin_transaction())
    run.wait_for(steady.answered_more())
    run.say("ready")
    run.go.acquire()
    _patiently(run, lambda: run.acked(simple, held[2]))
    _patiently(run, checked_producer)
    gather(simple, 3, f"{name} again")
    gather(delayed, 1, f"{name} delayed")
    gather(halves, 1, f"{name} half")
    run.wait_for(steady.answered_more())
    run.close(delayed)
    run.close(halves)
