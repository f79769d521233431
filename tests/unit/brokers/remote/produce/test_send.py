"""Sends to scripted brokers: where they go, and when they go elsewhere."""

from __future__ import annotations

import asyncio
import itertools
import traceback
from dataclasses import replace

import pytest

from brokers.batches import Batch, Single
from brokers.remote.broker import RemoteBroker
from brokers.remote.produce.send import _own
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    DelayTooLong,
    Forbidden,
    GatewayError,
    TopicNotFound,
)
from popgate.messages.packed_messages import PackedMessages
from popgate.model import Message, MessageType, Sent
from popgate.wire.bodies.routes import QueueData, TopicRoute
from popgate.wire.bodies.static_topics import QueueMapping
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.batches import BatchItem, decode_batch, encode_batch
from popgate.wire.messages.properties import decode_properties, encode_properties
from tests.unit.brokers.remote.conftest import moving

NAMES = ("broker-a", "broker-b")
CONTEXT = Context(client_id="c")
ids = itertools.count()


def message(body: bytes = b"body", **fields) -> Message:
    message_id = f"ID{next(ids)}"
    block = encode_properties({"UNIQ_KEY": message_id})
    return Message(fields.pop("topic", "T"), body, message_id=message_id, properties=block, **fields)


class Stores:
    """Both brokers store what they are sent, each queue with offsets of its own."""

    def __init__(self, peers) -> None:
        self.peers = peers
        self.stored: list[tuple[str, int, list[bytes]]] = []
        for name, peer in peers.items():
            self.serve(name, peer)

    def serve(self, name, peer) -> None:
        ends: dict[int, int] = {}

        def store(request):
            queue_id = int(request.fields["e"])
            if request.code == RequestCode.SEND_BATCH_MESSAGE:
                bodies = [item.body for item in decode_batch(request.body)]
            else:
                bodies = [request.body]
            first = ends.get(queue_id, 0)
            ends[queue_id] = first + len(bodies)
            self.stored.append((name, queue_id, bodies))
            told = {"msgId": "0A00000100002A9F00000000075BCD15", "queueId": str(queue_id)}
            return request.answer(0, fields={**told, "queueOffset": str(first)})

        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            peer.on(code, store)

    def refuse(self, code: int, remark: str = "", *, names=NAMES) -> None:
        for name in names:
            for asked in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                self.peers[name].on(asked, lambda request: request.answer(code, remark))

    def sends(self, *names: str) -> int:
        codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        return sum(request.code in codes for name in names or NAMES for request in self.peers[name].requests)


@pytest.fixture
async def servers(asking_cluster):
    return asking_cluster[0]


@pytest.fixture
async def stores(asking_cluster) -> Stores:
    return Stores(asking_cluster[1])


@pytest.fixture
async def broker(make_broker, stores) -> RemoteBroker:
    return await make_broker()


async def test_messages_take_turns_over_brokers_and_queues(broker, stores):
    for _ in range(16):
        (one,) = await broker.send(CONTEXT, [message()])
        assert isinstance(one, Sent)
    assert {(name, queue_id) for name, queue_id, _ in stores.stored} == {
        (name, queue_id) for name in NAMES for queue_id in range(4)
    }


async def test_nothing_is_sent_for_nothing(broker, stores):
    assert await broker.send(CONTEXT, []) == []
    assert stores.sends() == 0


async def test_every_request_names_its_broker(broker, stores):
    await broker.send(CONTEXT, [message()])
    ((name, peer),) = [(name, peer) for name, peer in stores.peers.items() if stores.sends(name)]
    assert peer.of(RequestCode.SEND_MESSAGE_V2)[0].fields["n"] == name


async def test_scenario_15_a_batch_is_one_request_with_one_result_per_message(broker, stores):
    some = [message(b"%d" % n) for n in range(5)]
    results = await broker.send(CONTEXT, some)
    assert stores.sends() == 1
    ((name, queue_id, bodies),) = stores.stored
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert [(one.message_id, one.broker, one.queue_id, one.offset) for one in results] == [
        (each.message_id, name, queue_id, offset) for offset, each in enumerate(some)
    ]


