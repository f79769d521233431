from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from popgate.context import Context
from popgate.errors import IllegalReceipt
from popgate.groups.verdict import Verdict
from popgate.model import FilterKind, GroupConfig, Reading, TransactionCheck
from processors.clients.client_registry import ClientKind
from processors.clients.query import ClientQuery, StackQuestion, VerifyQuestion
from processors.requests import Said
from proxy.app import App, build
from proxy.config.settings import Settings


class FakeClient:
    """A push consumer, as a door brings it to the register; it answers at once."""

    client_id = key = "host@1#0/2"
    producer_group = ""
    broadcast = False
    reading = Reading.NEUTRAL
    language = "JAVA"
    version = "5.0.7"
    kind = ClientKind.PUSH_CONSUMER
    group = "billing"
    topics = frozenset({"orders", "invoices"})
    subscriptions: ClassVar[dict[str, tuple[FilterKind, str]]] = {}
    connection = None
    alive = True

    def __init__(self) -> None:
        self.reconnects = 0
        self.verdict = Verdict.CONSUMED
        self.bodies: list[bytes] = []

    def check_transaction(self, check: TransactionCheck) -> bool:
        return False

    def ask(self, question: ClientQuery) -> bool:
        if isinstance(question, VerifyQuestion):
            self.bodies.append(question.message.body)
            question.answered(self.verdict)
        else:
            assert isinstance(question, StackQuestion)
            question.answered("main: waiting")
        return True

    def reconnect(self) -> bool:
        self.reconnects += 1
        return True

    def leave_lite(self, lite_topic: str) -> bool:
        return False

    def refresh(self) -> None: ...


@pytest.fixture
def reader(app: App) -> FakeClient:
    reader = FakeClient()
    app.processor.clients.register(reader)
    return reader


PATH = "/api/clients/host%401%230%2F2"


async def test_without_clients_the_list_is_empty(api: Any) -> None:
    assert await api.get("/api/clients") == (200, {"clients": [], "count": 0})


async def test_clients_are_listed_and_counted_at_their_group(reader: FakeClient, api: Any) -> None:
    await api.post("/api/groups", {"name": "billing"})
    client = {
        "client_id": "host@1#0/2",
        "kind": "push consumer",
        "language": "JAVA",
        "group": "billing",
        "topics": ["invoices", "orders"],
        "lite_topics": 0,
        "connected": True,
        "last_settled": None,
    }
    assert await api.get("/api/clients") == (200, {"clients": [client], "count": 1})
    assert (await api.get("/api/groups/billing"))[1]["clients"] == 1


async def test_what_a_client_said_of_the_delivery_that_it_settled_last_is_shown(
    app: App, reader: FakeClient, api: Any
) -> None:
    context = Context(client_id=reader.client_id)
    for name in ("orders", "billing"):
        await api.post("/api/topics" if name == "orders" else "/api/groups", {"name": name})
    for said in (Said("first", "room"), Said("m" * 300, attempt=4, max_attempts=3)):
        with pytest.raises(IllegalReceipt):
            await app.processor.dead_letter(context, "orders", "billing", "no handle", said=said)
    (shown,) = (await api.get("/api/clients"))[1]["clients"]
    told = shown["last_settled"]
    assert abs(told.pop("at_ms") - app.clock.now_ms()) < 3_600_000
    assert told == {
        "what": "dead_letter",
        "topic": "orders",
        "group": "billing",
        "message_id": "m" * 255,
        "lite_topic": "",
        "attempt": 4,
        "max_attempts": 3,
        "answer": "ILLEGAL_RECEIPT",
    }
    reader.group = "other"
    app.processor.clients.register(reader)  # its settings came anew
    assert app.processor.clients.last_settled(reader.key) is not None
    app.processor.clients.unregister(reader.key)
    assert app.processor.clients.last_settled(reader.key) is None


