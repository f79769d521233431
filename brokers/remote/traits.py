"""The traits of a RocketMQ cluster."""

from __future__ import annotations

from typing import Final

from brokers.traits import OrderScope, Traits

_DAY_MS = 24 * 3_600_000

TRAITS: Final = Traits(
    order_scope=OrderScope.QUEUE,
    timer_precision_ms=1_000,
    redelivery_lag_ms=10_000,
    renewal_keeps_receipt=False,
    returns_are_free=False,
    ends_are_idempotent=False,
    acks_are_checked=False,
    exact_message_groups=False,
    max_delay_ms=3 * _DAY_MS,
    dead_letters_name_origin=False,
    repeats_known_ms=0,
    keeps_all_settings=False,
    tells_deliveries=False,
    resets_forget_deliveries=False,
    deletes_everything=False,
    repeats_keep_receipts=False,
    redeliveries_keep_place=False,
    keeps_gaps=False,
    keeps_filtered_redeliveries=False,
    chooses_queues=True,
    buries_unasked=False,
    pops_group_retries=False,
    reading_lag_ms=300,
    ordered_groups_get_retries=False,
    begins_at_the_end=False,
    stands_apart=True,
)
