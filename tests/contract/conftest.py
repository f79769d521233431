"""Where a broker under test lives, how its time passes, and a user who works at its port.

A test asks for `user`. It holds the broker, makes topics and groups of its own, sends, pops and
waits. Nothing here or in the tests knows a queue id, an offset or a timing that was not asked of
the broker, and what may differ is read from `broker.traits`.

Another implementation joins by adding a `Site`: `_SITES` names them, `TEST_CONTRACT_SITE`
chooses one for the whole run. A real RocketMQ, `remote`, is started and used by `live.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import re
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from brokers.client_registration import ConnectedClient, RegistersClients
from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from brokers.port import Broker
from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings
from brokers.shared.broker import SharedBroker
from brokers.shared.host.host import BrokerHost
from brokers.shared.settings import SharedSettings
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.errors import GatewayError, TopicNotFound
from popgate.filters.compiled import compile_filter
from popgate.model import (
    EndTransaction,
    FilterKind,
    GroupConfig,
    Message,
    MessageType,
    Pop,
    Queue,
    Resolution,
    Sent,
    StoredMessage,
    TopicConfig,
    TransactionCheck,
)
from popgate.testing import MovableClock
from popgate.testing.rocketmq.downloads import chosen_version
from popgate.wire.messages.properties import decode_properties, encode_properties
from tests.replicas.books import RocketMQBooks
from tests.support.versions import is_before, lacks
from tests.support.waiting import until

T = TypeVar("T")


def _sibling(name: str) -> Any:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"contract_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Site(ABC):
    """One implementation under test, and what a test may do to it."""

    broker: Broker
    movable: bool
    """Whether time is moved by hand, so that hours cost nothing."""
    rocketmq: str = ""
    """The version of the RocketMQ behind it, where there is one,"""
    books: RocketMQBooks | None = None
    """and what that one noted of acknowledgements."""
    slowness: int = 1
    """By how much times are longer than a test says: those of messages, and those that are let pass."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    def now_ms(self) -> int: ...

    @abstractmethod
    def monotonic(self) -> float: ...

    @abstractmethod
    async def pass_ms(self, ms: float) -> None:
        """Let time pass, and let the broker do what became due."""

    async def stay_stopped(self, seconds: float) -> None:
        """Let time pass between `stop` and `start`; where it cannot be moved, at most a little."""
        await asyncio.sleep(min(seconds, 20.0))

    @abstractmethod
    async def turn(self) -> None:
        """Let the broker work for a moment; called while a test looks for a fact again and again."""


