"""/api/groups and /api/clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from proxy.app import build
from proxy.config.settings import Settings


async def sent(api: Any, topic: str, *bodies: str) -> None:
    status, told = await api.post(
        f"/api/topics/{topic}/messages", {"messages": [{"body": b} for b in bodies]}
    )
    assert status == 200, told


async def taken(api: Any, topic: str, group: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        wanted = {"group": group, "max_messages": count, "wait_ms": 5000, "invisible_ms": 60_000}
        _, told = await api.post(f"/api/topics/{topic}/receive", wanted)
        assert told["messages"]
        found += told["messages"]
    return found


async def test_a_group_is_made_shown_listed_and_deleted(api: Any) -> None:
    wanted = {"name": "billing", "ordered": True, "max_attempts": 3, "start_from": "last"}
    status, made = await api.post("/api/groups", wanted)
    assert status == 201
    assert {key: made[key] for key in wanted} == wanted
    _, shown = await api.get("/api/groups/billing")
    assert {key: shown[key] for key in made} == made
    assert (shown["progress"], shown["clients"]) == ([], 0)
    why = "the setting remoting.mapped_groups does not name it"
    assert shown["mapping"] == {"mapped": False, "why": why}
    assert (await api.get("/api/groups"))[1]["groups"] == [made]
    assert (await api.delete("/api/groups/billing"))[0] == 204
    assert (await api.get("/api/groups/billing"))[0] == 404


async def test_a_group_without_more_has_the_defaults_of_the_settings(
    settings_for: Callable[..., Settings],
) -> None:
    groups = {"max_attempts": 5, "start_from": "last", "retry": "exponential", "consume_timeout_s": "1m"}
    app = build(settings_for(groups=groups))
    await app.start()
    try:
        import aiohttp

        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{app.admin_address}/api/groups", json={"name": "g"}) as answer,
        ):
            made = await answer.json()
    finally:
        await app.stop()
    assert (made["max_attempts"], made["start_from"], made["consume_timeout_ms"]) == (5, "last", 60_000)
    assert made["retry"]["kind"] == "exponential"


@pytest.mark.parametrize(
    "retry",
    [
        {"kind": "customized", "delays_ms": [0, 1000], "first_step": 0},
        {"kind": "exponential", "initial_ms": 10, "max_ms": 1000, "multiplier": 1.5},
    ],
)
async def test_a_retry_policy_is_kept(api: Any, retry: dict[str, Any]) -> None:
    await api.post("/api/groups", {"name": "g", "retry": retry})
    assert (await api.get("/api/groups/g"))[1]["retry"] == retry


async def test_progress_tells_what_is_done_held_and_left(api: Any) -> None:
    await api.post("/api/topics", {"name": "orders", "queues": 1})
    await sent(api, "orders", "one", "two", "three")
    messages = await taken(api, "orders", "billing", 2)
    receipts = {"group": "billing", "receipts": [messages[0]["receipt"]]}
    assert (await api.post("/api/topics/orders/ack", receipts))[1] == {"results": [None]}
    _, told = await api.get("/api/groups/billing/progress")
    [topic] = told["progress"]
    assert (topic["topic"], topic["lag"], topic["in_flight"]) == ("orders", 2, 1)
    [queue] = topic["queues"]
    assert (queue["minimum"], queue["maximum"], queue["frontier"], queue["committed"]) == (0, 3, 2, 1)
    assert (await api.get("/api/groups/billing"))[1]["progress"] == told["progress"]
    assert (await api.get("/api/groups/billing/progress", topic="orders"))[1] == told


@pytest.mark.parametrize("to", ["first", 0])
async def test_a_reset_to_the_first_brings_all_back(api: Any, to: str | int) -> None:
    await sent(api, "orders", "one", "two")
    messages = await taken(api, "orders", "billing", 2)
    await api.post(
        "/api/topics/orders/ack", {"group": "billing", "receipts": [m["receipt"] for m in messages]}
    )
    status, told = await api.post("/api/groups/billing/reset", {"to": to})
    assert (status, told) == (200, {"group": "billing", "to": to, "topics": ["orders"]})
    again = await taken(api, "orders", "billing", 2)
    assert sorted(message["body"] for message in again) == ["one", "two"]


async def test_a_reset_to_the_last_or_to_a_late_time_skips_all(api: Any) -> None:
    for to in ("last", time.time_ns() // 1_000_000 + 3_600_000):
        await sent(api, "orders", "one")
        await api.post("/api/groups", {"name": "billing"})
        assert (await api.post("/api/groups/billing/reset", {"to": to, "topics": ["orders"]}))[0] == 200
        _, told = await api.get("/api/groups/billing/progress", topic="orders")
        assert told["progress"][0]["lag"] == 0


async def test_a_reset_that_names_an_unknown_topic_changes_nothing(api: Any) -> None:
    await sent(api, "orders", "one")
    await taken(api, "orders", "billing", 1)
    status, told = await api.post(
        "/api/groups/billing/reset", {"to": "last", "topics": ["orders", "nowhere"]}
    )
    assert (status, told["fault"]) == (404, "TOPIC_NOT_FOUND")
    assert (await api.get("/api/groups/billing"))[1]["progress"][0]["in_flight"] == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/groups", {"name": "a b"}, 400, "only letters"),
        ("/api/groups", {"name": "CID_RMQ_SYS_x"}, 400, "system"),
        ("/api/groups", {"name": "g", "max_attempts": 0}, 400, "at least 1"),
        ("/api/groups", {"name": "g", "ordered": "yes"}, 400, "true or false"),
        ("/api/groups", {"name": "g", "start_from": "middle"}, 400, "first and last"),
        ("/api/groups", {"name": "g", "consume_timeout_ms": 1}, 400, "at least 1000 ms"),
        ("/api/groups", {"name": "g", "retry": {"kind": "odd"}}, 400, "customized and exponential"),
        ("/api/groups", {"name": "g", "retry": {"kind": "customized"}}, 400, "at least one delay"),
        (
            "/api/groups",
            {"name": "g", "retry": {"kind": "customized", "delays_ms": ["1"]}},
            400,
            "whole numbers",
        ),
        ("/api/groups", {"name": "g", "retry": {"kind": "customized", "delays_ms": [1] * 257}}, 400, "256"),
        (
            "/api/groups",
            {"name": "g", "retry": {"kind": "exponential", "multiplier": 1e300}},
            400,
            "multiplier",
        ),
        (
            "/api/groups",
            {"name": "g", "retry": {"kind": "exponential", "multiplier": 10**400}},
            400,
            "multiplier in retry is out of range",
        ),
        (
            "/api/groups",
            {"name": "g", "retry": {"kind": "exponential", "first": 1}},
            400,
            "no field of retry",
        ),
        ("/api/groups/nobody/reset", {"to": "first"}, 404, "nobody"),
        ("/api/groups/nobody/reset", {"to": "middle"}, 400, "first, last, or a time"),
        ("/api/groups/nobody/reset", {}, 400, "first, last, or a time"),
    ],
)
async def test_a_bad_request_is_refused_with_its_reason(
    api: Any, path: str, body: Any, status: int, words: str
) -> None:
    got, told = await api.post(path, body)
    assert got == status
    assert words in told["message"]
    assert (await api.get("/api/groups"))[1]["groups"] == []


async def test_an_unknown_group_is_not_found(api: Any) -> None:
    for path in ("/api/groups/nobody", "/api/groups/nobody/progress"):
        status, told = await api.get(path)
        assert (status, told["fault"]) == (404, "GROUP_NOT_FOUND")
    assert (await api.delete("/api/groups/nobody"))[1]["fault"] == "GROUP_NOT_FOUND"


async def test_the_default_consume_timeout_is_never_longer_than_an_invisible_time_may_be(
    settings_for: Callable[..., Settings],
) -> None:
    app = build(settings_for(limits={"min_invisible_s": 1, "max_invisible_s": 60}))
    await app.start()
    try:
        async with aiohttp.ClientSession() as session:
            url = f"{app.admin_address}/api/groups"
            async with session.post(url, json={"name": "billing"}) as answer:
                made = await answer.json()
                assert (answer.status, made.get("consume_timeout_ms")) == (201, 60_000), made
            wanted = {"name": "longer", "consume_timeout_ms": 60_001}
            async with session.post(url, json=wanted) as answer:
                assert answer.status == 400
    finally:
        await app.stop()
