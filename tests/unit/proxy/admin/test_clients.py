from __future__ import annotations

from typing import Any, ClassVar

import pytest

from popgate.model import FilterKind, TransactionCheck
from popgate.verdict import Verdict
from processors.clients import ClientKind
from processors.questions import Question, StackQuestion, VerifyQuestion
from proxy.app import App


class FakeClient:
    """A push consumer, as a door brings it to the register; it answers at once."""

    client_id = "host@1#0/2"
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

    def ask(self, question: Question) -> bool:
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
    }
    assert await api.get("/api/clients") == (200, {"clients": [client], "count": 1})
    assert (await api.get("/api/groups/billing"))[1]["clients"] == 1


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