async def test_message_groups_are_batches_of_their_own(broker, stores):
    some = [message(b"%d" % n, message_group="ab"[n % 2]) for n in range(6)]
    results = await broker.send(CONTEXT, [*some, message(b"alone")])
    assert sorted(bodies for _, _, bodies in stores.stored) == [
        [b"0", b"2", b"4"],
        [b"1", b"3", b"5"],
        [b"alone"],
    ]
    for group in (0, 1):
        assert len({(one.broker, one.queue_id) for one in results[group:6:2]}) == 1
        assert [one.offset for one in results[group:6:2]] == sorted(one.offset for one in results[group:6:2])


async def test_what_cannot_go_together_goes_singly_and_is_answered_in_order(broker, stores, clock):
    later = message(b"later", deliver_at_ms=clock.now_ms() + 5_000)
    half = message(b"half", type=MessageType.TRANSACTION)
    results = await broker.send(CONTEXT, [message(b"0"), later, message(b"1"), half])
    assert sorted(bodies for _, _, bodies in stores.stored) == [[b"0", b"1"], [b"half"], [b"later"]]
    assert results[1].message_id == later.message_id
    assert results[3].transaction_id
    assert not results[0].transaction_id


async def test_a_half_message_says_when_it_is_checked_and_who_is_asked(broker, stores):
    await broker.send(CONTEXT, [message(type=MessageType.TRANSACTION, recovery_ms=1_500)])
    (request,) = [r for peer in stores.peers.values() for r in peer.of(RequestCode.SEND_MESSAGE_V2)]
    told = decode_properties(request.fields["i"].encode())
    assert (told["TRAN_MSG"], told["PGROUP"]) == ("true", "T")
    assert int(told["CHECK_IMMUNITY_TIME_IN_SECONDS"]) >= 2
    assert request.fields["f"] == "4"


async def test_large_batches_are_several_requests_in_order(broker, stores):
    some = [message(bytes(1_500_000)) for _ in range(5)]
    results = await broker.send(CONTEXT, some)
    assert [len(bodies) for _, _, bodies in stores.stored] == [2, 2, 1]
    assert [one.offset for one in results] == [0, 1, 2, 3, 4]


async def test_a_queue_that_the_caller_names_is_used(broker, stores):
    (one,) = await broker.send(CONTEXT, [message(broker="broker-b", queue_id=3)])
    assert (one.broker, one.queue_id) == ("broker-b", 3)
    (one,) = await broker.send(CONTEXT, [message(queue_id=2)])
    assert one.queue_id == 2


@pytest.mark.parametrize("fields", [{"queue_id": 4}, {"queue_id": 0, "broker": "no such"}])
async def test_a_queue_that_there_is_not_is_refused(broker, stores, fields):
    with pytest.raises(BadRequest):
        await broker.send(CONTEXT, [message(**fields)])
    assert stores.sends() == 0


async def test_one_bad_message_spoils_no_other(broker, stores, clock):
    absurd = message(deliver_at_ms=clock.now_ms() + (1 << 60))
    elsewhere = message(topic="U")
    results = await broker.send(CONTEXT, [message(b"0"), absurd, message(b"1"), elsewhere])
    assert isinstance(results[0], Sent)
    assert isinstance(results[1], DelayTooLong)
    assert isinstance(results[2], Sent)
    assert isinstance(results[3], BadRequest)
    assert stores.sends() == 1


async def test_a_topic_that_there_is_not_is_told(broker, stores):
    with pytest.raises(TopicNotFound):
        await broker.send(CONTEXT, [message(topic="unknown")])


async def test_a_topic_that_takes_nothing_is_forbidden(broker, stores, servers):
    servers.add_topic("R", perm=4)
    with pytest.raises(Forbidden):
        await broker.send(CONTEXT, [message(topic="R")])


async def test_without_any_master_nothing_is_sent(broker, stores, servers):
    for name in NAMES:
        data = servers.brokers[name]
        servers.brokers[name] = type(data)(data.cluster, data.name, {1: data.addresses[0]})
    servers.add_topic("S")
    with pytest.raises(BrokerUnavailable):
        await broker.send(CONTEXT, [message(topic="S")])


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.SERVICE_NOT_AVAILABLE, ""),
        (ResponseCode.NO_PERMISSION, ""),
        (ResponseCode.SYSTEM_BUSY, ""),
        (ResponseCode.TOPIC_NOT_EXIST, ""),
        (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"),
    ],
)
async def test_what_a_broker_surely_did_not_do_another_one_does(broker, stores, code, remark):
    stores.refuse(code, remark, names=["broker-a"])
    for _ in range(8):
        (one,) = await broker.send(CONTEXT, [message()])
        assert one.broker == "broker-b"
    assert stores.sends("broker-a") == 1  # then it is left alone for a while


