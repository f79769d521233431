"""/api/topics/{topic}/lite, and what the other pages tell of lite topics and priorities."""

from __future__ import annotations

from typing import Any

import pytest

from popgate.context import Context
from popgate.lite import LiteAction, LiteSync
from processors.requests import Receive
from proxy.app import App


@pytest.fixture
async def rooms(api: Any) -> None:
    topic = {"name": "rooms", "types": ["LITE"], "attributes": {"lite.topic.expiration": "60"}}
    assert (await api.post("/api/topics", topic))[0] == 201
    group = {"name": "readers", "attributes": {"lite.bind.topic": "rooms"}}
    assert (await api.post("/api/groups", group))[0] == 201
    for room in ("a", "b", "c"):
        message = {"body": room, "lite_topic": room}
        _, sent = await api.post("/api/topics/rooms/messages", {"messages": [message, message]})
        assert all("message_id" in one for one in sent["results"]), sent


@pytest.mark.usefixtures("rooms")
async def test_lite_topics_are_listed_page_by_page(api: Any) -> None:
    status, first = await api.get("/api/topics/rooms/lite", limit="2")
    assert status == 200
    assert [(one["name"], one["minimum"], one["maximum"]) for one in first["lite_topics"]] == [
        ("a", 0, 2),
        ("b", 0, 2),
    ]
    _, rest = await api.get("/api/topics/rooms/lite", after=first["next"], limit="2")
    assert ([one["name"] for one in rest["lite_topics"]], rest["next"]) == (["c"], None)


@pytest.mark.usefixtures("rooms")
async def test_a_page_has_a_next_one_whatever_limit_was_asked_for(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is shorter than its limit where that is above the gateway's own."""
    for module in ("processors.consume.lite", "proxy.admin.domain.lite"):
        monkeypatch.setattr(f"{module}.MOST_LISTED", 2)
    _, first = await api.get("/api/topics/rooms/lite", limit="5000")
    assert ([one["name"] for one in first["lite_topics"]], first["next"]) == (["a", "b"], "b")


@pytest.mark.usefixtures("rooms")
async def test_a_lite_topic_is_deleted(api: Any) -> None:
    assert (await api.delete("/api/topics/rooms/lite/b"))[0] == 204
    _, found = await api.get("/api/topics/rooms/lite")
    assert [one["name"] for one in found["lite_topics"]] == ["a", "c"]
    status, told = await api.delete("/api/topics/rooms/lite/b")
    assert (status, told["message"]) == (404, "topic rooms has no lite topic 'b'")
    assert (await api.get("/api/topics/nowhere/lite"))[0] == 404


@pytest.mark.usefixtures("rooms")
async def test_subscriptions_are_counted_with_the_lite_topic(api: Any, app: App) -> None:
    sync = LiteSync("rooms", "readers", LiteAction.ADD, ("a", "b"))
    await app.processor.lite.sync(Context(client_id="c1"), sync)
    _, found = await api.get("/api/topics/rooms/lite")
    assert [one["subscribers"] for one in found["lite_topics"]] == [1, 1, 0]


async def test_a_message_tells_its_priority_and_its_lite_topic(api: Any) -> None:
    await api.post("/api/topics", {"name": "urgent", "types": ["PRIORITY"]})
    for priority in (0, 5):
        message = {"body": f"p{priority}", "priority": priority}
        await api.post("/api/topics/urgent/messages", {"messages": [message]})
    _, got = await api.post("/api/topics/urgent/receive", {"group": "g", "max_messages": 2})
    assert [(one["body"], one["priority"], one["lite_topic"]) for one in got["messages"]] == [
        ("p5", 5, ""),
        ("p0", 0, ""),
    ]
    assert got["messages"][0]["properties"] == {}


@pytest.mark.usefixtures("rooms")
async def test_what_holds_a_lite_topic_up_is_told_and_freed(api: Any, app: App) -> None:
    sync = LiteSync("rooms", "readers", LiteAction.ADD, ("b",))
    one = Context(client_id="c1")
    await app.processor.lite.sync(one, sync)
    asked = Receive("rooms", "readers", invisible_ms=600_000, max_messages=1, wait_s=0)
    [taken] = await app.processor.receive(one, asked)
    status, told = await api.get("/api/groups/readers/stuck")
    assert status == 200
    [held] = told["held"]
    assert (held["lite_topic"], held["holder"], held["waiting_behind"]) == ("b", "c1", 1)
    assert held["receipt"] == taken.receipt
    assert any("kept back: an earlier one of their lite topic" in reason for reason in told["reasons"])
    status, freed = await api.post("/api/groups/readers/free", {"which": held["receipt"]})
    assert (status, freed["lite_topic"]) == (200, "b")
    [again] = await app.processor.receive(one, asked)
    assert (again.offset, again.queue_id, again.attempt) == (taken.offset, taken.queue_id, 2)
