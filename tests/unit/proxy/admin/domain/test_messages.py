"""/api/topics/…/messages, receive and ack."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest

from proxy.app import App


async def send(api: Any, topic: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    status, told = await api.post(f"/api/topics/{topic}/messages", {"messages": list(messages)})
    assert status == 200, told
    results: list[dict[str, Any]] = told["results"]
    return results


async def receive(api: Any, topic: str, group: str, **more: Any) -> list[dict[str, Any]]:
    wanted = {"group": group, "max_messages": 32, "wait_ms": 60_000, "invisible_ms": 60_000, **more}
    status, told = await api.post(f"/api/topics/{topic}/receive", wanted)
    assert status == 200, told
    messages: list[dict[str, Any]] = told["messages"]
    return messages


async def test_a_message_comes_back_with_all_it_was_sent_with(api: Any) -> None:
    properties = {"colour": "grün", "n": "1"}
    [result] = await send(
        api, "orders", {"body": "hällo", "tag": "new", "keys": ["k1", "k2"], "properties": properties}
    )
    [message] = await receive(api, "orders", "billing")
    assert message["message_id"] == result["message_id"]
    assert (message["queue_id"], message["offset"]) == (result["queue_id"], result["offset"])
    assert (message["body"], message["tag"], message["keys"]) == ("hällo", "new", ["k1", "k2"])
    assert (message["properties"], message["attempt"], message["size"]) == (properties, 1, 6)
    assert message["stored_ms"] >= message["born_ms"] > 0


async def test_a_body_that_is_no_text_travels_as_base64(api: Any) -> None:
    packed = base64.b64encode(b"\xff\x00").decode()
    await send(api, "orders", {"body_base64": packed})
    [message] = await receive(api, "orders", "billing")
    assert message["body_base64"] == packed
    assert "body" not in message


async def test_a_message_group_makes_it_ordered_and_a_delay_makes_it_late(api: Any) -> None:
    await api.post("/api/topics", {"name": "ordered", "types": ["FIFO"]})
    await send(api, "ordered", {"body": "a", "message_group": "g"})
    [message] = await receive(api, "ordered", "billing")
    assert message["message_group"] == "g"
    await api.post("/api/topics", {"name": "late", "types": ["DELAY"]})
    before_ms = time.time_ns() // 1_000_000
    [result] = await send(api, "late", {"body": "b", "delay_ms": 300})
    assert result["recall_handle"]
    [message] = await receive(api, "late", "billing")
    assert message["stored_ms"] >= before_ms + 300


async def test_a_message_of_the_wrong_type_is_refused(api: Any) -> None:
    await api.post("/api/topics", {"name": "ordered", "types": ["FIFO"]})
    status, told = await api.post("/api/topics/ordered/messages", {"messages": [{"body": "a"}]})
    assert (status, told["fault"]) == (400, "MESSAGE_TYPE_MISMATCH")
    assert "FIFO" in told["message"]


async def test_an_acknowledged_message_stays_away_and_a_kept_one_comes_back(api: Any) -> None:
    await send(api, "orders", {"body": "one"})
    [message] = await receive(api, "orders", "billing", invisible_ms=1000)
    [again] = await receive(api, "orders", "billing")
    assert (again["message_id"], again["attempt"]) == (message["message_id"], 2)
    acked = await api.post("/api/topics/orders/ack", {"group": "billing", "receipts": [again["receipt"]]})
    assert acked == (200, {"results": [None]})
    assert await receive(api, "orders", "billing", wait_ms=0) == []


async def test_each_bad_handle_of_an_ack_has_its_own_answer(api: Any) -> None:
    await send(api, "orders", {"body": "one"})
    [message] = await receive(api, "orders", "billing")
    handles = {"group": "billing", "receipts": ["nonsense", message["receipt"]]}
    _, told = await api.post("/api/topics/orders/ack", handles)
    assert told["results"][0]["fault"] == "ILLEGAL_RECEIPT"
    assert told["results"][1] is None


async def test_filters_choose_by_tag_or_by_properties(api: Any) -> None:
    await send(api, "orders", {"body": "1", "tag": "a"}, {"body": "2", "tag": "b", "properties": {"n": "7"}})
    assert [m["body"] for m in await receive(api, "orders", "g1", tag="a || c")] == ["1"]
    assert [m["body"] for m in await receive(api, "orders", "g2", sql="n > 6")] == ["2"]
    status, told = await api.post("/api/topics/orders/receive", {"group": "g3", "sql": "n >"})
    assert (status, told["fault"]) == (400, "ILLEGAL_FILTER")


async def test_a_message_is_found_by_its_id_and_by_its_keys(api: Any) -> None:
    [result] = await send(api, "orders", {"body": "one", "keys": ["k1", "k2"]})
    _, told = await api.get(f"/api/topics/orders/messages/{result['message_id']}")
    assert [message["body"] for message in told["messages"]] == ["one"]
    for key in ("k1", "k2"):
        _, told = await api.get("/api/topics/orders/messages", key=key)
        assert [message["message_id"] for message in told["messages"]] == [result["message_id"]]
    now_ms = time.time_ns() // 1_000_000
    for span in ({"from": str(now_ms + 60_000)}, {"to": str(now_ms - 60_000)}):
        _, told = await api.get("/api/topics/orders/messages", key="k1", **span)
        assert told["messages"] == []


async def test_what_is_not_there_is_not_found(api: Any) -> None:
    await api.post("/api/topics", {"name": "orders"})
    for path, fault in (
        ("/api/topics/orders/messages/01AABBCCDDEEFF00112233445566778899", "MESSAGE_NOT_FOUND"),
        ("/api/topics/nowhere/messages/01AABBCCDDEEFF00112233445566778899", "TOPIC_NOT_FOUND"),
        ("/api/topics/nowhere/messages?key=k", "TOPIC_NOT_FOUND"),
    ):
        status, told = await api.get(path)
        assert (status, told["fault"]) == (404, fault)


@pytest.mark.parametrize(
    ("message", "fault", "words"),
    [
        ({}, "BODY_EMPTY", "body"),
        ({"body": "a", "body_base64": "YQ=="}, "BAD_REQUEST", "give one of them"),
        ({"body_base64": "no base64!"}, "BAD_REQUEST", "no base64"),
        ({"body": 1}, "BAD_REQUEST", "must be a text"),
        ({"body": "a", "tag": "a|b"}, "ILLEGAL_TAG", "|"),
        ({"body": "a", "keys": [" "]}, "ILLEGAL_KEY", "key"),
        ({"body": "a", "properties": {"KEYS": "x"}}, "ILLEGAL_PROPERTY_KEY", "KEYS"),
        ({"body": "a", "properties": {"a": "\x01"}}, "ILLEGAL_PROPERTY_KEY", "control"),
        ({"body": "a", "delay_ms": 10**10}, "ILLEGAL_DELIVERY_TIME", "86400000"),
        ({"body": "a", "delay_ms": 1, "deliver_at_ms": 1}, "BAD_REQUEST", "give one of them"),
        ({"body": "a", "message_group": "g" * 64}, "ILLEGAL_MESSAGE_GROUP", "63"),
        ({"body": "a", "delay": 1}, "BAD_REQUEST", "did you mean delay_ms?"),
        ("text", "BAD_REQUEST", "a message must be a JSON object"),
    ],
)
async def test_a_bad_message_is_refused_with_its_reason(
    api: Any, message: Any, fault: str, words: str
) -> None:
    status, told = await api.post("/api/topics/orders/messages", {"messages": [message]})
    assert (status, told["fault"]) == (400, fault)
    assert words in told["message"]


async def test_a_body_above_the_limit_is_too_large(api: Any) -> None:
    status, told = await api.post("/api/topics/orders/messages", {"messages": [{"body": "x" * (4 << 20)}]})
    assert status == 200, told
    status, told = await api.post(
        "/api/topics/orders/messages", {"messages": [{"body": "x" * ((4 << 20) + 1)}]}
    )
    assert (status, told["fault"]) == (413, "BODY_TOO_LARGE")
    assert "4194304" in told["message"]


async def test_a_request_above_the_limit_is_not_read(api: Any) -> None:
    status, told = await api.post("/api/topics/orders/messages", {"messages": [{"body": "x" * (17 << 20)}]})
    assert (status, told["fault"]) == (413, "BODY_TOO_LARGE")


async def test_a_wait_ends_when_a_message_comes(app: App, api: Any) -> None:
    await api.post("/api/topics", {"name": "orders"})
    waiting = asyncio.create_task(receive(api, "orders", "billing", wait_ms=300_000))
    await somebody_waits(app)
    await send(api, "orders", {"body": "now"})
    assert [message["body"] for message in await waiting] == ["now"]


async def test_scenario_03_a_caller_that_went_away_holds_nothing(app: App, api: Any) -> None:
    await api.post("/api/topics", {"name": "orders", "queues": 1})
    host, _, port = api.address.removeprefix("http://").partition(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"group": "billing", "wait_ms": 300_000, "invisible_ms": 60_000}).encode()
    head = (
        f"POST /api/topics/orders/receive HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await somebody_waits(app)
    writer.close()
    await writer.wait_closed()
    await nobody_waits(app)
    await send(api, "orders", {"body": "for whoever is there"})
    [message] = await receive(api, "orders", "billing")
    assert message["body"] == "for whoever is there"


async def somebody_waits(app: App, count: int = 1) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while app.processor.figures()["waiting_receives"] != count:
        assert asyncio.get_running_loop().time() < deadline, f"not {count} wait"
        await asyncio.sleep(0.001)


async def nobody_waits(app: App) -> None:
    await somebody_waits(app, 0)


async def test_a_receive_that_waits_is_answered_with_nothing_when_the_drain_begins(
    app: App, api: Any
) -> None:
    await send(api, "orders", {"body": "one"})
    await receive(api, "orders", "billing")
    waiting = asyncio.ensure_future(receive(api, "orders", "billing", wait_ms=300_000))
    await somebody_waits(app)
    await app.drain()
    assert await asyncio.wait_for(waiting, 60) == []
    assert await receive(api, "orders", "billing", wait_ms=300_000) == []
    # What does not wait is served until the end.
    assert (await api.get("/api/topics/orders"))[0] == 200


async def test_a_stop_without_a_drain_answers_a_receive_that_waits_too(app: App, api: Any) -> None:
    await send(api, "orders", {"body": "one"})
    await receive(api, "orders", "billing")
    waiting = asyncio.ensure_future(receive(api, "orders", "billing", wait_ms=300_000))
    await somebody_waits(app)
    await app.stop()
    assert await asyncio.wait_for(waiting, 60) == []
