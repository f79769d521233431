"""Mutated calls between gateways that share a broker, in this process without sockets: see `long`.

A guest that proves itself asks a host for every call of the port, and tells it of clients; what it says has
changed bytes. What the host asks the guest is answered as oddly. Beside it there are connections that say
changed frames from their first byte on. What a guest reads of a host's answers is in `test_shared_fuzz`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

from brokers.channel import Channel
from brokers.relay import BrokerAnswer
from brokers.shared.codec.calls import CALLS, DONE, FAILED, LEFT, decode, encode
from brokers.shared.codec.errors import ERROR
from brokers.shared.codec.kinds import Sink, Source
from brokers.shared.guest.handshake import meet
from brokers.shared.host.host import BrokerHost
from brokers.shared.session.clients import ANSWER, HERE, LEAVERS, Member
from brokers.shared.session.hello import CLIENTS, hello_fields, make_nonce
from brokers.shared.settings import SharedSettings
from popgate.context import Context
from popgate.errors import AlreadyExists, BrokerTimeout, BrokerUnavailable, GatewayError, Internal
from popgate.filters.compiled import compile_filter
from popgate.lite import LiteAction, LiteSync
from popgate.model import (
    EndTransaction,
    FilterKind,
    GroupConfig,
    Message,
    MessageType,
    Pop,
    Reading,
    Resolution,
    SendBack,
    StartFrom,
    TopicConfig,
)
from popgate.wire.frames.codes import PortCode, RequestCode
from popgate.wire.frames.remoting import Command, encode_command
from popgate.wire.messages.properties import LITE_TOPIC, encode_properties
from tests.fuzz.sites import CHANGED, SUCCEEDED, Site, Wrong, each_batch
from tests.fuzz.test_wire_fuzz import mutated
from tests.support.memory_network import MemoryNetwork, MemoryTransport

CONNECTION = "shared connection"
"""Stands for bytes from a connection's beginning, in place of a call."""
_NOTICES = (
    *(PortCode.STATE, PortCode.CANCEL, PortCode.MEMBERS_HERE),
    *(PortCode.MEMBERS_LEFT, PortCode.LITE_LEFT),
)
"""What a guest says beside calls; nonsense ends the connection."""
_ANSWERED_WITHIN_S = 60.0
_WAIT_S = 0.5
_DELAY_MS = 3_600_000
_TYPES = (MessageType.NORMAL, MessageType.NORMAL, MessageType.TRANSACTION, MessageType.DELAY)
_KEPT = 50
TOPIC, GROUP, LITE, LITE_GROUP, CLIENT = "t", "g", "lite", "lite-readers", "c"
READERS = "readers"
"""A group that goes by positions: who sets one forgets what is held."""
_SETTINGS = SharedSettings(max_frame_bytes=1 << 20)
_GUESTS = SharedSettings()
"""As shipped: a call whose limits are changed brings more than a host here takes in one frame."""
_NOT_EMBEDDED = frozenset({PortCode.AT_PLACE})
"""Of a broker that finds messages by the place in its log only."""
_NAMES_ONLY = frozenset(
    {
        *(PortCode.TOPICS, PortCode.GROUPS, PortCode.ROUTE, PortCode.TOPIC, PortCode.GROUP),
        *(PortCode.PROGRESS, PortCode.TOPICS_OF, PortCode.STANDING, PortCode.DELETE_LITE_TOPIC),
    }
)
"""Calls that say nothing but names of what is there: one that is changed is not, and is refused."""
CODES = tuple(sorted({*CALLS} - _NOT_EMBEDDED))


def name_of(code: int) -> str:
    return f"shared {PortCode(code).name}"


TARGETS = (*map(name_of, CODES), *map(name_of, _NOTICES))
"""Of all these some have to succeed."""


