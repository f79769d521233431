"""The encoding of the port's calls, derived from the signatures of the methods.

A response has code `DONE` and the result as its body, `FAILED` and a `GatewayError`, or `CANCELLED`.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_type_hints

from brokers.capabilities import (
    CarriesReplies,
    FindsByPlace,
    LiteTopics,
    ReclaimsRetries,
    RedrivesDeadLetters,
    TellsConsumers,
)
from brokers.port import Directory, Offsets, Store, Transactions
from brokers.relay import AsksGateways
from brokers.resets import HoldsResets
from brokers.shared.codec.contexts import CONTEXT
from brokers.shared.codec.errors import ERROR
from brokers.shared.codec.kinds import Kind, Sink, Source
from brokers.shared.codec.layouts import Layout, as_tuple
from brokers.shared.codec.type_hints import kind_of
from popgate.context import Context
from popgate.model import TransactionCheck
from popgate.wire.frames.codes import PortCode, ResponseCode

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Call(Generic[P, R]):
    """One method of the port or of a capability: `owner` is the class that declares it."""

    def __init__(self, code: PortCode, method: Callable[..., Any]) -> None:
        self.code = code
        self.name = method.__name__
        self.owner: type = getattr(sys.modules[method.__module__], method.__qualname__.rpartition(".")[0])
        hints = get_type_hints(method)
        parameters = list(inspect.signature(method).parameters.values())[1:]
        self.asks_for = bool(parameters) and parameters[0].name == "context"
        """Whether the first argument is the `Context` of a request."""
        if self.asks_for:
            del parameters[0]
        self._places = sum(parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in parameters)
        self._named = tuple(parameter.name for parameter in parameters[self._places :])
        self._defaults = {
            parameter.name: parameter.default
            for parameter in parameters
            if parameter.default is not parameter.empty
        }
        self._arguments = Layout(
            self.name,
            [(parameter.name, kind_of(hints[parameter.name], parameter.name)) for parameter in parameters],
            take=tuple,
            make=as_tuple,
        )
        self._result: Kind[Any] = kind_of(hints["return"])
        self.told = f"{code.value} {self._arguments.told} -> {self._result.told}"

    def __repr__(self) -> str:
        return f"<Call {self.name}>"

    def write(self, sink: Sink, *args: P.args, **kwargs: P.kwargs) -> None:
        """The request's body. Raises LocalWireError for what cannot be told."""
        values: tuple[Any, ...] = args
        if self.asks_for:
            CONTEXT.write(sink, values[0])
            values = values[1:]
        if self._named:
            by_name = {**self._defaults, **kwargs}
            values = (*values, *(by_name[name] for name in self._named))
        self._arguments.write(sink, values)

    def read(self, source: Source) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, by place and by name. Raises PeerWireError, IllegalFilter."""
        args = [CONTEXT.read(source)] if self.asks_for else []
        values = self._arguments.read(source)
        source.end()
        args += values[: self._places]
        return args, dict(zip(self._named, values[self._places :], strict=True))

    def write_result(self, sink: Sink, result: R) -> None:
        self._result.write(sink, result)

    def read_result(self, source: Source) -> R:
        """Raises PeerWireError."""
        result: R = self._result.read(source)
        source.end()
        return result


def call(code: PortCode, method: Callable[Concatenate[Any, P], Awaitable[R]]) -> Call[P, R]:
    return Call(code, method)


SEND = call(PortCode.SEND, Store.send)
POP = call(PortCode.POP, Store.pop)
ACK = call(PortCode.ACK, Store.ack)
CHANGE_INVISIBLE = call(PortCode.CHANGE_INVISIBLE, Store.change_invisible)
GIVE_BACK = call(PortCode.GIVE_BACK, Store.give_back)
DEAD_LETTER = call(PortCode.DEAD_LETTER, Store.dead_letter)
RECALL = call(PortCode.RECALL, Store.recall)
SEND_BACK = call(PortCode.SEND_BACK, Store.send_back)
PULL = call(PortCode.PULL, Offsets.pull)
BOUNDS = call(PortCode.BOUNDS, Offsets.bounds)
OFFSET_AT = call(PortCode.OFFSET_AT, Offsets.offset_at)
COMMITTED = call(PortCode.COMMITTED, Offsets.committed)
COMMIT = call(PortCode.COMMIT, Offsets.commit)
LOCK = call(PortCode.LOCK, Offsets.lock)
UNLOCK = call(PortCode.UNLOCK, Offsets.unlock)
FIND_BY_ID = call(PortCode.FIND_BY_ID, Offsets.find_by_id)
FIND_BY_KEY = call(PortCode.FIND_BY_KEY, Offsets.find_by_key)
AT_PLACE = call(PortCode.AT_PLACE, FindsByPlace.at_place)
BEGIN_READ = call(PortCode.BEGIN_READ, HoldsResets.begin_read)
COMMIT_READ = call(PortCode.COMMIT_READ, HoldsResets.commit_read)
RESET_QUEUE = call(PortCode.RESET_QUEUE, HoldsResets.reset_queue)
END_TRANSACTION = call(PortCode.END_TRANSACTION, Transactions.end_transaction)
ROUTE = call(PortCode.ROUTE, Directory.route)
TOPIC = call(PortCode.TOPIC, Directory.topic)
TOPICS = call(PortCode.TOPICS, Directory.topics)
CREATE_TOPIC = call(PortCode.CREATE_TOPIC, Directory.create_topic)
UPDATE_TOPIC = call(PortCode.UPDATE_TOPIC, Directory.update_topic)
DELETE_TOPIC = call(PortCode.DELETE_TOPIC, Directory.delete_topic)
GROUP = call(PortCode.GROUP, Directory.group)
GROUPS = call(PortCode.GROUPS, Directory.groups)
CREATE_GROUP = call(PortCode.CREATE_GROUP, Directory.create_group)
UPDATE_GROUP = call(PortCode.UPDATE_GROUP, Directory.update_group)
DELETE_GROUP = call(PortCode.DELETE_GROUP, Directory.delete_group)
PROGRESS = call(PortCode.PROGRESS, Directory.progress)
TOPICS_OF = call(PortCode.TOPICS_OF, Directory.topics_of)
HELD = call(PortCode.HELD, Directory.held)
STANDING = call(PortCode.STANDING, Directory.standing)
STANDINGS = call(PortCode.STANDINGS, Directory.standings)
RESET = call(PortCode.RESET, Directory.reset)

REDRIVEN = call(PortCode.REDRIVEN, RedrivesDeadLetters.redriven)
REDRIVE = call(PortCode.REDRIVE, RedrivesDeadLetters.redrive)
RECLAIM = call(PortCode.RECLAIM, ReclaimsRetries.reclaim)
SUBSCRIBE_LITE = call(PortCode.SUBSCRIBE_LITE, LiteTopics.subscribe_lite)
POP_LITE = call(PortCode.POP_LITE, LiteTopics.pop_lite)
LITE_TOPICS = call(PortCode.LITE_TOPICS, LiteTopics.lite_topics)
DELETE_LITE_TOPIC = call(PortCode.DELETE_LITE_TOPIC, LiteTopics.delete_lite_topic)
CONSUMERS = call(PortCode.CONSUMERS, TellsConsumers.consumers)
MEMBERS = call(PortCode.MEMBERS, TellsConsumers.members)
SEND_REPLY = call(PortCode.SEND_REPLY, CarriesReplies.send_reply)
ASK_GATEWAYS = call(PortCode.ASK_GATEWAYS, AsksGateways.ask_gateways)

TAKING: frozenset[int] = frozenset({POP.code, POP_LITE.code})
"""Calls that take messages: what does not reach who asked is given back."""
WAITING: frozenset[int] = TAKING | {PULL.code}
"""Calls that may wait, and change nothing while they do."""
CALLS: dict[int, Call[Any, Any]] = {
    call.code: call for call in list(globals().values()) if isinstance(call, Call)
}
CHECK: Kind[TransactionCheck] = kind_of(TransactionCheck)
"""What a host asks its guests; the answer is one byte, 1 when a producer was asked."""
GONE: Kind[tuple[str, str, str, str]] = kind_of(tuple[str, str, str, str])
"""What a host tells its guests of a lite topic: client id, group, topic, lite topic."""
LEFT: Kind[tuple[str, bool]] = kind_of(tuple[str, bool])
"""What a guest tells of a client that left, and whether it said so itself."""

DONE = ResponseCode.SUCCESS.value
FAILED = ResponseCode.SYSTEM_ERROR.value
CANCELLED = PortCode.CANCEL.value
"""Codes of answers. Of a call that was cancelled: it was done or not, and took nothing."""


def encode(kind: Kind[T], value: T) -> bytes:
    sink = Sink()
    kind.write(sink, value)
    return sink.data()


def decode(kind: Kind[T], data: bytes) -> T:
    """Raises PeerWireError."""
    source = Source(data)
    value = kind.read(source)
    source.end()
    return value


def takes_context(args: tuple[Any, ...]) -> Context | None:
    """The context of a call's arguments, where it has one."""
    return args[0] if args and isinstance(args[0], Context) else None


def fingerprint(*others: str) -> str:
    """Of everything that host and guest must say alike: 16 hexadecimal digits."""
    layouts = [*(CALLS[code].told for code in sorted(CALLS)), CONTEXT.told, ERROR.told, CHECK.told, *others]
    return hashlib.sha256("\n".join(layouts).encode()).hexdigest()[:16]
