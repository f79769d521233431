"""A classic client in the client registry: one handle for each group that it is a member of.

Sources: protocol facts 5.5 (39, 307, 309), 5.9 and 5.14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from popgate.errors import ClientNotFound, GatewayError, PeerWireError, Unsupported, shown
from popgate.groups.verdict import Verdict
from popgate.model import FilterKind, Reading, TransactionCheck
from popgate.wire.bodies.consumer_info import SUCCESS, ConsumeResult, ConsumerRunningInfo
from popgate.wire.bodies.heartbeats import (
    ACTIVELY,
    BROADCASTING,
    CLUSTERING,
    PASSIVELY,
    POP,
    ConsumerData,
    SubscriptionData,
)
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from processors.clients.client_registry import ClientHandle, ClientKind
from processors.clients.query import ClientQuery, RunningInfoQuestion, StackQuestion, VerifyQuestion
from protocols.remoting.codec.marks import Origin
from protocols.remoting.codec.records import encode_stored
from protocols.remoting.requests import Peer

_LONGEST_STACK: Final = 1024 * 1024
"""Characters of a client's stack; the rest is cut off."""
_CONSUMED: Final = frozenset({SUCCESS, "CR_COMMIT"})

Checks = Callable[[Peer, TransactionCheck, Origin], bool]
"""Asks a producer about a half message, which it is told to lie there; False: it cannot be asked now."""


def consumer_key(client_id: str, group: str) -> str:
    return f"{client_id}\n{group}"


def producer_key(client_id: str, group: str) -> str:
    """Another one than that of a consumer: both groups may have one name."""
    return f"{client_id}\n{group}\nproducer"


def no_check(_peer: Peer, _check: TransactionCheck, _origin: Origin) -> bool:
    """For clients that are asked about no half messages."""
    return False


def _nowhere() -> Origin:
    return Origin("")


@dataclass(slots=True, frozen=True, eq=False)
class RemotingClient:
    """A membership of a client, from its last heartbeat.

    A `processors.clients.client_registry.ClientHandle`.

    `told`: a consumer's filters by topic, as received. `checks`: sends a producer checks of half messages.
    `origin`: the place of messages that the client is sent without a request.
    """

    client_id: str
    key: str
    peer: Peer
    kind: ClientKind
    language: str
    version: str
    connection: Hashable
    group: str = ""
    producer_group: str = ""
    consumer: ConsumerData | None = None
    told: Mapping[str, SubscriptionData] = field(default_factory=dict)
    subscriptions: Mapping[str, tuple[FilterKind, str]] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()
    checks: Checks = no_check
    origin: Callable[[], Origin] = _nowhere

    @property
    def alive(self) -> bool:
        return self.peer.alive

    @property
    def broadcast(self) -> bool:
        return self.consumer is not None and self.consumer.model == BROADCASTING

    @property
    def reading(self) -> Reading:
        """How it reads. A heartbeat does not say whether the consumer is orderly."""
        if self.consumer is None or self.consumer.consume_type == POP:
            return Reading.NEUTRAL
        shares = self.consumer.consume_type == PASSIVELY and self.consumer.model == CLUSTERING
        return Reading.UNKNOWN if shares else Reading.TRUE_PULL

    def same_as(self, other: RemotingClient) -> bool:
        """Whether the two say the same of the same connection."""
        return (
            self.peer is other.peer
            and self.consumer == other.consumer
            and self.language == other.language
            and self.version == other.version
        )

    def check_transaction(self, check: TransactionCheck) -> bool:
        return self.checks(self.peer, check, self.origin())

    def ask(self, question: ClientQuery) -> bool:
        if self.kind is ClientKind.PRODUCER:
            question.failed(
                Unsupported(
                    f"to ask client {shown(self.client_id)} that",
                    "it is a classic producer, and answers nothing",
                )
            )
            return True
        read: Callable[[bytes], str | bytes | Verdict]
        if isinstance(question, StackQuestion | RunningInfoQuestion):
            with_stacks = isinstance(question, StackQuestion) or question.with_stacks
            answer = self.peer.ask(
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                {**self.named(), "jstackEnable": "true" if with_stacks else "false"},
            )
            read = _stack_in if isinstance(question, StackQuestion) else _info_in
        elif isinstance(question, VerifyQuestion):
            message, origin = question.message, self.origin()
            answer = self.peer.ask(
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                {
                    **self.named(),
                    "msgId": origin.message_id(message.broker, message.commit_offset),
                    "brokerName": message.broker,
                    "topic": message.topic,
                },
                encode_stored(message, origin),
            )
            read = _verdict_in
        else:
            return False
        if answer is None:
            return False
        answer.add_done_callback(lambda done: self._settle(question, done, read))
        # Also when its asker left, or it is too late for an answer.
        question.answer.add_done_callback(lambda _: answer.cancel())
        return True

    def reconnect(self) -> bool:
        """False: classic clients have no such request; when their door drains, it sends GO_AWAY."""
        return False

    def leave_lite(self, lite_topic: str) -> bool:
        """They subscribe to no lite topics."""
        return False

    def refresh(self) -> None:
        """They have no settings from here."""

    def named(self) -> dict[str, str]:
        """The fields that name this client to itself."""
        return {"consumerGroup": self.group, "clientId": self.client_id}

    def _settle(
        self,
        question: ClientQuery,
        done: asyncio.Future[Command],
        read: Callable[[bytes], str | bytes | Verdict],
    ) -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            question.failed(ClientNotFound(self.client_id, "left before it answered"))
            return
        answer = done.result()
        try:
            if answer.code == ResponseCode.SUCCESS:
                question.answered(read(answer.body))
                return
            why = f"{answer.code}: {shown(answer.remark, 200)}" if answer.remark else str(answer.code)
        except PeerWireError as error:
            why = f"what cannot be read: {error}"
        question.failed(GatewayError(f"client {shown(self.client_id)} answered {why}"))


def peers_of(handles: Iterable[ClientHandle]) -> list[Peer]:
    """The connections of the classic clients among the handles, each once."""
    return list(dict.fromkeys(handle.peer for handle in handles if isinstance(handle, RemotingClient)))


def kind_of(consumer: ConsumerData) -> ClientKind:
    return ClientKind.PULL_CONSUMER if consumer.consume_type == ACTIVELY else ClientKind.PUSH_CONSUMER


def filter_kind_of(name: str) -> FilterKind:
    """What a filter is written in; an unknown kind counts as by tag."""
    return FilterKind.SQL92 if name == FilterKind.SQL92.value else FilterKind.TAG


def _stack_in(body: bytes) -> str:
    return ConsumerRunningInfo.decode(body).stacks[:_LONGEST_STACK]


def _info_in(body: bytes) -> bytes:
    """As the client encoded it. Raises PeerWireError: it makes no sense."""
    ConsumerRunningInfo.decode(body)
    return bytes(body)


def _verdict_in(body: bytes) -> Verdict:
    return Verdict.CONSUMED if ConsumeResult.decode(body).result in _CONSUMED else Verdict.FAILED
