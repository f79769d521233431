"""brokers.remote.callings: requests to brokers by name."""

from __future__ import annotations

import pytest

from brokers.remote.facet import Facet
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.errors import BrokerUnavailable, Forbidden, TopicNotFound
from popgate.testing.peers import scripted_cluster
from popgate.wire.codes import RequestCode, ResponseCode

ASK = int(RequestCode.GET_MAX_OFFSET)


async def test_a_request_names_the_broker_and_goes_where_it_is() -> None:
    async with scripted_cluster("a", "b", topics=["t"]) as (servers, masters):
        masters["b"].on(ASK, lambda request: request.answer(0, fields={"offset": "5"}))
        clock = SystemClock()
        house = Facet(RemoteSettings(name_servers=(servers.address,)), clock=clock)
        await house.start()
        try:
            answer = await house.callings.done("b", ASK, {"topic": "t"})
            assert answer.fields["offset"] == "5"
            assert masters["b"].of(ASK)[0].fields == {"topic": "t", "bname": "b"}
            await house.callings.call("b", ASK, {}, named="n", link=2)
            assert masters["b"].of(ASK)[1].fields == {"n": "b"}
            assert house.links.is_open(masters["b"].address, 2)
            with pytest.raises(BrokerUnavailable, match="the caller's time is over"):
                await house.callings.call("b", ASK, {}, context=Context(deadline=clock.monotonic() - 1.0))
            left = house.callings.time_left(Context(deadline=clock.monotonic() + 1.0), 30.0)
            assert 0.0 < left <= 1.0
            assert house.callings.time_left(Context()) == house.settings.request_timeout_s
            masters["b"].on(ASK, lambda request: request.answer(ResponseCode.TOPIC_NOT_EXIST, "no"))
            with pytest.raises(TopicNotFound):
                await house.callings.done("b", ASK, {}, topic="t")
            assert (await house.callings.done("b", ASK, {}, also=[17])).code == 17
            masters["b"].on(ASK, lambda request: request.answer(ResponseCode.NO_PERMISSION, "not you"))
            with pytest.raises(Forbidden, match="broker b answered NO_PERMISSION: 'not you'"):
                await house.callings.done("b", ASK, {})
            with pytest.raises(BrokerUnavailable, match="no name server knows a broker 'c'"):
                await house.callings.call("c", ASK, {})
            servers.add_broker("c", masters["a"].address)
            masters["a"].on(ASK, lambda request: request.answer(0))
            assert (await house.callings.call("c", ASK, {})).code == 0
            assert house.figures()["brokers_known"] == 3
        finally:
            await house.stop()


async def test_a_broker_that_cannot_be_reached_is_looked_for_at_once() -> None:
    async with scripted_cluster("a", "b", topics=["t"]) as (servers, masters):
        house = Facet(RemoteSettings(name_servers=(servers.address,)), clock=SystemClock())
        await house.start()
        try:
            await masters["a"].stop()
            before = len(servers.of(RequestCode.GET_BROKER_CLUSTER_INFO))
            servers.add_broker("a", masters["b"].address)
            masters["b"].on(ASK, lambda request: request.answer(0))
            with pytest.raises(BrokerUnavailable):
                await house.callings.call("a", ASK, {})
            await servers.until(lambda: len(servers.of(RequestCode.GET_BROKER_CLUSTER_INFO)) > before)
            await house.routes.clusters.refresh()
            assert (await house.callings.call("a", ASK, {})).code == 0
        finally:
            await house.stop()
