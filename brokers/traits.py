"""Properties in which brokers differ, declared by each broker: `tests/contract` checks both variants."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique


@unique
class OrderScope(Enum):
    """Within what an ordered group keeps order, and what one held message blocks."""

    MESSAGE_GROUP = "message group"
    QUEUE = "queue"


@dataclass(slots=True, frozen=True)
class Traits:
    """What may differ between brokers.

    `timer_precision_ms`: a delayed message is at most this late on an idle broker.
    `redelivery_lag_ms`: likewise for a message whose invisible time is over.
    `renewal_keeps_receipt`: the first handle still works after a change of invisible time.
    `returns_are_free`: giving back an undelivered message is no attempt; else it may be one.
    `ends_are_idempotent`: ending a transaction again the same way is answered alike, done once.
    `acks_are_checked`: an acknowledgement with an expired handle is refused, never silently dropped; else it
    is where the gateway can know it. Whatever is refused takes no effect on either side.
    `exact_message_groups`: one pop can be limited to one message of each message group.
    `max_delay_ms`: the longest delay a message may have; told in `DelayTooLong`.
    `dead_letters_name_origin`: dead letters carry DLQ_ORIGIN_TOPIC and DLQ_ORIGIN_MESSAGE_ID.
    `repeats_known_ms`: a second send of a message id to its topic within this time is answered
    with the first one's result, and stored once; 0: it is stored twice.
    `keeps_all_settings`: every setting of a topic or group is kept as it was given; else what cannot be
    kept is refused with Unsupported, consume timeouts are rounded up, and rests told in another form.
    `tells_deliveries`: `committed`, `progress`, `standing` and `held` know what is held or rests. Else a
    position is how far the group popped, `held` is Unsupported, and of a standing only `lag`, `unread`
    and `free` mean something: what was never popped, and what came back and waits.
    `resets_forget_deliveries`: after `commit` and `reset` nothing comes that was held before; else it
    comes when its time is over.
    `repeats_keep_receipts`: a repeated `attempt_id` gets the handles that it got before, and a new
    attempt when its time is over; else the same messages with handles of which the newest are good,
    and no attempt counted.
    `keeps_filtered_redeliveries`: a redelivery that does not pass the filter of a pop is kept for one
    that it passes; else it is done, as a new message is.
    `keeps_gaps`: what an ordered group finished behind an unfinished message stays finished; else it may
    come again behind the redelivery of that one.
    `redeliveries_keep_place`: a redelivery has queue, offsets and times of the first delivery; else
    those of a copy of its message.
    `deletes_everything`: a topic or group made again has nothing of the deleted one of its name; else
    old handles, recalls, transactions and look-ups may reach into it.
    `ordered_groups_get_retries`: a group that is made ordered gets what waits for another attempt; else
    that waits until the group is unordered again.
    `reading_lag_ms`: who reads by position, or looks up, sees what is stored at most this late; and how
    far a group popped is written down so late, over a position that was set meanwhile.
    `buries_unasked`: a message without attempts left becomes a dead letter also when nobody pops; else
    the next pop of its group that finds it makes it one, and does not deliver it.
    `chooses_queues`: the broker knows better than the gateway which queue takes a message that names none:
    which brokers are slow or down, and which are near.
    `stores_packed`: several messages of one send of which nothing says when or where they are stored come to
    it packed, and it puts them into queues in turn: that costs it less than one by one.
    `pops_group_retries`: `%RETRY%group`, which classic consumers pull, can be popped like any topic; else
    a pop of it is Unsupported.
    `begins_at_the_end`: a group that starts from the last message gets what comes after its first pop of a
    topic, on all queues; else its broker decides for each queue when it is popped first, and gives out
    at least what comes after that: more while the topic is young.
    `stands_apart`: it goes on when this process ends, and other gateways reach it meanwhile; else nobody
    serves its clients until this process is back.
    """

    order_scope: OrderScope
    timer_precision_ms: int
    redelivery_lag_ms: int
    renewal_keeps_receipt: bool
    returns_are_free: bool
    ends_are_idempotent: bool
    acks_are_checked: bool
    exact_message_groups: bool
    max_delay_ms: int
    dead_letters_name_origin: bool = True
    repeats_known_ms: int = 0
    keeps_all_settings: bool = True
    tells_deliveries: bool = True
    resets_forget_deliveries: bool = True
    deletes_everything: bool = True
    repeats_keep_receipts: bool = True
    redeliveries_keep_place: bool = True
    keeps_gaps: bool = True
    keeps_filtered_redeliveries: bool = True
    reading_lag_ms: int = 0
    chooses_queues: bool = False
    stores_packed: bool = False
    ordered_groups_get_retries: bool = True
    buries_unasked: bool = True
    pops_group_retries: bool = True
    begins_at_the_end: bool = True
    stands_apart: bool = False
