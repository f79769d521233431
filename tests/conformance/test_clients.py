"""What official clients see: a test per scenario of `scenarios.toml`, for each client whose API has it.

A client is a language, for its newest published version, or a language with `-oldest` behind.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

import pytest

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

LIMIT = 4 * 1024 * 1024
LADDER_MS = (10_000, 30_000)
"""The rests after the first two failures, whatever the client: RocketMQ's default."""


def sent_ids(facts: Any, **fields: Any) -> list[str]:
    return [one["id"] for one in facts.of("sent", **fields)]


def received_ids(facts: Any, by: str | None = None) -> list[str]:
    return [one["id"] for one in facts.received(by)]


def by_group(messages: list[dict[str, Any]]) -> dict[str, list[str]]:
    groups = defaultdict(list)
    for one in messages:
        groups[one["group"]].append(one["body"])
    return groups


def once_each(facts: Any, by: str | None = "") -> None:
    """Every message that was sent came, once, at the first attempt, and nothing came when it was quiet."""
    assert sorted(received_ids(facts, by)) == sorted(sent_ids(facts))
    assert {one["attempt"] for one in facts.received(by)} == {1}
    assert not facts.received("quiet")


# sending and receiving


def test_normal(facts: Any) -> None:
    once_each(facts)
    found = {one["id"]: one for one in facts.received()}
    full, later, bare = (found[facts.of("sent", label=label)[0]["id"]] for label in ("full", "async", "bare"))
    assert (full["body"], full["tag"], full["keys"]) == ("hello", "TagA", ["k1", "k2"])
    assert full["properties"] == {
        "colour": "blue",
        "größe": "übergroß 🐇",
        "spaced key": " a b ",
        "k" * 200: "v" * 2000,
    }
    assert (later["body"], later["tag"], later["keys"]) == ("grüße, 世界 🌍", "标签", ["schlüssel"])
    assert (bare["body"], bare["tag"], bare["keys"], bare["properties"]) == ("bare", "", [], {})


def test_bodies(facts: Any) -> None:
    once_each(facts)
    assert sorted(one["size"] for one in facts.received()) == [1, 65_536, LIMIT]
    digests = {one["id"]: one["sha256"] for one in facts.of("sent")}
    for one in facts.received():
        assert one["sha256"] == digests[one["id"]]
        assert not one["corrupted"]
    assert facts.refusal("one byte over") == "client"


def test_body_too_big(facts: Any) -> None:
    assert sorted(one["size"] for one in facts.received("")) == [1, 65_536, LIMIT - 65_536]
    digests = {one["id"]: one["sha256"] for one in facts.of("sent")}
    for one in facts.received():
        assert one["sha256"] == digests[one["id"]]
    assert not facts.received("quiet")
    assert facts.refusal("one byte over") in ("client", "MESSAGE_BODY_TOO_LARGE")


def test_batch_send(facts: Any) -> None:
    once_each(facts)
    assert facts.of("receipts")[0]["count"] == len(set(sent_ids(facts))) == 10
    bodies = {one["id"]: one["body"] for one in facts.received()}
    assert [bodies[one] for one in sent_ids(facts)] == [f"m{n}" for n in range(10)], "a receipt of another"


def test_batch_receive(facts: Any) -> None:
    once_each(facts)
    counts = [one["count"] for one in facts.of("batch", by="")]
    assert max(counts) == 32


def test_early_receive(facts: Any) -> None:
    once_each(facts)


def test_subscriptions(facts: Any) -> None:
    split = [one["fact"] for one in facts].index("unsubscribed")
    before, after = type(facts)(facts[:split]), type(facts)(facts[split:])
    topics = {one["topic"]: one["body"] for one in before.received()}
    assert len(before.received()) == 3
    wanted = {one for one in before.bodies() if one.endswith(" wanted")}
    assert len(wanted) == 2
    [first] = [topic for topic in topics if f"{topic} other" in before.bodies()]
    assert [one["topic"] for one in after.received()] == [topic for topic in topics if topic != first]


def told_what_it_dialled(facts: Any) -> None:
    once_each(facts)
    assert facts.of("told")
    for one in facts.of("told"):
        assert (
            one["facade"].removeprefix("dns:").removeprefix("ipv4:").removeprefix("ipv6:") == one["dialled"]
        )


def test_by_name(facts: Any) -> None:
    told_what_it_dialled(facts)
    assert facts.of("told")[0]["dialled"].startswith("localhost:")


def test_by_address(facts: Any) -> None:
    told_what_it_dialled(facts)
    assert facts.of("told")[0]["dialled"].startswith("127.0.0.2:")


def test_by_ipv6(facts: Any) -> None:
    told_what_it_dialled(facts)
    assert facts.of("told")[0]["dialled"].startswith("[::1]:")


