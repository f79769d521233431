import pytest

from brokers.embedded.storage.keys import FLOORS, floor_key
from popgate.errors import AlreadyExists, BadRequest, GroupNotFound, TooManyRequests, TopicNotFound
from popgate.model import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    MessageType,
    Permission,
    StartFrom,
    TopicConfig,
)

TOPIC = TopicConfig(
    "orders",
    (MessageType.FIFO, MessageType.DELAY),
    read_queues=3,
    write_queues=5,
    permission=Permission.READ,
    retention_ms=1_000,
    retention_bytes=2_000,
    attributes={"color": "röt"},
)
GROUP = GroupConfig(
    "workers",
    ordered=True,
    max_attempts=3,
    retry=ExponentialRetry(10, 20, 1.5),
    consume_timeout_ms=7,
    start_from=StartFrom.LAST,
    consume_enabled=False,
    attributes={"team": "a"},
)


async def test_topics_and_groups_come_back_after_a_restart_as_they_were(make_parts) -> None:
    parts = make_parts()
    topic, group = parts.catalogue.create_topic(TOPIC), parts.catalogue.create_group(GROUP)
    parts.catalogue.create_group(GroupConfig("others", retry=CustomizedRetry((1, 2, 3), 1)))
    await parts.store.commit()
    again = make_parts().catalogue
    found = again.topic("orders")
    assert (found.id, found.config) == (topic.id, TOPIC)
    assert [queue.queue_id for queue in found.queues] == [0, 1, 2, 3, 4]
    assert again.topic_by_id(topic.id) is found
    assert (again.group("workers").id, again.group("workers").config) == (group.id, GROUP)
    assert again.group("others").config.retry == CustomizedRetry((1, 2, 3), 1)
    assert again.group_by_id(group.id) is again.group("workers")
    assert (again.topic_count, again.group_count) == (1, 2)


async def test_a_topic_made_again_has_another_id(make_parts) -> None:
    parts = make_parts()
    first = parts.catalogue.create_topic(TOPIC)
    parts.catalogue.delete_topic("orders")
    second = parts.catalogue.create_topic(TOPIC)
    await parts.store.commit()
    parts = make_parts()
    parts.catalogue.delete_topic("orders")
    third = parts.catalogue.create_topic(TOPIC)
    assert len({first.id, second.id, third.id}) == 3
    assert parts.catalogue.topic_by_id(second.id) is None


async def test_a_group_made_again_has_another_id(parts) -> None:
    first = parts.catalogue.create_group(GROUP)
    parts.catalogue.delete_group("workers")
    assert parts.catalogue.group_by_id(first.id) is None
    assert parts.catalogue.create_group(GROUP).id != first.id


async def test_a_topic_gets_more_queues_but_never_fewer(parts) -> None:
    topic = parts.catalogue.create_topic(TopicConfig("T", read_queues=2, write_queues=2))
    queues = list(topic.queues)
    parts.catalogue.update_topic(TopicConfig("T", read_queues=4, write_queues=1))
    assert topic.queues[:2] == queues
    assert [queue.queue_id for queue in topic.queues] == [0, 1, 2, 3]
    with pytest.raises(BadRequest, match="has 4 queues"):
        parts.catalogue.update_topic(TopicConfig("T", read_queues=3, write_queues=3))
    assert topic.config.read_queues == 4


@pytest.mark.parametrize(("read", "write"), [(0, 0), (-1, 8), (8, 5_000)])
async def test_a_number_of_queues_that_cannot_be_is_refused(parts, read: int, write: int) -> None:
    with pytest.raises(BadRequest):
        parts.catalogue.create_topic(TopicConfig("T", read_queues=read, write_queues=write))
    assert parts.catalogue.topic_count == 0


async def test_what_is_not_there_and_what_is_there_already_is_told(parts) -> None:
    with pytest.raises(TopicNotFound):
        parts.catalogue.topic("none")
    with pytest.raises(TopicNotFound):
        parts.catalogue.update_topic(TOPIC)
    with pytest.raises(TopicNotFound):
        parts.catalogue.delete_topic("none")
    with pytest.raises(GroupNotFound):
        parts.catalogue.group("none")
    with pytest.raises(GroupNotFound):
        parts.catalogue.update_group(GROUP)
    with pytest.raises(GroupNotFound):
        parts.catalogue.delete_group("none")
    parts.catalogue.create_topic(TOPIC)
    parts.catalogue.create_group(GROUP)
    with pytest.raises(AlreadyExists):
        parts.catalogue.create_topic(TOPIC)
    with pytest.raises(AlreadyExists):
        parts.catalogue.create_group(GROUP)


async def test_there_is_a_bound_for_topics_and_groups_but_not_for_dead_letters(make_parts) -> None:
    catalogue = make_parts(max_topics=1, max_groups=1).catalogue
    catalogue.create_topic(TOPIC)
    catalogue.create_group(GROUP)
    with pytest.raises(TooManyRequests):
        catalogue.create_topic(TopicConfig("more"))
    with pytest.raises(TooManyRequests):
        catalogue.create_group(GroupConfig("more"))
    letters = TopicConfig("%DLQ%workers", read_queues=1, write_queues=1)
    made = catalogue.ensure_topic(letters, bounded=False)
    assert catalogue.ensure_topic(letters) is made


async def test_a_queue_stands_after_a_restart_where_it_stood(make_parts) -> None:
    parts = make_parts()
    topic = await parts.topic(read_queues=3, write_queues=3)
    for number in range(5):
        parts.send(topic, 1, f"id-{number}")
    parts.store.put(FLOORS, floor_key(topic.id, 1), (2).to_bytes(8, "big"))
    parts.store.put(FLOORS, floor_key(topic.id, 2), (9).to_bytes(8, "big"))
    await parts.store.commit()
    queues = make_parts().catalogue.topic("T").queues
    assert [(q.minimum, q.maximum, q.visible) for q in queues] == [(0, 0, 0), (2, 5, 5), (9, 9, 9)]
    assert queues[1].last_store_ms == parts.clock.now_ms()
