"""/api/groups/{group}/stuck and /free, on the embedded broker."""

from __future__ import annotations

from typing import Any

from popgate.context import Context
from processors.requests import Receive
from proxy.app import App


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
    for limit in ("0", "x", "257", "-1", "0000000019999", f"000000001{'0' * 5_000}"):
        assert (await api.get("/api/groups/billing/stuck", limit=limit))[0] == 400
    assert (await api.get("/api/groups/nobody/stuck"))[0] == 404
    assert (await api.get("/api/groups/billing/stuck", topic="nothing"))[0] == 404
    assert (await api.post("/api/groups/billing/free", {}))[0] == 404
    assert (await api.post("/api/groups/billing/free", {"what": "x"}))[0] == 400


async def test_of_a_broadcast_group_the_client_is_named_that_holds_a_message_and_only_its_own_is_freed(
    api: Any, app: App
) -> None:
    ann, bob, eve = (Context(client_id=name) for name in ("ann@1", "bob@2", "eve@3"))
    asked = Receive("news", "screens", invisible_ms=600_000, wait_s=0)
    assert (await api.post("/api/topics", {"name": "news", "queues": 1}))[0] == 201
    assert (await api.post("/api/groups", {"name": "screens", "broadcast": True}))[0] == 201
    for who in (ann, bob, eve):  # a client starts with what comes after its first receive
        assert await app.processor.receive(who, asked) == []
    assert (await api.post("/api/topics/news/messages", {"messages": [{"body": "rain"}]}))[0] == 200
    taken = {}
    for who in (ann, bob, eve):
        [taken[who.client_id]] = await app.processor.receive(who, asked)
    assert await app.processor.ack(eve, "news", "screens", [taken["eve@3"].receipt]) == [None]
    status, told = await api.get("/api/groups/screens/stuck")
    assert status == 200
    assert {one["client"]: one["receipt"] for one in told["held"]} == {
        "ann@1": taken["ann@1"].receipt,
        "bob@2": taken["bob@2"].receipt,
    }
    assert [(one["client_id"], one["in_flight"]) for one in told["members"]] == [
        ("ann@1", 1),
        ("bob@2", 1),
        ("eve@3", 0),
    ]
    assert any("2 of them hold something: ann@1 (1 message), bob@2" in reason for reason in told["reasons"])
    _, alone = await api.get("/api/groups/screens/stuck", client="bob@2")
    assert [one["client"] for one in alone["held"]] == ["bob@2"]
    status, told = await api.post("/api/groups/screens/free", {})
    assert status == 400
    assert "or the client that holds it" in told["message"]
    body = {"which": taken["bob@2"].receipt, "client": "bob@2"}
    status, freed = await api.post("/api/groups/screens/free", body)
    assert (status, freed["client"], freed["attempt"]) == (200, "bob@2", 1)
    assert await app.processor.receive(ann, asked) == []
    [again] = await app.processor.receive(bob, asked)
    assert (again.body, again.attempt) == (b"rain", 2)
    assert (await api.get("/api/groups/screens/stuck", client="zoe@4"))[0] == 404
