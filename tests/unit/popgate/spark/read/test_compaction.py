"""popgate.spark.read.compaction: what a compacted topic keeps, with queues that the test makes up."""

from __future__ import annotations

from typing import cast

import pytest

from popgate.errors import BrokerUnavailable, Forbidden, GatewayError, Internal, TopicNotFound, Unsupported
from popgate.queue_client import QueueClient
from popgate.spark.read.compaction import is_compacted, minimums_of
from popgate.wire.bodies.configs import TopicConfig
from tests.unit.popgate.spark.queues import A, B, Queues


class Refusing(Queues):
    """Tells the settings of no topic."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(A=(5, 9))
        self.error = error

    def topic_config(self, topic: str) -> TopicConfig:
        raise self.error


def test_of_a_compacted_topic_everything_may_be_asked_for() -> None:
    """The minimum of a RocketMQ broker is that of the log of all messages, which retention shortens."""
    queues = Queues(A=(5, 9), B=(0, 3))
    client = cast("QueueClient", queues)
    assert minimums_of(client, {A: 0, B: 0}) == {A: 5, B: 0}
    queues.is_compacted = True
    assert minimums_of(client, {A: 0, B: 0}) == {A: 0, B: 0}


def test_settings_are_asked_for_where_something_seems_to_be_gone() -> None:
    queues = Refusing(Forbidden("no"))
    client = cast("QueueClient", queues)
    assert minimums_of(client, {A: 0}) == {A: 5}
    queues.error = BrokerUnavailable("gone")
    assert minimums_of(client, {A: 5}) == {A: 5}
    with pytest.raises(BrokerUnavailable):
        minimums_of(client, {A: 4})


@pytest.mark.parametrize("error", [Forbidden("no"), Internal("why?"), Unsupported("it"), TopicNotFound("t")])
def test_who_does_not_tell_leaves_it_open(error: GatewayError) -> None:
    assert is_compacted(cast("QueueClient", Refusing(error)), "t") is None
