"""Questions of operators to a connected client: its stack, what it runs, a message to consume.

Only clients of this replica can be asked, over their open stream.
"""

from __future__ import annotations

from collections.abc import Callable

from brokers.capabilities import FindsByPlace
from brokers.port import Broker
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    ClientNotFound,
    ClientTimeout,
    Fault,
    GatewayError,
    NotFound,
    TooManyRequests,
    Unsupported,
    shown,
)
from popgate.groups.verdict import Verdict
from popgate.kinds import Action
from popgate.model import StoredMessage
from popgate.naming import check_group, check_topic
from processors.clients.client_registry import ClientHandle, ClientRegistry
from processors.clients.query import ClientQuery, RunningInfoQuestion, StackQuestion, VerifyQuestion

ANSWER_S = 5.0
"""How long a client may take. Source: protocol facts 1.7."""
_MOST_OPEN = 256
"""Questions without an answer at a time, to all clients together."""


class ClientQueries:
    """`admit` is the first step of every request, as in `processors.messaging`."""

    def __init__(
        self,
        broker: Broker,
        clients: ClientRegistry,
        clock: Clock,
        admit: Callable[..., None],
        *,
        most: int = _MOST_OPEN,
    ) -> None:
        self._broker = broker
        self._clients = clients
        self._clock = clock
        self._admit = admit
        self._most = most
        self._open = 0
        self._moved: set[str] = set()

    def __repr__(self) -> str:
        return f"<ClientQueries open {self._open}>"

    async def stack(self, context: Context, client_id: str) -> str:
        """What the threads of a client are doing, in its own words.

        Raises ClientNotFound, ClientTimeout, BadRequest (PRECONDITION_FAILED: no open stream),
        TooManyRequests, Unsupported (the client cannot), Forbidden.
        """
        client = self._client(context, client_id)
        return str(await self._asked(client, StackQuestion()))

    async def stack_of(self, client_id: str) -> str:
        """As `stack`, for the operator of a cluster, who was admitted there."""
        return str(await self._asked(_open(client_id, self._clients.find(client_id)), StackQuestion()))

    async def running_info(self, client_id: str, group: str, *, with_stacks: bool) -> bytes | None:
        """What a consumer says that it runs, likewise: an encoded `ConsumerRunningInfo`.

        None: it is a client of another protocol, which has no such question. Raises as `stack_of`.
        """
        client = _open(client_id, self._clients.find(client_id, group))
        _check_group(client, group)
        try:
            answer = await self._asked(client, RunningInfoQuestion(with_stacks=with_stacks))
        except Unsupported:
            return None
        return answer if isinstance(answer, bytes) else None

    async def verify(
        self, context: Context, client_id: str, group: str, topic: str, message_id: str
    ) -> Verdict:
        """Make a client of `group` consume a stored message, whatever the group's progress is.

        Nothing is taken or acknowledged. Raises as `stack`, and BadRequest (not of that group),
        NotFound (no such message), IllegalTopic, IllegalGroup, TopicNotFound.
        """
        self._admit(context, Action.SUBSCRIBE, topic=check_topic(topic), group=check_group(group))
        client = self._client(context, client_id, group)
        _check_group(client, group)
        messages = await self._broker.find_by_id(context, topic, message_id)
        if not messages:
            raise NotFound(f"topic {topic} has no message with the id {shown(message_id)}")
        return await self._consumed(client, messages[0])

    async def consume(self, client_id: str, group: str, message: StoredMessage) -> Verdict:
        """As `verify`, with the message itself, for the operator of a cluster, who was admitted there."""
        client = _open(client_id, self._clients.find(client_id, group))
        _check_group(client, group)
        return await self._consumed(client, message)

    async def message_at(self, broker: str, commit_offset: int) -> StoredMessage:
        """A message by its place in a broker's log, likewise. Raises NotFound, BadRequest, Unsupported."""
        by_place = self._broker.capability(FindsByPlace)
        if by_place is None:
            raise Unsupported(f"to look a message up by its place in the log of {self._broker.name}")
        if not 0 <= commit_offset < 1 << 63:
            raise BadRequest(f"the commit log offset {commit_offset} is out of range")
        # Whoever asks waits for the client, too, and hardly longer than for that.
        context = Context(deadline=self._clock.monotonic() + ANSWER_S)
        return await by_place.at_place(context, broker, commit_offset)

    def reconnect(self, context: Context, client_id: str) -> None:
        """Tell a client to reconnect. There is no response. Raises as `stack`."""
        client = self._client(context, client_id)
        if not client.reconnect():
            raise _busy(client_id)

    def move_all(self) -> int:
        """Tell all clients to reconnect elsewhere; returns how many were told so far, each counted once."""
        for client in self._clients.all():
            if client.alive and client.reconnect():
                self._moved.add(client.key)
        return len(self._moved)

    def reconnect_all(self, context: Context) -> tuple[int, int]:
        """Tell all clients with an open stream to reconnect; how many were told, how many could not be."""
        self._admit(context, Action.UPDATE)
        connected = [client for client in self._clients.all() if client.alive]
        reached = sum([client.reconnect() for client in connected])
        return reached, len(connected) - reached

    def _client(self, context: Context, client_id: str, group: str = "") -> ClientHandle:
        client = self._clients.find(client_id, group)
        self._admit(context, Action.GET, group=client.group if client is not None else "")
        return _open(client_id, client)

    async def _consumed(self, client: ClientHandle, message: StoredMessage) -> Verdict:
        answer = await self._asked(client, VerifyQuestion(message))
        return answer if isinstance(answer, Verdict) else Verdict.FAILED

    async def _asked(self, client: ClientHandle, question: ClientQuery) -> object:
        if self._open >= self._most:
            raise TooManyRequests(f"the limit of {self._most} questions without an answer is reached")
        if not client.ask(question):
            raise _busy(client.client_id)
        self._open += 1
        late = ClientTimeout(client.client_id, ANSWER_S)
        timer = self._clock.call_later(ANSWER_S, lambda: question.failed(late))
        try:
            return await question.answer
        finally:
            timer.cancel()
            # So that the door forgets it, also when its asker left.
            question.withdraw()
            self._open -= 1


def _open(client_id: str, client: ClientHandle | None) -> ClientHandle:
    if client is None:
        raise ClientNotFound(client_id)
    if not client.alive:
        raise BadRequest(
            f"client {shown(client_id)} has no open stream to this gateway: it cannot be asked",
            Fault.PRECONDITION_FAILED,
        )
    return client


def _check_group(client: ClientHandle, group: str) -> None:
    if client.group != group:
        membership = f"of consumer group {client.group}" if client.group else "no consumer"
        raise BadRequest(
            f"client {shown(client.client_id)} is {membership}, not of consumer group {shown(group)}"
        )


def _busy(client_id: str) -> GatewayError:
    return TooManyRequests(f"client {shown(client_id)} has not read what it was asked before")
