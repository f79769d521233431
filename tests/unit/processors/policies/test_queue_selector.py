from __future__ import annotations

from collections import Counter

from popgate.model import Message, Permission, Queue
from processors.policies.queue_selector import GroupsThenTurns

QUEUES = tuple(Queue("b", index, Permission.READ_WRITE) for index in range(8))


def test_messages_without_a_group_take_turns() -> None:
    picker = GroupsThenTurns()
    picked = Counter(picker.pick(Message("t", b""), QUEUES, 0.0).queue_id for _ in range(16))
    assert picked == dict.fromkeys(range(8), 2)


def test_a_message_group_keeps_its_queue_through_every_replica() -> None:
    one, other = GroupsThenTurns(), GroupsThenTurns()
    other.pick(Message("t", b""), QUEUES, 0.0)
    for name in ("a", "b", "größe", "order-4711"):
        message = Message("t", b"", message_group=name)
        assert one.pick(message, QUEUES, 0.0) == other.pick(message, QUEUES, 9.0)


def test_message_groups_spread_over_the_queues() -> None:
    picker = GroupsThenTurns()
    used = {picker.pick(Message("t", b"", message_group=f"g{n}"), QUEUES, 0.0).queue_id for n in range(200)}
    assert used == set(range(8))


def test_one_queue_takes_everything() -> None:
    assert GroupsThenTurns().pick(Message("t", b"", message_group="g"), QUEUES[:1], 0.0) is QUEUES[0]
