"""/api/topics."""

from __future__ import annotations

from typing import Any

import pytest


async def test_a_topic_is_made_shown_listed_and_deleted(api: Any) -> None:
    status, made = await api.post("/api/topics", {"name": "orders", "types": ["FIFO", "NORMAL"], "queues": 3})
    assert status == 201
    assert (made["types"], made["queues"], made["permission"]) == (["FIFO", "NORMAL"], 3, "read-write")
    status, shown = await api.get("/api/topics/orders")
    assert status == 200
    assert {key: shown[key] for key in made} == made
    assert [place["queue_id"] for place in shown["places"]] == [0, 1, 2]
    assert (await api.get("/api/topics"))[1]["topics"] == [made]
    assert (await api.delete("/api/topics/orders"))[0] == 204
    assert (await api.get("/api/topics"))[1]["topics"] == []


async def test_a_topic_without_more_has_the_defaults(api: Any) -> None:
    _, made = await api.post("/api/topics", {"name": "orders"})
    assert (made["types"], made["queues"], made["retention_ms"], made["retention_bytes"]) == (
        [],
        8,
        None,
        None,
    )


async def test_retention_and_permission_are_kept(api: Any) -> None:
    wanted = {"name": "t", "permission": "read", "retention_ms": 86_400_000, "retention_bytes": 1 << 30}
    assert (await api.post("/api/topics", wanted))[0] == 201
    _, shown = await api.get("/api/topics/t")
    assert {key: shown[key] for key in wanted} == wanted


async def test_a_name_with_percent_and_bar_can_be_asked_for(api: Any) -> None:
    await api.post("/api/topics", {"name": "ns%a|b"})
    assert (await api.get("/api/topics/ns%25a%7Cb"))[1]["name"] == "ns%a|b"


async def test_making_a_topic_twice_is_a_conflict(api: Any) -> None:
    await api.post("/api/topics", {"name": "orders"})
    status, told = await api.post("/api/topics", {"name": "orders"})
    assert (status, told["fault"]) == (409, "ALREADY_EXISTS")


@pytest.mark.parametrize("path", ["/api/topics/nowhere"])
async def test_an_unknown_topic_is_not_found(api: Any, path: str) -> None:
    for ask in (api.get, api.delete):
        status, told = await ask(path)
        assert (status, told["fault"]) == (404, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "fault", "words"),
    [
        ({}, "BAD_REQUEST", "name is missing"),
        ({"name": ""}, "BAD_REQUEST", "name is missing"),
        ({"name": 3}, "BAD_REQUEST", "name in the request must be a text"),
        ({"name": "a b"}, "ILLEGAL_TOPIC", "only letters"),
        ({"name": "a" * 128}, "ILLEGAL_TOPIC", "the limit is 127"),
        ({"name": "TBW102"}, "ILLEGAL_TOPIC", "system"),
        ({"name": "\ud800"}, "BAD_REQUEST", "no Unicode"),
        ({"name": "t", "types": ["ODD"]}, "BAD_REQUEST", "'ODD' is no message type; there are NORMAL"),
        ({"name": "t", "types": "FIFO"}, "BAD_REQUEST", "types in the request must be a list"),
        ({"name": "t", "types": [1]}, "BAD_REQUEST", "list of texts"),
        ({"name": "t", "queues": 0}, "BAD_REQUEST", "at least 1"),
        ({"name": "t", "queues": 10**6}, "BAD_REQUEST", "at most 1024"),
        ({"name": "t", "queues": 1.5}, "BAD_REQUEST", "whole number"),
        ({"name": "t", "queues": True}, "BAD_REQUEST", "whole number"),
        ({"name": "t", "queues": -1}, "BAD_REQUEST", "out of range"),
        ({"name": "t", "retention_ms": 0}, "BAD_REQUEST", "above 0"),
        ({"name": "t", "permission": "all"}, "BAD_REQUEST", "there are read-write"),
        ({"name": "t", "attributes": {"a": 1}}, "BAD_REQUEST", "object of texts"),
        (
            {"name": "t", "queue": 3},
            "BAD_REQUEST",
            "'queue' is no field of the request; did you mean queues?",
        ),
        ([], "BAD_REQUEST", "must be a JSON object"),
    ],
)
async def test_a_bad_request_is_refused_with_its_reason(api: Any, body: Any, fault: str, words: str) -> None:
    status, told = await api.post("/api/topics", body)
    assert (status, told["fault"]) == (400, fault)
    assert words in told["message"]
    assert (await api.get("/api/topics"))[1]["topics"] == []
