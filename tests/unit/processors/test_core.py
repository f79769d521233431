from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from popgate.context import Context, Principal
from popgate.errors import Fault, Forbidden, TooManyRequests
from popgate.kinds import Action, Resource, ResourceKind
from popgate.model import Message
from processors.messaging import MessagingProcessor
from processors.policies.registry import Policies
from processors.requests import Receive

Make = Callable[..., MessagingProcessor]


class Only:
    """Allows these; notes what it was asked."""

    def __init__(self, *allowed: tuple[Action, str]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[Action, Resource]] = []

    def allows(self, context: Context, action: Action, resource: Resource, now: float) -> bool:
        self.asked.append((action, resource))
        return (action, resource.name) in self.allowed


class Slow:
    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    def take(self, context: Context, action: Action, resource: Resource, amount: int, now: float) -> float:
        self.taken.append((resource.name, amount))
        return 1.5 if len(self.taken) > 1 else 0.0


async def test_a_producer_without_permission_is_forbidden_with_who_what_and_where(
    make_processor: Make, context: Context, broker: Any, observer: Any
) -> None:
    processor = make_processor(policies=Policies(authorizer=Only((Action.SUBSCRIBE, "orders"))))
    with pytest.raises(Forbidden, match="an anonymous caller has no permission 'Pub' on topic 'orders'"):
        await processor.send(context, [Message("orders", b"b", message_id="m")])
    named = replace(context, principal=Principal("ann"))
    with pytest.raises(Forbidden, match="'ann' has no permission"):
        await processor.send(named, [Message("orders", b"b", message_id="m")])
    assert broker.asked("send") == []
    assert observer.of("failed") == [("send", Fault.FORBIDDEN)] * 2


async def test_a_consumer_needs_its_group_and_its_topic(make_processor: Make, context: Context) -> None:
    only = Only((Action.SUBSCRIBE, "readers"))
    processor = make_processor(policies=Policies(authorizer=only))
    with pytest.raises(Forbidden, match="on topic 'orders'"):
        await processor.receive(context, Receive("orders", "readers", wait_s=0.0))
    assert only.asked == [
        (Action.SUBSCRIBE, Resource(ResourceKind.GROUP, "readers")),
        (Action.SUBSCRIBE, Resource(ResourceKind.TOPIC, "orders")),
    ]


async def test_what_is_about_no_topic_and_no_group_is_about_the_cluster(
    make_processor: Make, context: Context
) -> None:
    only = Only()
    with pytest.raises(Forbidden, match="no permission 'List' on this"):
        await make_processor(policies=Policies(authorizer=only)).metadata.topics(context)
    assert only.asked == [(Action.LIST, Resource(ResourceKind.CLUSTER, ""))]


async def test_a_rate_limit_counts_messages_and_tells_when_to_try_again(
    make_processor: Make, context: Context
) -> None:
    slow = Slow()
    processor = make_processor(policies=Policies(rate=slow))
    await processor.send(context, [Message("orders", b"b", message_id=str(n)) for n in range(3)])
    with pytest.raises(TooManyRequests, match=r"try again in 1\.500 s") as caught:
        await processor.ack(context, "orders", "readers", ["r"])
    assert caught.value.retry_after == 1.5
    assert slow.taken == [("orders", 3), ("readers", 1)]
