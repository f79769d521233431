"""Whatever comes from outside is answered: with a result or a `GatewayError`, and harms nobody else."""

from __future__ import annotations

import pytest

from popgate.errors import GatewayError, GroupNotFound, TopicNotFound
from popgate.filters.compiled import compile_filter
from popgate.model import EndTransaction, FilterKind, Pop, Resolution, StartFrom

TEXTS = ["", " ", "\x00", "\n", "\udcff", "ä\u202e\U0001f40d", "a b", "%RETRY%", "../..", "x" * 100_000]
NUMBERS = [-(1 << 70), -(1 << 31), -1, 0, 1 << 31, 1 << 63, 1 << 70]


@pytest.fixture
async def bystander(user):
    """A message that somebody holds; it must be as it was afterwards."""
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "bystander")
    held = await user.one(topic, group, invisible_ms=60_000)
    yield topic, group, held
    await user.ack(topic, group, held)
    await user.send(topic, "works on")
    assert (await user.one(topic, group)).body == b"works on"


async def answered(call):
    """The answer or the `GatewayError`; anything else fails the test."""
    try:
        return await call
    except GatewayError as error:
        return error


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_topic_and_group_names_of_any_text_are_told_to_be_unknown(user, bystander, text):
    topic, group, held = bystander
    for call in (
        user.send(text, "a"),
        user.pop(text, group),
        user.ack_handles(text, group, held.receipt),
        user.hide(text, group, held.receipt, 0),
        user.dead_letter(text, group, held.receipt),
        user.broker.bounds(user.context, text, held.broker, held.queue_id),
        user.broker.reset(group, text, StartFrom.FIRST),
        user.broker.progress(group, text),
    ):
        with pytest.raises(TopicNotFound):
            await call
    for call in (
        user.pop(topic, text),
        user.ack_handles(topic, text, held.receipt),
        user.hide(topic, text, held.receipt, 0),
        user.dead_letter(topic, text, held.receipt),
        user.broker.reset(text, topic, StartFrom.FIRST),
        user.broker.progress(text, topic),
    ):
        with pytest.raises(GroupNotFound):
            await call


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_broker_names_ids_and_handles_of_any_text_are_answered(user, bystander, text):
    topic, group, _ = bystander
    broker, context = user.broker, user.context
    assert isinstance((await user.ack_handles(topic, group, text))[0], GatewayError)
    assert await broker.give_back(context, topic, group, [text]) == 0
    assert await broker.find_by_id(context, topic, text) == []
    assert await broker.find_by_key(context, topic, text, begin_ms=0, end_ms=1 << 50, limit=3) == []
    for call in (
        user.hide(topic, group, text, 0),
        user.dead_letter(topic, group, text),
        broker.recall(context, topic, text),
        broker.end_transaction(context, EndTransaction(topic, text, text, Resolution.COMMIT)),
    ):
        assert isinstance(await answered(call), GatewayError)
    if text:
        assert isinstance(await answered(broker.bounds(context, topic, text, 0)), GatewayError)
        assert isinstance(await answered(broker.committed(context, group, topic, text, 0)), GatewayError)
    await answered(broker.lock(context, text, text, [(text, text, 0)]))
    await answered(broker.unlock(context, text, text, [(text, text, 0)]))


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_client_and_attempt_ids_of_any_text_work(user, traits, text):
    user.context.client_id = text
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1")
    held = await user.one(topic, group, attempt_id=text)
    for restarted in (False, True):
        if restarted:
            await user.restart()
        if text:
            (again,) = await user.pop(topic, group, attempt_id=text)
            assert again.offset == held.offset
            assert again.receipt == held.receipt or not traits.repeats_keep_receipts
            held = again
    await user.ack(topic, group, held)


async def test_long_ids_that_begin_alike_are_told_apart(user, traits):
    topic, group = await user.topic(queues=2), await user.group(ordered=True)
    queues = await user.queues(topic)
    await user.put(
        *(user.message(topic, g, message_group=g, queue=q) for g, q in zip("AB", queues, strict=True))
    )
    one, two = "x" * 10_000 + "1", "x" * 10_000 + "2"
    (first,) = await user.collect(topic, group, 1, attempt_id=one)
    (second,) = await user.collect(topic, group, 1, attempt_id=two)
    assert first.receipt != second.receipt
    (again,) = await user.pop(topic, group, attempt_id=one)
    assert again.body == first.body
    assert again.receipt == first.receipt or not traits.repeats_keep_receipts


@pytest.mark.parametrize("number", NUMBERS)
async def test_numbers_of_any_size_are_answered(user, bystander, number):
    topic, group, held = bystander
    broker, context = user.broker, user.context
    everything = compile_filter(FilterKind.TAG, "*")
    where = (topic, held.broker, held.queue_id)
    requests = [
        Pop(topic, group, everything, 1_000, queue_id=number, broker=held.broker),
        Pop(topic, group, everything, 1_000, max_messages=number),
        Pop(topic, group, everything, 1_000, max_bytes=number),
    ]
    if not 0 < number < 1 << 40:
        requests.append(Pop(topic, group, everything, number))
    for request in requests:
        got = await answered(broker.pop(context, request))
        assert isinstance(got, GatewayError) or got == []
    await answered(broker.bounds(context, topic, held.broker, number))
    await answered(broker.offset_at(context, *where, number))
    await answered(broker.find_by_key(context, topic, "k", begin_ms=number, end_ms=number, limit=1))
    await answered(broker.find_by_key(context, topic, "k", begin_ms=0, end_ms=1 << 50, limit=number))
    for how in ({"max_messages": number, "max_bytes": 1 << 20}, {"max_messages": 1, "max_bytes": number}):
        await answered(broker.pull(context, *where, held.offset, passing=everything, wait_until=None, **how))
    await answered(broker.lock(context, group, "client", [(topic, held.broker, number)]))
    if not 0 <= number < 1 << 40:
        assert isinstance(await answered(user.hide(topic, group, held.receipt, number)), GatewayError)
    if number > 1 << 40:  # as a time: nothing was stored so late
        await broker.reset(await user.group(), topic, number)


@pytest.mark.parametrize(
    "host",
    ["", "10.0.0.7:5000", "[2001:db8::1]:5000", "nowhere", "10.0.0.7", "::1", "\udcff:x", "300.1.1.1:99999"],
)
async def test_a_born_host_of_any_text_is_taken(user, host):
    topic, group = await user.topic(), await user.group()
    message = user.message(topic, "a")
    message.born_host = host
    await user.put(message)
    got = await user.one(topic, group)
    assert got.body == b"a"
    if host == "10.0.0.7:5000":
        assert got.born_host == host


@pytest.mark.parametrize("number", NUMBERS)
async def test_numbers_of_a_message_of_any_size_are_answered(user, bystander, number):
    topic = await user.topic()
    for field in ("born_ms", "sys_flag", "flag", "queue_id", "recovery_ms", "attempt", "deliver_at_ms"):
        message = user.message(topic, field)
        setattr(message, field, number)
        await answered(user.put(message))
        message = user.message(topic, field, transaction=True)
        setattr(message, field, number)
        await answered(user.put(message))
    group = await user.group()
    for message in await user.pop(topic, group):
        await user.ack(topic, group, message)
