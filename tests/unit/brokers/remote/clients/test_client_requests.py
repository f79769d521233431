"""brokers.remote.clients.client_requests: mqadmin's questions to clients, as brokers pass them on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from brokers.client_registration import ConnectedClient
from brokers.relay import BrokerAnswer, HearsBrokers
from popgate.errors import ClientTimeout, GatewayError
from popgate.groups.verdict import Verdict
from popgate.model import FilterKind, StoredMessage
from popgate.testing.clock import MovableClock
from popgate.testing.peers import PeerConnection, ScriptedNameServer, ScriptedPeer
from popgate.wire.bodies.consumer_info import (
    ConsumeResult,
    ConsumerRunningInfo,
    decode_offsets,
    encode_positions,
)
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.records import encode_record

POSITIONS = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
RUNNING, CONSUME = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY
HOST = pack_host("10.0.0.1:10911")
RECORD = encode_record(b"T", 1, 12, 900, b"body", b"k\x01v\x02", 0, 0, 7, HOST, 8, HOST)
Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]


class Asker:
    def __init__(self) -> None:
        self.consumed: list[tuple[str, str, StoredMessage]] = []
        self.verdict = Verdict.CONSUMED
        self.failure: GatewayError | None = None
        self.stacks = 0
        self.info: bytes | None = None
        self.info_failure: GatewayError | None = None
        self.wanted: list[tuple[str, str, bool]] = []

    async def stack(self, client_id: str) -> str:
        self.stacks += 1
        if self.failure is not None:
            raise self.failure
        return f"main of {client_id}"

    async def running_info(self, client_id: str, group: str, *, with_stacks: bool) -> bytes | None:
        self.wanted.append((client_id, group, with_stacks))
        if self.info_failure is not None:
            raise self.info_failure
        return self.info

    async def consume(self, client_id: str, group: str, message: StoredMessage) -> Verdict:
        self.consumed.append((client_id, group, message))
        if self.failure is not None:
            raise self.failure
        return self.verdict


@pytest.fixture
def asker() -> Asker:
    return Asker()


@pytest.fixture
async def broker(make_broker: Any, asker: Asker) -> Any:
    broker = await make_broker()
    broker.on_question(asker)
    broker.client_is_here(
        ConnectedClient(
            "c", group="g", pushed=True, subscriptions={"T": (FilterKind.TAG, "a")}, version="5.0.7"
        )
    )
    return broker


@pytest.fixture
async def line(broker: Any, asking_cluster: Cluster) -> PeerConnection:
    master = asking_cluster[1]["broker-a"]
    await master.until(lambda: bool(master.connections))
    return master.connections[0]


async def ask(line: PeerConnection, code: int, body: bytes = b"", **fields: str) -> Command:
    told = {"consumerGroup": "g", "clientId": "c", **fields}
    return await line.ask(Command(code, fields=told, body=body))


async def test_scenario_14_a_client_is_described_and_its_stacks_are_asked_for(
    line: PeerConnection, asker: Asker, clock: MovableClock
) -> None:
    answer = await ask(line, RUNNING, jstackEnable="true")
    assert answer.code == 0
    told = ConsumerRunningInfo.decode(answer.body)
    assert told.stacks == "main of c"
    assert [one.expression for one in told.subscriptions] == ["a"]
    assert told.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert told.properties["PROP_CLIENT_VERSION"] == "5.0.7"
    assert told.properties["PROP_CONSUMER_START_TIMESTAMP"] == str(clock.now_ms())


@pytest.mark.parametrize("stacks", [False, True])
async def test_scenario_14_what_a_client_says_of_itself_is_passed_on(
    line: PeerConnection, asker: Asker, stacks: bool
) -> None:
    asker.info = ConsumerRunningInfo({"who": "me"}).encode()
    answer = await ask(line, RUNNING, jstackEnable=str(stacks).lower())
    assert (answer.code, bytes(answer.body)) == (0, asker.info)
    assert (asker.wanted, asker.stacks) == ([("c", "g", stacks)], 0)


async def test_a_client_that_does_not_answer_is_not_asked_twice(line: PeerConnection, asker: Asker) -> None:
    """Its broker waits for 10 s: two questions would take all of them."""
    asker.info_failure = ClientTimeout("c", 5)
    answer = await ask(line, RUNNING, jstackEnable="true")
    assert answer.code == 0
    assert "did not answer within 5 s" in ConsumerRunningInfo.decode(answer.body).stacks
    assert asker.stacks == 0


async def test_a_client_is_not_asked_for_what_nobody_wants(line: PeerConnection, asker: Asker) -> None:
    answer = await ask(line, RUNNING, jstackEnable="false")
    assert ConsumerRunningInfo.decode(answer.body).stacks == ""
    assert asker.stacks == 0


async def test_a_client_that_does_not_tell_is_described_all_the_same(
    line: PeerConnection, asker: Asker
) -> None:
    asker.failure = ClientTimeout("c", 5)
    answer = await ask(line, RUNNING, jstackEnable="true")
    assert answer.code == 0
    assert "did not answer within 5 s" in ConsumerRunningInfo.decode(answer.body).stacks


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        (Verdict.CONSUMED, "CR_SUCCESS"),
        (Verdict.FAILED, "CR_LATER"),
        (Verdict.CORRUPTED, "CR_THROW_EXCEPTION"),
    ],
)
async def test_scenario_14_a_client_consumes_a_message_and_says_how_it_went(
    line: PeerConnection, asker: Asker, verdict: Verdict, result: str
) -> None:
    asker.verdict = verdict
    answer = await ask(line, CONSUME, RECORD, brokerName="broker-a")
    assert ConsumeResult.decode(answer.body).result == result
    ((client_id, group, message),) = asker.consumed
    assert (client_id, group) == ("c", "g")
    assert (message.topic, message.broker, message.queue_id, message.offset) == ("T", "broker-a", 1, 12)
    assert (message.body, message.properties) == (b"body", b"k\x01v\x02")


async def test_a_client_that_cannot_be_asked_has_failed(line: PeerConnection, asker: Asker) -> None:
    asker.failure = ClientTimeout("c", 5)
    told = ConsumeResult.decode((await ask(line, CONSUME, RECORD)).body)
    assert (told.result, told.remark) == ("CR_THROW_EXCEPTION", asker.failure.sentence)


@pytest.mark.parametrize("code", [RUNNING, CONSUME])
@pytest.mark.parametrize("fields", [{"clientId": "other"}, {"consumerGroup": "other"}])
async def test_who_is_not_here_is_not_described(
    line: PeerConnection, code: int, fields: dict[str, str]
) -> None:
    answer = await ask(line, code, RECORD, **fields)
    assert (answer.code, answer.remark) == (1, "the client is not known to this gateway")


async def test_a_client_is_asked_for_its_positions(broker: Any, line: PeerConnection) -> None:
    """The request names no client: the connection says which one it is."""
    queue = MessageQueue("T", "broker-a", 1)
    asked: list[tuple[int, dict[str, str]]] = []

    async def handler(code: int, fields: Mapping[str, str]) -> BrokerAnswer:
        asked.append((code, dict(fields)))
        if fields["topic"] == "T":
            return BrokerAnswer(0, body=encode_positions({"c": {queue: 7}}))
        return BrokerAnswer(ResponseCode.CONSUMER_NOT_ONLINE)

    fields = {"topic": "T", "group": "g"}
    unheard = await line.ask(Command(POSITIONS, fields=fields))
    assert (unheard.code, unheard.remark) == (1, "the client is not known to this gateway")
    broker.capability(HearsBrokers).on_command(handler)
    answer = await line.ask(Command(POSITIONS, fields=fields))
    assert decode_offsets(answer.body, "messageQueueTable") == {queue: 7}
    assert asked == [
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g", "clientAddr": "c"})
    ]
    assert (await line.ask(Command(POSITIONS, fields={**fields, "topic": "other"}))).code != 0
    assert (await line.ask(Command(POSITIONS, fields={**fields, "group": "other"}))).code == 1
    assert len(asked) == 2


async def test_scenario_24_a_message_that_cannot_be_read_is_refused(line: PeerConnection) -> None:
    answer = await ask(line, CONSUME, RECORD[:-4])
    assert answer.code == 1
    assert "cannot be read" in answer.remark


async def test_a_notice_of_new_members_is_taken_quietly(line: PeerConnection) -> None:
    line.say(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields={"consumerGroup": "g"}))
    assert (await ask(line, RUNNING)).code == 0
