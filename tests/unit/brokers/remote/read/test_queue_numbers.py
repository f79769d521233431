"""Numbers of queues in the settings of scripted name servers, which keep them each for themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from brokers.numbering import BROKERS, MOST_BROKERS
from brokers.remote.read.queue_numbers import NAMESPACE
from brokers.remote.settings import RemoteSettings
from popgate.context import Context
from popgate.errors import BrokerBusy, BrokerUnavailable
from popgate.ids.queue_numbers import Numbered, QueueNumbers
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.bodies.small_bodies import QueueLocks, encode_locked
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from tests.support.open_broker import OpenBroker

A: list[Numbered] = [("broker-a", 0), ("broker-a", 1)]
B: list[Numbered] = [("broker-b", 0), ("broker-b", 1)]


class Keeper(ScriptedNameServer):
    """A name server that keeps settings."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, str] = {}
        self.puts = 0
        self.on(RequestCode.GET_KV_CONFIG, self._get)
        self.on(RequestCode.PUT_KV_CONFIG, self._put)

    def _get(self, request: Command) -> Command:
        assert request.fields["namespace"] == NAMESPACE
        value = self.kept.get(request.fields["key"])
        if value is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, "No config item")
        return request.answer(ResponseCode.SUCCESS, fields={"value": value})

    def _put(self, request: Command) -> Command:
        assert request.fields["namespace"] == NAMESPACE
        self.kept[request.fields["key"]] = request.fields["value"]
        self.puts += 1
        return request.answer(ResponseCode.SUCCESS)

    def numbers(self, topic: str = "T") -> QueueNumbers:
        return QueueNumbers.decode(self.kept[topic])


