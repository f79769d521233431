"""Declarations of topics and groups: read in three ways, checked, and written so that they read the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from popgate.model import CustomizedRetry, ExponentialRetry, GroupConfig, MessageType, TopicConfig
from proxy.admin.web.json_forms import group_out, topic_out
from proxy.config.units import parse_duration
from proxy.declaring.sources import DeclarationWrong, read_source
from proxy.declaring.specs import difference, exact_duration, group_spec, topic_spec, written
from proxy.declaring.validation import check

TOML = """
# all of the shop
[topics.orders]
types = ["FIFO", "normal"]
queues = 4
retention = "3d"
retention_bytes = "1GiB"
permission = "read"
attributes = { owner = "shop", "lite.topic.expiration" = 60 }

[topics."old%orders"]

[groups.billing]
ordered = true
max_attempts = 5
retry = "1s,5s,1m"
consume_timeout = "15m"
start_from = "last"
"""
YAML = """
topics:
  orders:
    types: [FIFO, normal]
    queues: 4
    retention: 3d
    retention_bytes: 1GiB
    permission: read
    attributes: {owner: shop, lite.topic.expiration: 60}
  "old%orders":
groups:
  billing:
    ordered: true
    max_attempts: 5
    retry: 1s,5s,1m
    consume_timeout: 15m
    start_from: last
