from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from popgate.context import Context
from popgate.model import GroupConfig, TopicConfig
from popgate.testing.clock import MovableClock
from processors.clients.client_registry import ClientKind, ClientRegistry
from processors.clients.settings_push import SettingsPush
from processors.messaging import MessagingProcessor


@pytest.fixture
def known(processor: MessagingProcessor, make_client: Any) -> Any:
    clients = {
        "reader": make_client("reader", group="readers", topics=frozenset({"orders"})),
        "other": make_client("other", group="others", topics=frozenset({"other"})),
        "producer": make_client("producer", kind=ClientKind.PRODUCER, topics=frozenset({"orders"})),
        "gone": make_client("gone", group="readers", alive=False),
    }
    for client in clients.values():
        processor.clients.register(client)
    return clients


def told(known: Any) -> dict[str, int]:
    return {name: client.refreshes for name, client in known.items() if client.refreshes}


async def test_those_of_the_group_are_told_once_of_many_changes(
    processor: MessagingProcessor, known: Any, context: Context, clock: MovableClock
) -> None:
    config = await processor.metadata.group(context, "readers")
    for attempts in range(1, 20):
        await processor.metadata.update_group(context, replace(config, max_attempts=attempts))
    assert told(known) == {}
    clock.advance(0.2)
    assert told(known) == {"reader": 1}
    clock.advance(10)
    assert told(known) == {"reader": 1}
    await processor.metadata.delete_group(context, "readers")
    clock.advance(0.2)
    await processor.metadata.create_group(context, GroupConfig("readers"))
    clock.advance(0.2)
    assert told(known) == {"reader": 3}


async def test_those_who_use_a_topic_are_told_of_its_changes(
    processor: MessagingProcessor, known: Any, context: Context, clock: MovableClock
) -> None:
    await processor.metadata.update_topic(context, TopicConfig("orders", read_queues=9, write_queues=9))
    await processor.metadata.create_group(context, GroupConfig("others"))
    clock.advance(0.2)
    assert told(known) == {"reader": 1, "producer": 1, "other": 1}
    await processor.metadata.delete_topic(context, "orders")
    clock.advance(0.2)
    assert told(known) == {"reader": 2, "producer": 2, "other": 1}


def test_names_are_remembered_up_to_a_bound_then_all_are_told(clock: MovableClock, make_client: Any) -> None:
    clients = ClientRegistry(clock)
    announcing = SettingsPush(clients, clock)
    announcing.group_changed("nobody listens yet")
    assert repr(announcing) == "<SettingsPush topics 0 groups 0>"
    reader = make_client("reader", group="readers")
    clients.register(reader)
    for number in range(5_000):
        announcing.group_changed(f"g{number}")
    assert repr(announcing) == "<SettingsPush topics 0 groups 4097>"
    clock.advance(0.2)
    assert reader.refreshes == 1
    assert repr(announcing) == "<SettingsPush topics 0 groups 0>"


async def test_after_the_stop_nobody_is_told(clock: MovableClock, make_client: Any) -> None:
    clients = ClientRegistry(clock)
    reader = make_client("reader", group="readers")
    clients.register(reader)
    announcing = SettingsPush(clients, clock)
    announcing.group_changed("readers")
    announcing.stop()
    clock.advance(1)
    assert reader.refreshes == 0
