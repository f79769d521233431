"""Namespaces: with the setting `namespaces = "prefixed"`, `ns` and `name` are the topic or group `ns%name`.

RocketMQ's own proxy ignores the namespace; so does the door without this. A `NamespacedDoor` wraps an
`RpcDispatcher` and translates names: in requests on the way in, and in responses and their sentences on the
way out. The code behind it has no namespaces. Sources: protocol facts 2.1 and 3.6.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from popgate.errors import BadRequest, IllegalGroup, IllegalTopic, shown
from popgate.naming import (
    DEAD_LETTER_PREFIX,
    GROUP_LONGEST,
    PERCENT_REFUSED,
    RETRY_PREFIX,
    TOPIC_LONGEST,
    check_group,
    check_topic,
    is_system_topic,
    split_namespace,
)
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from protocols.grpc.codec.packer import EncodedAnswer
from protocols.grpc.codec.plain_request import PlainRequest
from protocols.grpc.codec.request_reader import Request, Unreadable
from protocols.grpc.rpcs.dispatcher import RpcHandler, Streamed, Unary
from protocols.grpc.transport import Call, CallFailed, ResponseStream, TelemetryChannel

_NAMESPACE = re.compile(r"[|a-zA-Z0-9_-]+\Z")
_RESOURCE = pb.Resource.DESCRIPTOR.full_name
_STATUS = pb.Status.DESCRIPTOR.full_name
_DEAD_LETTER = pb.DeadLetterQueue.DESCRIPTOR.full_name
_MOST_NAMED = 16_384
"""Messages, or topics, of one request: who asks is known only after they have been looked at."""

Known = dict[str, str]
"""What the names in a request are called here, and what its client calls them."""


def full_name(namespace: str, name: str, *, is_group: bool) -> str:
    """The internal name of a topic or group of a namespace. Raises IllegalTopic, IllegalGroup.

    A `%` is refused in names; otherwise a client without a namespace could reach all of them. In the names
    of dead-letter and retry topics the namespace follows their prefix.
    """
    if namespace:
        return _full_name(namespace, name, is_group=is_group)
    if "%" in name and "%" in (name if is_group else _split_prefix(name)[1]):
        raise _with_percent(name, is_group=is_group)
    return name


def _with_percent(name: str, *, is_group: bool) -> IllegalGroup | IllegalTopic:
    wrong = IllegalGroup if is_group else IllegalTopic
    return wrong(name, PERCENT_REFUSED)


@lru_cache(maxsize=4096)
def _full_name(namespace: str, name: str, *, is_group: bool) -> str:
    # What is kept here has a bounded length: a name that is too long is refused.
    wrong = IllegalGroup if is_group else IllegalTopic
    prefix, plain = ("", name) if is_group else _split_prefix(name)
    if "%" in plain:
        raise _with_percent(name, is_group=is_group)
    if not _NAMESPACE.match(namespace):
        raise wrong(name, f"in its namespace {shown(namespace)} only letters, digits and | - _ are allowed")
    (check_group if is_group else check_topic)(name)
    full = f"{prefix}{namespace}%{plain}"
    longest = GROUP_LONGEST if is_group else TOPIC_LONGEST
    if len(full) > longest:
        raise wrong(name, f"with its namespace it has {len(full)} characters, the limit is {longest}")
    if is_system_topic(full):
        raise wrong(name, f"its namespace {shown(namespace)} belongs to the system")
    return full


@lru_cache(maxsize=4096)
def parts_of(full: str) -> tuple[str, str]:
    """The namespace, empty when there is none, and the name that clients of it know."""
    prefix, plain = _split_prefix(full)
    namespace, name = split_namespace(plain)
    return namespace, prefix + name


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (DEAD_LETTER_PREFIX, RETRY_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


@dataclass(slots=True, frozen=True)
class _Step:
    """A field on the way to something that is translated; without `inner` it is that itself."""

    name: str
    repeated: bool
    kind: str
    inner: tuple[_Step, ...]


def _steps(descriptor: Descriptor, kinds: frozenset[str]) -> tuple[_Step, ...]:
    return tuple(step for field in descriptor.fields if (step := _step(field, kinds)) is not None)


def _step(field: FieldDescriptor, kinds: frozenset[str]) -> _Step | None:
    if field.message_type is None:
        return None
    kind = field.message_type.full_name
    inner = () if kind in kinds else _steps(field.message_type, kinds)
    return _Step(field.name, bool(field.is_repeated), kind, inner) if inner or kind in kinds else None


def _found(message: Any, steps: tuple[_Step, ...], most: int = 0) -> Iterator[tuple[_Step, Any]]:
    """The fields that are set at the path of each step.

    Raises BadRequest for a list of more than `most`, where that is not 0.
    """
    for step in steps:
        if step.repeated:
            items = getattr(message, step.name)
            if most and len(items) > most:
                raise BadRequest(f"the request has {len(items)} {step.name}, the limit is {most}")
        elif message.HasField(step.name):
            items = (getattr(message, step.name),)
        else:
            continue
        for item in items:
            if step.inner:
                yield from _found(item, step.inner, most)
            else:
                yield step, item


@lru_cache(maxsize=128)
def _ways_in(kind: Descriptor) -> tuple[_Step, ...]:
    return _steps(kind, frozenset((_RESOURCE,)))


@lru_cache(maxsize=128)
def _ways_out(kind: Descriptor) -> tuple[_Step, ...]:
    return _steps(kind, frozenset((_RESOURCE, _STATUS, _DEAD_LETTER)))


def take_in(request: Message) -> Known:
    """Give a request's topics and groups the names that they have here.

    Raises IllegalTopic, IllegalGroup; BadRequest for too many of them.
    """
    known: Known = {}
    for step, resource in _found(request, _ways_in(request.DESCRIPTOR), _MOST_NAMED):
        name = resource.name
        full = full_name(resource.resource_namespace, name, is_group=step.name == "group")
        if full != name:
            known[full] = name
            resource.name = full
    return known


def tell(answer: Message, known: Known) -> None:
    """Translate the names in a response to those that the client knows, also in error messages."""
    for step, part in _found(answer, _ways_out(answer.DESCRIPTOR)):
        if step.kind == _STATUS:
            if known and part.code != pb.Code.OK:
                part.message = retold(part.message, known)
        elif step.kind == _DEAD_LETTER:
            part.topic = parts_of(part.topic)[1]
        else:
            namespace, name = parts_of(part.name)
            if namespace:
                part.resource_namespace, part.name = namespace, name


def retold(sentence: str, known: Known) -> str:
    """A sentence with the names that the client knows."""
    # Settings may name thousands, of which a sentence names one or two.
    named = [name for name in known if name in sentence]
    if not named:
        return sentence
    longest_first = "|".join(re.escape(name) for name in sorted(named, key=len, reverse=True))
    return re.sub(
        rf"(?<![|\w-])({longest_first})(?![|\w%-])", lambda match: known[match[1]], sentence, flags=re.ASCII
    )


@dataclass(slots=True, frozen=True)
class Misnamed(Unreadable):
    """A request with names that cannot be."""

    why: BadRequest

    @property
    def error(self) -> BadRequest:
        return self.why


class NamespacedDoor:
    """An `RpcDispatcher` whose clients have namespaces."""

    def __init__(self, inner: RpcHandler) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"<NamespacedDoor {self._inner!r}>"

    @property
    def fails_calls(self) -> bool:
        return self._inner.fails_calls

    async def unary(self, method: Unary, request: Request, call: Call, size: int | None = None) -> Any:
        request, known = _taken_in(request)
        answer = await self._inner.unary(method, request, call, size)
        if not isinstance(answer, EncodedAnswer):  # that names nothing
            tell(answer, known)
        return answer

    async def streamed(
        self, method: Streamed, request: Request, call: Call, answers: ResponseStream[Any]
    ) -> str:
        request, known = _taken_in(request)
        return await self._inner.streamed(method, request, call, _Told(answers, known))

    async def telemetry(self, commands: TelemetryChannel, call: Call) -> None:
        named = _NamedCommands(commands)
        try:
            await self._inner.telemetry(named, call)
        except CallFailed as failed:
            raise CallFailed(failed.status, retold(failed.sentence, named.known)) from None

    def leave(self, call: asyncio.Task[Any]) -> None:
        self._inner.leave(call)

    async def check_health(self, request: HealthCheckRequest | Unreadable) -> HealthCheckResponse:
        return await self._inner.check_health(request)

    async def watch_health(
        self, request: HealthCheckRequest | Unreadable, answers: ResponseStream[HealthCheckResponse]
    ) -> None:
        await self._inner.watch_health(request, answers)


def _taken_in(request: Request) -> tuple[Request, Known]:
    if isinstance(request, PlainRequest):
        if "%" not in request.topic and "%" not in request.group:
            return request, {}  # it names no namespace
        request = request.parse()
    if isinstance(request, Unreadable):
        return request, {}
    try:
        return request, take_in(request)
    except BadRequest as error:
        # Told behind the door, after it is known who asks.
        return Misnamed(request.DESCRIPTOR.name, error), {}


class _Told:
    """Answers on their way to a client that knows them by other names."""

    __slots__ = ("_answers", "_known")

    def __init__(self, answers: ResponseStream[Any], known: Known) -> None:
        self._answers = answers
        self._known = known

    async def write(self, answer: Message) -> None:
        tell(answer, self._known)
        await self._answers.write(answer)

    async def write_bytes(self, answer: bytes) -> None:
        await self._answers.write_bytes(self._retold(answer))

    def write_at_once(self, answers: Sequence[bytes]) -> int:
        taken = 0
        for answer in answers:
            if not self._answers.write_at_once((self._retold(answer),)):
                break
            taken += 1
        return taken

    def _retold(self, answer: bytes) -> bytes:
        """Of answers that come encoded: they are those to receives."""
        read = rpc.ReceiveMessageResponse.FromString(answer)
        tell(read, self._known)
        return read.SerializeToString()


class _NamedCommands:
    """Both sides of a Telemetry stream. `known` are the names of the last settings."""

    def __init__(self, commands: TelemetryChannel) -> None:
        self._commands = commands
        self.known: Known = {}

    async def read(self) -> rpc.TelemetryCommand | None:
        command = await self._commands.read()
        if command is not None and command.HasField("settings"):
            self.known = take_in(command)
        return command

    async def write(self, command: rpc.TelemetryCommand) -> None:
        tell(command, self.known)
        await self._commands.write(command)
