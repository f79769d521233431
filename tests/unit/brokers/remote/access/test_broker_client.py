"""brokers.remote.access.broker_client: requests to brokers by name."""

from __future__ import annotations

import asyncio

import pytest

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.errors import BrokerUnavailable, Forbidden, TopicNotFound
from popgate.testing.peers import scripted_cluster
from popgate.wire.bodies.routes import BrokerData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command

ASK = int(RequestCode.GET_MAX_OFFSET)


async def test_a_request_names_the_broker_and_goes_where_it_is() -> None:
    async with scripted_cluster("a", "b", topics=["t"]) as (servers, masters):
        masters["b"].on(ASK, lambda request: request.answer(0, fields={"offset": "5"}))
        clock = SystemClock()
        house = ClusterAccess(RemoteSettings(name_servers=(servers.address,)), clock)
        await house.start()
        try:
            answer = await house.client.done("b", ASK, {"topic": "t"})
            assert answer.fields["offset"] == "5"
            assert masters["b"].of(ASK)[0].fields == {"topic": "t", "bname": "b"}
            await house.client.call("b", ASK, {}, named="n", link=2)
            assert masters["b"].of(ASK)[1].fields == {"n": "b"}
            assert house.connections.is_open(masters["b"].address, 2)
            with pytest.raises(BrokerUnavailable, match="the caller's time is over"):
                await house.client.call("b", ASK, {}, context=Context(deadline=clock.monotonic() - 1.0))
            left = house.client.time_left(Context(deadline=clock.monotonic() + 1.0), 30.0)
            assert 0.0 < left <= 1.0
            assert house.client.time_left(Context()) == house.settings.request_timeout_s
            masters["b"].on(ASK, lambda request: request.answer(ResponseCode.TOPIC_NOT_EXIST, "no"))
            with pytest.raises(TopicNotFound):
                await house.client.done("b", ASK, {}, topic="t")
            assert (await house.client.done("b", ASK, {}, also=[17])).code == 17
            masters["b"].on(ASK, lambda request: request.answer(ResponseCode.NO_PERMISSION, "not you"))
            with pytest.raises(Forbidden, match="broker b answered NO_PERMISSION: 'not you'"):
                await house.client.done("b", ASK, {})
            with pytest.raises(BrokerUnavailable, match="no name server knows a broker 'c'"):
                await house.client.call("c", ASK, {})
            servers.add_broker("c", masters["a"].address)
            masters["a"].on(ASK, lambda request: request.answer(0))
            assert (await house.client.call("c", ASK, {})).code == 0
            assert house.figures()["brokers_known"] == 3
        finally:
            await house.stop()


async def test_a_broker_that_cannot_be_reached_is_looked_for_at_once() -> None:
    async with scripted_cluster("a", "b", topics=["t"]) as (servers, masters):
        house = ClusterAccess(RemoteSettings(name_servers=(servers.address,)), SystemClock())
        await house.start()
        try:
            await masters["a"].stop()
            before = len(servers.of(RequestCode.GET_BROKER_CLUSTER_INFO))
            servers.add_broker("a", masters["b"].address)
            masters["b"].on(ASK, lambda request: request.answer(0))
            with pytest.raises(BrokerUnavailable):
                await house.client.call("a", ASK, {})
            await servers.until(lambda: len(servers.of(RequestCode.GET_BROKER_CLUSTER_INFO)) > before)
            await house.routes.clusters.refresh()
            assert (await house.client.call("a", ASK, {})).code == 0
        finally:
            await house.stop()


async def test_a_master_that_says_that_it_is_none_is_left_as_soon_as_another_is_told() -> None:
    async with scripted_cluster("a", "b", topics=["t"]) as (servers, masters):
        house = ClusterAccess(RemoteSettings(name_servers=(servers.address,)), SystemClock())
        await house.start()
        try:
            master, slave = masters["a"], masters["b"].address
            servers.add_broker("a", master.address, slave)
            await house.routes.clusters.refresh()
            master.on(ASK, lambda request: request.answer(0))
            await house.client.call("a", ASK, {})
            # The name servers tell the slave only.
            servers.brokers["a"] = BrokerData("c", "a", {1: slave})
            await house.routes.clusters.refresh()
            assert (await house.client.call("a", ASK, {})).code == 0
            master.on(ASK, lambda request: request.answer(ResponseCode.NOT_LEADER_FOR_QUEUE, "no more"))
            await house.client.call("a", ASK, {})
            await house.routes.clusters.refresh()
            with pytest.raises(BrokerUnavailable, match="has no master now"):
                await house.client.call("a", ASK, {})
        finally:
            await house.stop()


async def test_who_does_not_wait_is_told_the_same() -> None:
    async with scripted_cluster("a", "b", topics=["t"]) as (servers, masters):
        house = ClusterAccess(RemoteSettings(name_servers=(servers.address,)), SystemClock())
        await house.start()
        told: asyncio.Queue[Command | Exception] = asyncio.Queue()

        async def asked(broker: str) -> Command | Exception:
            house.client.ask(broker, ASK, {"topic": "t"}, told.put_nowait, timeout_s=20.0)
            return await told.get()

        try:
            masters["b"].on(ASK, lambda request: request.answer(0, fields={"offset": "5"}))
            answer = await asked("b")
            assert isinstance(answer, Command)
            assert answer.fields["offset"] == "5"
            assert masters["b"].of(ASK)[0].fields == {"topic": "t", "bname": "b"}
            unknown = await asked("c")
            assert isinstance(unknown, BrokerUnavailable)
            servers.add_broker("c", masters["a"].address)
            masters["a"].on(ASK, lambda request: request.answer(0, "found"))
            found = await asked("c")
            assert isinstance(found, Command)
            assert found.remark == "found"
            # It asks its clients to go away: another connection serves.
            answers = iter([ResponseCode.GO_AWAY, ResponseCode.GO_AWAY, 0])
            masters["b"].on(ASK, lambda request: request.answer(int(next(answers)), "again"))
            again = await asked("b")
            assert isinstance(again, Command)
            assert (again.code, again.remark) == (0, "again")
            await masters["a"].stop()
            assert isinstance(await asked("a"), BrokerUnavailable)
            assert isinstance(await asked("a"), BrokerUnavailable)
            assert told.empty()
        finally:
            await house.stop()


async def test_a_master_that_says_that_it_is_none_to_who_does_not_wait_is_looked_for() -> None:
    async with scripted_cluster("a", topics=["t"]) as (servers, masters):
        house = ClusterAccess(RemoteSettings(name_servers=(servers.address,)), SystemClock())
        await house.start()
        told: asyncio.Queue[Command | Exception] = asyncio.Queue()
        masters["a"].on(ASK, lambda request: request.answer(ResponseCode.NOT_LEADER_FOR_QUEUE, "no more"))
        try:
            before = len(servers.of(RequestCode.GET_BROKER_CLUSTER_INFO))
            house.client.ask("a", ASK, {}, told.put_nowait, timeout_s=20.0)
            answer = await told.get()
            assert isinstance(answer, Command)
            assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
            await servers.until(lambda: len(servers.of(RequestCode.GET_BROKER_CLUSTER_INFO)) > before)
        finally:
            await house.stop()
