"""What may differ between brokers, each trait on both of its sides.

`order_scope`, `exact_message_groups`, `returns_are_free`, `ends_are_idempotent`, `dead_letters_name_origin`
and the two sides of `timer_precision_ms` and `max_delay_ms` are tested beside what they belong to.
"""

from __future__ import annotations

import dataclasses
from typing import get_type_hints

import pytest

from brokers.traits import OrderScope, Traits
from popgate.errors import ReceiptExpired

NEW_HANDLE = "a change gives a new handle"
RETURNED_HANDLE = "test_the_returned_handle_acknowledges_where_a_change_gives_a_new_one"


async def test_every_trait_has_a_value_of_its_type(traits):
    kinds = get_type_hints(Traits)
    assert set(kinds.values()) == {OrderScope, int, bool}
    for field in dataclasses.fields(Traits):
        assert type(getattr(traits, field.name)) is kinds[field.name]


async def test_scenario_01_the_first_handle_still_acknowledges_after_a_change(user, traits):
    if not traits.renewal_keeps_receipt:
        user.differs(NEW_HANDLE, RETURNED_HANDLE)
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=10_000)
    for _ in range(3):
        await user.hide(topic, group, message.receipt, 60_000)
    await user.lag(30_000)
    await user.ack(topic, group, message)
    await user.lag(120_000)
    await user.nothing(topic, group)


async def test_the_first_handle_can_be_changed_freed_returned_and_dead_lettered_after_a_change(user, traits):
    if not traits.renewal_keeps_receipt:
        user.differs(NEW_HANDLE, RETURNED_HANDLE)
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"abc")
    freed, returned, dead = await user.collect(topic, group, 3, invisible_ms=10_000)
    for message in (freed, returned, dead):
        await user.hide(topic, group, message.receipt, 600_000)
    await user.lag(20_000)
    await user.hide(topic, group, freed.receipt, 0)
    assert await user.give_back(topic, group, returned) == 1
    await user.dead_letter(topic, group, dead.receipt)
    await user.lag()
    again = await user.collect(topic, group, 2)
    assert {m.body for m in again} == {freed.body, returned.body}
    await user.dead_letters(group, 1)


async def test_the_returned_handle_acknowledges_where_a_change_gives_a_new_one(user, traits):
    if traits.renewal_keeps_receipt:
        user.differs(
            "the first handle goes on working",
            "test_scenario_01_the_first_handle_still_acknowledges_after_a_change",
        )
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=20_000)
    handle = await user.hide(topic, group, message.receipt, user.either(60_000, 25_000))
    assert handle != message.receipt
    assert await user.ack_handles(topic, group, handle) == [None]
    await user.lag(user.either(120_000, 25_000))
    await user.nothing(topic, group)


async def test_scenario_04_an_expired_acknowledgement_is_refused_aloud(user, traits):
    if not traits.acks_are_checked:
        user.differs(
            "acknowledgements are not checked",
            "test_an_expired_acknowledgement_loses_nothing_where_it_is_not_checked",
        )
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=1_000)
    await user.lag(1_000)
    (answer,) = await user.ack_handles(topic, group, message.receipt)
    assert isinstance(answer, ReceiptExpired)
    again = await user.one(topic, group)
    assert again.attempt == 2
    (answer,) = await user.ack_handles(topic, group, message.receipt)
    assert isinstance(answer, ReceiptExpired)
    await user.ack(topic, group, again)


async def test_an_expired_acknowledgement_loses_nothing_where_it_is_not_checked(user, traits):
    if traits.acks_are_checked:
        user.differs(
            "acknowledgements are checked", "test_scenario_04_an_expired_acknowledgement_is_refused_aloud"
        )
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=1_000)
    await user.lag(1_000)
    again = await user.one(topic, group)
    await user.ack_handles(topic, group, message.receipt)
    assert again.attempt == 2
    await user.ack(topic, group, again)


@pytest.mark.parametrize("way", ["acknowledged", "hidden", "freed", "buried"])
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
async def test_what_is_refused_as_too_late_takes_no_effect(user, way, ordered):
    """Just after its end: a broker may take it for a moment more, and before that comes again."""
    topic, group = await user.topic(queues=1), await user.group(ordered=ordered)
    await user.send_in_order(topic, "A1") if ordered else await user.send(topic, "a")
    with user.in_time(user.now_ms() + user.slow(450)):  # how well the broker's clock is known then
        message = await user.one(topic, group, invisible_ms=10_000)
    await user.pass_ms(10_000 + 500)
    if way == "acknowledged":
        (answer,) = await user.ack_handles(topic, group, message.receipt)
        assert isinstance(answer, ReceiptExpired)
    elif way == "buried":
        with pytest.raises(ReceiptExpired):
            await user.dead_letter(topic, group, message.receipt)
    else:
        with pytest.raises(ReceiptExpired):
            await user.hide(topic, group, message.receipt, 0 if way == "freed" else 60_000)
    again = await user.one(topic, group)
    assert (again.body, again.attempt) == (message.body, 2)
    await user.nothing(topic, group)
    await user.dead_letters(group, 0)
    await user.ack(topic, group, again)


async def test_a_redelivery_is_no_later_than_the_broker_says(user, traits):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *(str(n) for n in range(50)))
    await user.collect(topic, group, 50, invisible_ms=10_000)
    await user.pass_ms(10_000 + traits.redelivery_lag_ms)
    assert len(await user.collect(topic, group, 50)) == 50


async def test_a_delayed_message_is_no_later_than_the_broker_says(user, traits):
    topic, group = await user.topic(), await user.group()
    await user.put(*(user.message(topic, str(n), delay_ms=10_000) for n in range(50)))
    await user.pass_ms(10_000 + traits.timer_precision_ms)
    assert len(await user.collect(topic, group, 50)) == 50
