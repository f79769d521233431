"""Classic clients before 4.9.5, which name no broker, while brokers come to a topic and go (ADR 12)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from popgate.testing import CREATE_ON_USE, running_gateway
from popgate.testing.client_programs import Driver, Facts
from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.remoting import RemotingClient
from popgate.testing.rocketmq import RocketMQ
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import V4_9_4, Command
from popgate.wire.messages.records import Record, decode_records
from protocols.remoting.virtual.views import VIRTUAL_BROKER
from tests.classic.conftest import command_of
from tests.cluster.brokers import QUEUES, make_at, wipe_write_permission
from tests.cluster.load import PATIENT, until
from tests.support.needed import missing
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FIRST, SECOND = "broker-b", "broker-a"
"""The topic is at the first alone to begin with; sorted by name the second one would stand before it."""
NUMBERS_S = 2 * PATIENCE_S
"""A consumer of 4.9.4 asks for routes every 30 s and rebalances every 20 s, beside a whole cluster."""
QUICK = {**PATIENT, "POPGATE_REMOTE__ROUTE_REFRESH_S": "1"}


class Reader:
    """Keeps, for each number of a queue, the offset that it goes on at, and what it read below it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.next: dict[int, int] = {}
        self.read: dict[tuple[int, int], bytes] = {}

    async def connect(self, gateway: GatewayProcess) -> None:
        host, _, port = gateway.endpoint.rpartition(":")
        self.client = await RemotingClient.connect(host, int(port), version=V4_9_4)

    async def route(self) -> TopicRoute:
        answer = await self.client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": self.topic})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return TopicRoute.decode(answer.body)

    async def queues(self) -> tuple[str, int]:
        """The one broker of the route, and how many queues are told."""
        [queues] = (await self.route()).queues
        return queues.broker, queues.read_queues

    async def pull(self, number: int, offset: int) -> Command:
        fields = {
            "consumerGroup": "checkpointed",
            "topic": self.topic,
            "queueId": str(number),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        return await self.client.call(RequestCode.PULL_MESSAGE, fields)

    async def found(self, number: int, offset: int) -> list[Record]:
        """What lies there, as soon as there is something."""

        async def some() -> list[Record]:
            answer = await self.pull(number, offset)
            if answer.code != ResponseCode.SUCCESS:
                return []
            return list(decode_records(answer.body, verify=True))

        what = f"something comes of queue {number} at {offset}"
        records: list[Record] = await until(some, within=NUMBERS_S, what=what)
        assert {one.queue_id for one in records} == {number}
        return records

    async def goes_on(self, numbers: range) -> None:
        """Read on where it is, something of every queue; nothing is left out, and nothing comes twice."""
        for number in numbers:
            for record in await self.found(number, self.next.get(number, 0)):
                assert record.offset == self.next.get(number, 0)
                self.read[number, record.offset] = record.body
                self.next[number] = record.offset + 1

    async def finds_again(self, numbers: range) -> None:
        """The last that it read of each queue lies where it lay, and is found by the id of its place."""
        for number in numbers:
            offset = self.next[number] - 1
            record = (await self.found(number, offset))[0]
            assert (record.offset, record.body) == (offset, self.read[number, offset])
            place = {"offset": str(record.commit_offset)}
            answer = await self.client.call(RequestCode.VIEW_MESSAGE_BY_ID, place)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            [viewed] = decode_records(answer.body, verify=True)
            assert (viewed.queue_id, viewed.offset, viewed.body) == (number, offset, record.body)
            assert viewed.commit_offset == record.commit_offset


@contextmanager
def growing(gateway: GatewayProcess, topic: str, folder: Path) -> Iterator[Driver]:
    try:
        [*java, _] = command_of("4.9.4")
    except Missing as client:
        missing(client)
    driver = Driver([*java, "popgate.classic.Growing", topic, topic], gateway.endpoint, folder)
    try:
        yield driver
    finally:
        driver.close()


async def arrives(driver: Driver, numbers: range) -> None:
    """Wait until something more came from each of these queues."""
    before = len(driver.wait("growing", lambda _: True))

    def all_came() -> bool:
        facts = driver.wait("growing", lambda _: True)
        assert not facts.of("crash"), facts.of("crash")
        assert not driver.dead, driver.last_words()
        return {one["queue"] for one in Facts(facts[before:]).received()} >= set(numbers)

    await until(all_came, within=NUMBERS_S)


async def test_scenario_29_brokers_come_and_go_under_a_consumer_of_4_9_4_and_a_checkpointed_reader(
    pair_cluster: RocketMQ, tmp_path: Path
) -> None:
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    first, second = range(QUEUES), range(QUEUES, 2 * QUEUES)
    make_at(pair_cluster.brokers[FIRST, 0].address, [topic])
    options = ("--broker", pair_cluster.url, *CREATE_ON_USE)
    listen = ("remoting://127.0.0.1:0",)
    async with (
        running_gateway(listen=listen, options=options, environment=QUICK) as gateway,
        running_gateway(listen=listen, options=options, environment=QUICK) as replica,
    ):
        reader, other = Reader(topic), Reader(topic)
        await reader.connect(gateway)
        await other.connect(replica)

        async def told(broker: str, queues: int) -> None:
            async def so() -> bool:
                answers = [await one.queues() for one in (reader, other)]
                return answers == [(broker, queues)] * 2

            await until(so, within=NUMBERS_S)

        await until(lambda: known(reader), within=NUMBERS_S)
        await told(FIRST, QUEUES)
        with growing(gateway, topic, tmp_path / "java") as driver:
            await arrives(driver, first)
            await reader.goes_on(first)

            # A broker comes: its queues have the next numbers, and all that was stays where it is.
            make_at(pair_cluster.brokers[SECOND, 0].address, [topic])
            await told(VIRTUAL_BROKER, 2 * QUEUES)
            await arrives(driver, range(2 * QUEUES))
            await reader.goes_on(range(2 * QUEUES))
            other.next, other.read = dict(reader.next), dict(reader.read)
            await other.finds_again(range(2 * QUEUES))
            await other.goes_on(range(2 * QUEUES))

            # One goes, as operators have it go: first nothing is written there, and what is there is read.
            wipe_write_permission(pair_cluster, FIRST)
            await until(lambda: only_to(driver, second), within=NUMBERS_S)
            await until(lambda: not lost(driver, first), within=NUMBERS_S)
            servers = [pair_cluster.brokers[FIRST, number] for number in (1, 0)]
            for server in servers:
                await asyncio.to_thread(server.stop)

            async def gone() -> bool:
                return (await reader.pull(0, 0)).code == ResponseCode.PULL_NOT_FOUND

            await until(gone, within=NUMBERS_S)
            assert await reader.queues() == (VIRTUAL_BROKER, 2 * QUEUES)
            await arrives(driver, second)
            await reader.goes_on(second)
            await other.goes_on(second)

            # It comes back: each number means the queue that it meant.
            for server in reversed(servers):
                await asyncio.to_thread(server.start)

            await reader.finds_again(first)
            await arrives(driver, range(2 * QUEUES))
            await reader.goes_on(range(2 * QUEUES))

            fields = {"a": "stopping", "b": topic, "c": "TBW102", "d": "4", "e": "5", "f": "0", "g": "1"}
            answer = await reader.client.call(
                RequestCode.SEND_MESSAGE_V2, fields | {"h": "0", "i": "", "j": "0"}, b"stop"
            )
            assert (answer.code, answer.fields["queueId"]) == (ResponseCode.SUCCESS, "5")
            facts = await asyncio.to_thread(driver.wait, "growing", lambda _: False, NUMBERS_S)
            assert facts.ended_well, (facts[-5:], driver.last_words())
            assert not facts.of("gave up waiting")
            sent = {one["body"] for one in facts.of("sent")}
            assert sent <= set(facts.bodies())
        await reader.client.close()
        await other.client.close()


async def known(reader: Reader) -> bool:
    answer = await reader.client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": reader.topic})
    return answer.code == ResponseCode.SUCCESS


def only_to(driver: Driver, numbers: range) -> bool:
    """Whether what was sent last went to these queues alone, each of them among those."""
    facts = driver.wait("growing", lambda _: True)
    return {one["queue"] for one in facts.of("sent")[-6 * QUEUES :]} == set(numbers)


def lost(driver: Driver, numbers: range) -> set[str]:
    """Bodies that were stored in these queues and did not come yet."""
    facts = driver.wait("growing", lambda _: True)
    came = set(facts.bodies())
    return {one["body"] for one in facts.of("sent") if one["queue"] in numbers} - came
