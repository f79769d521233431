"""Clients of gateways as the broker knows them: who is in a group, and who waits for a reply."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import pytest

from brokers.capabilities import CarriesReplies, GroupMember, TellsConsumers
from brokers.client_registration import ConnectedClient, RegistersClients
from popgate.context import Context
from popgate.errors import BadRequest, NotFound
from popgate.model import FilterKind, Reading
from processors.clients.client_registry import ClientKind
from processors.limits import Limits
from processors.messaging import MessagingProcessor

REPLIES = "DefaultCluster_REPLY_TOPIC"


def consumer(group: str, name: str = "", **more) -> ConnectedClient:
    name = name or f"c-{uuid.uuid4().hex[:8]}"
    filters = {"any-topic": (FilterKind.TAG, "*")}
    return ConnectedClient(name, group=group, key=f"{name} {group}", subscriptions=filters, **more)


class Member:
    """A consumer of this gateway, as a door knows it."""

    broadcast, producer_group, connection, alive = False, "", None, True
    kind, language, version, topics = ClientKind.PUSH_CONSUMER, "JAVA", "493", frozenset({"any-topic"})
    subscriptions = MappingProxyType({"any-topic": (FilterKind.TAG, "*")})

    def __init__(self, group: str, reading: Reading) -> None:
        self.group, self.reading, self.client_id = group, reading, f"c-{reading}"
        self.key = f"{self.client_id} {group}"

    def check_transaction(self, check) -> bool:
        return False

    def ask(self, question) -> bool:
        return False

    def reconnect(self) -> bool:
        return False

    def leave_lite(self, lite_topic) -> bool:
        return False

    def refresh(self) -> None:
        """It has no settings."""


@pytest.fixture
def broker(user):
    """What the broker can do about clients, whichever of its parts does it."""
    methods = {}
    for kind in (RegistersClients, TellsConsumers, CarriesReplies):
        part = user.broker.capability(kind)
        assert part is not None, kind
        methods |= {name: getattr(part, name) for name in kind.__abstractmethods__}
    return SimpleNamespace(**methods)


async def test_consumers_of_a_group_are_told_until_they_leave(user, broker):
    group, other = await user.group(), await user.group()
    one, two = consumer(group, pushed=True), consumer(group)
    elsewhere = consumer(other, two.client_id)
    assert await broker.consumers(group) == []
    for client in (one, two, elsewhere):
        broker.client_is_here(client)

    async def are(*clients: ConnectedClient) -> bool:
        return await broker.consumers(group) == sorted(client.client_id for client in clients)

    await user.eventually(lambda: are(one, two))
    broker.client_left(two.key)
    await user.eventually(lambda: are(one))

    async def is_elsewhere() -> bool:
        return await broker.consumers(other) == [two.client_id]

    await user.eventually(is_elsewhere)
    broker.client_left(one.key)
    await user.eventually(are)


async def test_changes_of_a_group_are_told(user, broker):
    group = await user.group()
    told: list[str] = []
    broker.on_members(told.append)
    first = consumer(group, pushed=True)
    broker.client_is_here(first)

    async def is_known() -> bool:
        return first.client_id in await broker.consumers(group)

    await user.eventually(is_known)
    broker.client_is_here(consumer(group, pushed=True))
    await user.eventually(lambda: group in told)


async def test_members_of_a_group_are_told_with_how_they_read(user, broker):
    group = await user.group()
    clients = {reading: consumer(group, pushed=True, reading=reading, may_map=True) for reading in Reading}
    assert await broker.members(group) == []
    for client in clients.values():
        broker.client_is_here(client)

    async def are_told() -> bool:
        found = {(one.client_id, one.gateway, one.reading) for one in await broker.members(group)}
        return found == {(one.client_id, True, reading) for reading, one in clients.items()}

    await user.eventually(are_told)
    # One after the other shows what it is; nobody leaves or comes.
    clients[Reading.UNKNOWN], clients[Reading.CONCURRENT] = (
        replace(clients[Reading.CONCURRENT], reading=Reading.UNKNOWN),
        replace(clients[Reading.UNKNOWN], reading=Reading.CONCURRENT),
    )
    told: list[str] = []
    broker.on_members(told.append)
    broker.client_is_here(clients[Reading.UNKNOWN])
    broker.client_is_here(clients[Reading.CONCURRENT])
    await user.eventually(are_told)
    await user.eventually(lambda: group in told)
    for client in clients.values():
        broker.client_left(client.key)

    async def nobody_is_left() -> bool:
        return await broker.members(group) == []

    await user.eventually(nobody_is_left)


async def test_a_member_of_whom_nothing_is_told_never_passes_for_one_that_shares_messages(user, broker):
    group = await user.group()
    client = consumer(group, pushed=True, reading=Reading.TRUE_PULL)
    broker.client_is_here(client)
    found: list[GroupMember] = []

    async def is_told() -> bool:
        found[:] = await broker.members(group)
        return bool(found)

    await user.eventually(is_told)
    (member,) = found
    assert member.client_id == client.client_id
    assert member.reading is Reading.TRUE_PULL or not member.gateway


async def test_nobody_is_in_a_group_that_is_not_there(broker):
    for name in ("no-such-group", "no group \u2603"):
        assert await broker.consumers(name) == []
        assert await broker.members(name) == []


async def test_a_reply_reaches_the_client_that_waits_for_it(user, broker, properties_of):
    client = ConnectedClient(
        f"asker-{uuid.uuid4().hex[:8]}", producer_groups=frozenset({user.producer_group})
    )
    broker.client_is_here(client)
    taken = []

    def take(client_id, message) -> bool:
        taken.append((client_id, message))
        return client_id == client.client_id

    broker.on_reply(take)
    topic = REPLIES
    properties = {"REPLY_TO_CLIENT": client.client_id, "CORRELATION_ID": "7", "MSG_TYPE": "reply"}

    async def is_sent() -> bool:
        try:
            await broker.send_reply(user.context, user.message(topic, "yes", properties=properties))
        except NotFound:  # the client has not become known yet
            return False
        return True

    await user.eventually(is_sent)
    client_id, message = taken[-1]
    assert (client_id, message.body) == (client.client_id, b"yes")
    assert properties_of(message)["CORRELATION_ID"] == "7"
    assert int(properties_of(message)["PUSH_REPLY_TIME"]) > 0


async def test_a_reply_for_nobody_is_refused(user, broker):
    broker.on_reply(lambda client_id, message: False)
    nobody = {"REPLY_TO_CLIENT": "nobody-at-all", "CORRELATION_ID": "7", "MSG_TYPE": "reply"}
    with pytest.raises(NotFound):
        await broker.send_reply(user.context, user.message(REPLIES, "yes", properties=nobody))
    with pytest.raises(BadRequest):
        await broker.send_reply(user.context, user.message(REPLIES, "yes"))


async def test_the_retry_topic_of_a_group_that_is_prepared_has_a_route_at_once(user):
    processor = MessagingProcessor(user.broker, clock=user.site.clock, limits=Limits(auto_create_groups=True))
    group, context = f"group-{uuid.uuid4().hex[:12]}", Context(client_id="c", door="remoting")
    for _ in range(2):
        await processor.classic.prepare_group(context, group)
        route = await processor.route(context, f"%RETRY%{group}")
        assert route.readable
        assert route.writable
    assert (await user.broker.group(group)).name == group


async def test_a_group_is_mapped_while_all_of_its_members_come_by_gateways_that_map_it(user, broker):
    group, context = await user.group(), Context(client_id="c", door="remoting")
    processor = MessagingProcessor(user.broker, clock=user.site.clock, limits=Limits(mapped_groups=(group,)))
    switches: list[bool] = []
    processor.mapped_groups.on_switch(lambda name, mapped: switches.append(mapped) if name == group else None)
    await processor.start()
    try:
        for reading in (Reading.UNKNOWN, Reading.NEUTRAL):
            processor.clients.register(Member(group, reading))
        assert not (await processor.mapped_groups.judge(context, group)).mapped
        processor.mapped_groups.told(f"c-unknown {group}", Reading.CONCURRENT)

        async def is_mapped(mapped: bool) -> bool:
            await user.site.pass_ms(100)
            return processor.mapped_groups.is_mapped(group) is mapped

        await user.eventually(lambda: is_mapped(True))
        stranger = consumer(group, pushed=True, reading=Reading.TRUE_PULL)
        for _ in range(2):
            broker.client_is_here(stranger)
            await user.eventually(lambda: is_mapped(False))
            assert stranger.client_id in processor.mapped_groups.choice(group).why
            broker.client_left(stranger.key)
            await user.eventually(lambda: is_mapped(True))
        assert switches == [True, False, True, False, True]
    finally:
        await processor.stop()
        for reading in (Reading.UNKNOWN, Reading.NEUTRAL):
            broker.client_left(f"c-{reading} {group}")