async def test_a_broker_that_refused_gets_messages_again_after_a_while(broker, stores, clock):
    stores.refuse(ResponseCode.SYSTEM_BUSY, names=["broker-a"])
    for _ in range(8):
        await broker.send(CONTEXT, [message()])
    stores.serve("broker-a", stores.peers["broker-a"])
    clock.advance(11.0)
    got = [(await broker.send(CONTEXT, [message()]))[0].broker for _ in range(8)]
    assert set(got) == set(NAMES)


async def test_scenario_11_a_broker_that_is_gone_costs_no_send(broker, stores):
    await broker.send(CONTEXT, [message()])
    await stores.peers["broker-a"].stop()
    for _ in range(8):
        (one,) = await broker.send(CONTEXT, [message()])
        assert one.broker == "broker-b"


async def test_what_nobody_knows_of_is_not_sent_again(broker, stores, clock):
    for peer in stores.peers.values():
        peer.on(RequestCode.SEND_MESSAGE_V2, lambda request: None)
    with pytest.raises(BrokerTimeout):
        await moving(clock, broker.send(CONTEXT, [message()]))
    assert stores.sends() == 1


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    ],
)
async def test_what_is_stored_and_not_safe_is_not_told_as_done(broker, stores, code):
    stores.refuse(code)
    with pytest.raises(BrokerTimeout):
        await broker.send(CONTEXT, [message()])
    assert stores.sends() == 1


async def test_the_callers_deadline_is_kept(broker, stores, clock):
    stores.refuse(ResponseCode.SYSTEM_BUSY)
    began = clock.monotonic()
    with pytest.raises(BrokerBusy):
        await moving(clock, broker.send(Context(deadline=began + 1.5), [message()]))
    assert clock.monotonic() <= began + 2.0
    with pytest.raises(GatewayError):
        await broker.send(Context(deadline=clock.monotonic() - 1), [message()])


async def test_busy_brokers_are_asked_again_in_a_while(broker, stores, clock):
    stores.refuse(ResponseCode.SYSTEM_BUSY)
    sending = asyncio.ensure_future(moving(clock, broker.send(CONTEXT, [message()])))
    await stores.peers["broker-a"].until(lambda: stores.sends() >= 4)
    for name, peer in stores.peers.items():
        stores.serve(name, peer)
    (one,) = await sending
    assert isinstance(one, Sent)
    assert sum(len(bodies) for _, _, bodies in stores.stored) == 1


async def test_a_message_group_goes_to_no_other_broker(broker, stores):
    (one,) = await broker.send(CONTEXT, [message(message_group="g")])
    await stores.peers[one.broker].stop()
    with pytest.raises(BrokerUnavailable):
        await broker.send(CONTEXT, [message(message_group="g")])
    (other,) = set(NAMES) - {one.broker}
    assert stores.sends(other) == 0


async def test_a_message_group_follows_a_route_that_changed(broker, stores, servers):
    (one,) = await broker.send(CONTEXT, [message(message_group="g")])
    (other,) = set(NAMES) - {one.broker}
    stores.refuse(ResponseCode.NO_PERMISSION, names=[one.broker])
    servers.add_topic("T", other)
    (two,) = await broker.send(CONTEXT, [message(message_group="g")])
    assert two.broker == other


async def test_a_pinned_message_goes_nowhere_else(broker, stores):
    stores.refuse(ResponseCode.NO_PERMISSION, names=["broker-a"])
    with pytest.raises(Forbidden):
        await broker.send(CONTEXT, [message(broker="broker-a", queue_id=0)])
    assert stores.sends("broker-b") == 0


async def test_after_a_failure_the_rest_of_a_message_group_is_not_sent(broker, stores):
    answers = iter([0, ResponseCode.SYSTEM_ERROR])

    def store(request):
        count = len(decode_batch(request.body)) if request.code == RequestCode.SEND_BATCH_MESSAGE else 1
        return request.answer(
            next(answers), fields={"queueId": "0", "queueOffset": "0", "msgId": "0" * count}
        )

    for peer in stores.peers.values():
        peer.on(RequestCode.SEND_MESSAGE_V2, store)
        peer.on(RequestCode.SEND_BATCH_MESSAGE, store)
    some = [message(bytes(3_000_000), message_group="g") for _ in range(4)]
    results = await broker.send(CONTEXT, some)
    assert isinstance(results[0], Sent)
    assert isinstance(results[1], GatewayError)
    assert all(isinstance(one, BrokerUnavailable) for one in results[2:])
    assert stores.sends() == 2