class EmbeddedSite(Site):
    def __init__(self, path: Path, durability: Durability, *, movable: bool, **settings: Any) -> None:
        self._path = path
        self._durability = durability
        self._settings = EmbeddedSettings(durability=durability, **settings)
        self.movable = movable
        self.clock = MovableClock(now_ms=time.time_ns() // 1_000_000) if movable else WrongClock()

    async def start(self) -> None:
        self.broker = EmbeddedBroker(self._path, clock=self.clock, settings=self._settings)
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    async def pass_ms(self, ms: float) -> None:
        if isinstance(self.clock, MovableClock):
            await self.clock.run(ms / 1000, self.turn)
        else:
            end = self.clock.now_ms() + ms
            while self.clock.now_ms() < end:
                await asyncio.sleep(0.001)
        for _ in range(4):
            await self.turn()

    async def stay_stopped(self, seconds: float) -> None:
        if isinstance(self.clock, MovableClock):
            self.clock.advance(seconds)
        else:
            await super().stay_stopped(seconds)

    async def turn(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)
        if isinstance(self.clock, MovableClock):
            self.clock.advance(0)
        if self._durability is Durability.SYNC or not self.movable:
            await asyncio.sleep(0.0005)  # its thread needs the core


class SharedSite(EmbeddedSite):
    """The embedded broker as a guest of another process sees it: through a socket, by `brokers.shared`."""

    async def start(self) -> None:
        await super().start()
        self._hosted = self.broker
        # How the other side is would be asked every few seconds of the days that tests let pass.
        settings = SharedSettings(state_s=1e9, heartbeat_s=1e9)
        self._host = BrokerHost(self._hosted, "tcp://127.0.0.1:0", clock=self.clock, settings=settings)
        await self._host.start()
        url = self._host.address.replace("tcp:", "popgate:")
        self.broker = self._guest = SharedBroker(url, clock=self.clock, settings=settings)
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self._host.stop()
        await self._hosted.stop()

    async def pass_ms(self, ms: float) -> None:
        await super().pass_ms(ms)
        await self._guest.look()

    async def turn(self) -> None:
        for _ in range(3):  # there and back
            await super().turn()


class WrongClock(SystemClock):
    """The system's clock, whose wall time may be set."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def set_wall(self, now_ms: int) -> None:
        self.ahead_ms += now_ms - self.now_ms()


class RemoteSite(Site):
    """A gateway's replica before a real RocketMQ; stopping it leaves the cluster as it is."""

    movable = False

    def __init__(self, name_servers: Sequence[str]) -> None:
        self.clock = WrongClock()
        self.rocketmq = chosen_version()
        self.books = RocketMQBooks(name_servers[0])
        self._settings = RemoteSettings(
            name_servers=tuple(name_servers),
            transaction_keys=(b"contract" * 4,),
            connect_timeout_s=30.0,  # many tests begin at the same time, and machines that test are busy
            request_timeout_s=30.0,
            probe_s=30.0,  # a broker that stands still for some seconds is there all the same
        )

    async def start(self) -> None:
        self.broker = RemoteBroker(self._settings, clock=self.clock)
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    async def pass_ms(self, ms: float) -> None:
        await asyncio.sleep(ms * self.slowness / 1000)

    async def turn(self) -> None:
        await asyncio.sleep(0.05)


_SITES: dict[str, Callable[[Path], Site]] = {
    "embedded": lambda path: EmbeddedSite(path, Durability.INTERVAL, movable=True),
    "embedded-sync": lambda path: EmbeddedSite(path, Durability.SYNC, movable=True),
    "embedded-none": lambda path: EmbeddedSite(path, Durability.NONE, movable=True),
    "embedded-repeats-unknown": lambda path: EmbeddedSite(
        path, Durability.INTERVAL, movable=True, dedup_window_ms=0
    ),
    "embedded-real-time": lambda path: EmbeddedSite(path, Durability.INTERVAL, movable=False),
    "shared": lambda path: SharedSite(path, Durability.INTERVAL, movable=True),
    "shared-real-time": lambda path: SharedSite(path, Durability.INTERVAL, movable=False),
}
_CHOSEN = os.environ.get("TEST_CONTRACT_SITE")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_durability: runs with each durability of the embedded broker")
    config.addinivalue_line("markers", "also_in_real_time: runs with the system's clock, too")
    config.addinivalue_line("markers", "also_without_repeats: runs with a broker that knows no repeats, too")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "site" not in metafunc.fixturenames:
        return
    names = ["embedded", "shared", "remote"]
    if metafunc.definition.get_closest_marker("every_durability"):
        names += ["embedded-sync", "embedded-none"]
    if metafunc.definition.get_closest_marker("also_in_real_time"):
        names += ["embedded-real-time", "shared-real-time"]
    if metafunc.definition.get_closest_marker("also_without_repeats"):
        names += ["embedded-repeats-unknown"]
    metafunc.parametrize("site", [_CHOSEN] if _CHOSEN else names, indirect=True)


_live = _sibling("live")
_STAGE = pytest.StashKey[Any]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Tests against a real RocketMQ run side by side."""
    stage = session.stash[_STAGE] = _live.Stage(_live_fixtures)
    for number, item in enumerate(items):
        if isinstance(item, pytest.Function) and _site_of(item) == "remote":
            items[number] = _live.in_place_of(item, stage)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _STAGE in session.stash:
        session.stash[_STAGE].close()


class Differs(pytest.skip.Exception):
    """The test does not hold for this broker, which is allowed: other tests hold instead."""

    def __init__(self, why: str, *instead: str) -> None:
        super().__init__(f"{why}: {', '.join(instead)} instead")
        self.why = why
        self.instead = instead


def _differs(why: str, *instead: str) -> NoReturn:
    """End a test that this broker need not pass, because of a trait; name the tests that it must pass."""
    raise Differs(why, *instead)


@pytest.fixture(name="differs")
def _differs_fixture() -> Callable[..., NoReturn]:
    return _differs


_NAMES = {
    name
    for path in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}
_traits_of: dict[str, dict[str, str]] = {}
"""What the brokers of this process declare, by site."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Tell the controller of the run what differs; a test that is skipped for no good reason has failed."""
    report: pytest.TestReport = yield
    site = _site_of(item)
    if not site:
        return report
    report.user_properties.append(("site", site))
    report.user_properties.append(("traits", dict(_traits_of)))
    skipped = call.excinfo.value if call.excinfo is not None else None
    if isinstance(skipped, Differs):
        report.user_properties.append(("difference", (skipped.why, list(skipped.instead))))
        unknown = set(skipped.instead) - _NAMES
        if unknown or not skipped.instead:
            report.outcome = "failed"
            report.longrepr = f"{skipped}: there is no such test"
    elif isinstance(skipped, pytest.skip.Exception) and not str(skipped).startswith(_live.NO_ROCKETMQ):
        report.outcome = "failed"
        report.longrepr = f"skipped without naming the test that holds instead: {skipped}"
    return report


def _note_traits(site: str, broker: Broker) -> None:
    _traits_of[site] = {
        field.name: getattr(value, "value", str(value))
        for field in dataclasses.fields(broker.traits)
        for value in [getattr(broker.traits, field.name)]
    }


def _site_of(item: pytest.Item) -> str:
    function = item.stands_for if isinstance(item, _live.LiveItem) else item
    return getattr(getattr(function, "callspec", None), "params", {}).get("site", "")


def _live_fixtures(cluster: Any) -> dict[str, Callable[..., Any]]:
    async def site(slowness: int) -> AsyncIterator[Site]:
        made = RemoteSite([cluster.name_server])
        made.slowness = slowness
        await made.start()
        _note_traits("remote", made.broker)
        yield made
        await made.stop()

    return {"site": site}


class User:
    """Works at the port as a gateway does. Raises what the broker raises."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.context = Context(client_id="contract", peer="127.0.0.1:40404")
        self.checks: list[TransactionCheck] = []
        self.asked_ms: list[int] = []
        """When each of the checks came."""
        self.producer_group = f"producers-{uuid.uuid4().hex[:12]}"
        self._topics: set[str] = set()
        self._ordered: set[str] = set()
        self._popped: dict[str, set[str]] = {}
        """The topics that each group popped."""
        self._taken: dict[tuple[str, str], StoredMessage] = {}
        """What was popped, by group and receipt,"""
        self._latest: dict[tuple[str, str, str], str] = {}
        """the receipt that came last, by topic, group and message id,"""
        self._finished: dict[tuple[str, str, str], StoredMessage] = {}
        """and what was acknowledged in time by that receipt."""
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def broker(self) -> Broker:
        return self.site.broker

    # -- time ---------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.site.now_ms()

    def until(self, ms: float) -> float:
        """The loop time `ms` from now, for `wait_until`."""
        return self.site.monotonic() + ms / 1000

    async def pass_ms(self, ms: float) -> None:
        await self.site.pass_ms(ms)

    def slow(self, ms: int) -> int:
        """How long a time is that the test gives as `ms`."""
        return ms * self.site.slowness

    @contextlib.contextmanager
    def in_time(self, until_ms: float) -> Iterator[None]:
        """What is done within must be done before then; else nothing can be said of it: raises StoodStill."""
        try:
            yield
        except Exception as error:
            if self._is_over(until_ms):
                raise _live.StoodStill(f"after {until_ms}") from error
            raise
        if self._is_over(until_ms):
            raise _live.StoodStill(f"after {until_ms}")

    def while_held(self, *messages: StoredMessage) -> contextlib.AbstractContextManager[None]:
        """What is done within must be done while all of them are hidden."""
        return self.in_time(min(message.invisible_until_ms for message in messages))

    def _is_over(self, until_ms: float) -> bool:
        return not self.site.movable and self.now_ms() >= until_ms

    async def lag(self, ms: float = 0) -> None:
        """Let `ms` and the time pass by which this broker may be late with a redelivery."""
        await self.site.pass_ms(ms + self.broker.traits.redelivery_lag_ms)

    async def positions_are_kept(self) -> None:
        """Let the time pass by which a broker may write down late how far a group popped."""
        await self.site.pass_ms(self.broker.traits.reading_lag_ms)

    async def is_written_down(self, topic: str, group: str, count: int) -> None:
        """Wait until it is written down that a group popped so many messages, where that takes a moment."""
        if not self.broker.traits.reading_lag_ms:
            return

        async def written() -> bool:
            popped = 0
            for queue in await self.queues(topic):
                place = (topic, queue.broker, queue.queue_id)
                position = await self.broker.committed(self.context, group, *place)
                if position is not None:
                    popped += position - (await self.broker.bounds(self.context, *place)).minimum
            return popped == count

        await self.eventually(written)

    async def precision(self, ms: float = 0) -> None:
        """Let `ms` and the time pass by which this broker may be late with a delayed message."""
        await self.site.pass_ms(ms + self.broker.traits.timer_precision_ms)

    async def eventually(self, fact: Callable[[], Any], seen: Callable[[], object] | None = None) -> Any:
        """The first true value of `fact`, a function or coroutine function, asked again and again.

        `seen` tells who reads of a failure how far it came.
        """
        return await until(fact, seen=seen, turn=self.site.turn, pause_s=0.0)

    async def restart(self) -> None:
        await self.site.stop()
        await self.site.start()

    def either(self, by_hand: T, real: T) -> T:
        """A time, or whatever depends on it: `by_hand` where time costs nothing, else `real`."""
        return by_hand if self.site.movable else real

    def moved_by_hand(self, *instead: str) -> None:
        """End the test where hours would have to be waited for; others are there with shorter times."""
        if not self.site.movable:
            _differs("hours would have to be waited for", *instead)

    def before(self, version: str) -> bool:
        """Whether this is a RocketMQ older than that."""
        mine = self.site.rocketmq
        return bool(mine) and is_before(mine, version)

    def lacks(self, what: str) -> bool:
        """Whether this is a RocketMQ older than something of `tests.support.versions.SINCE`."""
        mine = self.site.rocketmq
        return bool(mine) and lacks(mine, what)

    def differs(self, why: str, *instead: str) -> NoReturn:
        """End a test that this broker need not pass, because of a trait; name the tests that it must pass."""
        _differs(why, *instead)

    # -- topics and groups ----------------------------------------------------------------------

    async def topic(self, *types: MessageType, queues: int = 4, **settings: Any) -> str:
        name = f"contract-{uuid.uuid4().hex[:12]}"
        self._topics.add(name)
        await self.broker.create_topic(
            TopicConfig(name, message_types=types, read_queues=queues, write_queues=queues, **settings)
        )
        return name

    async def group(self, *, ordered: bool = False, **settings: Any) -> str:
        name = f"group-{uuid.uuid4().hex[:12]}"
        await self.broker.create_group(GroupConfig(name, ordered=ordered, **settings))
        if ordered:
            self._ordered.add(name)
        return name

    def is_ordered(self, group: str, ordered: bool) -> None:
        """Note a change of the group's setting, for the pops to come."""
        (self._ordered.add if ordered else self._ordered.discard)(group)

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        return (await self.broker.route(topic)).queues

    # -- sending --------------------------------------------------------------------------------

    def message(
        self,
        topic: str,
        body: str | bytes = b"body",
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        message_group: str = "",
        delay_ms: int = 0,
        transaction: bool = False,
        recovery_ms: int = 0,
        properties: dict[str, str] | None = None,
        message_id: str = "",
        queue: Queue | None = None,
        producer_group: str = "",
        lite_topic: str = "",
        priority: int | None = None,
    ) -> Message:
        """A message as the processors make it: the fields that decide something, and the block."""
        message_id = message_id or uuid.uuid4().hex.upper()
        producer_group = producer_group or self.producer_group
        block = dict(properties or {})
        block["UNIQ_KEY"] = message_id
        kind, deliver_at = MessageType.NORMAL, 0
        if tag:
            block["TAGS"] = tag
        if keys:
            block["KEYS"] = " ".join(keys)
        if message_group:
            block["__SHARDINGKEY"] = message_group
            kind = MessageType.FIFO
        if delay_ms:
            kind, deliver_at = MessageType.DELAY, self.now_ms() + self.slow(delay_ms)
            block["TIMER_DELIVER_MS"] = str(deliver_at)
        if priority is not None:
            kind = MessageType.PRIORITY
            block["_SYS_MSG_PRIORITY_"] = str(priority)
        if lite_topic:
            kind = MessageType.LITE
            block["__LITE_TOPIC"] = lite_topic
        if transaction:
            kind = MessageType.TRANSACTION
            block["TRAN_MSG"] = "true"
            block["PGROUP"] = producer_group
        return Message(
            topic,
            body.encode() if isinstance(body, str) else body,
            message_id=message_id,
            type=kind,
            tag=tag,
            keys=tuple(keys),
            message_group=message_group,
            deliver_at_ms=deliver_at,
            recovery_ms=recovery_ms,
            user_properties=dict(properties or {}),
            born_ms=self.now_ms(),
            born_host="10.0.0.7:5000",
            sys_flag=0x4 if transaction else 0,
            producer_group=producer_group,
            properties=encode_properties(block),
            broker=queue.broker if queue else "",
            queue_id=queue.queue_id if queue else -1,
            lite_topic=lite_topic,
            priority=priority,
        )

    async def put(self, *messages: Message) -> list[Sent]:
        """Store ready-made messages; all of them must succeed, or the first failure is raised."""
        results = await self.broker.send(self.context, messages)
        assert len(results) == len(messages)
        for result in results:
            if isinstance(result, GatewayError):
                raise result
        sent = [result for result in results if isinstance(result, Sent)]
        if self.broker.traits.reading_lag_ms:
            await self._readable(messages, sent)
        return sent

    async def _readable(self, messages: Sequence[Message], sent: Sequence[Sent]) -> None:
        """Wait until readers see what was stored, where that takes a moment."""
        last: dict[tuple[str, str, int], int] = {}
        for message, one in zip(messages, sent, strict=True):
            if not one.recall_handle and not one.transaction_id:  # those have no place yet
                place = (message.topic, one.broker, one.queue_id)
                last[place] = max(one.offset, last.get(place, 0))
        for place, offset in last.items():

            async def seen(place: tuple[str, str, int] = place, offset: int = offset) -> bool:
                return (await self.broker.bounds(self.context, *place)).maximum > offset

            await self.eventually(seen)

    async def send(self, topic: str, *bodies: str, **how: Any) -> list[Sent]:
        return await self.put(*(self.message(topic, body, **how) for body in bodies))

    async def send_in_order(self, topic: str, *texts: str) -> None:
        """Send "A1 B1 A2 …": the letters are message groups; all go to the topic's first queue."""
        queue = (await self.queues(topic))[0]
        await self.put(*(self.message(topic, t, message_group=t[0], queue=queue) for t in texts))

    # -- taking ---------------------------------------------------------------------------------

    def request(
        self,
        topic: str,
        group: str,
        at_most: int = 32,
        *,
        invisible_ms: int = 30_000,
        tags: str = "*",
        sql: str = "",
        wait_ms: float | None = None,
        queue: Queue | None = None,
        **rest: Any,
    ) -> Pop:
        self._popped.setdefault(group, set()).add(topic)
        kind, expression = (FilterKind.SQL92, sql) if sql else (FilterKind.TAG, tags)
        return Pop(
            topic,
            group,
            compile_filter(kind, expression),
            self.slow(invisible_ms),
            max_messages=at_most,
            ordered=group in self._ordered,
            wait_until=None if wait_ms is None else self.until(wait_ms),
            broker=queue.broker if queue else "",
            queue_id=queue.queue_id if queue else -1,
            **rest,
        )

    async def pop(self, topic: str, group: str, at_most: int = 32, **how: Any) -> list[StoredMessage]:
        """One pop, without waiting unless `wait_ms` is given."""
        found = await self.broker.pop(self.context, self.request(topic, group, at_most, **how))
        if self.site.books is None:
            return found
        found = [message for message in found if not await self._is_revived(topic, group, message)]
        for message in found:
            place = topic, group, id_of(message)
            self._taken[group, message.receipt] = message
            self._latest[place] = message.receipt
            self._finished.pop(place, None)
        return found

    async def _is_revived(self, topic: str, group: str, message: StoredMessage) -> bool:
        """Whether a RocketMQ gives out again what it knows to be finished; then it is finished once more.

        One that stood still revives what it gave out before it reads the acknowledgement, which came in time
        and is in its books (docs/real-cluster.md). What is not there was not acknowledged, and comes rightly.
        """
        before = self._finished.get((topic, group, id_of(message)))
        if self.site.books is None or before is None or message.attempt != before.attempt + 1:
            return False
        if not await self.site.books.will_have(topic, group, before.receipt):
            return False
        await self.broker.ack(self.context, topic, group, [message.receipt])
        return True

    def _note_finished(
        self, topic: str, group: str, handles: Sequence[str], answers: Sequence[GatewayError | None]
    ) -> None:
        for handle, answer in zip(handles, answers, strict=True):
            message = self._taken.get((group, handle))
            if message is None or answer is not None or self.now_ms() >= message.invisible_until_ms:
                continue
            place = topic, group, id_of(message)
            # A message may be under way anew, since a position was set: an old handle finishes the old one.
            if self._latest.get(place) == handle:
                self._finished[place] = message

    async def collect(self, topic: str, group: str, count: int, **how: Any) -> list[StoredMessage]:
        """Pop again and again until there are `count` messages; never more."""
        taken: list[StoredMessage] = []

        async def enough() -> bool:
            if len(taken) < count:
                taken.extend(await self.pop(topic, group, count - len(taken), **how))
            return len(taken) == count

        await self.eventually(enough, lambda: [(m.body[:40], m.attempt, m.receipt) for m in taken])
        return taken

    async def one(self, topic: str, group: str, **how: Any) -> StoredMessage:
        return (await self.collect(topic, group, 1, **how))[0]

    async def nothing(self, topic: str, group: str, **how: Any) -> None:
        """Nothing can be popped now."""
        assert texts(await self.pop(topic, group, **how)) == []

    async def when_due(
        self, topic: str, group: str, due_ms: float, *, late_ms: int | None = None, **how: Any
    ) -> StoredMessage:
        """The only message that the group can get: not there before that time, and then it is.

        Where time cannot be moved a look that finds it says nothing of when it was there first: whoever looks
        may have stood still. But there what comes again, or late, is stored for it, and the broker wrote down
        when it did so.
        """
        if late_ms is None:
            late_ms = self.broker.traits.redelivery_lag_ms
        early_ms = self.either(10, 2_500)
        await self.pass_ms(max(due_ms - early_ms - self.now_ms(), 0))
        if self.site.movable:
            await self.nothing(topic, group, **how)
            await self.pass_ms(early_ms + late_ms)
        message = await self.one(topic, group, **how)
        if not self.site.movable:
            assert message.store_ms >= due_ms
        return message

    def waiting(self, topic: str, group: str, at_most: int = 32, **how: Any) -> asyncio.Task[Any]:
        """A pop that waits, as a task; cancelled at the end of the test if it still does."""
        return self.task(self.pop(topic, group, at_most, **{"wait_ms": self.either(20_000, 120_000), **how}))

    def task(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    async def done(self, task: asyncio.Task[Any]) -> Any:
        """The task's result, which must come by itself: time does not move."""
        await self.eventually(task.done)
        return task.result()

    async def settle(self) -> None:
        """Let everything happen that needs no time."""
        await self.site.pass_ms(0)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def looked_up(self, look: Callable[[], Any], count: int = 1) -> list[StoredMessage]:
        """What a look-up finds, as soon as it finds so many: readers may see late what is stored."""

        async def found() -> list[StoredMessage] | None:
            messages: list[StoredMessage] = await look()
            return messages if len(messages) >= count else None

        return list(await self.eventually(found))

    # -- finishing ------------------------------------------------------------------------------

    async def ack(self, topic: str, group: str, *messages: StoredMessage) -> None:
        answers = await self.ack_handles(topic, group, *(m.receipt for m in messages))
        if answers != [None] * len(messages) and self._is_over(min(m.invisible_until_ms for m in messages)):
            raise _live.StoodStill(f"{answers}")
        assert answers == [None] * len(messages)

    async def ack_handles(self, topic: str, group: str, *handles: str) -> list[GatewayError | None]:
        answers = await self.broker.ack(self.context, topic, group, list(handles))
        self._note_finished(topic, group, handles, answers)
        return answers

    async def hide(self, topic: str, group: str, handle: str, ms: int) -> str:
        return await self.broker.change_invisible(self.context, topic, group, handle, self.slow(ms))

    async def give_back(self, topic: str, group: str, *messages: StoredMessage) -> int:
        return await self.broker.give_back(self.context, topic, group, [m.receipt for m in messages])

    async def dead_letter(self, topic: str, group: str, handle: str) -> None:
        await self.broker.dead_letter(self.context, topic, group, handle)

    async def dead_letters(self, group: str, count: int) -> list[StoredMessage]:
        """Read all dead letters of a group by a group of their own; there must be `count`."""
        reader = await self.group()
        if count and not self.broker.traits.buries_unasked:
            await self.eventually(lambda: self._has_buried(group, count))
        letters = await self.collect(f"%DLQ%{group}", reader, count) if count else []
        await self.settle()
        names = [t.name for t in await self.broker.topics()]
        if f"%DLQ%{group}" in names:
            await self.nothing(f"%DLQ%{group}", reader)
        else:
            assert count == 0
        return letters

    async def _has_buried(self, group: str, count: int) -> bool:
        """Whether there are so many dead letters; if not, the group looks once more for what it buries."""
        if await self.buried(group) >= count:
            return True
        for topic in self._popped.get(group, ()):
            await self.nothing(topic, group)
        return False

    async def buried(self, group: str) -> int:
        """How many dead letters of a group there are now."""
        return await self.readable(f"%DLQ%{group}")

    async def readable(self, topic: str) -> int:
        """How many messages of a topic readers see now; 0 of one that is not there."""
        try:
            bounds = [
                await self.broker.bounds(self.context, topic, queue.broker, queue.queue_id)
                for queue in await self.queues(topic)
            ]
        except TopicNotFound:
            return 0
        return sum(each.maximum - each.minimum for each in bounds)

    # -- transactions ---------------------------------------------------------------------------

    def answers_checks(self, asked: bool = True) -> None:
        """Stand in for the producers: note every check; `asked` False when nobody is there."""

        def note(check: TransactionCheck) -> bool:
            self.checks.append(check)
            self.asked_ms.append(self.now_ms())
            return asked

        self.broker.on_check(note)
        registers = self.broker.capability(RegistersClients)
        if registers is not None:
            producer = ConnectedClient(
                self.producer_group,
                topics=frozenset(self._topics),
                producer_groups=frozenset([self.producer_group]),
            )
            registers.client_is_here(producer)

    async def end(
        self, topic: str, sent: Sent, resolution: Resolution, *, transaction_id: str = "", **how: Any
    ) -> None:
        await self.broker.end_transaction(
            self.context,
            EndTransaction(topic, transaction_id or sent.transaction_id, sent.message_id, resolution, **how),
        )

    async def commit(self, topic: str, sent: Sent, **how: Any) -> None:
        await self.end(topic, sent, Resolution.COMMIT, **how)

    async def roll_back(self, topic: str, sent: Sent, **how: Any) -> None:
        await self.end(topic, sent, Resolution.ROLLBACK, **how)


def texts(messages: Iterable[StoredMessage]) -> list[str]:
    return [m.body.decode() for m in messages]


def properties_of(message: StoredMessage) -> dict[str, str]:
    return decode_properties(bytes(message.properties))


def id_of(message: StoredMessage) -> str:
    return properties_of(message).get("UNIQ_KEY", "")


@pytest.fixture(name="texts")
def _texts() -> Callable[[Iterable[StoredMessage]], list[str]]:
    return texts


@pytest.fixture(name="properties_of")
def _properties_of() -> Callable[[StoredMessage], dict[str, str]]:
    return properties_of


@pytest.fixture
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    made = _SITES[request.param](tmp_path / "store")
    await made.start()
    _note_traits(request.param, made.broker)
    yield made
    await made.stop()


@pytest.fixture
async def user(site: Site) -> AsyncIterator[User]:
    user = User(site)
    yield user
    await user.close()


@pytest.fixture
def traits(site: Site) -> Any:
    return site.broker.traits
