"""Filters: applied before anything counts as delivered."""

from __future__ import annotations

import pytest


async def send_tags(user, topic, *tags):
    await user.put(*(user.message(topic, tag or "none", tag=tag) for tag in tags))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("*", ["blue", "green", "none", "red"]),
        ("", ["blue", "green", "none", "red"]),
        ("red", ["red"]),
        ("red || blue", ["blue", "red"]),
        ("red||blue||green", ["blue", "green", "red"]),
        ("purple", []),
    ],
)
async def test_tags_choose_what_is_delivered(user, texts, tags, expected):
    topic, group = await user.topic(), await user.group()
    await send_tags(user, topic, "red", "blue", "", "green")
    got = await user.collect(topic, group, len(expected), tags=tags) if expected else []
    assert sorted(texts(got)) == expected
    await user.nothing(topic, group, tags=tags)


async def test_tags_with_the_same_java_hash_are_told_apart(user, texts):
    """ "Aa" and "BB" have one hash code in Java, by which RocketMQ's broker filters."""
    topic, group = await user.topic(), await user.group()
    await send_tags(user, topic, "Aa", "BB")
    assert texts(await user.collect(topic, group, 1, tags="Aa")) == ["Aa"]
    await user.nothing(topic, group, tags="Aa")


@pytest.mark.parametrize("size", [10 * 1024, 16 * 1024 - 64])
async def test_a_tag_as_long_as_may_be_sent_can_be_subscribed_to(user, texts, size):
    topic, group = await user.topic(), await user.group()
    tag = "t" * size
    await user.put(
        user.message(topic, "long", tag=tag),
        user.message(topic, "other", tag=tag[:-1] + "u"),
        user.message(topic, "short", tag="t"),
    )
    assert texts(await user.collect(topic, group, 1, tags=tag)) == ["long"]
    await user.nothing(topic, group, tags=tag)


async def test_a_long_list_of_tags_chooses_what_is_delivered(user, texts):
    topic, group = await user.topic(), await user.group()
    await send_tags(user, topic, "red", "blue", "green")
    many = [f"tag-{n:05}" for n in range(1400)]
    tags = "||".join(["green", *many, "red"])
    assert 14 * 1024 < len(tags) < 16 * 1024
    assert sorted(texts(await user.collect(topic, group, 2, tags=tags))) == ["green", "red"]
    await user.nothing(topic, group, tags=tags)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a > 5", ["10", "6"]),
        ("a BETWEEN 1 AND 6", ["1", "6"]),
        ("a IS NULL", ["none"]),
        ("a IS NOT NULL AND a <> 1", ["10", "6"]),
        ("a = 1 OR b = 'x'", ["1", "10"]),
        ("b IN ('x', 'y')", ["10", "6"]),
        ("NOT (a = 1)", ["10", "6"]),
        ("TAGS = 'tagged'", ["none"]),
    ],
)
async def test_sql_chooses_what_is_delivered(user, texts, sql, expected):
    topic, group = await user.topic(), await user.group()
    await user.put(
        user.message(topic, "1", properties={"a": "1"}),
        user.message(topic, "6", properties={"a": "6", "b": "y"}),
        user.message(topic, "10", properties={"a": "10", "b": "x"}),
        user.message(topic, "none", tag="tagged"),
    )
    assert sorted(texts(await user.collect(topic, group, len(expected), sql=sql))) == expected
    await user.nothing(topic, group, sql=sql)


async def test_what_does_not_pass_uses_up_no_attempt_and_is_no_dead_letter(user, texts):
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await send_tags(user, topic, "red", "blue")
    (red,) = await user.collect(topic, group, 1, tags="red")
    await user.ack(topic, group, red)
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group, tags="red")
    await user.dead_letters(group, 0)


async def test_what_does_not_pass_is_no_backlog(user):
    topic, group = await user.topic(), await user.group()
    await send_tags(user, topic, *(["blue"] * 20))
    await user.nothing(topic, group, tags="red")

    async def no_lag() -> bool:
        await user.nothing(topic, group, tags="red")
        return sum(p.lag for p in await user.broker.progress(group, topic)) == 0

    await user.eventually(no_lag)


async def test_a_pop_looks_past_many_messages_that_do_not_pass(user):
    topic, group = await user.topic(queues=1), await user.group()
    for _ in range(20):
        await send_tags(user, topic, *(["blue"] * 250))
    await send_tags(user, topic, "red")
    assert (await user.one(topic, group, tags="red")).body == b"red"


async def test_a_waiting_pop_finds_its_message_behind_many_that_do_not_pass(user, texts):
    topic, group = await user.topic(queues=1), await user.group()
    for _ in range(20):
        await send_tags(user, topic, *(["blue"] * 250))
    await send_tags(user, topic, "red")
    assert texts(await user.done(user.waiting(topic, group, tags="red"))) == ["red"]


async def test_each_group_has_its_own_filter(user, texts):
    topic, reds, blues = await user.topic(), await user.group(), await user.group()
    await send_tags(user, topic, "red", "blue")
    assert texts(await user.collect(topic, reds, 1, tags="red")) == ["red"]
    assert texts(await user.collect(topic, blues, 1, tags="blue")) == ["blue"]


async def test_an_ordered_group_skips_what_does_not_pass(user, texts):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.put(
        *(
            user.message(topic, body, tag=tag, message_group="A")
            for body, tag in (("1", "red"), ("2", "blue"), ("3", "red"), ("4", "blue"))
        )
    )
    seen = []
    while len(seen) < 2:
        got = await user.collect(topic, group, 1, tags="red")
        seen += texts(got)
        await user.ack(topic, group, *got)
    assert seen == ["1", "3"]
    await user.nothing(topic, group, tags="red")


async def test_a_delayed_and_a_committed_message_are_filtered_too(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.put(user.message(topic, "late red", tag="red", delay_ms=1_000))
    await user.put(user.message(topic, "late blue", tag="blue", delay_ms=1_000))
    for tag in ("red", "blue"):
        (half,) = await user.put(user.message(topic, f"half {tag}", tag=tag, transaction=True))
        await user.commit(topic, half)
    await user.precision(1_000)
    assert sorted(texts(await user.collect(topic, group, 2, tags="red"))) == ["half red", "late red"]
    await user.nothing(topic, group, tags="red")
