"""What RocketMQ's classic clients see: a test for each scenario of `scenarios.toml`, version and place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.classic.switches import causes_of, lines_of

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
QUEUES = 4
VIRTUAL = 1 << 60
"""Messages that were popped have numbers from there on where their offset was."""


def ids(facts: list[dict[str, Any]]) -> list[str]:
    return sorted(one["id"] for one in facts)


def first_seen(bodies: list[str]) -> list[str]:
    return list(dict.fromkeys(bodies))


def once_each(facts: Any, by: str = "") -> None:
    """Every message that was sent came, once, at the first attempt, from the place it was said to be at."""
    assert not facts.of("gave up waiting")
    assert ids(facts.received(by)) == ids(facts.of("sent"))
    assert {one["attempt"] for one in facts.received(by)} == {1}
    places = {one["id"]: place_of(one, facts) for one in facts.of("sent")}
    assert {one["id"]: place_of(one, facts) for one in facts.received(by)} == places


def place_of(one: Any, facts: Any) -> tuple[int, int]:
    """Where a message is said to be: of mapped groups it has a number of its own where its offset was."""
    return one["queue"], -1 if facts.of("mapped") else one["offset"]


# sending


def test_sending(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    assert {one["status"] for one in facts.of("sent")} == {"SEND_OK"}
    came = {one["body"]: one for one in facts.received("")}
    counts = Counter(facts.bodies(""))
    assert counts == Counter(
        [*(one["body"] for one in facts.of("sent")), *(f"one-way {n}" for n in range(3))]
    )
    for sent in facts.of("sent"):
        one = came[sent["body"]]
        assert (one["id"], place_of(one, facts)) == (sent["id"], place_of(sent, facts))
        assert one["attempt"] == 1
        assert sent.get("wanted", sent["queue"]) == sent["queue"]
    [full] = facts.of("sent", label="full")
    one = came[full["body"]]
    assert (one["tag"], one["keys"], one["flag"], one["body"]) == ("TagA", "k1 k2", 7, "sync, grüße 世界")
    assert one["properties"]["colour"] == "blue"
    assert one["properties"]["größe"] == "übergroß 🐇"
    assert (came["bare"]["tag"], came["bare"]["keys"]) == ("null", "null")


def test_batch(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    [batch] = facts.of("batch")
    assert batch["status"] == "SEND_OK"
    assert len(set(batch["ids"])) == len(set(batch["offset_ids"])) == 10
    came = {one["body"]: one for one in facts.received("")}
    assert Counter(facts.bodies("")) == Counter(f"b{n}" for n in range(10))
    for n, sent in enumerate(batch["ids"]):
        one = came[f"b{n}"]
        assert one["id"] == sent
        assert (one["tag"], one["keys"], one["properties"]["number"]) == (f"Tag{n % 2}", f"key{n}", str(n))
        assert place_of(one, facts) == place_of({**batch, "offset": batch["offset"] + n}, facts)
    assert sorted(facts.bodies("odd")) == [f"b{n}" for n in range(1, 10, 2)]


def test_delay(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    assert ids(facts.received("")) == ids(facts.of("sent"))
    for one in facts.received(""):
        seconds = {"now": 0, "level 1": 1, "level 2": 5}[one["body"]]
        assert one["stored"] - one["born"] >= seconds * 1_000
        assert one["attempt"] == 1
        assert one["tag"] == ("TagL" if seconds else "null")


def test_compressed(facts: Any) -> None:
    once_each(facts)
    digests = {one["id"]: (one["sha256"], one["size"]) for one in facts.of("sent")}
    assert {one["id"]: (one["sha256"], one["size"]) for one in facts.received()} == digests


def test_large(facts: Any) -> None:
    once_each(facts)
    assert sorted(one["size"] for one in facts.received("")) == [1, 64 << 10, 1 << 20, 1 << 20, 4 << 20]
    digests = {one["id"]: one["sha256"] for one in facts.of("sent")}
    assert {one["id"]: one["sha256"] for one in facts.received("")} == digests


def test_many(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    [many] = facts.of("many")
    assert (many["failed"], many["came"]) == (0, 2_000), facts.of("not sent")[:3]
    assert many["deliveries"] == 2_000


def test_timed(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    sent = {one["body"]: one for one in facts.of("sent")}
    came = {one["body"]: one for one in facts.received("")}
    assert Counter(facts.bodies("")) == Counter(sent.keys() - {"recalled"})
    for body, after_ms in (("setDelayTimeSec", 2_000), ("setDelayTimeMs", 2_500), ("last", 22_000)):
        assert came[body]["stored"] - came[body]["born"] >= after_ms
    assert came["setDeliverTimeMs"]["stored"] >= sent["setDeliverTimeMs"]["due"]
    assert facts.of("recalled")[0]["id"] == sent["recalled"]["id"]


def test_refused(facts: Any) -> None:
    assert facts.step("no topic")["fact"] == "refused"
    assert "No route info of this topic" in facts.step("no topic")["error"]["text"]
    assert facts.step("too large")["error"]["type"] == "MQClientException"
    assert facts.refusal("too large for the broker") == "13"  # MESSAGE_ILLEGAL
    assert facts.step("a good one")["fact"] == "done"


# filters


def test_tags(facts: Any) -> None:
    once_each(facts, "all")
    assert sorted(facts.bodies("some")) == sorted(f"{tag}{n}" for tag in ("a", "标签") for n in range(4))


def test_sql92(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    assert sorted(facts.bodies("range")) == ["n2", "n4"]
    assert sorted(facts.bodies("named")) == ["n3", "n6"]


def test_resubscribe(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    # The poll that was waiting with the old filter may bring one more.
    assert sorted(set(facts.bodies("")) - {"a2"}) == ["a1", "b2", "c1"]


# who begins, and when


def test_idle(facts: Any) -> None:
    once_each(facts)


def test_fresh_group(facts: Any) -> None:
    once_each(facts)


def test_first_use(facts: Any) -> None:
    once_each(facts)


# members of a group


def nothing_lost(facts: Any) -> None:
    """What is moved from one member to another may come twice, but it comes."""
    assert not facts.of("gave up waiting")
    assert not facts.of("never as wanted")
    assert [one["step"] for one in facts.of("as wanted")] == ["alone", "both", "the other"]
    assert {one["body"] for one in facts.received()} == {one["body"] for one in facts.of("sent")}


def test_shared(facts: Any) -> None:
    nothing_lost(facts)


def test_orderly_shared(facts: Any) -> None:
    nothing_lost(facts)
    for queue in range(QUEUES):
        sent = [one["body"] for one in facts.of("sent", queue=queue)]
        assert first_seen([one["body"] for one in facts.of("received", queue=queue)]) == sent


def test_orderly(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    came = defaultdict(list)
    for one in facts.received(""):
        came[one["properties"]["order"]].append((one["body"], one["attempt"], one["consumed"]))
    for order in "012":
        wanted = [(f"order {order} {n}", 1, True) for n in range(6)]
        if order == "1":
            body = "order 1 2"
            wanted[2:3] = [(body, 1, False), (body, 2, True)]
        assert came[order] == wanted


def test_broadcast(facts: Any) -> None:
    for n in range(2):
        once_each(facts, f"consumer {n}")


# failing


def test_send_back(facts: Any, place: str) -> None:
    assert not facts.of("gave up waiting")
    [bad, better] = facts.of("sent")
    came = facts.of("received", by="", body="bad")
    # A client that sent a copy by itself says so: then it is known whose the copies are.
    assert [one["attempt"] for one in came] == [1, 2, 3], facts.of("sent anew")
    for one in came:
        assert (one["id"], one["topic"]) == (bad["id"], bad["topic"])
        assert (one["tag"], one["keys"], one["properties"]["colour"]) == ("TagB", "bad key", "red")
    assert [one["attempt"] for one in facts.of("received", by="", body=better["body"])] == [1, 2]
    [letter] = facts.received("dead letters")
    assert (letter["body"], letter["id"], letter["tag"], letter["keys"]) == (
        "bad",
        bad["id"],
        "TagB",
        "bad key",
    )
    assert letter["properties"]["colour"] == "red"
    assert letter["properties"]["RETRY_TOPIC"] == bad["topic"]
    if place == "mapped_cluster":
        return  # what was popped it stored anew: it says where it lay last
    # Of a broker the place in the log: it tells its own address, the gateway told that of the door.
    known = slice(None) if place == "embedded" else slice(-16, None)
    assert letter["properties"]["ORIGIN_MESSAGE_ID"][known] == bad["offset_id"][known]


def test_send_back_default(facts: Any, place: str) -> None:
    assert not facts.of("gave up waiting")
    first, second = facts.received("")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["id"] == second["id"]
    # A mapped message stays where it is stored, and is hidden from when its client said so.
    again = second["at"] if place == "mapped" else second["stored"]
    assert again - first["at"] >= 10_000


def test_orderly_dead_letter(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    bad = facts.of("sent")[0]
    assert [(one["body"], one["attempt"]) for one in facts.received("")] == [
        ("bad", 1),
        ("bad", 2),
        ("next", 1),
    ]
    [letter] = facts.received("dead letters")
    assert (letter["body"], letter["id"], letter["tag"], letter["keys"]) == (
        "bad",
        bad["id"],
        "TagO",
        "bad key",
    )


def test_restart(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    before, after = {f"before {n}" for n in range(40)}, {f"after {n}" for n in range(8)}
    assert Counter(facts.bodies("first")) == Counter(before)
    assert after <= set(facts.bodies("second"))
    # What listeners finish during a shutdown is not committed: at most what four threads have in hand.
    assert len(before & set(facts.bodies("second"))) <= 4


# transactions


def test_transaction(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    assert len(facts.of("executed")) == 4
    asked = {one["body"] for one in facts.of("checked")}
    assert asked == {"asked, yes", "asked, no"}
    assert set(facts.bodies("")) == {"yes", "asked, yes"}
    sent = {one["body"]: one for one in facts.of("sent")}
    for one in facts.of("executed"):
        assert one["transaction"] == sent[one["body"]]["id"]
    for one in facts.of("checked"):
        assert one["transaction"] == sent[one["body"]]["id"]
        assert one["topic"] == sent[one["body"]]["topic"]
        assert one["properties"]["colour"] == "green"
    for one in facts.received(""):
        assert one["id"] == sent[one["body"]]["id"]
        assert (one["tag"], one["keys"], one["properties"]["colour"]) == ("TagT", "key", "green")
    assert len(facts.of("received", body="yes")) == 1


def test_transaction_successor(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    assert set(facts.bodies("")) == {"hello", "yes"}
    assert facts.of("checked", by="second", body="yes")


# reading


def test_look_up(facts: Any) -> None:
    sent = {one["id"]: one["body"] for one in facts.of("sent")}
    for by in ("by place", "by key", "by id"):
        assert Counter(facts.bodies(by)) == Counter(sent.values()), by
    for one in facts.received():
        assert sent[one["id"]] == one["body"]
        assert sent[one.get("asked", one["id"])] == one["body"]
        assert (one["tag"], one["properties"]["number"]) == ("TagQ", one["body"][1:])
    assert facts.step("no such key")["fact"] == "refused"


def test_pull(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    [queues], [bounds] = facts.of("queues"), facts.of("bounds")
    assert queues["queues"] == list(range(QUEUES))
    assert (bounds["min"], bounds["max"], bounds["halfway"], bounds["empty"]) == (0, 6, 3, 0)
    last = facts.of("pulled", by="all")[-1]
    assert (last["status"], last["next"]) == ("NO_NEW_MSG", 6)
    assert facts.bodies("all") == [f"p{n}" for n in range(6)]
    assert facts.bodies("odd") == ["p1", "p3", "p5"]
    assert facts.bodies("from 4") == ["p4", "p5"]
    [nothing], [far], [waited] = (facts.of("pulled", by=by) for by in ("nothing", "far away", "waited"))
    assert (nothing["status"], nothing["next"]) == ("NO_MATCHED_MSG", 6)
    assert (far["status"], far["next"]) == ("OFFSET_ILLEGAL", 6)
    assert (waited["status"], waited["next"], facts.bodies("waited")) == ("FOUND", 7, ["p6"])
    assert facts.of("committed", step="after")[0]["offset"] == 5


def test_lite_assign(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    assert facts.of("queues")[0]["queues"] == list(range(QUEUES))
    assert sorted(facts.bodies("from 2")) == sorted(
        [f"0 {n}" for n in range(2, 6)] + [f"1 {n}" for n in range(6)]
    )
    assert facts.bodies("from halfway") == [f"0 {n}" for n in range(3, 6)]
    assert facts.bodies("from the beginning") == [f"0 {n}" for n in range(6)]
    assert facts.bodies("from the end") == ["0 6"]
    [committed] = facts.of("committed")
    assert (committed["first"], committed["second"]) == (7, 6)


def test_lite_subscribe(facts: Any) -> None:
    wanted = [one["body"] for one in facts.of("sent", tag="yes")]
    assert sorted(facts.bodies("first") + facts.bodies("second")) == sorted(wanted)
    assert sorted(facts.bodies("second")) == [f"after {n}" for n in range(4)]


def test_request_reply(facts: Any) -> None:
    bodies = {one["by"]: one["body"] for one in facts.of("replied")}
    assert bodies == {"sync": "reply to first", "async": "reply to second", "to a queue": "reply to third"}
    assert {one["properties"]["mood"] for one in facts.of("replied")} == {"good"}
    assert not facts.of("not replied")
    assert facts.step("no reply")["error"]["type"] == "RequestTimeoutException"
    assert facts.bodies("replier") == ["first", "second", "third", "silence"]
    assert facts.received("replier")[0]["tag"] == "TagR"


def test_popping(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    came = facts.received()
    assert set(ids(came)) == set(ids(facts.of("sent")))
    attempts = defaultdict(list)
    for one in came:
        attempts[one["body"]].append(one["attempt"])
        assert one["properties"]["POP_CK"], "it was pulled, not popped"
    assert attempts.pop("p3")[:2] == [1, 2]
    assert {tuple(made) for made in attempts.values()} == {(1,)}


# set elsewhere


def test_reset(facts: Any, place: str) -> None:
    assert not facts.of("gave up waiting")
    sent = [one["body"] for one in facts.of("sent")]
    after = {body for body in sent if body.startswith("after")}
    before = set(sent) - after
    back, forward = facts.of("reset")
    assert (back["offsets"], forward["offsets"]) == ([0] * QUEUES, [3] * QUEUES)
    counts = Counter(facts.bodies("back"))
    assert counts.keys() == set(sent)
    if facts.of("mapped"):  # what was taken anew when it heard of the reset may come once more
        assert {counts[body] for body in before} <= {2, 3}
    else:
        assert {counts[body] for body in before} == {2}
    came = set(facts.bodies("forward"))
    assert after <= came
    if place != "mapped_cluster":  # where it keeps what it holds, through another worker of the gateway
        assert len(before & came) <= 4  # what its four threads had in hand


def test_set_back(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    assert [one["so"] for one in facts.of("pulled")] == [True]
    counts = Counter(facts.bodies(""))
    assert counts.keys() == {one["body"] for one in facts.of("sent")}
    assert min(counts.values()) >= 2


# mapped onto pop


def test_mapped_shared(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    one, two = facts.bodies("one"), facts.bodies("two")
    assert one
    assert any(body.startswith("both") for body in two)
    assert set(one) | set(two) == {sent["body"] for sent in facts.of("sent")}
    assert {body for body in two if body.startswith("alone")} == {f"alone {n}" for n in range(8)}
    assert {sent["queue"] for sent in facts.of("sent")} == {0}
    assert all(message["offset"] >= VIRTUAL for message in facts.received())


def test_stuck(facts: Any, place: str) -> None:
    assert not facts.of("gave up waiting")
    first, second = facts.of("missing")
    assert first["sent"] >= 400
    assert first["hangs"]
    assert second["sent"] - first["sent"] == 400
    if place == "mapped":  # it holds what fits into its window, however much is sent
        assert 0 < first["missing"] <= QUEUES * 32
        assert 0 < second["missing"] <= QUEUES * 32
    else:  # its queue piles up
        assert first["missing"] >= 100
        assert second["missing"] - first["missing"] == 100
    assert facts.of("after it left")[0]["missing"] == 0


def test_late_send_back(facts: Any) -> None:
    assert not facts.of("gave up waiting")
    assert facts.of("cut")[0]["again"]
    [sent] = facts.of("sent")
    came = facts.received("")
    assert {one["id"] for one in came} == {sent["id"]}
    assert len(came) == 3
    assert came[0]["attempt"] == 1
    assert came[-1]["attempt"] > 1


def test_switches(facts: Any) -> None:
    """What comes twice has a cause; the counts are printed."""
    assert not facts.of("gave up waiting")
    assert all(one["so"] for one in facts.of("mapped") + facts.of("pulled"))
    assert (len(facts.of("mapped")), len(facts.of("pulled"))) == (4, 2)
    [told] = facts.of("switched")
    assert told["direct"] > 0
    assert told["came"] == told["sent"]
    causes, unexplained = causes_of(facts)
    print(f"{told['sent']} sent, {told['direct']} of them direct, came again: {dict(causes)}")
    assert told["deliveries"] - told["came"] == causes.total() + len(unexplained)
    assert not unexplained, "\n".join(lines_of(unexplained, facts))


# the table


def test_every_scenario_has_a_test_and_is_in_the_driver(table: Any) -> None:
    functions = [
        one for one in ast.parse(Path(__file__).read_text()).body if isinstance(one, ast.FunctionDef)
    ]
    players = [one.name for one in functions if any(arg.arg == "facts" for arg in one.args.args)]
    tests = {name.removeprefix("test_") for name in players if name.startswith("test_")}
    assert tests == set(table)
    driver = next((HERE / "java").rglob("Scenarios.java")).read_text()
    assert set(re.findall(r'ALL_OF_THEM\.put\("(\w+)"', driver)) == set(table)


def test_the_table_in_the_documentation_is_current() -> None:
    done = subprocess.run([sys.executable, str(HERE / "document.py"), "--check"])
    assert done.returncode == 0, "run: python tests/classic/document.py"
