"""Settings that are called live have an effect after a reload, seen where they are used."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from popgate.context import Context
from popgate.errors import BadRequest, GatewayError
from popgate.model import GroupConfig, Message, MessageType, Reading
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from processors.clients.client_registry import ClientKind
from processors.requests import Pull, Receive
from protocols.grpc.codec.packer import Packer
from proxy.app import App, build
from proxy.config.handover import Settled, settle
from proxy.config.settings import Settings
from proxy.config.tables import Log
from proxy.logs import set_up_logs
from proxy.reload.effects import EFFECTS, Effect

Probe = Callable[[App], Awaitable[Any]]
HERE = Context(client_id="one", peer="10.0.0.1:1")
REFUSED, TAKEN = "refused", "taken"


class Ids:
    count = 0

    @classmethod
    def next(cls) -> str:
        cls.count += 1
        return f"id-{cls.count}"


async def outcome(work: Awaitable[Any]) -> str:
    """Whether something was done, or refused for what it is."""
    try:
        found = await work
    except GatewayError:
        return REFUSED
    failed = isinstance(found, list) and any(isinstance(one, GatewayError) for one in found)
    return REFUSED if failed else TAKEN


def sends(count: int = 1, body: bytes = b"four", **fields: Any) -> Probe:
    async def probe(app: App) -> str:
        given = {"message_id": Ids.next(), **fields}
        messages = [Message("orders", body, **given) for _ in range(count)]
        return await outcome(app.processor.send(HERE, messages))

    return probe


def packs(count: int = 1, body: bytes = b"four", **system: Any) -> Probe:
    """What goes the short way from a gRPC request: the packer keeps copies of limits, and is asked twice."""
    packers: dict[int, Packer] = {}

    async def probe(app: App) -> str:
        packer = packers.setdefault(id(app), Packer(app.processor.limits))
        one = pb.Message(topic=pb.Resource(name="orders"), body=body)
        one.system_properties.message_id = system.get("message_id", "id")
        one.system_properties.tag = system.get("tag", "")
        one.user_properties.update(system.get("properties", {}))
        request = rpc.SendMessageRequest(messages=[one] * count)
        return TAKEN if packer.pack(request, "10.0.0.1:1", 1) is not None else REFUSED

    return probe


def asks(method: str, name: str, ask: Callable[[App], Awaitable[Any]]) -> Probe:
    """What a broker is asked: the argument or the field `name` of what it is given."""

    async def probe(app: App) -> Any:
        seen: list[Any] = []
        real = getattr(app.broker, method)

        async def broker(*given: Any, **named: Any) -> Any:
            seen.append(named[name] if name in named else getattr(given[-1], name))
            return []

        setattr(app.broker, method, broker)
        try:
            try:
                await ask(app)
            except AttributeError:  # what was answered is no answer of this broker
                assert seen
        finally:
            setattr(app.broker, method, real)
        return seen[-1]

    return probe


def receive(context: Context = HERE, **fields: Any) -> Callable[[App], Awaitable[Any]]:
    given = {"invisible_ms": 15_000, "wait_s": 0.0, **fields}
    return lambda app: app.processor.receive(context, Receive("orders", "readers", **given))


def waits(deadline_s: float | None, **fields: Any) -> Probe:
    """For how long a receive waits at the broker, in whole seconds."""

    async def probe(app: App) -> float:
        now = app.clock.monotonic()
        context = Context(client_id="one", deadline=None if deadline_s is None else now + deadline_s)
        until: float = await asks("pop", "wait_until", receive(context, **fields))(app)
        return round(until - now)

    return probe


async def receives(app: App, *, invisible_ms: int) -> str:
    return await outcome(receive(invisible_ms=invisible_ms)(app))


async def waiting(app: App) -> str:
    """One receive beside another."""
    app.processor._core.polls.count += 1
    try:
        return await outcome(receive()(app))
    finally:
        app.processor._core.polls.count -= 1


def under_way(connections: tuple[str, str], group: str) -> Probe:
    async def probe(app: App) -> str:
        held = [app.processor.budgets.allowance(name) for name in connections]
        try:
            for one in held:
                if group:
                    one.for_group(group)
                one.take(100_000)
        except GatewayError:
            return REFUSED
        finally:
            for one in held:
                one.release()
        return TAKEN

    return probe


async def new_topics(app: App) -> str:
    for _ in range(2):
        message = Message(f"topic-{Ids.next()}", b"x", message_id=Ids.next())
        if (told := await outcome(app.processor.send(HERE, [message]))) == REFUSED:
            return told
    return TAKEN


async def new_groups(app: App) -> str:
    for _ in range(2):
        asked = Receive("orders", f"group-{Ids.next()}", invisible_ms=15_000, wait_s=0.0)
        if (told := await outcome(app.processor.receive(HERE, asked))) == REFUSED:
            return told
    return TAKEN


async def new_topic(app: App) -> int:
    return len((await app.processor.route(HERE, f"topic-{Ids.next()}")).queues)


def new_group(name: str) -> Probe:
    async def probe(app: App) -> Any:
        config = await app.processor.settings(HERE, f"group-{Ids.next()}")
        found = getattr(config, name)
        return type(found).__name__ if name == "retry" else getattr(found, "value", found)

    return probe


def registers(count: int = 1, topics: int = 0) -> Probe:
    async def probe(app: App) -> str:
        clients = app.processor.clients
        names = [f"client-{number}" for number in range(count)]
        try:
            for name in names:
                clients.register(client(name, topics))
        except GatewayError:
            return REFUSED
        finally:
            for name in names:
                clients.unregister(name)
        return TAKEN

    return probe


def client(name: str, topics: int = 0) -> Any:
    return SimpleNamespace(
        key=name,
        client_id=name,
        kind=ClientKind.PRODUCER,
        group="",
        producer_group="",
        broadcast=False,
        reading=Reading.NEUTRAL,
        topics=frozenset(f"t{number}" for number in range(topics)),
        subscriptions={},
        connection=name,
        alive=False,
    )


async def forgets_silent_clients(app: App) -> int:
    """Of those of whom nothing was heard for 100 s."""
    clients = app.processor.clients
    clients.register(client("silent"))
    forgotten = clients.expire(app.clock.monotonic() + 100)
    clients.unregister("silent")
    return forgotten


async def members(app: App) -> str:
    """Two clients of a broadcast group."""
    name = f"group-{Ids.next()}"
    await app.processor.metadata.create_group(HERE, GroupConfig(name, broadcast=True))
    for who in ("one", "two"):
        asked = Receive("orders", name, invisible_ms=15_000, wait_s=0.0)
        told = await outcome(app.processor.receive(Context(client_id=f"{name}-{who}"), asked))
        if told == REFUSED:
            return told
    return TAKEN


async def host(app: App) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{app.admin_address}/health", headers={"Host": "a.b"}) as answer,
    ):
        return answer.status


async def log_lines(_app: App) -> int:
    """How many of five alike are written."""
    (handler,) = [one for one in logging.getLogger().handlers if getattr(one, "from_popgate", False)]
    record = logging.LogRecord("popgate", logging.ERROR, "", 1, f"line {Ids.next()}", (), None)
    return sum(bool(handler.filter(record)) for _ in range(5))


async def level(_app: App) -> bool:
    return logging.getLogger("popgate").isEnabledFor(logging.WARNING)


async def drain_s(app: App) -> float:
    return app.before_closing(0.0)


async def lame_s(app: App) -> float:
    return app.lame_s


TWO = {"a": "1", "b": "2"}
LONG = "x" * 100
TABLE: dict[str, tuple[Any, list[tuple[Probe, Any, Any]]]] = {
    "log.level": ("error", [(level, True, False)]),
    "log.burst": (2, [(log_lines, 5, 2)]),
    "limits.max_body_bytes": (3, [(sends(), TAKEN, REFUSED), (packs(), TAKEN, REFUSED)]),
    "limits.refuse_empty_bodies": (
        False,
        [(sends(body=b""), REFUSED, TAKEN), (packs(body=b""), REFUSED, TAKEN)],
    ),
    "limits.max_properties": (
        1,
        [(sends(user_properties=TWO), TAKEN, REFUSED), (packs(properties=TWO), TAKEN, REFUSED)],
    ),
    "limits.max_properties_bytes": (
        50,
        [(sends(tag=LONG), TAKEN, REFUSED), (packs(tag=LONG), TAKEN, REFUSED)],
    ),
    "limits.max_message_group_bytes": (
        3,
        [(sends(message_group="four", type=MessageType.FIFO), TAKEN, REFUSED)],
    ),
    "limits.max_message_id_bytes": (
        99,
        [(sends(message_id=LONG), TAKEN, REFUSED), (packs(message_id=LONG), TAKEN, REFUSED)],
    ),
    "limits.max_messages_per_send": (1, [(packs(2), TAKEN, REFUSED), (sends(2), TAKEN, REFUSED)]),
    "limits.max_receive_messages": (7, [(asks("pop", "max_messages", receive()), 32, 7)]),
    "limits.max_receive_bytes": (1 << 20, [(asks("pop", "max_bytes", receive()), 64 << 20, 1 << 20)]),
    "limits.min_invisible_s": (11, [(partial(receives, invisible_ms=10_500), TAKEN, REFUSED)]),
    "limits.max_invisible_s": (20, [(partial(receives, invisible_ms=30_000), TAKEN, REFUSED)]),
    "limits.max_wait_s": (7, [(waits(None, wait_s=12.0), 12, 7)]),
    "limits.default_wait_s": (7, [(waits(None, wait_s=None), 20, 7)]),
    "limits.poll_margin_s": (3, [(waits(15.0, wait_s=None), 15, 12)]),
    "limits.max_receipts_per_ack": (1, [(lambda app: acks(app), TAKEN, REFUSED)]),
    "limits.max_pull_messages": (7, [(asks("pull", "max_messages", lambda app: pull(app)), 1024, 7)]),
    "limits.max_pull_bytes": (
        1 << 20,
        [(asks("pull", "max_bytes", lambda app: pull(app)), 64 << 20, 1 << 20)],
    ),
    "limits.max_found": (3, [(asks("find_by_key", "limit", lambda app: find(app)), 1024, 3)]),
    "limits.max_waiting": (1, [(waiting, TAKEN, REFUSED)]),
    "budgets.process_bytes": (1 << 17, [(under_way(("a", "b"), ""), TAKEN, REFUSED)]),
    "budgets.group_bytes": (1 << 17, [(under_way(("a", "b"), "g"), TAKEN, REFUSED)]),
    "budgets.connection_bytes": (1 << 17, [(under_way(("a", "a"), ""), TAKEN, REFUSED)]),
    "topics.auto_create": (False, [(new_topics, TAKEN, REFUSED)]),
    "topics.max_auto_created": (4, [(new_topics, TAKEN, REFUSED)]),
    "topics.queues": (3, [(new_topic, 8, 3)]),
    "groups.auto_create": (False, [(new_groups, TAKEN, REFUSED)]),
    "groups.max_auto_created": (3, [(new_groups, TAKEN, REFUSED)]),
    "groups.max_attempts": (4, [(new_group("max_attempts"), 17, 4)]),
    "groups.start_from": ("last", [(new_group("start_from"), "first", "last")]),
    "groups.retry": ("exponential", [(new_group("retry"), "CustomizedRetry", "ExponentialRetry")]),
    "groups.consume_timeout_s": (61, [(new_group("consume_timeout_ms"), 900_000, 61_000)]),
    "broadcast.max_members": (1, [(members, TAKEN, REFUSED)]),
    "holding.max_clients": (1, [(registers(2), TAKEN, REFUSED)]),
    "holding.max_topics_per_client": (1, [(registers(1, topics=2), TAKEN, REFUSED)]),
    "holding.client_expiry_s": (50, [(forgets_silent_clients, 0, 1)]),
    "stopping.drain_s": (33, [(drain_s, 59.0, 32.0)]),
    "stopping.lame_duck_s": (3, [(lame_s, 0.0, 3.0)]),
    "api.hosts": (["a.b"], [(host, 400, 200)]),
}
KEPT_ONLY = {
    "limits.check_message_types",
    "log.format",
    "log.window_s",
    "limits.max_recovery_s",
    "broadcast.expiry_s",
    "lite.max_name_bytes",
    "lite.max_per_client",
    "holding.max_hold_s",
    "holding.renew_ahead_s",
    "holding.release_grace_s",
    "holding.ack_retry_s",
    "holding.max_held",
}
"""What has its effect after a long time, or in a part that looks at the same object of limits each time:
`test_effects` and `test_reloader` prove that they come there."""


async def acks(app: App) -> str:
    """An acknowledgement of two, of which the number decides."""
    await receive()(app)
    try:
        await app.processor.ack(HERE, "orders", "readers", ["a", "b"])
    except BadRequest:
        return REFUSED
    return TAKEN


async def pull(app: App) -> None:
    asked = Pull("orders", "", 0, 0, "readers", max_messages=100_000, max_bytes=1 << 40)
    await app.processor.pull(HERE, asked)


async def find(app: App) -> None:
    await app.processor.lookup.find_by_key(HERE, "orders", "key", begin_ms=0, end_ms=1, limit=100_000)


def test_every_live_setting_is_in_the_table() -> None:
    live = {name for name, effect in EFFECTS.items() if effect is Effect.LIVE}
    assert live == TABLE.keys() | KEPT_ONLY


@pytest.mark.parametrize("name", TABLE)
async def test_a_live_setting_has_its_effect(name: str, settings_for: Callable[..., Settings]) -> None:
    group, _, key = name.partition(".")
    value, probes = TABLE[name]
    usual: dict[str, Any] = {"limits": {}} if group != "stopping" else {}
    app = build(settings_for(**usual))
    set_up_logs(Log())
    await app.start()
    try:
        await app.processor.send(HERE, [Message("orders", b"first", message_id=Ids.next())])
        assert [await probe(app) for probe, _, _ in probes] == [before for _, before, _ in probes]
        other = {"drain_s": 60, "lame_duck_s": 0, key: value} if group == "stopping" else {key: value}

        async def read() -> Settled:
            return settle(settings_for(**{**usual, group: other}))

        assert app.reloader is not None
        app.reloader.read = read
        await app.reloader.reload()
        assert [await probe(app) for probe, _, _ in probes] == [after for _, _, after in probes]
    finally:
        await app.stop()
        set_up_logs(Log())
