"""/api/groups/{group}/stuck and /free, on the embedded broker."""

from __future__ import annotations

from typing import Any


async def fifo(api: Any, topic: str, group: str, *bodies: str) -> None:
    assert (await api.post("/api/topics", {"name": topic, "queues": 1}))[0] == 201
    assert (await api.post("/api/groups", {"name": group, "ordered": True}))[0] == 201
    messages = [{"body": body, "message_group": body[0], "keys": [body]} for body in bodies]
    assert (await api.post(f"/api/topics/{topic}/messages", {"messages": messages}))[0] == 200


async def receive(api: Any, topic: str, group: str, count: int = 1) -> list[dict[str, Any]]:
    body = {"group": group, "max_messages": count, "invisible_ms": 600_000}
    _, told = await api.post(f"/api/topics/{topic}/receive", body)
    found: list[dict[str, Any]] = told["messages"]
    return found


async def test_scenario_02_the_message_that_blocks_is_named_with_its_holder_and_freed(api: Any) -> None:
    await fifo(api, "orders", "billing", "A1", "A2", "A3", "B1")
    (head,) = await receive(api, "orders", "billing")
    status, told = await api.get("/api/groups/billing/stuck")
    assert status == 200
    (held,) = told["held"]
    assert (held["message_id"], held["state"], held["message_group"]) == (head["message_id"], "held", "A")
    assert (held["holder"], held["keys"], held["attempt"]) == ("admin@127.0.0.1", ["A1"], 1)
    assert held["waiting_behind"] == 2
    assert held["since_ms"] <= told["now_ms"] <= held["until_ms"]
    assert held["until_ms"] - held["since_ms"] == 600_000
    assert any("kept back" in reason for reason in told["reasons"])
    status, freed = await api.post("/api/groups/billing/free", {"which": head["message_id"]})
    assert (status, freed["message_id"], freed["dead_lettered"]) == (200, head["message_id"], False)
    again = {one["body"]: one["attempt"] for one in await receive(api, "orders", "billing", 10)}
    assert again["A1"] == 2


async def test_scenario_04_what_was_acknowledged_meanwhile_is_not_brought_back(api: Any) -> None:
    await fifo(api, "orders", "billing", "A1")
    (head,) = await receive(api, "orders", "billing")
    body = {"group": "billing", "receipts": [head["receipt"]]}
    assert (await api.post("/api/topics/orders/ack", body))[0] == 200
    status, told = await api.post("/api/groups/billing/free", {"which": head["receipt"]})
    assert (status, told["fault"]) == (404, "MESSAGE_NOT_FOUND")
    assert await receive(api, "orders", "billing") == []
    _, told = await api.get("/api/groups/billing/stuck", topic="orders")
    assert (told["held"], told["reasons"]) == ([], ["nothing waits: the group is done with everything"])


async def test_a_group_that_nobody_reads_for_is_told_so(api: Any) -> None:
    await fifo(api, "orders", "billing", "A1", "B1")
    _, told = await api.get("/api/groups/billing/stuck", topic="orders")
    assert "no consumer of the group is connected" in told["reasons"][0]
    assert told["topics"][0]["lag"] == 2
    _, told = await api.get("/api/groups/billing/stuck")
    assert told["reasons"][0].startswith("the group has read no topic yet")


async def test_a_wrong_limit_group_or_topic_is_refused(api: Any) -> None:
    await fifo(api, "orders", "billing", "A1")
    for limit in ("0", "x", "257", "-1"):
        assert (await api.get("/api/groups/billing/stuck", limit=limit))[0] == 400
    assert (await api.get("/api/groups/nobody/stuck"))[0] == 404
    assert (await api.get("/api/groups/billing/stuck", topic="nothing"))[0] == 404
    assert (await api.post("/api/groups/billing/free", {}))[0] == 404
    assert (await api.post("/api/groups/billing/free", {"what": "x"}))[0] == 400
