"""proxy.metrics.group_status: where groups stand, in slices and bounded."""

from __future__ import annotations

import asyncio

from popgate.errors import BrokerUnavailable
from popgate.model import GroupStatus
from popgate.naming import member_group
from proxy.metrics.exposition import Metrics
from proxy.metrics.group_status import Standings
from proxy.metrics.merged_scrapes import Sum
from tests.support.waiting import until


def standing(group: str, lag: int) -> GroupStatus:
    return GroupStatus(group, "t", lag, lag, 0, 0, 0, 0, 0, False, 0, 0)


class Site:
    """A broker that tells two groups at a time."""

    def __init__(self, *groups: GroupStatus, most: int = 10) -> None:
        self.now = 0.0
        self.groups = list(groups)
        self.asked = 0
        self.standings = Standings(most=most, now=lambda: self.now)
        self.standings.ask = self.ask

    async def ask(self, start: int, _queues: int) -> tuple[list[GroupStatus], int | None]:
        self.asked += 1
        following = start + 2
        return self.groups[start:following], following if following < len(self.groups) else None

    async def round(self) -> None:
        for _ in range((len(self.groups) + 1) // 2):
            self.now += 1.0
            await self.standings.refresh()

    def lags(self) -> dict[str, int]:
        return {one.group: one.lag for one in self.standings}


async def test_all_are_told_after_a_round_of_slices() -> None:
    site = Site(*(standing(f"g{number}", number) for number in range(5)))
    await site.round()
    assert site.lags() == {f"g{number}": number for number in range(5)}


async def test_the_broker_is_asked_once_a_second_at_most() -> None:
    site = Site(standing("g", 1))
    for _ in range(10):
        await site.standings.refresh()
    assert site.asked == 1
    site.now += 1.0
    await site.standings.refresh()
    assert site.asked == 2


async def test_two_scrapes_at_once_do_not_end_a_round_twice() -> None:
    """Two Prometheus servers scrape while a broker takes more than a second for the last slice."""
    site = Site(*(standing(f"g{number}", number) for number in range(4)))
    site.now += 1.0
    await site.standings.refresh()
    answer = asyncio.Event()
    begun: list[int] = []

    async def slowly(start: int, queues: int) -> tuple[list[GroupStatus], int | None]:
        begun.append(start)
        await answer.wait()
        return await site.ask(start, queues)

    site.standings.ask = slowly
    scrapes: list[asyncio.Future[None]] = []
    for _ in range(2):
        site.now += 1.0
        scrapes.append(asyncio.ensure_future(site.standings.refresh()))
        # It asks, or it is over since the other one does.
        await until(lambda: scrapes[-1].done() or len(begun) == len(scrapes))
    answer.set()
    await asyncio.gather(*scrapes)
    assert site.lags() == {f"g{number}": number for number in range(4)}


async def test_a_scrape_that_is_given_up_leaves_the_next_one_to_ask() -> None:
    site = Site(standing("g", 1))
    asked = asyncio.Event()

    async def never(_start: int, _queues: int) -> tuple[list[GroupStatus], int | None]:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    site.standings.ask = never
    scrape = asyncio.ensure_future(site.standings.refresh())
    await until(asked.is_set)
    scrape.cancel()
    await asyncio.wait((scrape,))
    site.standings.ask = site.ask
    site.now += 1.0
    await site.standings.refresh()
    assert site.lags() == {"g": 1}


async def test_a_group_that_is_gone_is_not_told_any_more() -> None:
    site = Site(standing("a", 1), standing("b", 2))
    await site.round()
    del site.groups[0]
    await site.round()
    assert site.lags() == {"b": 2}


async def test_scenario_24_label_values_are_bounded_and_those_with_lag_go_first() -> None:
    site = Site(*(standing(f"g{number}", number % 2) for number in range(20)), most=6)
    await site.round()
    assert len(site.lags()) == 6
    await site.round()
    assert set(site.lags().values()) == {1}
    assert site.standings.others.lag == 4
    assert len(site.lags()) == 6


async def test_who_makes_room_for_a_group_with_lag_is_told_with_the_others() -> None:
    idle = [GroupStatus(f"idle{number}", "t", 0, 0, 0, 0, 0, 0, 3, False, 0, 0) for number in range(2)]
    site = Site(*idle, standing("late", 5), standing("later", 6), most=2)
    await site.round()
    assert site.lags() == {"late": 5, "later": 6}
    assert (site.standings.others.groups, site.standings.others.receivers) == (2, 6)
    await site.round()
    assert (site.standings.others.groups, site.standings.others.receivers) == (2, 6)


async def test_a_broker_that_cannot_tell_leaves_the_figures_as_they_were() -> None:
    site = Site(standing("g", 7))
    await site.round()

    async def fails(_start: int, _queues: int) -> tuple[list[GroupStatus], int | None]:
        raise BrokerUnavailable("it is away")

    site.standings.ask = fails
    await site.round()
    assert site.lags() == {"g": 7}


async def test_the_clients_of_a_broadcast_group_are_told_together() -> None:
    members = [standing(member_group("news", f"client-{number}"), number) for number in range(5)]
    site = Site(standing("a", 1), *members)
    await site.round()
    assert site.lags() == {"a": 1, "news": 10}
    await site.round()
    assert site.lags() == {"a": 1, "news": 10}


async def test_figures_that_a_broker_does_not_tell_are_left_out() -> None:
    metrics = Metrics()

    async def ask(start: int, queues: int) -> tuple[list[GroupStatus], int | None]:
        return [GroupStatus("g", "t", 7, 4, 3, 0, 0, 0, 0, False, 0, 0)], None

    metrics.standings.ask = ask
    metrics.standings.whole = False
    text = (await metrics.scrape()).decode()
    for name, value in (("lag", 7), ("unread", 4), ("free", 3)):
        assert f'popgate_group_{name}{{group="g",topic="t"}} {value}.0' in text
    for name in ("in_flight", "behind", "waiting", "redeliveries_total", "dead_letters_total"):
        assert f"popgate_group_{name}" not in text


async def test_what_was_told_long_ago_is_not_told_beside_another_process() -> None:
    """Of several processes one asks the broker at a time. Merged, the largest value counts: of one that asked
    before, a lag would stay that has long gone."""
    now = 0.0
    lag = 7

    async def ask(_start: int, _queues: int) -> tuple[list[GroupStatus], int | None]:
        return [standing("g", lag), standing("h", lag)], None

    before, after = (Metrics(max_groups=1, now=lambda: now) for _ in range(2))
    before.standings.ask = after.standings.ask = ask
    assert 'popgate_group_lag{group="g",topic="t"} 7.0' in (await before.scrape()).decode()
    lag = 0
    total = Sum()
    total.add((await after.scrape()).decode())
    total.add((await before.scrape(standings=False)).decode())
    lines = [line for line in total.text().splitlines() if line.startswith("popgate_group_lag{")]
    assert [line.rpartition(" ")[2] for line in lines] == ["0.0", "0.0"]
    # Asked again it asks the broker, as it did.
    now = 5.0
    assert 'popgate_group_lag{group="g",topic="t"} 0.0' in (await before.scrape()).decode()
