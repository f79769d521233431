"""One message, two doors: what official gRPC clients send classic ones get, and the other way round.

The gRPC client is in this process, the classic Java client in processes of its own. Groups whose names begin
with `mapped` are mapped onto pop, others are on true pull.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

from popgate.testing.client_programs import Driver, Facts
from popgate.testing.gateway import CREATE_ON_USE, GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.rocketmq import shared_rocketmq
from popgate.testing.rocketmq.requests import ask
from popgate.wire.frames.codes import RequestCode, ResponseCode
from tests.classic.conftest import ALL, CLUSTER, EMBEDDED, PATIENT, call_admin, command_of, missing
from tests.support.waiting import PATIENCE_S

PLACES = (EMBEDDED, CLUSTER)
VERSION = "4.9.8"
REST_S = 9.0
"""The first rest of what a classic consumer sends back at level 3, less what a clock may be wrong."""
HIDDEN_S = 20
OF_THE_CLIENT = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
OF_THE_WAY = {
    "REAL_TOPIC",
    "REAL_QID",
    "ORIGIN_GROUP",
    "1ST_POP_TIME",
    "POP_CK",
    "DELAY",
    "ORIGIN_MESSAGE_ID",
}
"""What a RocketMQ says of how a message came last, and of where the copy lay that it made of it."""

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not ALL, reason="a dozen Java processes in turn: sh tests/run.sh --long classic"),
]


class House:
    """A gateway with both doors, and clients of both."""

    def __init__(self, gateway: GatewayProcess, place: str, folder: Path, closing: Any) -> None:
        self.gateway = gateway
        self.place = place
        self._folder = folder
        self._closing = closing
        doors = {address.partition("://")[0]: address.partition("://")[2] for address in gateway.addresses}
        self._grpc, self._remoting = doors["grpc"], doors["remoting"]

    def topic(self, kind: str = "NORMAL") -> str:
        name = f"doors-{uuid.uuid4().hex[:8]}"
        call_admin(self.gateway, "/api/topics", {"name": name, "types": [kind], "queues": 4})
        return name

    def group(self, kind: str, *, ordered: bool = False, max_attempts: int = 16) -> str:
        name = f"{kind}-{uuid.uuid4().hex[:8]}"
        call_admin(
            self.gateway, "/api/groups", {"name": name, "ordered": ordered, "max_attempts": max_attempts}
        )
        return name

    def limit(self, group: str, max_attempts: int) -> None:
        """From now on no message comes more often."""
        settings = {"groupName": group, "consumeEnable": True, "retryQueueNums": 1}
        body = json.dumps({**settings, "retryMaxTimes": max_attempts - 1}).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        answer = ask(self._remoting, code, {}, body, timeout_s=60)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def worker(self, role: str, **params: object) -> Driver:
        """A classic client that is ready."""
        name = f"w{uuid.uuid4().hex[:6]}"
        command = [*command_of(VERSION)[:-1], "popgate.classic.Worker", role]
        command += [f"{key}={value}" for key, value in {"instance": name, **params}.items()]
        driver = Driver(command, self._remoting, self._folder / name)
        self._closing.callback(driver.close)
        wait(driver, lambda facts: bool(facts.of("started")))
        return driver

    def _configuration(self) -> ClientConfiguration:
        return ClientConfiguration(self._grpc, Credentials(), request_timeout=20)

    def producer(self, *topics: str) -> Producer:
        producer = Producer(self._configuration(), topics)
        producer.startup()
        self._closing.callback(producer.shutdown)
        return producer

    @contextlib.contextmanager
    def reader(self, group: str, topic: str) -> Iterator[Reader]:
        consumer = SimpleConsumer(self._configuration(), group, {topic: FilterExpression()}, await_duration=5)
        consumer.startup()
        try:
            yield Reader(consumer)
        finally:
            consumer.shutdown()


class Reader:
    """A simple consumer over gRPC."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self._consumer = consumer

    def take(self, count: int, *, finish: bool = True) -> list[Message]:
        """So many messages, in the order in which they came."""
        found: list[Message] = []
        end = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} came"
            for message in self._consumer.receive(1, HIDDEN_S) or ():
                found.append(message)
                if finish:
                    self._consumer.ack(message)
        return found

    def fail(self, times: int) -> list[int]:
        """The attempts of a message that is given back so often."""
        attempts = []
        for _ in range(times):
            (message,) = self.take(1, finish=False)
            attempts.append(message.delivery_attempt)
            self.give_back(message)
        return attempts

    def give_back(self, message: Message) -> None:
        self._consumer.change_invisible_duration(message, 1)


def wait(driver: Driver, arrived: Callable[[Facts], bool]) -> Facts:
    facts = driver.wait("worker", arrived, PATIENCE_S)
    assert arrived(facts), f"{facts[-5:]}\n{driver.last_words()}"
    return facts