class Guesses:
    """Makes what guests say, right and wrong; keeps what hosts gave out."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.kept: dict[str, list[Any]] = {}

    def keep(self, kind: str, value: Any) -> None:
        found = self.kept.setdefault(kind, [])
        found.append(value)
        del found[:-_KEPT]

    def one(self, kind: str, otherwise: Any) -> Any:
        """Mostly what was kept last, which nobody has used."""
        found = self.kept.get(kind)
        if not found:
            return otherwise
        return found.pop() if self.random.random() < 0.7 else self.random.choice(found)

    def data(self, body: bytes) -> bytes:
        """Right, or changed a little, so that it can mostly be read, or changed in any way."""
        chance = self.random.random()
        if chance < 0.3 or not body:
            return body
        if chance < 0.7:
            changed = bytearray(body)
            changed[self.random.randrange(len(body))] ^= 1 << self.random.randrange(7)
            return bytes(changed)
        return mutated(self.random, body)

    # -- calls ------------------------------------------------------------------------------------

    def call(self, code: int, now: float, now_ms: int) -> bytes:
        """The right arguments of a call, as they travel."""
        context = Context(CLIENT, "GO", "1", deadline=now + _ANSWERED_WITHIN_S)
        sink = Sink(now)
        args, named = self._arguments(code, context, now, now_ms)
        CALLS[code].write(sink, *args, **named)
        return sink.data()

    def _arguments(
        self, code: int, context: Context, now: float, now_ms: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        queue = (TOPIC, "popgate", self.random.randrange(2))
        receipt = self.one("receipt", "0 1 2 3 4 popgate 0 0")
        everything = compile_filter(FilterKind.TAG, "*")
        pop = Pop(TOPIC, GROUP, everything, 10_000, max_messages=16, wait_until=now + _WAIT_S)
        other = f"other-{self.random.randrange(5)}"
        dead = (GROUP, "popgate", 0)
        match code:
            case PortCode.SEND:
                return (context, self._messages(now_ms)), {}
            case PortCode.POP:
                return (context, pop), {}
            case PortCode.ACK | PortCode.GIVE_BACK:
                return (context, TOPIC, GROUP, [receipt]), {}
            case PortCode.CHANGE_INVISIBLE:
                return (context, TOPIC, GROUP, receipt, 5_000), {"suspend": self.random.random() < 0.5}
            case PortCode.DEAD_LETTER:
                return (context, TOPIC, GROUP, receipt), {}
            case PortCode.RECALL:
                return (context, TOPIC, self.one("recall", "x")), {}
            case PortCode.SEND_BACK:
                return (context, SendBack(GROUP, "popgate", self.one("place", 0))), {}
            case PortCode.PULL:
                most = {"max_messages": 4, "max_bytes": 10_000, "passing": everything}
                return (context, *queue, 0), {**most, "wait_until": now + _WAIT_S}
            case PortCode.BOUNDS:
                return (context, *queue), {}
            case PortCode.OFFSET_AT:
                return (context, *queue, now_ms), {}
            case PortCode.COMMITTED:
                return (context, READERS, *queue), {}
            case PortCode.COMMIT | PortCode.BEGIN_READ | PortCode.COMMIT_READ | PortCode.RESET_QUEUE:
                return (context, READERS, *queue, 0), {}
            case PortCode.LOCK | PortCode.UNLOCK:
                return (context, GROUP, CLIENT, [queue]), {}
            case PortCode.FIND_BY_ID:
                return (context, TOPIC, self.one("id", "x")), {}
            case PortCode.FIND_BY_KEY:
                return (context, TOPIC, "key"), {"begin_ms": 0, "end_ms": 1 << 50, "limit": 5}
            case PortCode.END_TRANSACTION:
                ids = self.one("transaction", ("x", "y"))
                end = self.random.choice((Resolution.COMMIT, Resolution.ROLLBACK))
                return (context, EndTransaction(TOPIC, *ids, end)), {}
            case PortCode.SEND_REPLY:
                block = encode_properties({"UNIQ_KEY": self._id(), "REPLY_TO_CLIENT": CLIENT})
                return (context, Message("reply", b"reply", properties=block)), {}
            case PortCode.ASK_GATEWAYS:
                return (context, int(RequestCode.GET_ALL_PRODUCER_INFO), {"a": "b"}), {}
            case PortCode.SUBSCRIBE_LITE:
                return (context, LiteSync(LITE, LITE_GROUP, LiteAction.ADD, ("a", "b"))), {}
            case PortCode.POP_LITE:
                lite = Pop(LITE, LITE_GROUP, everything, 10_000, wait_until=now + _WAIT_S)
                return (context, lite), {}
            case PortCode.REDRIVE:
                return (context, *dead, [self.random.randrange(20)]), {}
            case PortCode.RECLAIM:
                return (context, READERS, TOPIC), {"held": self.random.random() < 0.5}
        return self._about_names(code, other, dead), {}

    def _about_names(self, code: int, other: str, dead: tuple[str, str, int]) -> tuple[Any, ...]:
        """Of calls without a context."""
        match code:
            case PortCode.ROUTE | PortCode.TOPIC:
                return (TOPIC,)
            case PortCode.CREATE_TOPIC | PortCode.UPDATE_TOPIC:
                return (TopicConfig(other, attributes={"a": "b"}),)
            case PortCode.DELETE_TOPIC | PortCode.DELETE_GROUP:
                return (other,)
            case PortCode.GROUP | PortCode.TOPICS_OF | PortCode.CONSUMERS | PortCode.MEMBERS:
                return (GROUP,)
            case PortCode.CREATE_GROUP | PortCode.UPDATE_GROUP:
                return (GroupConfig(other),)
            case PortCode.PROGRESS | PortCode.STANDING:
                return (GROUP, TOPIC)
            case PortCode.HELD:
                return (GROUP, TOPIC, 5)
            case PortCode.STANDINGS:
                return (0, 5)
            case PortCode.RESET:
                return (READERS, TOPIC, self.random.choice((StartFrom.FIRST, StartFrom.LAST, 5)))
            case PortCode.REDRIVEN:
                return (*dead, 0, 5)
            case PortCode.LITE_TOPICS:
                return (LITE, "", 5)
            case PortCode.DELETE_LITE_TOPIC:
                return (LITE, "b")
        return ()

    def _messages(self, now_ms: int) -> list[Message]:
        """All of one topic."""
        if self.random.random() < 0.2:
            block = encode_properties({"UNIQ_KEY": self._id(), LITE_TOPIC: "b"})
            return [Message(LITE, b"body", type=MessageType.LITE, lite_topic="b", properties=block)]
        return [self._message(now_ms) for _ in range(self.random.choice((1, 4, 12)))]

    def _message(self, now_ms: int) -> Message:
        message_id, kind = self._id(), self.random.choice(_TYPES)
        block = {"UNIQ_KEY": message_id, "KEYS": "key"}
        if kind is MessageType.TRANSACTION:
            block["TRAN_MSG"] = "true"
        due_ms = now_ms + _DELAY_MS if kind is MessageType.DELAY else 0
        return Message(
            *(TOPIC, b"body", message_id, kind, "", ("key",)),
            deliver_at_ms=due_ms,
            born_ms=now_ms,
            properties=encode_properties(block),
        )

    def _id(self) -> str:
        """By seed, so that what goes wrong can be done again."""
        return f"{self.random.getrandbits(136):034X}"

    def notice(self, code: int) -> bytes:
        if code == PortCode.STATE:
            return encode(CLIENTS, (CLIENT,))
        if code == PortCode.MEMBERS_HERE:
            reading = Reading.NEUTRAL
            member = Member(
                CLIENT, CLIENT, GROUP, True, False, (TOPIC,), ("makers",), "JAVA", "5.0.7", reading
            )
            return encode(HERE, (member,))
        if code == PortCode.MEMBERS_LEFT:
            return encode(LEAVERS, ("other",))
        if code == PortCode.LITE_LEFT:
            return encode(LEFT, ("other", True))
        return self.random.randrange(1_000).to_bytes(4, "big")

    def learn(self, code: int, result: Any) -> None:
        """Keep what a host gave out."""
        if code == PortCode.SEND:
            for sent in result:
                if isinstance(sent, GatewayError):
                    continue
                self.keep("id", sent.message_id)
                if sent.transaction_id:
                    self.keep("transaction", (sent.transaction_id, sent.message_id))
                if sent.recall_handle:
                    self.keep("recall", sent.recall_handle)
        elif code == PortCode.POP:
            for message in result:
                self.keep("receipt", message.receipt)
        elif code == PortCode.PULL:
            for message in result.messages:
                self.keep("place", message.commit_offset)

    def answer(self, asked: Command, *, right: bool) -> Command:
        """To what a host asks: as it hopes for, or mostly so, but for some bytes."""
        body = encode(ANSWER, BrokerAnswer(0, "", {"a": "b"})) if asked.code == PortCode.COMMAND else b"\1"
        if right:
            return asked.answer(DONE, body=body)
        return asked.answer(self.random.choice((DONE, DONE, DONE, FAILED, 5)), body=self.data(body))


class Teller(asyncio.Protocol):
    """Says bytes, and hears nothing."""


class SharedSite(Site):
    """With a host, and a guest of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._socket = folder.with_name("s")
        self._network = MemoryNetwork()

    async def start(self) -> None:
        await super().start()
        self._loop = asyncio.get_running_loop()
        self.host = BrokerHost(self.broker, f"unix:{self._socket}", clock=self.clock, settings=_SETTINGS)
        await self.host.start()
        # Guests come in memory: where something is wrong nobody closes its socket.
        self.host._stop_listening()
        await self.furnish()

    async def stop(self) -> None:
        stopping = asyncio.create_task(self.host.stop(), name="the host stops")
        await self.all_done([stopping])
        await stopping
        await super().stop()

    async def furnish(self) -> None:
        """Topics and groups that calls are about: some call may have taken them away."""
        types = (MessageType.NORMAL, MessageType.TRANSACTION, MessageType.DELAY)
        for topic in (
            TopicConfig(TOPIC, types, read_queues=2, write_queues=2),
            TopicConfig(LITE, (MessageType.LITE,), attributes={"+message.type": "LITE"}),
        ):
            with contextlib.suppress(AlreadyExists):
                await self.broker.create_topic(topic)
        for name, attributes in ((GROUP, {}), (READERS, {}), (LITE_GROUP, {"lite.bind.topic": LITE})):
            with contextlib.suppress(AlreadyExists):
                group = GroupConfig(name, max_attempts=1_000, attributes=attributes)
                await self.broker.create_group(group)

    def connect(self, protocol: Any) -> MemoryTransport:
        """A connection to the host, in memory."""
        ours = MemoryTransport(self._network, self._loop, protocol)
        theirs = MemoryTransport(self._network, self._loop, self.host._make())
        ours.other, theirs.other = theirs, ours
        for end in (theirs, ours):
            self._loop.call_soon(end.get_protocol().connection_made, end)
        return ours

    async def guest(self, odd: Guesses, *, right: bool = True) -> Channel:
        """A connection that is proved, and has one client. `right`: what it is asked it answers as hosts hope
        for; else its host may end it."""

        def asked(channel: Channel, request: Command) -> None:
            if not request.is_oneway:
                channel.answer(odd.answer(request, right=right))

        channel = Channel(
            "a host",
            loop=self._loop,
            clock=self.clock,
            settings=_GUESTS,
            probe=lambda opaque: encode_command(Command(PortCode.STATE, opaque)),
            on_asked=asked,
            on_opened=lambda _: None,
            on_over=lambda *_: None,
        )
        self.connect(channel)
        meeting = asyncio.create_task(meet(channel, self.clock, _GUESTS), name="a guest comes")
        await self.all_done([meeting])
        await meeting
        channel.tell(PortCode.MEMBERS_HERE, {}, odd.notice(PortCode.MEMBERS_HERE))
        return channel


