"""The rooms of the remoting door on an embedded broker, without connections, on a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from brokers.batches import Batch, Single, StoredBatch
from brokers.embedded.broker import EmbeddedBroker
from popgate.context import Context
from popgate.errors import BrokerUnavailable, GatewayError
from popgate.ids.message_id import decode_offset_message_id
from popgate.kinds import Action, Resource, ResourceKind
from popgate.model import GroupConfig, Sent, TopicConfig
from popgate.testing.clock import MovableClock
from popgate.wire.frames.remoting import VERSION, Command
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.policies.registry import Policies
from protocols.remoting.codec.errors import code_of
from protocols.remoting.requests import DoorContext, Request, Room
from tests.support.waiting import until

ADDRESS = "10.0.0.9:8080"
"""Where the door says that it is."""


class FakePeer:
    """A client's end of a connection. `told` and `asked` are what was sent to it, as (code, fields, body).

    `answers` says what it answers to a request; without it nothing is ever answered.
    """

    def __init__(
        self, address: str = "10.1.1.1:50001", *, version: int = VERSION, language: str = "JAVA"
    ) -> None:
        self.version = version
        self.language = language
        self.client_id = ""
        self.address = address
        self.client_id = ""
        self.alive = True
        self.full = False
        """Whether nothing more can be sent to it."""
        self.told: list[tuple[int, dict[str, str], bytes]] = []
        self.asked: list[tuple[int, dict[str, str], bytes]] = []
        self.answers: Callable[[int, Mapping[str, str], bytes], Command | None] | None = None
        self.open: list[asyncio.Future[Command]] = []
        """Requests that were not answered yet."""
        self._gone: list[Callable[[], None]] = []

    def tell(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bool:
        if not self.alive or self.full:
            return False
        self.told.append((code, dict(fields), body))
        return True

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> asyncio.Future[Command] | None:
        if not self.alive or self.full:
            return None
        self.asked.append((code, dict(fields), body))
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        made = self.answers(code, fields, body) if self.answers is not None else None
        if made is not None:
            answer.set_result(made)
        else:
            self.open.append(answer)
        return answer

    def on_gone(self, told: Callable[[], None]) -> None:
        if self.alive:
            self._gone.append(told)
        else:
            told()

    def close(self) -> None:
        """The connection is over."""
        self.alive = False
        for answer in self.open:
            if not answer.done():
                answer.set_exception(BrokerUnavailable("the connection is closed"))
        gone, self._gone = self._gone, []
        for told in gone:
            told()


class Caller:
    """Asks rooms as the door does, for one client on one connection."""

    def __init__(self, *rooms: Room, peer: FakePeer | None = None, client_id: str = "client@1") -> None:
        self.handlers = {code: handler for room in rooms for code, handler in room.handlers().items()}
        self.peer = peer if peer is not None else FakePeer()
        self.context = Context(
            client_id=client_id,
            door="remoting",
            peer=self.peer.address,
            local="127.0.0.1:8080",
            language=self.peer.language,
            client_version=str(self.peer.version),
            connection=self.peer,
        )
        self.opaque = 0

    def request(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
    ) -> Request:
        """A request as it comes: every field a text, Java's way of writing truth values."""
        self.opaque += 1
        command = Command(
            code,
            self.opaque,
            flag=2 if oneway else 0,
            fields={
                name: str(value).lower() if isinstance(value, bool) else str(value)
                for name, value in (fields or {}).items()
                if value is not None
            },
            body=body,
            language=self.peer.language,
            version=self.peer.version,
        )
        return Request(command, self.context, self.peer)

    async def call(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
    ) -> Command | None:
        """What the handler of the code makes of it; faults are answers, as the door makes them."""
        request = self.request(code, fields, body, oneway=oneway)
        try:
            return await self.handlers[code](request)
        except GatewayError as error:
            return request.refusal(code_of(error), error.sentence)

    async def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Command:
        """As `call`, of what must be answered."""
        answer = await self.call(code, fields, body)
        assert answer is not None, f"nobody answered request {code}"
        assert answer.is_response
        assert answer.opaque == self.opaque
        return answer

    async def ok(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Command:
        """As `ask`, of what must succeed."""
        answer = await self.ask(code, fields, body)
        assert answer.code == 0, f"request {code} was answered with {answer.code}: {answer.remark}"
        return answer


class Forwarding:
    """In the place of `BatchForwarder`, before brokers that take batches in one piece.

    `broker`: the one that has what is stored; empty: the one that the batch names.
    """

    supported = True

    def __init__(self, *offset_message_ids: str) -> None:
        self.batches: list[Batch] = []
        self.singles: list[Single] = []
        self.failure: GatewayError | None = None
        self.offset_message_ids = offset_message_ids
        self.broker = ""

    async def forward(self, context: Context, batch: Batch) -> StoredBatch:
        self.batches.append(batch)
        if self.failure is not None:
            raise self.failure
        ids = ",".join(self.offset_message_ids)
        return StoredBatch(self.broker or batch.broker, batch.queue_id, 40, ids)

    async def forward_message(self, context: Context, message: Single) -> Sent:
        self.singles.append(message)
        if self.failure is not None:
            raise self.failure
        sent = Sent(message.message_id, self.broker or message.broker, message.queue_id, 40)
        if self.offset_message_ids:
            sent.store_host, sent.commit_offset = decode_offset_message_id(self.offset_message_ids[0])
        return sent


class Refusing:
    """An `Authorizer` that allows one account nothing that is of one kind, or one action on it."""

    def __init__(
        self, account: str, kind: ResourceKind = ResourceKind.GROUP, action: Action | None = None
    ) -> None:
        self._account, self._kind, self._action = account, kind, action

    def allows(self, context: Context, action: Action, resource: Resource, now: float) -> bool:
        if context.principal.name != self._account or resource.kind is not self._kind:
            return True
        return self._action is not None and action is not self._action


class Stage:
    """A processor on an embedded broker, and what its rooms are lent."""

    def __init__(
        self, broker: EmbeddedBroker, clock: MovableClock, limits: Limits, policies: Policies | None = None
    ) -> None:
        self.broker = broker
        self.clock = clock
        self.processor = MessagingProcessor(broker, clock=clock, limits=limits, policies=policies)
        self.door_context = DoorContext(self.processor, clock, lambda _context: ADDRESS)

    def named(self, address: str) -> DoorContext:
        """What rooms are lent where clients are told another address."""
        return DoorContext(self.processor, self.clock, lambda _context: address)

    async def topic(self, name: str = "orders", queues: int = 4, **settings: Any) -> None:
        await self.processor.metadata.create_topic(
            Context(), TopicConfig(name, read_queues=queues, write_queues=queues, **settings)
        )

    async def group(self, name: str = "readers", **settings: Any) -> None:
        await self.processor.metadata.create_group(Context(), GroupConfig(name, **settings))

    async def pass_s(self, seconds: float) -> None:
        """Let time pass, and let what became due be done."""
        self.clock.advance(seconds)
        for _ in range(20):
            await asyncio.sleep(0)
            self.clock.advance(0)

    async def until(self, look: Callable[[], Any]) -> Any:
        """Look until there is something; nothing but the store's own thread takes time here."""
        return await until(look, turn=lambda: self.clock.advance(0), pause_s=0.001)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def limits() -> Limits:
    """A test module with other limits has a fixture of this name."""
    return Limits()


@pytest.fixture
def policies() -> Policies:
    """As `limits`."""
    return Policies()


@pytest.fixture
async def stage(
    tmp_path: Path, clock: MovableClock, limits: Limits, policies: Policies
) -> AsyncIterator[Stage]:
    broker = EmbeddedBroker(tmp_path / "data", clock=clock)
    await broker.start()
    stage = Stage(broker, clock, limits, policies)
    await stage.processor.start()
    yield stage
    await stage.processor.stop()
    await broker.stop()


@pytest.fixture
def peer() -> FakePeer:
    return FakePeer()