def test_first_use(facts: Any) -> None:
    once_each(facts)


# waiting


def test_empty_poll(facts: Any) -> None:
    batches = [(one["by"], one["count"]) for one in facts.of("batch")]
    # On a busy machine its twenty seconds may be over before the message is sent; then it asks again.
    told = [one for one in batches if one != ("patient", 0)]
    assert told == [("hasty", 0), ("hasty", 0), ("patient", 1)]
    once_each(facts, "patient")


def test_idle(facts: Any, client: str) -> None:
    assert [one["count"] for one in facts.of("batch", by="empty")] == [0]
    waited = ["simple"] if client == "rust" else ["push", "simple"]  # Rust has no push consumer
    assert sorted((one["by"], one["attempt"]) for one in facts.received()) == [(by, 1) for by in waited]


# order


def test_fifo_simple(facts: Any) -> None:
    once_each(facts)
    assert by_group(facts.received()) == by_group(facts.of("sent"))


def test_fifo_held(facts: Any) -> None:
    assert facts.bodies("first") == ["a0"]
    assert facts.bodies("meanwhile") == ["b0", "b1"]
    assert facts.bodies("afterwards") == ["a0", "a1"]
    [again, after] = facts.received("afterwards")
    assert (again["attempt"], after["attempt"]) == (2, 1)
    # Its time of 60 s begins at the broker, on a busy machine long before the client has it.
    assert again["at"] >= facts.of("sent", body="a0")[0]["at"] + 59_900
    assert not facts.received("quiet")


def test_fifo_push(facts: Any) -> None:
    received = facts.received()
    consumed = by_group([one for one in received if one["consumed"]])
    assert consumed == by_group(facts.of("sent"))
    for bodies in by_group(received).values():  # a failed one comes again before any other of its group
        assert [body for body, _ in itertools.groupby(bodies)] == sorted(set(bodies))
    assert sorted(one["body"] for one in received if not one["consumed"]) == ["a2", "c0"]


def test_lite(facts: Any) -> None:
    """Python takes up room-3 from its first message, Java, which says so, from the last two."""
    received, sent = facts.received(), defaultdict(list)
    for one in facts.of("sent"):
        sent[one["lite"]].append(one["body"])
    consumed = defaultdict(list)
    for one in received:
        if one["consumed"]:
            consumed[one["lite"]].append(one["body"])
    assert {one["body"].split()[0] for one in received} == set(consumed)
    assert consumed["room-1"] == sent["room-1"]
    assert consumed["room-2"] == sent["room-2"][:5]
    assert consumed["room-3"] in (sent["room-3"], sent["room-3"][-2:])
    assert [one["body"] for one in received if not one["consumed"]] == ["room-1 2"]
    first = [one["fact"] for one in facts].index("two rooms")
    assert {one["lite"] for one in type(facts)(facts[:first]).received()} == {"room-1", "room-2"}
    assert facts.refusal("an illegal name") in ("ILLEGAL_LITE_TOPIC", "client")


def test_priority(facts: Any) -> None:
    assert facts.of("anything goes")
    once_each(facts, "one by one")
    urgent = facts.of("urgent")
    assert [one["body"] for one in urgent] == [f"p{p} {n}" for p in (6, 4, 2, 1) for n in range(2)]
    assert [one["priority"] for one in urgent] == [p for p in (6, 4, 2, 1) for _ in range(2)]


# time


def test_delay(facts: Any) -> None:
    once_each(facts)
    due = {one["id"]: one["due"] for one in facts.of("sent")}
    for one in facts.received():
        assert one["at"] >= due[one["id"]], "a delayed message came early"


def test_recall(facts: Any) -> None:
    doomed = facts.of("sent", body="doomed")[0]["id"]
    assert facts.of("recalled")[0]["id"] == doomed
    assert facts.bodies() == ["spared"]
    assert facts.refusal("recall again") in ("NOT_FOUND", "MESSAGE_NOT_FOUND")
    assert facts.refusal("recall delivered") in ("NOT_FOUND", "MESSAGE_NOT_FOUND")
    assert facts.refusal("recall nonsense") == "BAD_REQUEST"


# transactions


def test_transaction(facts: Any) -> None:
    assert facts.bodies() == ["committed"]
    [found] = facts.received("")
    assert (found["attempt"], found["tag"], found["keys"]) == (1, "t", ["k"])
    assert found["id"] == facts.of("sent", body="committed")[0]["id"]


def test_transaction_twice(facts: Any) -> None:
    once_each(facts)
    assert facts.step("commit")["fact"] == "done"
    assert facts.step("commit again")["fact"] == "done"
    assert facts.refusal("roll back after commit") == "INVALID_TRANSACTION_ID"
    assert facts.refusal("unknown id") == "INVALID_TRANSACTION_ID"