# -- the work -----------------------------------------------------------------------------------------


async def fuzz_shared(seed: str, inputs: int, end: float, told: Counter[str]) -> None:
    """Count in `told` how many inputs each call got, and what was answered. Raises Wrong."""
    odd = Guesses(seed)
    await each_batch(SharedSite, lambda site, many: fuzz_batch(site, odd, told, many), inputs, end)


async def fuzz_batch(site: SharedSite, odd: Guesses, told: Counter[str], many: int) -> None:
    """So many of every call at the same time, of every notice, and of connections that say nonsense."""
    await site.furnish()
    other, channel = await site.guest(odd, right=False), await site.guest(odd)
    asked: list[asyncio.Task[None]] = []
    for code in CODES * many:
        now = site.clock.monotonic()
        right = odd.call(code, now, site.clock.now_ms())
        data = odd.data(right)
        changed = data != right or code in _NAMES_ONLY
        work = ask(site, channel, odd, told, code, data, changed=changed)
        asked.append(asyncio.create_task(work, name=name_of(code)))
    for code in _NOTICES * many:
        right = odd.notice(code)
        data = odd.data(right)
        work = tell(site, await site.guest(odd), told, code, data, changed=data != right)
        asked.append(asyncio.create_task(work, name=name_of(code)))
    for _ in range(many):
        say_nonsense(site, odd, told)
    await site.all_done(asked)
    for task in asked:
        await task
    channel.close("the batch is over")
    other.close("the batch is over")