"""
JSON = json.dumps(
    {
        "topics": {
            "orders": {
                "types": ["FIFO", "normal"],
                "queues": 4,
                "retention": "3d",
                "retention_bytes": "1GiB",
                "permission": "read",
                "attributes": {"owner": "shop", "lite.topic.expiration": 60},
            },
            "old%orders": {},
        },
        "groups": {
            "billing": {
                "ordered": True,
                "max_attempts": 5,
                "retry": "1s,5s,1m",
                "consume_timeout": "15m",
                "start_from": "last",
            }
        },
    },
    indent=1,
)


@pytest.mark.parametrize(("text", "kind"), [(TOML, "toml"), (YAML, "yaml"), (JSON, "json")])
@pytest.mark.parametrize("told", [True, False])
def test_three_ways_to_say_the_same(text: str, kind: str, told: bool) -> None:
    declaration = check(read_source(text, kind if told else "", "file"))
    assert declaration.topics == {
        "orders": {
            "types": ["FIFO", "NORMAL"],
            "queues": 4,
            "retention_ms": 259_200_000,
            "retention_bytes": 1 << 30,
            "permission": "read",
            "attributes": {"owner": "shop", "lite.topic.expiration": "60"},
        },
        "old%orders": {},
    }
    assert declaration.groups == {
        "billing": {
            "ordered": True,
            "max_attempts": 5,
            "retry": {"kind": "customized", "delays_ms": [1_000, 5_000, 60_000], "first_step": 0},
            "consume_timeout_ms": 900_000,
            "start_from": "last",
        }
    }


@pytest.mark.parametrize("text", ["", "\n\n# nothing\n", "{}", "---\n", "topics:\n", "[topics]\n"])
def test_a_declaration_may_be_empty(text: str) -> None:
    declaration = check(read_source(text, "", "file"))
    assert (declaration.topics, declaration.groups) == ({}, {})


def wrong(text: str, kind: str) -> tuple[str, ...]:
    with pytest.raises(DeclarationWrong) as refused:
        check(read_source(text, kind, "file"))
    return refused.value.sentences


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("toml", "[topics.orders]\nqueues = 4\nretension = '3d'\n", 3),
        ("toml", "topics.orders.queues = 4\n\ntopics.orders.retension = 3\n", 3),
        ("yaml", "topics:\n  orders:\n    queues: 4\n    retension: 3d\n", 4),
        ("json", '{"topics": {\n "orders": {\n  "queues": 4,\n  "retension": 3}}}', 4),
    ],
)
def test_an_unknown_key_is_told_with_its_line_and_the_nearest_known_one(
    kind: str, text: str, line: int
) -> None:
    assert wrong(text, kind) == (
        f"file:{line}: topics.orders.retension is not known; did you mean retention?",
    )


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (
            "toml",
            "[topics.orders]\nqueues = 'four'\n",
            "file:2: topics.orders.queues is 'four': a whole number",
        ),
        ("toml", "[topics.orders]\nqueues = 0\n", "topics.orders.queues is 0: a whole number from 1"),
        ("toml", "[topics.orders]\nqueues = true\n", "topics.orders.queues is true: a whole"),
        ("toml", "[topics.orders]\ntypes = ['FOFI']\n", "is a list: 'FOFI' is none of NORMAL, FIFO"),
        ("toml", "[topics.orders]\npermission = 'rw'\n", "'rw': one of read-write, read, write, none"),
        ("toml", "[topics.orders]\nretention = 'long'\n", "'long' is no duration: write seconds, or like"),
        ("toml", "[topics.orders]\nretention_bytes = 'much'\n", "topics.orders.retention_bytes is 'much'"),
        ("toml", "[topics.orders]\nattributes = 3\n", "a table of texts is needed"),
        ("toml", "[topics.'a b']\n", "only letters, digits"),
        ("toml", "[topics.TBW102]\n", "belongs to the system"),
        ("toml", "[topics]\norders = 3\n", "file:2: topics.orders must be a table, not 3"),
        ("toml", "[groups.g]\nretry = 'exponential:1s:2s:3:4'\n", "first rest, longest rest and factor"),
        ("toml", "[groups.g]\nretry = ''\n", "at least one rest"),
        ("toml", "[groups.g]\nretry = { kind = 'random' }\n", "one of customized, exponential"),
        (
            "toml",
            "[groups.g]\nretry = { kind = 'customized', delays = [1], last = 3 }\n",
            "'last' is not known",
        ),
        ("toml", "[groups.g]\nstart_from = 'end'\n", "one of first, last"),
        ("toml", "[groups.g]\nordered = 'yes'\n", "true or false"),
        ("toml", "[topic.orders]\n", "file:1: topic is not known; did you mean topics?"),
        ("toml", "[topics.orders\n", "file:1: "),
        ("toml", "[topics.a]\n[topics.a]\n", "file:2: "),
        ("toml", "topics = 3\n", "topics must be a table"),
        ("yaml", "topics: [a, b]\n", "file:1: topics must be a table"),
        ("yaml", "topics:\n  a: {queues: 1}\n  a: {queues: 2}\n", "file:3: 'a' is there twice"),
        ("yaml", "topics:\n  12: {queues: 1}\n", "file:2: the name 12 is no text: put it in quotes"),
        ("yaml", "topics:\n\t- a\n", "file:2: "),
        ("yaml", "topics: {? [a]: b}\n", "file:1: a key must be a text"),
        ("yaml", "topics:\n  a: !!python/name:os.system ''\n", "file:2: could not determine"),
        ("yaml", "- a\n", "a declaration has the tables topics and groups"),
        ("json", '{"topics": {"a": {}, "a": {}}}', "'a' is there twice"),
        ("json", '{"topics":\n {"a" {}}}', "file:2: "),
        ("json", "[" * 100_000, "nested too deeply"),
        ("json", "[]", "a declaration has the tables"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_allowed(kind: str, text: str, said: str) -> None:
    (sentence,) = wrong(text, kind)
    assert said in sentence
    assert sentence.startswith("file")


def test_all_that_is_wrong_is_told_at_once() -> None:
    assert (
        len(wrong("[topics.a]\nqueues = 0\nqueue = 1\n[groups.'']\n[groups.g]\nordered = 1\n", "toml")) == 4
    )


def test_aliases_that_multiply_are_refused() -> None:
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (sentence,) = wrong("\n".join(bomb), "yaml")
    assert "too large" in sentence


@pytest.mark.parametrize("ms", [0, 1, 999, 1_000, 61_001, 90_061_500, 259_200_000, 1 << 40])
def test_a_written_duration_is_exact(ms: int) -> None:
    assert round(parse_duration(exact_duration(ms)) * 1000) == ms


CONFIGS: list[Any] = [
    TopicConfig("plain"),
    TopicConfig(
        "all%of|it",
        (MessageType.FIFO, MessageType.DELAY),
        3,
        3,
        retention_ms=86_400_001,
        retention_bytes=12_345,
        attributes={"a b": 'quote " and \\ and \x7f and ü', "n": "1"},
    ),
    GroupConfig("usual"),
    GroupConfig("rests", retry=CustomizedRetry((1, 2_500, 60_000), 0), consume_timeout_ms=1_500),
    GroupConfig("grows", retry=ExponentialRetry(100, 7_200_000, 1.7), ordered=True, consume_enabled=False),
    GroupConfig("everybody", broadcast=True, attributes={"x": ""}),
]


@pytest.mark.parametrize("kind", ["toml", "yaml", "json"])
def test_what_is_written_reads_as_what_it_was(kind: str) -> None:
    topics = {one.name: topic_out(one) for one in CONFIGS if isinstance(one, TopicConfig)}
    groups = {one.name: group_out(one) for one in CONFIGS if isinstance(one, GroupConfig)}
    text = written(
        kind,
        {name: topic_spec(one) for name, one in topics.items()},
        {name: group_spec(one) for name, one in groups.items()},
    )
    read = check(read_source(text, kind, "file"))
    for there, again in ((topics, read.topics), (groups, read.groups)):
        assert there.keys() == again.keys()
        for name, fields in again.items():
            assert fields == {key: there[name][key] for key in fields}
            left_out = {key: value for key, value in there[name].items() if key not in fields}
            assert not any(
                value
                for key, value in left_out.items()
                if key not in ("name", "read_queues", "write_queues", "queues")
            )


def test_a_difference_is_a_unified_diff() -> None:
    before = topic_out(TopicConfig("t", read_queues=4, write_queues=4))
    after = topic_out(TopicConfig("t", read_queues=8, write_queues=8, retention_ms=1000))
    assert list(difference("topic", "t", before, after, "file")) == [
        "--- gateway/topics/t",
        "+++ file/topics/t",
        "@@ -1,4 +1,5 @@",
        " [topics.t]",
        " types = []",
        "-queues = 4",
        "+queues = 8",
        ' permission = "read-write"',
        '+retention = "1s"',
    ]
    assert next(iter(difference("topic", "t", None, after, "file"))) == "--- /dev/null"