def test_transaction_check(facts: Any) -> None:
    assert facts.bodies() == ["good"]
    ids = {one["body"]: one["id"] for one in facts.of("sent")}
    assert {(one["body"], one["id"], one["tag"]) for one in facts.of("checked")} == {
        ("good", ids["good"], "t"),
        ("bad", ids["bad"], "t"),
    }


def test_transaction_unnamed(facts: Any) -> None:
    once_each(facts)
    assert facts.of("checked", body="good")


def test_transaction_successor(facts: Any) -> None:
    assert facts.bodies() == ["orphan"]
    assert facts.of("checked", body="orphan")


# filters


def test_tags(facts: Any) -> None:
    assert sorted(facts.bodies("some")) == ["a", "c"]
    assert sorted(facts.bodies("every")) == ["BBBB", "a", "b", "c", "none"]
    assert not facts.received("quiet")


def test_sql92(facts: Any) -> None:
    sent = {one["body"] for one in facts.of("sent")}
    assert sorted(facts.bodies()) == sorted(body for body in sent if body.startswith("yes"))
    assert facts.refusal("illegal expression") == "ILLEGAL_FILTER_EXPRESSION"


# attempts


def test_redelivery(facts: Any, client: str) -> None:
    first, second = facts.received("")
    assert first["id"] == second["id"]
    assert (first["attempt"], second["attempt"]) == (1, 2)
    # The time of 10 s begins at the broker, when this message was sent at the earliest; on a busy machine the
    # client has it long after that.
    assert second["at"] >= facts.of("sent")[0]["at"] + 9_900, "an invisible message came early"
    assert facts.refusal("ack by expired handle") == "INVALID_RECEIPT_HANDLE"
    if not client.startswith("rust"):  # its API cannot change invisible times
        assert facts.refusal("change by expired handle") == "INVALID_RECEIPT_HANDLE"
    assert facts.step("ack again")["fact"] == "done"
    assert not facts.received("quiet")


def test_sent_again(facts: Any) -> None:
    once_each(facts)
    sent, sent_again = sent_ids(facts)
    assert sent != sent_again
    assert [one["id"] for one in facts.of("acked")] == [sent_again, sent_again]


def test_change_invisible(facts: Any) -> None:
    bodies = [(one["by"], one["body"], one["attempt"]) for one in facts.received()]
    assert sorted(bodies) == [("", "longer", 1), ("", "shorter", 1), ("early", "shorter", 2)]
    [shorter] = [one for one in facts.received("") if one["body"] == "shorter"]
    assert facts.of("changed", seconds=1)
    assert facts.received("early")[0]["at"] >= shorter["at"] + 900


def test_nack(facts: Any) -> None:
    received = facts.received("")
    assert [one["attempt"] for one in received] == [1, 2, 3, 4]
    assert len(facts.of("changed")) == 3
    for before, again in itertools.pairwise(received):
        assert again["at"] >= before["at"] + 900
    assert not facts.received("quiet")


def test_push_consumer(facts: Any) -> None:
    wanted = {one["id"] for one in facts.of("sent") if one["body"].startswith("m")}
    assert sorted(received_ids(facts, "")) == sorted(wanted)
    assert not facts.received("quiet")


def test_asked(facts: Any) -> None:
    once_each(facts)
    assert len(facts.received("on demand")) == 1
    [stack] = facts.of("stack")
    assert "at java.base" in stack["text"] or "java.lang.Thread" in stack["text"]
    [verified] = facts.of("verified")
    assert '"result": "consumed"' in verified["text"]
    assert facts.of("reconnected")[0]["text"] == '{"told": 1, "not_told": 0}'


def test_push_shared(facts: Any) -> None:
    odd = Counter(received_ids(facts))
    odd.subtract(sent_ids(facts))
    wrong = {one for one, count in odd.items() if count}
    assert not wrong, [one for one in facts if one.get("id") in wrong or one["fact"] == "finished"]


def test_broadcast(facts: Any) -> None:
    for by in ("one", "two"):
        assert sorted(received_ids(facts, by)) == sorted(sent_ids(facts))
    assert not facts.received("quiet")


def test_push_retry(facts: Any) -> None:
    received = facts.received("")
    assert [(one["attempt"], one["consumed"]) for one in received] == [(1, False), (2, False), (3, True)]
    for rest, failed, again in zip(LADDER_MS, received, received[1:], strict=False):
        assert again["at"] >= failed["at"] + rest - 100
    assert not facts.received("quiet")