async def test_a_group_that_no_client_may_use_is_shown_too(
    settings_for: Callable[..., Settings], api_of: Callable[[App], Any]
) -> None:
    app = build(settings_for())
    await app.start()
    try:
        await app.broker.create_group(GroupConfig("CID_RMQ_SYS_TRANS"))
        status, shown = await api_of(app).get("/api/groups/CID_RMQ_SYS_TRANS")
        assert status == 200
        assert not shown["mapping"]["mapped"]
    finally:
        await app.stop()


async def test_a_group_tells_whether_its_classic_consumers_are_mapped_and_why(
    settings_for: Callable[..., Settings], api_of: Callable[[App], Any]
) -> None:
    app = build(settings_for(remoting={"mapped_groups": "bill*, h", "pulled_groups": ["h"]}))
    await app.start()
    try:
        api, reader = api_of(app), FakeClient()
        reader.reading = Reading.UNKNOWN
        for group in ("billing", "h"):
            await api.post("/api/groups", {"name": group})
        app.processor.clients.register(reader)
        app.processor.mapped_groups.told(reader.key, Reading.CONCURRENT)
        assert (await api.get("/api/groups/billing"))[1]["mapping"] == {
            "mapped": True,
            "why": "all of its clients (1) come through gateways, and none needs true pull",
        }
        assert (await api.get("/api/groups/h"))[1]["mapping"] == {
            "mapped": False,
            "why": "the setting remoting.pulled_groups names it",
        }
        figures = app.processor.figures()
        assert (figures["groups_mapped"], figures["groups_pulled"]) == (1, 0)
    finally:
        await app.stop()


async def test_a_client_tells_its_stack(reader: FakeClient, api: Any) -> None:
    assert await api.post(f"{PATH}/stack", {}) == (
        200,
        {"client_id": "host@1#0/2", "stack": "main: waiting"},
    )


@pytest.mark.parametrize("verdict", list(Verdict))
async def test_a_client_consumes_a_message(reader: FakeClient, api: Any, verdict: Verdict) -> None:
    reader.verdict = verdict
    _, sent = await api.post("/api/topics/orders/messages", {"messages": [{"body": "coffee"}]})
    wanted = {"group": "billing", "topic": "orders", "message_id": sent["results"][0]["message_id"]}
    status, told = await api.post(f"{PATH}/verify", wanted)
    assert (status, told["result"]) == (200, verdict.value)
    assert reader.bodies == [b"coffee"]


async def test_clients_are_told_to_reconnect(reader: FakeClient, api: Any) -> None:
    assert await api.post(f"{PATH}/reconnect", {}) == (200, {"told": 1, "not_told": 0})
    assert await api.post("/api/clients", {"reconnect": "all"}) == (200, {"told": 1, "not_told": 0})
    assert reader.reconnects == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "fault"),
    [
        ("/api/clients/nobody/stack", {}, 404, "CLIENT_NOT_FOUND"),
        ("/api/clients/nobody/reconnect", {}, 404, "CLIENT_NOT_FOUND"),
        (f"{PATH}/stack", {"more": 1}, 400, "BAD_REQUEST"),
        (f"{PATH}/verify", {"group": "billing"}, 400, "BAD_REQUEST"),
        (f"{PATH}/verify", {"group": "x", "topic": "orders", "message_id": "1"}, 400, "BAD_REQUEST"),
        ("/api/clients", {"reconnect": "some"}, 400, "BAD_REQUEST"),
        ("/api/clients", {}, 400, "BAD_REQUEST"),
    ],
)
async def test_what_cannot_be_is_refused(
    reader: FakeClient, api: Any, path: str, body: dict[str, str], status: int, fault: str
) -> None:
    got, told = await api.post(path, body)
    assert (got, told["fault"]) == (status, fault)


async def test_a_client_that_is_not_connected_cannot_be_asked(reader: FakeClient, api: Any) -> None:
    reader.alive = False
    assert (await api.post(f"{PATH}/stack", {}))[1]["fault"] == "PRECONDITION_FAILED"
