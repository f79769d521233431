"""What classic clients from 4.9.5 on find, send back and end by a place before several brokers (ADR 12)."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path

import pytest

from popgate.ids.message_id import decode_offset_message_id
from popgate.testing import CREATE_ON_USE, running_gateway
from popgate.testing.client_programs import LONGEST_RUN_S, Driver, Facts
from popgate.testing.made import Missing
from popgate.testing.remoting import RemotingClient
from popgate.testing.rocketmq import RocketMQ
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import V4_9_5, VERSION, Command
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.records import Record, decode_records
from protocols.remoting.codec.marks import offset_in
from tests.classic import test_classic as judging
from tests.classic.conftest import command_of
from tests.cluster.brokers import make_at
from tests.cluster.load import PATIENT, until
from tests.support.needed import missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

BROKERS = ("broker-a", "broker-b")
LISTEN = ("remoting://127.0.0.1:0",)


def make_everywhere(cluster: RocketMQ, *topics: str) -> None:
    """At both masters; their slaves, which hear of them a minute later, are asked nothing here."""
    for broker in BROKERS:
        make_at(cluster.brokers[broker, 0].address, topics)


class Client:
    """Names the broker in what it asks, as all from 4.9.5 on do, and believes nobody but the door."""

    def __init__(self, topic: str, endpoint: str, version: int = VERSION) -> None:
        self.topic = topic
        self.endpoint = endpoint
        self.version = version

    async def connect(self) -> None:
        host, _, port = self.endpoint.rpartition(":")
        self._client = await RemotingClient.connect(host, int(port), version=self.version)
        await until(self._knows)

    async def close(self) -> None:
        await self._client.close()

    async def _knows(self) -> bool:
        """Whether both brokers are in the route."""
        answer = await self._client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": self.topic})
        if answer.code != ResponseCode.SUCCESS:
            return False
        return {one.name for one in TopicRoute.decode(answer.body).brokers} == set(BROKERS)

    async def ok(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        answer = await self._client.call(code, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def send(self, broker: str, body: bytes, properties: str = "") -> dict[str, str]:
        head = {
            "a": "makers",
            "b": self.topic,
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1",
            "h": "0",
        }
        fields = {**head, "i": properties, "j": "0", "n": broker}
        return (await self.ok(RequestCode.SEND_MESSAGE_V2, fields, body)).fields

    async def found(self, broker: str) -> list[Record]:
        """What lies in the queue, as soon as there is something."""
        fields = {
            "consumerGroup": self.topic,
            "topic": self.topic,
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "subscription": "*",
            "subVersion": "0",
            "bname": broker,
        }

        async def some() -> list[Record]:
            answer = await self._client.call(RequestCode.PULL_MESSAGE, fields)
            return self.read(answer) if answer.code == ResponseCode.SUCCESS else []

        records: list[Record] = await until(some, what=f"something comes of {broker}")
        return records

    async def viewed(self, place: int) -> Record:
        """What lies at a place, as `viewMessage` asks for it: with no word about the broker."""
        fields = {"topic": self.topic, "offset": str(place)}
        [record] = self.read(await self.ok(RequestCode.VIEW_MESSAGE_BY_ID, fields))
        return record

    def read(self, answer: Command) -> list[Record]:
        records = list(decode_records(answer.body, verify=True))
        assert {host_text(one.store_host) for one in records} == {self.endpoint}
        return records

    def place(self, message_id: str) -> int:
        host, place = decode_offset_message_id(message_id)
        assert host == self.endpoint
        return place


@pytest.mark.parametrize("version", [V4_9_5, VERSION])
async def test_every_place_leads_back_to_its_broker_through_any_gateway(
    pair_cluster: RocketMQ, version: int
) -> None:
    topic = f"places-{uuid.uuid4().hex[:8]}"
    make_everywhere(pair_cluster, topic)
    options = ("--broker", pair_cluster.url, *CREATE_ON_USE)
    async with (
        running_gateway(listen=LISTEN, options=options, environment=PATIENT) as gateway,
        running_gateway(listen=LISTEN, options=options, environment=PATIENT) as replica,
    ):
        client = Client(topic, gateway.endpoint, version)
        other = Client(topic, replica.endpoint, version)
        await client.connect()
        await other.connect()
        marks = set()
        for broker in BROKERS:
            place = client.place((await client.send(broker, broker.encode()))["msgId"])
            marks.add(place - offset_in(place))
            [record] = await client.found(broker)
            assert (record.body, record.commit_offset) == (broker.encode(), place)
            for one in (client, other):
                viewed = await one.viewed(place)
                assert (viewed.body, viewed.commit_offset) == (broker.encode(), place)

            half = await client.send(broker, b"half", "TRAN_MSG\x01true\x02PGROUP\x01makers\x02")
            end = {
                "topic": topic,
                "producerGroup": "makers",
                "tranStateTableOffset": half["queueOffset"],
                "commitLogOffset": str(client.place(half["msgId"])),
                "commitOrRollback": "8",
                "msgId": half["transactionId"],
                "transactionId": half["transactionId"],
                "bname": broker,
            }
            await other.ok(RequestCode.END_TRANSACTION, end)

            async def committed(broker: str = broker) -> bool:
                return [one.body for one in await client.found(broker)] == [broker.encode(), b"half"]

            await until(committed)
        assert len(marks) == len(BROKERS)
        await client.close()
        await other.close()


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
async def test_java_clients_look_up_send_back_and_end_by_way_of_the_gateway(
    pair_cluster: RocketMQ, tmp_path: Path, version: str
) -> None:
    try:
        command = command_of(version)
    except Missing as client:
        missing(client)
    mark = uuid.uuid4().hex[:8]
    scenarios = ("look_up", "send_back", "transaction")
    topics = {scenario: f"{scenario}-{mark}" for scenario in scenarios}
    make_everywhere(pair_cluster, *topics.values())
    options = ("--broker", pair_cluster.url, *CREATE_ON_USE, "--set", "remote.transaction_check_s=20")
    async with running_gateway(listen=LISTEN, options=options, environment=PATIENT) as gateway:
        for topic in topics.values():
            client = Client(topic, gateway.endpoint)
            await client.connect()
            await client.close()
        driver = Driver(command, gateway.endpoint, tmp_path / "java")
        try:
            for scenario, topic in topics.items():
                params = {"topic": topic, "group": topic, "letters": f"{topic}-letters", "key": topic}
                driver.run(scenario, scenario, {**params, "producers": f"{topic}-producers"})
            played: dict[str, Facts] = {}
            for scenario in scenarios:
                facts = await asyncio.to_thread(driver.wait, scenario, lambda _: False, LONGEST_RUN_S)
                assert facts.ended_well, (scenario, facts[-5:], driver.last_words())
                played[scenario] = facts
        finally:
            driver.close()
        # What a client says of a half message is without the id of its place, which it ends it by.
        sent = [*played["look_up"].of("sent"), *played["send_back"].of("sent")]
        assert {decode_offset_message_id(one["offset_id"])[0] for one in sent} == {gateway.endpoint}
        looked = played["look_up"]
        bodies = {one["id"]: one["body"] for one in looked.of("sent")}
        for by in ("by place", "by id"):
            assert Counter(looked.bodies(by)) == Counter(bodies.values()), by
        # A client asks every broker of the route for a key, and all have the one address: copies are fine.
        assert set(looked.bodies("by key")) == set(bodies.values())
        for one in looked.received():
            assert bodies[one.get("asked", one["id"])] == bodies[one["id"]] == one["body"]
        judging.test_transaction(played["transaction"])
        came = played["send_back"].of("received", by="", body="bad")
        assert [one["attempt"] for one in came] == [1, 2, 3]
