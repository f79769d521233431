"""Rooms in front of a cluster: what its brokers know is asked of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from brokers.capabilities import BrokerPlace
from brokers.port import Broker
from brokers.relay import RELAYED, BrokerAnswer, Relayed, RelaysCommands
from popgate.context import Context
from popgate.errors import BrokerUnavailable, GatewayError
from popgate.ids.message_id import encode_offset_message_id, make_message_id
from popgate.model import Message
from popgate.wire.bodies.broker_stats import Rate, Rates, decode_producers, encode_producers
from popgate.wire.bodies.consumer_info import (
    NAME_SERVERS,
    ConsumerRunningInfo,
    decode_positions,
    encode_offsets,
    encode_positions,
)
from popgate.wire.bodies.heartbeats import (
    ACTIVELY,
    Connection,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    decode_producer_connections,
    encode_producer_connections,
)
from popgate.wire.bodies.small_bodies import MessageQueue, decode_kv_table, encode_kv_table
from popgate.wire.frames.codes import RequestCode as Code
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command
from processors.classic.relay import CommandRelay
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.members.members import Members
from protocols.remoting.produce.transactions import ask_producer
from protocols.remoting.tools.broker_status import BrokerStatusHandler
from protocols.remoting.tools.client_queries import ClientQueryHandler
from protocols.remoting.tools.refused import ALONE, BEFORE_A_CLUSTER, RefusedCodes
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, Stage

ELSEWHERE = Connection("there@1", "10.9.9.9:40001", "JAVA", 513)


@dataclass
class Brokers(RelaysCommands):
    """Two brokers that answer as they are told to; `asked` is what came, as (broker, code, fields)."""

    name: str = "rocketmq"
    capability = Broker.capability
    answers: dict[tuple[str, int], BrokerAnswer | GatewayError] = field(default_factory=dict)
    asked: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)

    async def relay(
        self, context: Context, code: int, fields: Mapping[str, str], *, broker: str = "", topic: str = ""
    ) -> Relayed:
        assert code in RELAYED
        told: dict[str, BrokerAnswer] = {}
        failures: dict[str, GatewayError] = {}
        for name in (broker,) if broker else ("broker-a", "broker-b"):
            self.asked.append((name, code, dict(fields)))
            answer = self.answers.get((name, code), BrokerAnswer(ResponseCode.SYSTEM_ERROR, "not here"))
            if isinstance(answer, GatewayError):
                failures[name] = answer
            else:
                told[name] = answer
        return Relayed(told, failures)

    def tell(self, code: int, *bodies: bytes | GatewayError) -> None:
        """One body for each broker, from the first on."""
        for name, body in zip(("broker-a", "broker-b"), bodies, strict=False):
            self.answers[name, code] = body if isinstance(body, GatewayError) else BrokerAnswer(0, body=body)


@pytest.fixture
def brokers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """Put behind the gateway; messages and groups stay with the embedded broker."""
    made = Brokers()
    processor = stage.processor

    async def known(_context: Context) -> list[BrokerPlace]:
        return [BrokerPlace("DefaultCluster", name) for name in ("broker-a", "broker-b")]

    monkeypatch.setattr(processor, "command_relay", CommandRelay(made, processor._admit))  # type: ignore[arg-type]
    monkeypatch.setattr(processor.metadata, "brokers", known)
    return made


@pytest.fixture
def caller(stage: Stage, brokers: Brokers) -> Caller:
    house = stage.door_context
    heartbeats = Heartbeats(house, ask_producer)
    return Caller(
        heartbeats, ClientQueryHandler(house), Members(house), RefusedCodes(house), BrokerStatusHandler(house)
    )


async def beat(caller: Caller) -> None:
    readers = ConsumerData("readers", (SubscriptionData("orders", "*"),))
    await caller.ok(Code.HEART_BEAT, body=HeartbeatData("client@1", ("producers",), (readers,)).encode())


class TestFigures:
    async def test_of_several_brokers(self, caller: Caller, brokers: Brokers) -> None:
        brokers.tell(
            Code.GET_BROKER_RUNTIME_INFO,
            encode_kv_table({"putTps": "1.0"}),
            encode_kv_table({"putTps": "3.0"}),
        )
        table = decode_kv_table((await caller.ok(Code.GET_BROKER_RUNTIME_INFO)).body)
        assert (table["putTps"], table["broker-b.putTps"], table["popgate.clients"]) == ("2.0", "3.0", "0")

    async def test_of_the_one_that_is_named(self, caller: Caller, brokers: Brokers) -> None:
        brokers.tell(Code.GET_BROKER_RUNTIME_INFO, b"", encode_kv_table({"putTps": "3.0"}))
        asked = await caller.ok(Code.GET_BROKER_RUNTIME_INFO, {"bname": "broker-b"})
        assert decode_kv_table(asked.body)["putTps"] == "3.0"
        assert [name for name, _, _ in brokers.asked] == ["broker-b"]

    async def test_settings_have_the_address_of_the_door(self, caller: Caller, brokers: Brokers) -> None:
        one = b"brokerName=broker-a\nbrokerIP1=192.168.0.1\nbrokerIP2=192.168.0.1\n"
        one += b"namesrvAddr=ns:1\nperm=6\nx=1"
        brokers.tell(Code.GET_BROKER_CONFIG, one, one.replace(b"x=1", b"x=2"))
        body = (await caller.ok(Code.GET_BROKER_CONFIG)).body.decode()
        lines = dict(line.split("=", 1) for line in body.splitlines())
        assert f"{lines['brokerIP1']}:{lines['listenPort']}" == ADDRESS == lines["namesrvAddr"]
        assert (lines["perm"], "x" in lines, "192.168" in body) == ("6", False, False)

    async def test_rates_are_those_of_the_brokers_that_have_some(
        self, caller: Caller, brokers: Brokers
    ) -> None:
        rates = Rates(Rate(10, 1.0, 1.0))
        brokers.tell(Code.VIEW_BROKER_STATS_DATA, rates.encode())
        asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"}
        assert Rates.decode((await caller.ok(Code.VIEW_BROKER_STATS_DATA, asked)).body) == rates
        del brokers.answers["broker-a", Code.VIEW_BROKER_STATS_DATA]
        refused = await caller.ask(Code.VIEW_BROKER_STATS_DATA, asked)
        assert (refused.code, "not here" in refused.remark) == (ResponseCode.SYSTEM_ERROR, True)

    async def test_what_makes_no_sense_is_no_answer(self, caller: Caller, brokers: Brokers) -> None:
        brokers.tell(Code.GET_BROKER_RUNTIME_INFO, b"{", encode_kv_table({"putTps": "3.0"}))
        table = decode_kv_table((await caller.ok(Code.GET_BROKER_RUNTIME_INFO)).body)
        assert table["putTps"] == "3.0"
        brokers.tell(Code.GET_BROKER_RUNTIME_INFO, b"{", BrokerUnavailable("gone"))
        assert (await caller.ask(Code.GET_BROKER_RUNTIME_INFO)).code == ResponseCode.SYSTEM_ERROR


class TestCleaning:
    @pytest.mark.parametrize("code", sorted(set(ALONE) - {Code.VIEW_BROKER_STATS_DATA}))
    async def test_all_brokers_do_it(self, caller: Caller, brokers: Brokers, code: int) -> None:
        brokers.tell(code, b"", b"")
        await caller.ok(code)
        assert [name for name, _, _ in brokers.asked] == ["broker-a", "broker-b"]
        brokers.answers["broker-b", code] = BrokerUnavailable("gone")
        assert "gone" in (await caller.ask(code)).remark

    @pytest.mark.parametrize("code", sorted(ALONE))
    async def test_without_a_cluster_the_reason_is_told(self, stage: Stage, code: int) -> None:
        answer = await Caller(BrokerStatusHandler(stage.door_context)).ask(
            code, {"statsName": "a", "statsKey": "b"}
        )
        assert (answer.code, answer.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ALONE[code])

    @pytest.mark.parametrize("code", sorted(BEFORE_A_CLUSTER))
    async def test_other_reasons_before_a_cluster(self, caller: Caller, brokers: Brokers, code: int) -> None:
        answer = await caller.ask(code)
        assert (answer.code, answer.remark) == (
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            BEFORE_A_CLUSTER[code],
        )
        assert not brokers.asked


class TestClients:
    """Of all replicas and doors."""

    async def test_scenario_14_consumers_of_all_replicas_are_shown(
        self, stage: Stage, caller: Caller, brokers: Brokers
    ) -> None:
        await stage.topic()
        await stage.group()
        others = {"others": SubscriptionData("others", "*")}
        there = ConsumerConnection((ELSEWHERE, Connection("client@1", "10.9.9.9:1")), others)
        brokers.tell(Code.GET_CONSUMER_CONNECTION_LIST, BrokerUnavailable("gone"), there.encode())
        await beat(caller)
        answer = await caller.ok(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"})
        told = ConsumerConnection.decode(answer.body)
        assert {one.client_id: one.address for one in told.connections} == {
            "client@1": caller.peer.address,
            "there@1": ELSEWHERE.address,
        }
        assert set(told.subscriptions) == {"orders", "others"}

    async def test_a_group_that_is_nowhere_here(
        self, caller: Caller, brokers: Brokers, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def consumers(_context: Context, _group: str) -> list[str]:
            return ["there@1"]

        monkeypatch.setattr(stage.processor.group_members, "consumers", consumers)
        there = ConsumerConnection((ELSEWHERE,), consume_type=ACTIVELY)
        brokers.tell(Code.GET_CONSUMER_CONNECTION_LIST, there.encode(), there.encode())
        answer = await caller.ok(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"})
        assert ConsumerConnection.decode(answer.body) == there
        brokers.answers.clear()  # who is in the group is known all the same
        answer = await caller.ok(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"})
        assert ConsumerConnection.decode(answer.body).connections == (Connection("there@1"),)

    async def test_scenario_14_producers_of_all_replicas_are_shown(
        self, caller: Caller, brokers: Brokers
    ) -> None:
        fields = {"producerGroup": "producers"}
        refused = await caller.ask(Code.GET_PRODUCER_CONNECTION_LIST, fields)
        assert refused.remark == "the producer group[producers] not exist"
        brokers.tell(Code.GET_PRODUCER_CONNECTION_LIST, encode_producer_connections((ELSEWHERE,)))
        brokers.tell(Code.GET_ALL_PRODUCER_INFO, encode_producers({"producers": [(ELSEWHERE, 7)]}))
        await beat(caller)
        answer = await caller.ok(Code.GET_PRODUCER_CONNECTION_LIST, fields)
        found = decode_producer_connections(answer.body)
        assert {one.client_id for one in found} == {"client@1", "there@1"}
        told = decode_producers((await caller.ok(Code.GET_ALL_PRODUCER_INFO)).body)
        assert {one.client_id for one, _ in told["producers"]} == {"client@1", "there@1"}

    async def test_scenario_14_what_a_client_of_another_replica_runs(
        self, caller: Caller, brokers: Brokers
    ) -> None:
        fields = {"consumerGroup": "readers", "clientId": "there@1", "jstackEnable": False}
        refused = await caller.ask(Code.GET_CONSUMER_RUNNING_INFO, fields)
        assert refused.remark == "The Consumer <readers> <'there@1'> not online"
        told = ConsumerRunningInfo({NAME_SERVERS: "192.168.0.1:9876", "a": "b"}, stacks="main")
        brokers.tell(Code.GET_CONSUMER_RUNNING_INFO, BrokerUnavailable("gone"), told.encode())
        answer = ConsumerRunningInfo.decode((await caller.ok(Code.GET_CONSUMER_RUNNING_INFO, fields)).body)
        assert (answer.properties, answer.stacks) == ({NAME_SERVERS: ADDRESS, "a": "b"}, "main")
        brokers.tell(Code.GET_CONSUMER_RUNNING_INFO, b"[", b"[")
        assert (await caller.ask(Code.GET_CONSUMER_RUNNING_INFO, fields)).code == ResponseCode.SYSTEM_ERROR

    async def test_scenario_14_positions_of_clients_of_other_replicas(
        self, stage: Stage, caller: Caller, brokers: Brokers
    ) -> None:
        """The brokers of the topic are asked for what this gateway does not have; a failure loses nothing."""
        code = Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        queue = MessageQueue("orders", "broker-a", 1)
        fields = {"topic": "orders", "group": "readers"}
        refused = await caller.ask(code, fields)
        assert refused.remark == "No Any Consumer online in the consumer group: [readers]"
        brokers.tell(code, BrokerUnavailable("gone"), encode_positions({"there@1": {queue: 7}}))
        assert decode_positions((await caller.ok(code, fields)).body) == {"there@1": {queue: 7}}
        await stage.topic()
        await stage.group()
        await beat(caller)
        body = encode_offsets({queue: 9}, "messageQueueTable")
        caller.peer.answers = lambda *_: Command(0, body=body)
        brokers.tell(code, encode_positions({"there@1": {queue: 7}, "client@1": {}}), b"[")
        brokers.asked.clear()
        answer = await caller.ok(code, fields)
        assert decode_positions(answer.body) == {"there@1": {queue: 7}, "client@1": {queue: 9}}
        answer = await caller.ok(code, {**fields, "clientAddr": "client@1"})
        assert decode_positions(answer.body) == {"client@1": {queue: 9}}
        assert [name for name, _, _ in brokers.asked] == ["broker-a", "broker-b"]
        brokers.tell(code, b"[", BrokerUnavailable("gone"))
        assert decode_positions((await caller.ok(code, fields)).body) == {"client@1": {queue: 9}}
        elsewhere = {**fields, "clientAddr": "there@1"}
        assert (await caller.ask(code, elsewhere)).code == ResponseCode.SYSTEM_ERROR
        brokers.tell(code, encode_positions({"a@1": {queue: 1}}), encode_positions({"b@1": {queue: 2}}))
        answer = await caller.ok(code, fields)
        assert decode_positions(answer.body).keys() == {"a@1", "b@1", "client@1"}

    async def test_scenario_14_a_client_of_another_replica_consumes_a_message(
        self, stage: Stage, caller: Caller, brokers: Brokers
    ) -> None:
        await stage.topic(queues=1)
        await stage.group()
        message_id = make_message_id()
        await stage.processor.send(Context(), [Message("orders", b"x", message_id)])
        (stored,) = await stage.processor.lookup.find_by_id(Context(), "orders", message_id)
        brokers.answers[stored.broker, Code.CONSUME_MESSAGE_DIRECTLY] = BrokerAnswer(0, body=b"{}")
        fields = {"consumerGroup": "readers", "clientId": "there@1", "msgId": message_id, "topic": "orders"}
        assert (await caller.ok(Code.CONSUME_MESSAGE_DIRECTLY, fields)).body == b"{}"
        place = encode_offset_message_id(stored.store_host, stored.commit_offset)
        (asked,) = brokers.asked
        assert asked == (
            stored.broker,
            Code.CONSUME_MESSAGE_DIRECTLY,
            {**fields, "msgId": place, "brokerName": stored.broker},
        )
        missing = await caller.ask(Code.CONSUME_MESSAGE_DIRECTLY, fields | {"msgId": make_message_id()})
        assert missing.code == ResponseCode.QUERY_NOT_FOUND


def test_rates_are_written_as_rocketmq_writes_them() -> None:
    told = json.loads(Rates(Rate(1, 2.0, 3.0)).encode())
    assert told["statsMinute"] == {"sum": 1, "tps": 2.0, "avgpt": 3.0}
    assert set(told) == {"statsMinute", "statsHour", "statsDay"}