async def ask(
    site: SharedSite,
    channel: Channel,
    odd: Guesses,
    told: Counter[str],
    code: int,
    data: bytes,
    *,
    changed: bool,
) -> None:
    """One call. Raises Wrong for an answer that none may get."""
    name, now = name_of(code), site.clock.monotonic()
    told[name] += 1
    told[f"{name} {CHANGED}"] += changed
    one = channel.ask(code, {}, data, now, _ANSWERED_WITHIN_S)
    try:
        answer = await one.future
    except BrokerTimeout:  # a pop may be asked to wait for longer than the world lasts
        channel.forget(one)
        if channel.over:
            raise Wrong(f"{name} ended its connection; input {data.hex()}") from None
        channel.tell(PortCode.CANCEL, {}, one.opaque.to_bytes(4, "big"))
        return
    except BrokerUnavailable as gone:
        raise Wrong(f"{name} was not asked: {gone.sentence}; input {data.hex()}") from gone
    if answer.code == FAILED:
        error = decode(ERROR, answer.body)
        if isinstance(error, Internal):
            raise Wrong(f"{name} went wrong: {error.sentence}; input {data.hex()}")
        told[f"{name} {type(error).__name__}"] += 1
    elif answer.code == DONE:
        told[f"{name} {SUCCEEDED}"] += changed
        odd.learn(code, CALLS[code].read_result(Source(answer.body, now)))


