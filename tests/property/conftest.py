"""How hard hypothesis tries, and a broker that a state machine can drive step by step.

`TEST_HYPOTHESIS` chooses, here and for all other properties (tests/conftest.py).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from brokers.port import Broker
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.filters.compiled import compile_filter
from popgate.messages.packed_messages import PackedMessages
from popgate.model import (
    FilterKind,
    GroupConfig,
    Message,
    MessageType,
    Pop,
    Sent,
    StoredMessage,
    TopicConfig,
)
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties

T = TypeVar("T")

_SETTINGS = EmbeddedSettings(durability=Durability.NONE)
_QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "report_multiple_bugs": False}
_EFFORTS: dict[str, dict[str, Any]] = {
    "": {"max_examples": 80, "stateful_step_count": 50},
    "ci": {"max_examples": 100, "stateful_step_count": 50, "derandomize": True, "database": None},
    "long": {"max_examples": 3_000, "stateful_step_count": 80},
}
_EFFORT = os.environ.get("TEST_HYPOTHESIS", "")


@pytest.fixture
def stateful() -> settings:
    """The settings of a state machine."""
    return settings(**_EFFORTS[_EFFORT], **_QUIET)


class _FullDisk:
    """A database that reads and closes, but cannot be written."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def write(self, *_: Any) -> None:
        raise OSError("no space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class Port:
    """An embedded broker on a loop of its own, called without awaiting; its clock stands still."""

    clock: MovableClock
    _path: Path

    def __init__(self, path: Path) -> None:
        self.context = Context(client_id="model")
        self.loop = asyncio.new_event_loop()
        self.trouble: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, what: self.trouble.append(what))
        self._folder = path
        self._tasks: list[asyncio.Task[Any]] = []
        self.broker: Broker | None = None

    def begin(self) -> None:
        """An empty broker and a new time, for the next example."""
        self.end()
        self.trouble.clear()
        self.clock = MovableClock()
        self._path = self._folder / uuid.uuid4().hex
        self._open()

    def end(self) -> None:
        """Stop what the last example left, whatever state it is in."""
        self.drop_tasks()
        broker, self.broker = self.broker, None
        if broker is not None:
            self.loop.run_until_complete(broker.stop())
            shutil.rmtree(self._path)

    def _open(self) -> None:
        from brokers.embedded.broker import EmbeddedBroker

        self.broker = EmbeddedBroker(self._path, clock=self.clock, settings=_SETTINGS)
        self.run(self.broker.start())

    def close(self) -> None:
        self.end()
        self.loop.close()

    # -- the loop and time ----------------------------------------------------------------------

    def run(self, work: Awaitable[T]) -> T:
        """Run until `work` is done; errors that the loop met on the way fail the test."""
        result = self.loop.run_until_complete(work)  # type: ignore[arg-type]
        assert not self.trouble, self.trouble
        return result

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Start `work` and let it go as far as it can without time passing."""
        task = self.loop.create_task(work)
        self._tasks.append(task)
        self.settle()
        return task

    def drop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self.loop.run_until_complete(asyncio.wait(self._tasks))
        self._tasks.clear()

    def settle(self) -> None:
        self.pass_ms(0)

    def now(self) -> int:
        return self.clock.now_ms()

    def pass_ms(self, ms: int) -> None:
        async def turn() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        async def passing() -> None:
            await self.clock.run(ms / 1000, turn)
            await turn()

        self.run(passing())

    def restart(self) -> None:
        self.run(self.broker.stop())
        self._open()

    def fail_next_write(self) -> None:
        """The disk is full, once: the store has to be opened again."""
        store = self.broker._engine.store
        store._db = _FullDisk(store._db)

    def leftovers(self) -> dict[str, int]:
        """What is in the store besides messages, positions and settings; nothing, when all is done."""
        store = self.broker._engine.store
        spaces = ("inflight", "half", "timers")
        return {name: count for name in spaces if (count := sum(1 for _ in store.scan(name, b"")))}

    # -- topics and groups ----------------------------------------------------------------------

    def topic(self, queues: int = 1) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        self.run(self.broker.create_topic(TopicConfig(name, read_queues=queues, write_queues=queues)))
        return name

    def group(self, **how: Any) -> str:
        name = f"group-{uuid.uuid4().hex[:12]}"
        self.run(self.broker.create_group(GroupConfig(name, **how)))
        return name

    # -- messages -------------------------------------------------------------------------------

    def message(
        self, topic: str, body: str, *, lane: str = "", tag: str = "", delay_ms: int = 0, half: bool = False
    ) -> Message:
        block = {"UNIQ_KEY": uuid.uuid4().hex.upper()}
        if lane:
            block["__SHARDINGKEY"] = lane
        if tag:
            block["TAGS"] = tag
        if half:
            block["TRAN_MSG"] = "true"
        return Message(
            topic,
            body.encode(),
            message_id=block["UNIQ_KEY"],
            type=MessageType.TRANSACTION if half else MessageType.DELAY if delay_ms else MessageType.NORMAL,
            message_group=lane,
            tag=tag,
            deliver_at_ms=self.now() + delay_ms if delay_ms else 0,
            born_ms=self.now(),
            born_host="10.0.0.1:1",
            properties=encode_properties(block),
        )

    def send(self, *messages: Message, queue_id: int = -1) -> list[Sent]:
        for message in messages:
            message.queue_id = queue_id
        results = self.run(self.broker.send(self.context, messages))
        assert all(isinstance(r, Sent) for r in results)
        return [r for r in results if isinstance(r, Sent)]

    def send_packed(self, *messages: Message, queue_id: int = -1) -> list[Sent]:
        """Messages without a lane: stored together, with the embedded broker as one value."""
        packed = PackedMessages.pack(messages[0].topic, messages)
        packed.queue_id = queue_id
        packed.origins = [(message.born_ms, message.born_host) for message in messages]
        packed.keys = [()] * len(messages)
        results = self.run(self.broker.send_packed(self.context, packed))
        assert all(isinstance(r, Sent) for r in results)
        return [r for r in results if isinstance(r, Sent)]

    def request(
        self,
        topic: str,
        group: str,
        at_most: int,
        invisible_ms: int,
        *,
        tags: str = "*",
        wait_ms: int = -1,
        **how: Any,
    ) -> Pop:
        return Pop(
            topic,
            group,
            compile_filter(FilterKind.TAG, tags),
            invisible_ms,
            max_messages=at_most,
            wait_until=None if wait_ms < 0 else self.clock.monotonic() + wait_ms / 1000,
            **how,
        )

    def pop(self, *where: Any, **how: Any) -> list[StoredMessage]:
        return self.run(self.broker.pop(self.context, self.request(*where, **how)))

    def ack(self, topic: str, group: str, handles: Sequence[str]) -> list[GatewayError | None]:
        return self.run(self.broker.ack(self.context, topic, group, handles))

    def hide(self, topic: str, group: str, handle: str, ms: int) -> str | GatewayError:
        try:
            return self.run(self.broker.change_invisible(self.context, topic, group, handle, ms))
        except GatewayError as error:
            return error

    def give_back(self, topic: str, group: str, handles: Sequence[str]) -> int:
        return self.run(self.broker.give_back(self.context, topic, group, handles))

    def dead_letter(self, topic: str, group: str, handle: str) -> GatewayError | None:
        try:
            return self.run(self.broker.dead_letter(self.context, topic, group, handle))
        except GatewayError as error:
            return error

    def dead_letters(self, group: str) -> list[str]:
        """The bodies of a group's dead letters, read without taking them."""
        name = f"%DLQ%{group}"
        if name not in {t.name for t in self.run(self.broker.topics())}:
            return []
        found = []
        for queue in self.run(self.broker.route(name)).queues:
            where = (name, queue.broker, queue.queue_id)
            bounds = self.run(self.broker.bounds(self.context, *where))
            offset = bounds.minimum
            while offset < bounds.maximum:
                pulled = self.run(
                    self.broker.pull(
                        self.context,
                        *where,
                        offset,
                        max_messages=1_000,
                        max_bytes=1 << 26,
                        passing=compile_filter(FilterKind.TAG, "*"),
                        wait_until=None,
                    )
                )
                found += [m.body.decode() for m in pulled.messages]
                offset = pulled.next_offset
        return found


_MEMORY = Path("/dev/shm")
"""Where stores are opened by the hundred, if there is such a place: a disk would wait each time."""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else tmp_path) as folder:
        port = Port(Path(folder))
        yield port
        port.close()
