"""A master dies under load: its slave may only be read from, or stands in for it."""

from __future__ import annotations

import asyncio

import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing import CREATE_ON_USE, running_gateway
from popgate.testing.rocketmq import RocketMQ
from tests.cluster.brokers import QUEUES, comes_back
from tests.cluster.load import PATIENT, Client, Code, Load, until
from tests.cluster.official import official_producer

pytestmark = [pytest.mark.slow, pytest.mark.counted, pytest.mark.timeout(1800)]

BOTH = ("broker-a", "broker-b")
CAUSE = "a master died, and how far the group had come is written down, and told its slave, only now and then"


async def writable(client: Client, topic: str, broker: str) -> bool:
    """Whether the route tells a queue of the broker that can be written to."""
    answer = await client.route(topic)
    assert answer.status.code == Code.OK, answer.status
    return any(
        queue.broker.name == broker and queue.permission in (pb.WRITE, pb.READ_WRITE)
        for queue in answer.message_queues
    )


async def read_only(client: Client, topic: str, broker: str) -> bool:
    return not await writable(client, topic, broker)


async def test_scenario_11_a_master_killed_under_load_costs_no_answered_send_and_its_slave_is_read_from(
    pair_cluster: RocketMQ,
) -> None:
    master = pair_cluster.brokers["broker-a", 0]
    async with (
        running_gateway(
            options=("--broker", pair_cluster.url, *CREATE_ON_USE), environment=PATIENT
        ) as gateway,
        Load(gateway.endpoint, pair_cluster, "masters", "masters") as load,
        Load(gateway.endpoint, pair_cluster, "official", "official", producers=0, like=load) as other,
    ):
        async with official_producer(gateway.endpoint, other.records):
            await load.works(brokers=BOTH)
            await other.works(brokers=BOTH)
            load.records.fault("broker-a", cause=CAUSE)
            await asyncio.to_thread(master.kill)
            await load.outlasts()
            await other.works()
            await until(lambda: read_only(load.client, "masters", "broker-a"))
            assert await writable(load.client, "masters", "broker-b")
            answered = set(load.records.sent)

            async def all_there() -> bool:
                found = await load.client.pull_all("masters", "masters", BOTH, QUEUES)
                return set(found.values()) == set(BOTH) and answered <= found.keys()

            await until(all_there, what="what was answered is read")  # shown a moment after the answer
            await comes_back(pair_cluster, "broker-a", load.records, CAUSE)
            await load.works(brokers=BOTH)
        await load.ends()
        await other.ends()


async def test_scenario_11_an_acting_master_serves_pops_and_acks_and_ends_no_transactions(
    pair_cluster: RocketMQ,
) -> None:
    master = pair_cluster.brokers["broker-b", 0]
    async with (
        running_gateway(
            options=("--broker", pair_cluster.url, *CREATE_ON_USE), environment=PATIENT
        ) as gateway,
        Load(gateway.endpoint, pair_cluster, "acting", "acting", consumers=0) as load,
    ):
        await until(lambda: len(load.records.sent) > 200)
        halves = [await half_message(load.client, n) for n in range(12)]
        load.records.fault("broker-b", cause=CAUSE)
        await asyncio.to_thread(master.kill)
        await load.outlasts(consumed=False)
        await until(lambda: read_only(load.client, "acting", "broker-b"))
        async with Load(
            gateway.endpoint, pair_cluster, "acting", "acting", producers=0, like=load
        ) as consumers:
            # All of it, what the dead one had as well.
            await load.stops_sending()
            consumers.records.sent |= load.records.sent
            await until(lambda: not consumers.records.missing())
            assert {acks[0].broker for acks in consumers.records.acks.values()} == set(BOTH)
            told = [await end(load.client, half) for half in halves]
            assert {status.code for status in told} > {Code.OK}, told
            refused = [status for status in told if status.code != Code.OK]
            assert all("has no master now" in status.message for status in refused), refused
            await comes_back(pair_cluster, "broker-b", load.records, CAUSE)

            async def ended() -> bool:
                again = [
                    await end(load.client, half)
                    for half, before in zip(halves, told, strict=True)
                    if before.code != Code.OK
                ]
                return all(status.code == Code.OK for status in again)

            await until(ended)
            consumers.records.sent |= {half.body: 0.0 for half in halves}
            await consumers.ends()
        assert load.records.late() == []


class Half:
    def __init__(self, body: str, entry: rpc.SendResultEntry) -> None:
        self.body = body
        self.entry = entry


async def half_message(client: Client, number: int) -> Half:
    body = f"half-{number}-{id(client)}"
    answer = await client.send("acting", body, message_type=pb.MessageType.TRANSACTION, open_s=300)
    assert answer.status.code == Code.OK, answer.status
    return Half(body, answer.entries[0])


async def end(client: Client, half: Half) -> pb.Status:
    answer = await client.call(
        "EndTransaction",
        rpc.EndTransactionRequest(
            topic=pb.Resource(name="acting"),
            message_id=half.entry.message_id,
            transaction_id=half.entry.transaction_id,
            resolution=pb.COMMIT,
            source=pb.SOURCE_CLIENT,
        ),
    )
    status: pb.Status = answer.status
    return status