async def tell(
    site: SharedSite, channel: Channel, told: Counter[str], code: int, data: bytes, *, changed: bool
) -> None:
    """A notice on a connection of its own, which is good for another question after it or is over."""
    name = name_of(code)
    told[name] += 1
    told[f"{name} {CHANGED}"] += changed
    channel.tell(code, {}, data)
    one = channel.ask(PortCode.STATE, {}, b"", site.clock.monotonic(), _ANSWERED_WITHIN_S)
    try:
        await one.future
    except (BrokerTimeout, BrokerUnavailable) as gone:
        if not channel.over:
            raise Wrong(f"{name} left a host that answers no more; input {data.hex()}") from gone
        told[f"{name} REFUSED"] += 1
    else:
        told[f"{name} {SUCCEEDED}"] += changed
    channel.close("it is told")


def say_nonsense(site: SharedSite, odd: Guesses, told: Counter[str]) -> None:
    """Changed frames from the first byte of a connection on, and its end."""
    code = odd.random.choice(CODES)
    frames = [
        Command(PortCode.HELLO, 1, fields=hello_fields(make_nonce(), "odd")),
        Command(PortCode.PROVE, 2, fields={"proof": ""}),
        Command(code, 3, body=odd.call(code, site.clock.monotonic(), site.clock.now_ms())),
    ]
    transport = site.connect(Teller())
    data = mutated(odd.random, b"".join(map(encode_command, frames)))
    told[CONNECTION] += 1
    transport.write(data)
    asyncio.get_running_loop().call_soon(transport.write_eof)