class Locker(ScriptedPeer):
    """A broker that keeps locks."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[tuple[str, Any], str] = {}
        self.on(RequestCode.LOCK_BATCH_MQ, self._lock)
        self.on(RequestCode.UNLOCK_BATCH_MQ, self._unlock)

    def _lock(self, request: Command) -> Command:
        asked = QueueLocks.decode(request.body)
        mine = [
            one
            for one in asked.queues
            if self.owners.setdefault((asked.group, one), asked.client_id) == asked.client_id
        ]
        return request.answer(ResponseCode.SUCCESS, body=encode_locked(mine))

    def _unlock(self, request: Command) -> Command:
        asked = QueueLocks.decode(request.body)
        for one in asked.queues:
            if self.owners.get((asked.group, one)) == asked.client_id:
                del self.owners[asked.group, one]
        return request.answer(ResponseCode.SUCCESS)


class Site:
    """Two name servers and two brokers, and gateways before them."""

    def __init__(self, clock: MovableClock, stack: AsyncExitStack) -> None:
        self.clock = clock
        self.stack = stack
        self.keepers = [Keeper(), Keeper()]
        self.lockers = {"broker-a": Locker(), "broker-b": Locker()}

    async def gateway(self) -> Any:
        servers = tuple(one.address for one in self.keepers)
        one = OpenBroker(RemoteSettings(name_servers=servers), clock=self.clock, quiet=True)
        self.stack.push_async_callback(one.stop)
        await one.start()
        return one

    async def passing(self, work: Coroutine[Any, Any, QueueNumbers]) -> QueueNumbers:
        """What comes of it, while time passes."""
        task = asyncio.ensure_future(work)
        async with asyncio.timeout(100):
            while not task.done():
                await asyncio.sleep(0.001)
                self.clock.advance(0.05)
        return await task


@pytest.fixture
async def site(clock: MovableClock) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        site = Site(clock, stack)
        for peer in (*site.keepers, *site.lockers.values()):
            await stack.enter_async_context(peer)
        for keeper in site.keepers:
            for name, locker in site.lockers.items():
                keeper.add_broker(name, locker.address)
        yield site


@pytest.fixture
async def gateway(site: Site) -> Any:
    return await site.gateway()


async def test_all_name_servers_keep_what_was_given(site: Site, gateway: Any) -> None:
    given = await gateway.numbered(Context(), "T", B)
    assert given.queues == tuple(B)
    assert [one.numbers() for one in site.keepers] == [given, given]
    grown = await gateway.numbered(Context(), "T", [*A, *B])
    assert grown.queues == (*B, *A)
    assert [one.numbers() for one in site.keepers] == [grown, grown]
    assert not any(one.owners for one in site.lockers.values())  # no lease is left


async def test_another_gateway_finds_them_and_writes_nothing(site: Site, gateway: Any) -> None:
    await gateway.numbered(Context(), "T", B)
    puts = [one.puts for one in site.keepers]
    other = await site.gateway()
    assert (await other.numbered(Context(), "T", [])).queues == tuple(B)
    assert (await other.numbered(Context(), BROKERS, [])).queues == ()
    assert [one.puts for one in site.keepers] == puts


async def test_gateways_that_give_numbers_at_once_give_the_same(site: Site) -> None:
    gateways = [await site.gateway() for _ in range(3)]
    wanted: list[list[Numbered]] = [A, B, [*A, *B]]
    await site.passing(
        _last(
            *(one.numbered(Context(), "T", queues) for one, queues in zip(gateways, wanted, strict=True)),
        )
    )
    told = [await one.numbered(Context(), "T", [*A, *B]) for one in gateways]
    assert len({one.queues for one in told}) == 1
    assert {one.numbers() for one in site.keepers} == {told[0]}


async def _last(*works: Coroutine[Any, Any, QueueNumbers]) -> QueueNumbers:
    return (await asyncio.gather(*works))[-1]


async def test_one_that_lost_its_settings_is_told_them_again(site: Site, gateway: Any) -> None:
    given = await gateway.numbered(Context(), "T", A)
    site.keepers[0].kept.clear()
    other = await site.gateway()
    assert await other.numbered(Context(), "T", []) == given
    assert site.keepers[0].numbers() == given
    for (
        keeper
    ) in site.keepers:  # what a gateway knows is never given to another queue, wherever else it is lost
        keeper.kept.clear()
    assert (await gateway.numbered(Context(), "T", [*A, *B])).queues == (*A, *B)


async def test_one_that_was_away_hears_of_it_later(site: Site, gateway: Any) -> None:
    given = await gateway.numbered(Context(), "T", B)
    await site.keepers[1].stop()
    grown = await site.passing(gateway.numbered(Context(), "T", [*A, *B]))
    assert grown.queues == (*B, *A)
    assert [one.numbers() for one in site.keepers] == [grown, given]
    await site.keepers[1].start()
    other = await site.gateway()
    assert await site.passing(other.numbered(Context(), "T", [])) == grown
    assert site.keepers[1].numbers() == grown


async def test_what_was_given_twice_is_joined_alike_by_all(site: Site) -> None:
    one = QueueNumbers(B).grown(A)
    other = QueueNumbers(B).grown([("broker-c", 0), ("broker-c", 1)])
    site.keepers[0].kept["T"], site.keepers[1].kept["T"] = one.encode(), other.encode()
    told = [await (await site.gateway()).numbered(Context(), "T", []) for _ in range(2)]
    assert told[0] == told[1]
    assert told[0].queues == (*B, *A, ("broker-c", 0), ("broker-c", 1))
    assert {keeper.numbers() for keeper in site.keepers} == {told[0]}


async def test_who_cannot_have_the_lease_gives_no_numbers(site: Site, gateway: Any) -> None:
    await gateway.numbered(Context(), "T", B)
    for locker in site.lockers.values():
        locker.on(RequestCode.LOCK_BATCH_MQ, lambda request: request.answer(0, body=encode_locked([])))
    with pytest.raises(BrokerBusy):
        await site.passing(gateway.numbered(Context(), "T", [*A, *B]))
    # Those that are there are told.
    assert (await gateway.numbered(Context(), "T", B)).queues == tuple(B)
    assert {one.numbers().queues for one in site.keepers} == {tuple(B)}


class TestWhatCannotBeKept:
    """`hinder` says why: the name servers take no settings, or the gateway's account may have no lease."""

    @pytest.fixture(params=["no settings", "no lease"])
    async def hinder(
        self, site: Site, gateway: Any, request: pytest.FixtureRequest
    ) -> Callable[[bool], None]:
        await gateway.routes.brokers()

        def hinder(really: bool) -> None:
            if request.param == "no settings":
                for keeper in site.keepers:
                    keeper.on(RequestCode.PUT_KV_CONFIG, _full if really else keeper._put)
            else:
                for locker in site.lockers.values():
                    locker.on(RequestCode.LOCK_BATCH_MQ, _forbidden if really else locker._lock)

        return hinder

    async def test_counts_only_where_nobody_would_say_otherwise(
        self, site: Site, gateway: Any, hinder: Callable[[bool], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        hinder(True)
        for _ in range(2):
            assert (await gateway.numbered(Context(), "T", A)).queues == tuple(A)
        with pytest.raises(BrokerUnavailable, match=r"0 of 2 name servers|be numbered: broker broker-b"):
            await gateway.numbered(Context(), "T", [*A, *B])
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert gateway.figures()["numbers_unkept"] == 1
        assert all(keeper.kept == {} for keeper in site.keepers)

    async def test_is_not_given_to_another_broker_later(
        self, site: Site, gateway: Any, hinder: Callable[[bool], None]
    ) -> None:
        """Though its name stands before that of the one that was there first."""
        hinder(True)
        assert (await gateway.numbered(Context(), "T", B)).queues == tuple(B)
        hinder(False)
        grown = await gateway.numbered(Context(), "T", [*A, *B])
        assert grown.queues == (*B, *A)
        assert {keeper.numbers() for keeper in site.keepers} == {grown}
        assert gateway.figures()["numbers_unkept"] == 0


def _full(request: Command) -> Command:
    return request.answer(1, "disk full")


def _forbidden(request: Command) -> Command:
    return request.answer(ResponseCode.NO_PERMISSION, "the account has no right to subscribe")


class TestNamesThatAnybodyMayTellANameServer:
    @pytest.mark.parametrize("name", ["", "[[[", "a[[[b", "x" * 256, "\N{GRINNING FACE}" * 200])
    @pytest.mark.parametrize("topic", ["T", BROKERS])
    async def test_get_no_number_where_no_record_can_have_them(
        self, site: Site, gateway: Any, topic: str, name: str
    ) -> None:
        wanted = [(name, 0), ("broker-a", 0)]
        assert (await gateway.numbered(Context(), topic, wanted)).queues == (("broker-a", 0),)
        assert {keeper.numbers(topic).queues for keeper in site.keepers} == {(("broker-a", 0),)}
        puts = [keeper.puts for keeper in site.keepers]
        other = await site.gateway()
        assert (await other.numbered(Context(), topic, wanted)).queues == (("broker-a", 0),)
        assert [keeper.puts for keeper in site.keepers] == puts

    async def test_are_no_more_brokers_than_places_can_name(self, site: Site, gateway: Any) -> None:
        await gateway.numbered(Context(), BROKERS, [("broker-b", 0)])
        many = [(f"broker-b{number:03}", 0) for number in range(MOST_BROKERS)]
        numbers = await gateway.numbered(Context(), BROKERS, many)
        assert numbers.queues == (("broker-b", 0), *many[:-1])
        puts = [keeper.puts for keeper in site.keepers]
        assert await gateway.numbered(Context(), BROKERS, [("broker-a", 0)]) == numbers
        assert [keeper.puts for keeper in site.keepers] == puts

    async def test_make_no_record_that_nobody_can_read(self, site: Site, gateway: Any) -> None:
        many = [(f"{number:04}" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 158, 0) for number in range(1_100)]
        given = await gateway.numbered(Context(), "T", A)
        with pytest.raises(BrokerUnavailable, match="get no numbers"):
            await gateway.numbered(Context(), "T", [*A, *many])
        assert {keeper.numbers() for keeper in site.keepers} == {given}
        assert await gateway.numbered(Context(), "T", A) == given


@pytest.mark.parametrize(
    "value",
    [
        *("", "[", "{}", '[["a",-1,2]]', '[["a",0,1],["a",0,1]]', "[[[[[[", "null"),
        pytest.param("[ " * 100_000, id="deep"),
        pytest.param('{"a":' * 100_000, id="deep objects"),
    ],
)
async def test_something_else_in_their_place_is_said_and_left_alone(
    site: Site, gateway: Any, value: str
) -> None:
    site.keepers[1].kept["T"] = value
    with pytest.raises(BrokerUnavailable, match="something else"):
        await gateway.numbered(Context(), "T", A)
    assert site.keepers[1].kept["T"] == value


async def test_no_name_server_means_that_it_is_not_known(site: Site, gateway: Any) -> None:
    for keeper in site.keepers:
        await keeper.stop()
    with pytest.raises(BrokerUnavailable, match="no name server"):
        await site.passing(gateway.numbered(Context(), "T", A))