def ended(driver: Driver) -> Facts:
    """The facts of a classic client that left as it should."""
    driver.go("worker")
    return wait(driver, lambda facts: bool(facts.of("end")))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Before a real RocketMQ one test is enough: what differs there is where messages come back from."""
    everywhere = (
        metafunc.function is test_what_failed_at_one_door_goes_on_counting_at_the_other_and_dies_alike
    )
    places = PLACES if everywhere else (EMBEDDED,)
    metafunc.parametrize("house", places, indirect=True, scope="module")


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    place = request.param
    if place == CLUSTER and os.environ.get("TEST_CLUSTER") != "true":
        pytest.skip("before a real RocketMQ: sh tests/run.sh --long runs it")
    folder = tmp_path_factory.mktemp(place)
    with contextlib.ExitStack() as closing:
        try:
            command_of(VERSION)
            there = None if place == EMBEDDED else closing.enter_context(shared_rocketmq())
        except Missing as what:
            missing(what)
        settings = ("remoting.mapped_groups=mapped-*", "limits.min_invisible_s=1", *PATIENT[place])
        options = [word for setting in settings for word in ("--set", setting)]
        doors = ("grpc://127.0.0.1:0", "remoting://127.0.0.1:0")
        broker = [] if there is None else ["--broker", there.url, *CREATE_ON_USE]
        gateway = GatewayProcess(folder / "data", listen=doors, options=[*options, *broker])
        closing.enter_context(gateway.start(240.0))
        yield House(gateway, place, folder, closing)


def told(message: Message) -> dict[str, Any]:
    """What a gRPC client sees of a message, as `got` of a classic one says it."""
    return {
        "body": message.body.decode(),
        "id": message.message_id,
        "tag": message.tag,
        "keys": sorted(message.keys),
        "group": message.message_group,
        "properties": dict(message.properties),
        "born": message.born_timestamp,
        "attempt": message.delivery_attempt,
    }


def seen(fact: Mapping[str, Any]) -> dict[str, Any]:
    """The same of what a classic client got."""
    properties = fact["properties"]
    own = {name: value for name, value in properties.items() if name in ("colour", "größe")}
    return {
        "body": fact["body"],
        "id": fact["id"],
        "tag": fact["tag"],
        "keys": sorted(fact["keys"].split()),
        "group": properties.get("__SHARDINGKEY"),
        "properties": own,
        "born": fact["born"],
        "attempt": fact["attempt"],
    }


def message_to(topic: str, body: str, group: str | None = None) -> Message:
    message = Message()
    message.topic, message.body, message.tag, message.keys = topic, body.encode(), "TagA", "k1"
    message.keys = "k2"
    message.add_property("colour", "blue")
    message.add_property("größe", "übergroß")
    if group is not None:
        message.message_group = group
    return message


@pytest.mark.parametrize("kind", ["mapped", "pulled", "orderly"])
def test_what_grpc_sends_classic_consumers_get_as_it_was(house: House, kind: str) -> None:
    ordered = kind == "orderly"
    topic, group = house.topic("FIFO" if ordered else "NORMAL"), house.group(kind)
    same = house.group("readers", ordered=ordered)
    producer = house.producer(topic)
    sent = []
    for number in range(8):
        lane = f"lane-{number % 2}" if ordered else None
        body = f"bad-{number}" if number == 2 else str(number)
        sent.append((body, producer.send(message_to(topic, body, lane)).message_id))
    worker = house.worker(
        "orderly" if ordered else "concurrent", topic=topic, group=group, full="true", fails=1
    )
    facts = wait(worker, lambda facts: len(facts.of("done")) >= len(sent))
    with house.reader(same, topic) as reader:
        over_there = {one["body"]: one for one in map(told, reader.take(len(sent)))}
    first = [seen(one) for one in facts.of("got", attempt=1)]
    assert {one["body"]: one for one in first} == over_there
    assert sorted((one["body"], one["id"]) for one in first) == sorted(sent)
    again = facts.of("got", attempt=2)
    assert [{**seen(one), "attempt": 1} for one in again] == [over_there["bad-2"]]
    if ordered:
        for lane in range(2):
            wanted = [body for body, _ in sent[lane::2]]
            came = [one["body"] for one in facts.of("got") if seen(one)["group"] == f"lane-{lane}"]
            assert came == (["0", "bad-2", "bad-2", "4", "6"] if lane == 0 else wanted)
    ended(worker)


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
def test_what_classic_producers_send_grpc_consumers_get_as_it_was(house: House, ordered: bool) -> None:
    topic = house.topic("FIFO" if ordered else "NORMAL")
    group, same = house.group("readers", ordered=ordered), house.group("pulled")
    worker = house.worker("producer")
    for number in range(8):
        order = {"order": f"lane-{number % 2}"} if ordered else {}
        params = {"topic": topic, "body": str(number), "tag": "TagA", "keys": "k1,k2", **order}
        worker.run("worker", "send", {**params, "colour": "blue", "größe": "übergroß"})
    sent = wait(worker, lambda facts: len(facts.of("sent")) == 8).of("sent")
    with house.reader(group, topic) as reader:
        came = [told(one) for one in reader.take(8)]
    consumer = house.worker("orderly" if ordered else "concurrent", topic=topic, group=same, full="true")
    over_there = wait(consumer, lambda facts: len(facts.of("got")) >= 8).of("got")
    assert {one["body"]: one for one in came} == {one["body"]: seen(one) for one in over_there}
    assert {one["body"]: one["id"] for one in came} == {one["body"]: one["id"] for one in sent}
    assert {one["attempt"] for one in came} == {1}
    assert {one["tag"] for one in came} == {"TagA"}
    if ordered:
        for lane in ("lane-0", "lane-1"):
            wanted = [str(number) for number in range(8) if f"lane-{number % 2}" == lane]
            assert [one["body"] for one in came if one["group"] == lane] == wanted
    for driver in (worker, consumer):
        ended(driver)


def test_what_failed_at_one_door_goes_on_counting_at_the_other_and_dies_alike(house: House) -> None:
    """Dead letters of one message: of a group at one door alone, and of those that went to the other."""
    topic = house.topic()
    groups = {
        "alone": house.group("alone", max_attempts=2),
        "to mapped": house.group("mapped", max_attempts=4),
    }
    if house.place == EMBEDDED:
        groups["to pulled"] = house.group("pulled", max_attempts=4)
        groups["from mapped"] = house.group("mapped")
    house.producer(topic).send(message_to(topic, "bad"))
    if "from mapped" in groups:
        from_classic(house, groups["from mapped"], topic)
    if house.place == EMBEDDED:
        with house.reader(groups["alone"], topic) as reader:
            assert reader.fail(2) == [1, 2]
    else:  # where a gRPC client's would be buried when somebody pops
        worker = house.worker("concurrent", topic=topic, group=groups["alone"], fails=99, attempts=2)
        wait(worker, lambda facts: len(facts.of("sent back")) >= 2)
        ended(worker)
    for name in {"to mapped", "to pulled"} & groups.keys():
        to_classic(house, groups[name], topic)
    letters = letters_of(house, groups)
    for name, letter in letters.items():
        assert letter == letters["alone"], name
    assert letters["alone"]["classic"]["RETRY_TOPIC"] == topic


def from_classic(house: House, group: str, topic: str) -> None:
    """It fails at the classic door, where it is kept back for a while, and then at gRPC's."""
    worker = house.worker("concurrent", topic=topic, group=group, fails=99, level=3)
    # One that is stopped before that is answered stores a copy itself.
    wait(worker, lambda facts: bool(facts.of("sent back")))
    facts = ended(worker)
    counts = [one["attempt"] for one in facts.of("got")]
    assert counts == list(range(1, len(counts) + 1))
    with house.reader(group, topic) as reader:
        (attempt,) = reader.fail(1)
        if (
            facts.of("end")[0]["at"] < facts.of("failed")[-1]["at"] + REST_S
        ):  # it cannot have had it once more
            assert attempt == len(counts) + 1
        assert attempt > len(counts)
        (last,) = reader.take(1, finish=False)
        assert last.delivery_attempt == attempt + 1
        house.limit(group, attempt + 1)
        reader.give_back(last)


