"""proxy.workers.joint_answers: answers that are made of those of several processes."""

from __future__ import annotations

from typing import Any

from proxy.workers.joint_answers import _clients, _cluster, _counts, _group, _stuck, _usefulness
from proxy.workers.queries import Part


def client(name: str, *, connected: bool, topics: list[str] | None = None, group: str = "") -> dict[str, Any]:
    return {
        "client_id": name,
        "kind": "push consumer",
        "group": group,
        "connected": connected,
        "topics": topics or [],
    }


def test_a_client_of_two_processes_is_told_once_as_the_one_with_its_stream_knows_it() -> None:
    own = {"clients": [client("b", connected=False), client("c", connected=True)], "count": 2}
    other = {"clients": [client("a", connected=True), client("b", connected=True, topics=["t"])], "count": 2}
    assert _clients(own, [other, {}]) == {
        "clients": [
            client("a", connected=True),
            client("b", connected=True, topics=["t"]),
            client("c", connected=True),
        ],
        "count": 3,
    }


def test_clients_of_one_id_in_two_groups_are_listed_both() -> None:
    """Of two accounts, or the memberships of a classic client, as one process lists them."""
    anna, bert = (client("c", connected=True, group=group) for group in ("anna-g", "bert-g"))
    assert _clients({"clients": [anna], "count": 1}, [{"clients": [bert], "count": 1}]) == {
        "clients": [anna, bert],
        "count": 2,
    }


def test_those_that_are_not_told_by_name_are_counted() -> None:
    own = {"clients": [client("a", connected=True)], "count": 5}
    assert _clients(own, [{"clients": [client("b", connected=True)], "count": 3}])["count"] == 8


def test_how_many_were_told_is_added() -> None:
    assert _counts({"told": 1, "not_told": 0}, [{"told": 2, "not_told": 3}, {}]) == {"told": 3, "not_told": 3}


def test_clients_of_a_group_are_added_and_its_progress_is_told_once() -> None:
    assert _group({"name": "g", "clients": 1, "progress": [1]}, [{"clients": 2, "progress": [1]}, {}]) == {
        "name": "g",
        "clients": 3,
        "progress": [1],
    }


def test_why_a_group_is_stuck_is_told_by_who_has_most_of_its_consumers() -> None:
    own = {"consumers": 0, "reasons": ["nobody consumes"], "held": []}
    other = {"consumers": 2, "reasons": ["busy"], "held": []}
    assert _stuck(own, [other, {"consumers": 1, "reasons": []}, {}]) == {
        "consumers": 3,
        "reasons": ["busy"],
        "held": [],
    }


def test_links_of_all_processes_are_added_and_facts_of_the_cluster_are_not() -> None:
    gateway = {"routes": 4, "links_open": 2, "numbers_unkept": 0, "transactions_bound": True}
    own = {"brokers": [1], "gateway": gateway}
    other = {"brokers": [1], "gateway": {"routes": 9, "links_open": 3, "numbers_unkept": 1}}
    assert _cluster(own, [other, {}]) == {
        "brokers": [1],
        "gateway": {"routes": 4, "links_open": 5, "numbers_unkept": 1, "transactions_bound": True},
    }
    assert _cluster(own, []) == own


def test_an_answer_goes_before_a_reason_and_a_reason_before_not_knowing() -> None:
    parts = [Part(1, 404, b""), Part(2, 412, b""), Part(3, 504, b""), Part(4, 200, b"")]
    assert [part.status for part in sorted(parts, key=_usefulness)] == [200, 504, 412, 404]


def test_a_body_that_is_no_object_has_no_facts() -> None:
    assert Part(1, 200, b"[]").facts() == {}
    assert Part(1, 200, b"{").facts() == {}
    assert Part(1, 200, b'{"a": 1}').facts() == {"a": 1}