def test_dead_letter(facts: Any) -> None:
    [sent] = facts.of("sent")
    assert [one["attempt"] for one in facts.received("")] == [1, 2]
    [dead] = facts.received("dead")
    assert (dead["id"], dead["body"], dead["tag"], dead["keys"]) == (sent["id"], "poison", "t", ["k"])
    assert dead["properties"] == {"p": "v"}
    assert not facts.received("quiet")


def test_dead_letter_fifo(facts: Any) -> None:
    bodies = [one["body"] for one in facts.received("")]
    assert [body for body in bodies if body != "poison"] == ["before", "after"]
    assert bodies[1:-1] == ["poison"] * (len(bodies) - 2)
    assert len(bodies) == 4, "the group allows two attempts"
    assert facts.bodies("dead") == ["poison"]


def test_many_receives(facts: Any) -> None:
    assert facts.of("counted")[0]["count"] == 1200


# refusals


def test_wrong_type(facts: Any, client: str) -> None:
    # All but Rust's look at the types of the route before they send.
    refusal = "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE" if client == "rust" else "client"
    for step in ("FIFO to NORMAL", "DELAY to NORMAL", "TRANSACTION to NORMAL", "NORMAL to FIFO"):
        assert facts.refusal(step) == refusal
    for step in ("NORMAL", "FIFO", "DELAY", "TRANSACTION"):
        assert facts.step(f"{step} to several")["fact"] == "done"


def test_unknown_topic(facts: Any, client: str) -> None:
    steps = [one for one in facts if "step" in one]
    assert len(steps) == 3
    for one in steps:
        assert one["fact"] == "refused"
        if client != "python":  # which tells its user no code of a failed route
            assert one["error"]["code"] == "TOPIC_NOT_FOUND"


def test_unknown_group(facts: Any) -> None:
    assert facts.refusal("receive") == "CONSUMER_GROUP_NOT_FOUND"


def test_illegal_names(facts: Any, client: str) -> None:
    checking = client in ("python", "java")  # the client itself looks at names
    assert facts.refusal("topic with a space") == ("client" if checking else "ILLEGAL_TOPIC")
    assert facts.refusal("topic too long") == ("client" if client == "python" else "ILLEGAL_TOPIC")
    # Go's client starts with a stream for its settings, which ends with a status of gRPC.
    illegal_group = "GRPC_InvalidArgument" if client == "go" else "ILLEGAL_CONSUMER_GROUP"
    assert facts.refusal("group with a space") == ("client" if checking else illegal_group)
    # Java's client refuses to start, with words of its own.
    assert facts.refusal("group too long") == ("client" if client == "java" else illegal_group)


def test_illegal_messages(facts: Any, client: str) -> None:
    checking = client in ("python", "java")
    for step, code in {
        "129 properties": "MESSAGE_PROPERTIES_TOO_LARGE",
        "properties of 16385 bytes": "MESSAGE_PROPERTIES_TOO_LARGE",
        "reserved property": "ILLEGAL_MESSAGE_PROPERTY_KEY",
        "control character in a property": "ILLEGAL_MESSAGE_PROPERTY_KEY",
        "control character in the tag": "ILLEGAL_MESSAGE_TAG",
        "control character in a key": "ILLEGAL_MESSAGE_KEY",
        "blank key": "client" if checking else "ILLEGAL_MESSAGE_KEY",
        "tag with a bar": "client" if checking else "ILLEGAL_MESSAGE_TAG",
        "message group of 64 bytes": "ILLEGAL_MESSAGE_GROUP",
        "delay of 25 hours": "ILLEGAL_DELIVERY_TIME",
    }.items():
        assert facts.refusal(step) == code, step
    # Rust's client panics on a code that came after it.
    empty = "BAD_REQUEST" if client == "rust" else "MESSAGE_BODY_EMPTY"
    assert facts.refusal("empty body") in ("client", empty)
    for step in ("128 properties", "properties of 16384 bytes", "message group of 63 bytes"):
        assert facts.step(step)["fact"] == "done", step


def test_illegal_receives(facts: Any, client: str) -> None:
    assert facts.refusal("invisible for 9 s") == "ILLEGAL_INVISIBLE_TIME"
    assert facts.refusal("invisible for 13 h") == "ILLEGAL_INVISIBLE_TIME"
    if client != "rust":  # its API cannot change invisible times, and asks for no messages as it is told
        assert facts.refusal("no messages asked") == "client"
        assert facts.refusal("change to 13 h") == "ILLEGAL_INVISIBLE_TIME"
        assert facts.step("ack after a refused change")["fact"] == "done"
    assert facts.refusal("tag expression of bars") == "ILLEGAL_FILTER_EXPRESSION"
    assert len(facts.received()) == 1