def to_classic(house: House, group: str, topic: str) -> None:
    """It fails at gRPC's door, and then at the classic one until its attempts are used up."""
    with house.reader(group, topic) as reader:
        assert reader.fail(2) == [1, 2]
    worker = house.worker("concurrent", topic=topic, group=group, fails=99, attempts=4)
    facts = wait(worker, lambda facts: len(facts.of("sent back")) >= 2)
    ended(worker)
    assert [one["attempt"] for one in facts.of("got")] == [3, 4]


def letters_of(house: House, groups: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The dead letter of each group as both doors tell it, without what is said of the ways of both."""
    topics = {f"%DLQ%{group}": name for name, group in groups.items()}
    found: dict[str, dict[str, Any]] = {}
    for topic, name in topics.items():
        with house.reader(house.group("letters"), topic) as reader:
            (message,) = reader.take(1)
        found[name] = {"grpc": told(message)}
    worker = house.worker("concurrent", topic=",".join(topics), group=house.group("letters"), full="true")
    facts = wait(worker, lambda facts: len({one["topic"] for one in facts.of("got")}) == len(topics))
    ended(worker)
    places = {(fact["topic"], fact["offset"]) for fact in facts.of("got")}  # pulled twice it is one letter
    assert len(places) == len(topics)
    for fact in facts.of("got"):
        letter = found[topics[fact["topic"]]]
        letter["seen"] = {**seen(fact), "attempt": 1}
        letter["classic"] = {
            name: value
            for name, value in fact["properties"].items()
            if name not in (OF_THE_CLIENT if house.place == EMBEDDED else OF_THE_CLIENT | OF_THE_WAY)
        }
    return found
