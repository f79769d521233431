"""Moves retries of a group that popped to where its classic consumers pull from.

A broker stores a retry of a popped message in a retry topic of the group and the topic, which only pops of
the topic read. This module pops it from there, stores it in `%RETRY%group` and
acknowledges it, in this order. Sources: protocol facts 4.2, 7.8 (send rule 7, CONSUMER_SEND_MSG_BACK).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from brokers.capabilities import Reclaimed, ReclaimsRetries
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.consume.pop import Popper
from brokers.remote.consume.pop_filter import PopAttempt
from brokers.remote.metadata.groups import Groups
from brokers.remote.metadata.topics import Topics
from brokers.remote.produce.send import Sender
from brokers.remote.read.lookup import MessageLookup
from brokers.remote.read.queue_locks import QueueLocks
from brokers.remote.settle.send_back import SendBacks
from brokers.remote.settle.settle import Settlement
from popgate.context import Context
from popgate.errors import AlreadyExists, BadRequest, GatewayError, NotFound, TopicNotFound
from popgate.filters.compiled import EVERYTHING
from popgate.ids.message_id import encode_offset_message_id
from popgate.model import GroupConfig, Message, Pop, SendBack, StoredMessage, TopicConfig
from popgate.naming import DEAD_LETTER_PREFIX, pop_retry_topic_v1, pop_retry_topic_v2, retry_topic
from popgate.wire.messages.properties import (
    DELAY,
    FIRST_POP_TIME,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    POP_CK,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    drop_properties,
    find_property,
    set_if_room,
    set_property,
)
from popgate.wire.messages.records import COMPRESSED, COMPRESSION_MASK, MULTI_TAGS

_log = logging.getLogger(__name__)

_HOLD_MS = 60_000
"""How long what is being moved is held: what was not moved until then comes back."""
_MOST = 32
_MOST_BYTES = 4 * 1024 * 1024
_KEPT_FLAGS = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
_UNIQ_KEY, _RETRY_TOPIC, _ORIGIN_ID = UNIQ_KEY.encode(), RETRY_TOPIC.encode(), ORIGIN_MESSAGE_ID.encode()
_OF_THE_ROAD = (
    *(name.encode() for name in (DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS)),
    *(name.encode() for name in (RECONSUME_TIME, MAX_RECONSUME_TIMES, POP_CK, FIRST_POP_TIME)),
    *(b"ORIGIN_GROUP", TRAN_MSG.encode(), WAIT.encode()),
)
"""Properties that say how a message came here, or would make a broker do something else than store it now."""


class RetryReclaimer(ReclaimsRetries):
    """`ReclaimsRetries` of a cluster."""

    def __init__(
        self,
        access: ClusterAccess,
        locks: QueueLocks,
        groups: Groups,
        popper: Popper,
        settlement: Settlement,
        topics: Topics,
        lookup: MessageLookup,
        sender: Sender,
        send_backs: SendBacks,
    ) -> None:
        self._access = access
        self._routes = access.routes
        self._locks = locks
        self._groups = groups
        self._popper = popper
        self._settlement = settlement
        self._topics = topics
        self._lookup = lookup
        self._sender = sender
        self._send_backs = send_backs

    async def reclaim(self, context: Context, group: str, topic: str, *, held: bool = False) -> Reclaimed:
        """What was popped from `%RETRY%group` comes back there by itself."""
        config = await self._groups.group(group)
        await self._access.routes.of(topic)
        moved = seen = 0
        if topic != retry_topic(group) and not config.broadcast:
            for name in (pop_retry_topic_v2(group, topic), pop_retry_topic_v1(group, topic)):
                messages = await self._came_back(context, config, name)
                if messages:
                    seen += len(messages)
                    moved += await self._move(context, config, topic, name, messages)
        return Reclaimed(moved, more=moved > 0 and moved == seen)

    # -- inside -------------------------------------------------------------------------------

    async def _came_back(self, context: Context, config: GroupConfig, name: str) -> list[StoredMessage]:
        """Pop a retry topic itself, from its first message on wherever the group begins elsewhere."""
        try:
            route = await self._access.routes.of(name)
        except TopicNotFound:
            return []
        brokers = [*route.readable]
        if not brokers:
            return []
        request = Pop(name, config.name, EVERYTHING, _HOLD_MS, max_messages=_MOST, max_bytes=_MOST_BYTES)
        return await self._popper.look(PopAttempt(context, request, config, route, brokers), brokers)

    async def _move(
        self, context: Context, config: GroupConfig, topic: str, name: str, messages: Sequence[StoredMessage]
    ) -> int:
        """Store copies, then acknowledge; others are redelivered when their invisible time expires."""
        group = config.name
        broker = await self._place_in_retries(group, messages[0].broker)
        stored: list[str] = []
        looked_at: set[str] = set()
        locked = self._locks.may_be_locked(group)
        for message in messages:
            try:
                if not locked:
                    copy = _copy(message, config, topic, broker)
                    try:
                        locked = not await self._store(context, copy, looked_at)
                    except BadRequest:
                        # What no request can tell, the broker itself can copy.
                        await self._have_copied(context, group, message)
                    if locked:
                        self._locks.note_locks(group)
                if locked:
                    await self._have_copied(context, group, message)
            except (BadRequest, NotFound) as error:
                _log.warning("a message of %s cannot be moved: %s", name, error.sentence)
                continue
            except GatewayError as error:
                _log.info("what came back to group %s is moved later: %s", group, error.sentence)
                break
            stored.append(message.receipt)
        for outcome in await self._settlement.ack(context, name, group, stored) if stored else ():
            if outcome is not None:
                _log.warning("a message of %s that was moved may come again: %s", name, outcome.sentence)
        return len(stored)

    async def _place_in_retries(self, group: str, broker: str) -> str:
        """The broker that is to take the copies: this one where it has `%RETRY%group`; empty: any."""
        topic = retry_topic(group)
        try:
            route = await self._access.routes.of(topic)
        except TopicNotFound:
            with contextlib.suppress(AlreadyExists):
                await self._topics.create_topic(TopicConfig(topic, read_queues=1, write_queues=1))
            route = await self._routes.now(topic)
        there = any(
            queue.broker == broker and queue.writable and queue.write_queues for queue in route.queues
        )
        return broker if there and not route.mappings else ""

    async def _store(self, context: Context, copy: Message, looked_at: set[str]) -> bool:
        """Store a copy; False when the broker made it a dead letter, as it would do with the others.

        A broker treats a send to the retry topic of a group with locks, which reads in order, as a message
        that a consumer gave up. `looked_at`: brokers that do not do that now. Raises the failure of the
        send.
        """
        (result,) = await self._sender.send(context, [copy])
        if isinstance(result, GatewayError):
            raise result
        if result.broker not in looked_at and result.commit_offset >= 0:
            with contextlib.suppress(GatewayError):  # it is stored, wherever that is
                stored = await self._lookup.at_place(context, result.broker, result.commit_offset)
                if stored.topic.startswith(DEAD_LETTER_PREFIX):
                    return False
                looked_at.add(result.broker)
        return True

    async def _have_copied(self, context: Context, group: str, message: StoredMessage) -> None:
        """Let the broker create the copy, as for a message that was pulled and is sent back.

        That counts as an attempt, and the copy names the pop retry topic as its origin: clients
        of a gateway see the original topic (`brokers.remote.read.origins`).
        """
        await self._send_backs.send_back(
            context,
            SendBack(
                group,
                message.broker,
                message.commit_offset,
                delay_level=1,
                max_attempts=message.attempt + 1,  # never a dead letter for that
            ),
        )


def _copy(message: StoredMessage, config: GroupConfig, topic: str, broker: str) -> Message:
    """What is to be stored in `%RETRY%group`."""
    block = set_property(drop_properties(message.properties, _OF_THE_ROAD), _RETRY_TOPIC, topic.encode())
    if find_property(block, _ORIGIN_ID) is None:
        first = encode_offset_message_id(message.store_host, message.commit_offset)
        block = set_if_room(block, _ORIGIN_ID, first.encode())
    return Message(
        retry_topic(config.name),
        message.body,
        message_id=(find_property(block, _UNIQ_KEY) or b"").decode("utf-8", "replace"),
        born_ms=message.born_ms,
        born_host=message.born_host,
        sys_flag=message.sys_flag & _KEPT_FLAGS,
        flag=message.flag,
        # Never so often that it would be a dead letter before it was delivered once more.
        attempt=min(max(message.attempt - 1, 0), max(config.max_attempts - 1, 0)),
        properties=block,
        broker=broker,
        queue_id=0 if broker else -1,
        may_come_again=True,
    )