async def test_a_lower_limit_of_the_broker_is_told_with_its_number(broker, stores, clock):
    stores.refuse(
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay 60000ms; or if set"
        " del msg, the delay time should be bigger than the current time",
    )
    with pytest.raises(DelayTooLong) as refused:
        await broker.send(CONTEXT, [message(deliver_at_ms=clock.now_ms() + 90_000)])
    assert (refused.value.delay_ms, refused.value.limit_ms) == (90_000, 60_000)


async def test_what_is_wrong_with_a_message_is_told_by_no_second_broker(broker, stores):
    stores.refuse(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal")
    with pytest.raises(BadRequest):
        await broker.send(CONTEXT, [message()])
    assert stores.sends() == 1


async def test_an_answer_without_a_place_is_told_as_unknown(broker, stores):
    stores.refuse(ResponseCode.SUCCESS)
    with pytest.raises(BrokerTimeout):
        await broker.send(CONTEXT, [message()])


async def test_the_same_zone_comes_first(make_broker, stores, servers):
    for name, zone in zip(NAMES, ("west", "east"), strict=True):
        servers.add_broker(name, stores.peers[name].address, zone=zone)
    servers.add_topic("T")
    broker = await make_broker(zone="east")
    assert {(await broker.send(CONTEXT, [message()]))[0].broker for _ in range(8)} == {"broker-b"}
    await stores.peers["broker-b"].stop()
    assert (await broker.send(CONTEXT, [message()]))[0].broker == "broker-a"


async def test_a_message_that_a_broker_refuses_spoils_no_other(broker, stores):
    """Of a batch nothing is stored when one of it is refused: then each is sent alone."""
    bodies: list[bytes] = []

    def store(request):
        if request.code == RequestCode.SEND_BATCH_MESSAGE or request.body == b"bad":
            return request.answer(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal")
        bodies.append(request.body)
        told = {"queueId": request.fields["e"], "queueOffset": str(len(bodies)), "msgId": ""}
        return request.answer(0, fields=told)

    for peer in stores.peers.values():
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            peer.on(code, store)
    for group in ("", "g"):
        bodies.clear()
        some = [message(body, message_group=group) for body in (b"0", b"bad", b"1", b"2")]
        results = await broker.send(CONTEXT, some)
        assert [type(one) for one in results] == [Sent, BadRequest, Sent, Sent]
        assert bodies == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", [MessageType.NORMAL, MessageType.TRANSACTION])
async def test_an_absurd_place_is_told_as_unknown(broker, stores, kind):
    told = {"msgId": "0A00000100002A9F00000000075BCD15", "queueId": "0", "queueOffset": str(1 << 70)}
    for peer in stores.peers.values():
        peer.on(RequestCode.SEND_MESSAGE_V2, lambda request: request.answer(0, fields=told))
    with pytest.raises(BrokerTimeout):
        await broker.send(CONTEXT, [message(type=kind)])


async def test_a_queue_of_a_static_topic_is_followed_when_another_broker_leads_it(broker, stores, servers):
    """Its number says which queue is meant, whichever broker the caller knows for it (protocol facts 6.5)."""

    def lead(leader, epoch):
        brokers = tuple(servers.brokers[name] for name in NAMES)
        servers.topics["S"] = TopicRoute(
            tuple(QueueData(name, 8, 8) for name in NAMES),
            brokers,
            mappings={
                name: QueueMapping(
                    "S", "__global__", 2, name, epoch, current={0: 0, 1: 5} if name == leader else {}
                )
                for name in NAMES
            },
        )

    lead("broker-a", 1)
    (one,) = await broker.send(CONTEXT, [message(topic="S", broker="broker-a", queue_id=1)])
    assert (one.broker, one.queue_id) == ("broker-a", 1)
    lead("broker-b", 2)
    stores.refuse(ResponseCode.NOT_LEADER_FOR_QUEUE, names=["broker-a"])
    for _ in range(2):
        (one,) = await broker.send(CONTEXT, [message(topic="S", broker="broker-a", queue_id=1)])
        assert (one.broker, one.queue_id) == ("broker-b", 1)
    data = encode_batch([BatchItem(0, b"one", b"UNIQ_KEY\x01A\x02")])
    stored = await broker.forward_batch(CONTEXT, Batch("S", "broker-a", 1, data, 1, 3))
    assert (stored.broker, stored.queue_id) == ("broker-b", 1)
    one = await broker.forward_message(CONTEXT, Single("S", "broker-a", 1, b"one", "A", b"UNIQ_KEY\x01A\x02"))
    assert (one.broker, one.queue_id) == ("broker-b", 1)
    servers.topics["S"] = servers.topics["T"]
    stores.refuse(ResponseCode.NOT_LEADER_FOR_QUEUE)
    with pytest.raises(BrokerUnavailable):
        await broker.send(CONTEXT, [message(topic="S", broker="broker-b", queue_id=1)])


async def test_a_message_that_may_lie_anywhere_follows_all_queues_to_another_broker(broker, stores, servers):
    """None of the brokers that were known leads a queue any more: the next route says who does."""

    def lead(leader):
        servers.topics["S"] = TopicRoute(
            (QueueData(leader, 2, 2),),
            tuple(servers.brokers[name] for name in NAMES),
            mappings={leader: QueueMapping("S", "__global__", 2, leader, 1, current={0: 0, 1: 1})},
        )

    lead("broker-a")
    (one,) = await broker.send(CONTEXT, [message(topic="S")])
    assert one.broker == "broker-a"
    lead("broker-b")
    stores.refuse(ResponseCode.NOT_LEADER_FOR_QUEUE, names=["broker-a"])
    (one,) = await broker.send(CONTEXT, [message(topic="S")])
    assert one.broker == "broker-b"
    stores.refuse(ResponseCode.NOT_LEADER_FOR_QUEUE)
    with pytest.raises(BrokerUnavailable):
        raise (await broker.send(CONTEXT, [message(topic="S")]))[0]


async def test_sends_of_several_callers_in_one_turn_are_one_batch_with_outcomes_of_their_own(broker, stores):
    mine, yours = [message(b"1"), message(b"2")], [message(b"3")]
    first, second = await asyncio.gather(broker.send(CONTEXT, mine), broker.send(CONTEXT, yours))
    ((name, queue_id, bodies),) = stores.stored
    assert bodies == [b"1", b"2", b"3"]
    assert [(one.broker, one.queue_id, one.offset, one.message_id) for one in (*first, *second)] == [
        (name, queue_id, at, sent.message_id) for at, sent in enumerate((*mine, *yours))
    ]


async def test_when_messages_were_born_is_told_of_each_and_by_no_caller_for_others(broker, stores, clock):
    await broker.send(CONTEXT, [message(born_ms=77), message(born_ms=78)])
    await asyncio.gather(*(broker.send(CONTEXT, [message(born_ms=born)]) for born in (77, 78)))
    requests = [one for peer in stores.peers.values() for one in peer.of(RequestCode.SEND_BATCH_MESSAGE)]
    assert sorted(int(one.fields["g"]) for one in requests) == [77, clock.now_ms()]
    for one in requests:
        told = [decode_properties(item.properties)["BORN_TIMESTAMP"] for item in decode_batch(one.body)]
        assert told == ["77", "78"]


async def test_what_a_broker_refuses_together_it_may_take_of_each_caller(broker, stores):
    def small(request):
        if request.code == RequestCode.SEND_BATCH_MESSAGE or request.body == b"wrong":
            return request.answer(ResponseCode.MESSAGE_ILLEGAL, "the message body size not legal")
        fields = {"msgId": "0A00000100002A9F00000000075BCD15", "queueId": "0", "queueOffset": "7"}
        return request.answer(0, fields=fields)

    for peer in stores.peers.values():
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            peer.on(code, small)
    told = await asyncio.gather(
        broker.send(CONTEXT, [message(b"right")]),
        broker.send(CONTEXT, [message(b"wrong")]),
        broker.send(CONTEXT, [message(b"right"), message(b"wrong")]),
        return_exceptions=True,
    )
    assert [one.offset for one in told[0]] == [7]
    assert isinstance(told[1], BadRequest)
    assert isinstance(told[2][0], Sent)
    assert isinstance(told[2][1], BadRequest)


async def test_a_failure_is_told_to_every_caller_of_the_batch(broker, stores):
    stores.refuse(ResponseCode.SYSTEM_ERROR, "disk broken")
    told = await asyncio.gather(
        *(broker.send(CONTEXT, [message()]) for _ in range(3)), return_exceptions=True
    )
    assert stores.sends() == 1
    assert all(isinstance(one, GatewayError) and "disk broken" in str(one) for one in told)
    assert len({id(one) for one in told}) == 3, "one for all would keep the frames of all"
    assert len({len(traceback.extract_tb(one.__traceback__)) for one in told}) == 1


@pytest.mark.parametrize("error", [TopicNotFound("T"), DelayTooLong(9, 5), BrokerBusy("busy")])
def test_an_error_of_ones_own_says_the_same(error):
    own = _own(error)
    assert own is not error
    assert (type(own), str(own), vars(own)) == (type(error), str(error), vars(error))
    assert own.__traceback__ is None


async def test_packed_messages_that_fit_into_no_request_go_in_several(broker, stores):
    some = [message(bytes(1_500_000)) for _ in range(5)]
    results = await broker.send_packed(CONTEXT, PackedMessages.pack("T", some))
    assert [len(bodies) for _, _, bodies in stores.stored] == [2, 2, 1]
    assert [(one.message_id, one.offset) for one in results] == [
        (each.message_id, at) for at, each in enumerate(some)
    ]


async def test_packed_messages_of_a_retry_topic_go_one_by_one(broker, stores, servers):
    servers.add_topic("%RETRY%G")
    some = [message(b"%d" % n, topic="%RETRY%G") for n in range(3)]
    assert len(await broker.send_packed(CONTEXT, PackedMessages.pack("%RETRY%G", some))) == 3
    assert [bodies for _, _, bodies in stores.stored] == [[b"0"], [b"1"], [b"2"]]
    assert not [one for peer in stores.peers.values() for one in peer.of(RequestCode.SEND_BATCH_MESSAGE)]


async def test_a_batch_above_a_brokers_own_limit_is_sent_of_each_caller(broker, stores):
    """It says so by an exception (RocketMQ 5.3.3, MessageExtEncoder), of one message by a code."""
    bodies: list[bytes] = []

    def small(request):
        if len(request.body) > 100 and request.code == RequestCode.SEND_BATCH_MESSAGE:
            why = "java.lang.RuntimeException: message body size exceeded, org.apache.rocketmq.store"
            return request.answer(ResponseCode.SYSTEM_ERROR, why)
        if len(request.body) > 100:
            return request.answer(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal")
        bodies.append(request.body)
        return request.answer(0, fields={"msgId": "", "queueId": "0", "queueOffset": str(len(bodies))})

    for peer in stores.peers.values():
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            peer.on(code, small)
    told = await asyncio.gather(
        broker.send(CONTEXT, [message(b"1" * 60)]),
        broker.send(CONTEXT, [message(b"2" * 160)]),
        broker.send(CONTEXT, [message(b"3" * 60), message(b"4" * 60)]),
        return_exceptions=True,
    )
    assert isinstance(told[0][0], Sent)
    assert isinstance(told[1], BadRequest)
    assert [type(one) for one in told[2]] == [Sent, Sent]
    assert sorted(body[:1] for body in bodies) == [b"1", b"3", b"4"]


async def test_who_has_gone_is_not_sent_for_when_a_batch_is_refused(broker, stores):
    asked, gone = asyncio.Event(), asyncio.Event()

    async def refuse(request):
        asked.set()
        await gone.wait()
        return request.answer(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal")

    for peer in stores.peers.values():
        peer.on(RequestCode.SEND_BATCH_MESSAGE, refuse)
    goes, stays = (asyncio.ensure_future(broker.send(CONTEXT, [message(body)])) for body in (b"1", b"2"))
    await asked.wait()
    goes.cancel()
    await asyncio.wait([goes])
    gone.set()
    assert len(await stays) == 1
    assert [bodies for _, _, bodies in stores.stored] == [[b"2"]]


async def test_messages_with_a_way_of_their_own_are_not_gathered(broker, stores):
    await asyncio.gather(
        broker.send(CONTEXT, [message(b"1", message_group="g", type=MessageType.FIFO)]),
        broker.send(CONTEXT, [message(b"2", message_group="g", type=MessageType.FIFO)]),
        broker.send(CONTEXT, [message(b"3", queue_id=1)]),
        broker.send(CONTEXT, [message(b"4")]),
    )
    assert sorted(bodies for _, _, bodies in stores.stored) == [[b"1"], [b"2"], [b"3"], [b"4"]]


async def test_a_producers_batch_goes_in_one_piece_to_the_queue_that_it_names(broker, stores, clock):
    data = encode_batch(
        [BatchItem(0, b"one", b"UNIQ_KEY\x01A\x02"), BatchItem(1, b"two", b"UNIQ_KEY\x01B\x02")]
    )
    stored = [
        await broker.forward_batch(CONTEXT, Batch("T", "broker-b", 1, data, 2, 6, 0x300, "makers", 7))
        for _ in range(2)
    ]
    assert [(each.broker, each.queue_id, each.offset) for each in stored] == [
        ("broker-b", 1, 0),
        ("broker-b", 1, 2),
    ]
    first, _ = stores.peers["broker-b"].of(RequestCode.SEND_BATCH_MESSAGE)
    assert first.body == data
    fields = first.fields
    assert {name: fields[name] for name in "abefgim"} == {
        "a": "makers",
        "b": "T",
        "e": "1",
        "f": "768",
        "g": "7",
        "i": "",
        "m": "true",
    }
    assert stores.sends("broker-a") == 0


async def test_the_ids_of_a_batch_are_those_that_its_broker_reports(broker, stores):
    data = encode_batch([BatchItem(0, b"one", b"UNIQ_KEY\x01A\x02")])
    stored = await broker.forward_batch(CONTEXT, Batch("T", "broker-a", 0, data, 1, 3))
    assert stored.offset_message_ids == "0A00000100002A9F00000000075BCD15"
    # One id for two messages says of none where it is.
    stored = await broker.forward_batch(CONTEXT, Batch("T", "broker-a", 0, data, 2, 3))
    assert stored.offset_message_ids == ""


async def test_a_batch_is_refused_whole_and_sent_nowhere_else(broker, stores):
    data = encode_batch([BatchItem(0, b"one", b"UNIQ_KEY\x01A\x02")])
    with pytest.raises(BadRequest, match="no writable queue 9"):
        await broker.forward_batch(CONTEXT, Batch("T", "broker-a", 9, data, 1, 3))
    assert stores.sends() == 0
    stores.refuse(ResponseCode.MESSAGE_ILLEGAL, "too large")
    with pytest.raises(BadRequest):
        await broker.forward_batch(CONTEXT, Batch("T", "broker-a", 0, data, 1, 3))
    assert (stores.sends("broker-a"), stores.sends("broker-b")) == (1, 0)


def single(broker: str = "broker-a", queue_id: int = 0) -> Single:
    block = b"UNIQ_KEY\x01ID\x02__BORNHOST\x011.2.3.4:5\x02BORN_TIMESTAMP\x017\x02"
    return Single("T", broker, queue_id, b"body", "ID", block, 0x300, -5, "makers", 7)


async def test_a_producers_message_makes_the_request_and_the_result_of_a_send(broker, stores):
    stored = await broker.forward_message(CONTEXT, single())
    message = Message(
        "T",
        b"body",
        message_id="ID",
        properties=single().properties,
        broker="broker-a",
        queue_id=0,
        sys_flag=0x300,
        flag=-5,
        producer_group="makers",
        born_ms=7,
    )
    (sent,) = await broker.send(CONTEXT, [message])
    forwarded, built = stores.peers["broker-a"].of(RequestCode.SEND_MESSAGE_V2)
    assert (forwarded.fields, forwarded.body) == (built.fields, built.body)
    assert replace(stored, offset=sent.offset) == sent
    assert stored.offset == sent.offset - 1


async def test_a_producers_message_is_refused_and_sent_nowhere_else(broker, stores):
    with pytest.raises(BadRequest, match="no writable queue 9"):
        await broker.forward_message(CONTEXT, single(queue_id=9))
    assert stores.sends() == 0
    stores.refuse(ResponseCode.MESSAGE_ILLEGAL, "too large")
    with pytest.raises(BadRequest):
        await broker.forward_message(CONTEXT, single())
    assert (stores.sends("broker-a"), stores.sends("broker-b")) == (1, 0)
