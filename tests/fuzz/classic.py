"""Mutated requests of every code at the remoting door, in this process without sockets: see `long`.

The bytes go through a connection, its wire, the door, processor and broker, and the answers back. What
the gateway asks its clients is answered, too, as oddly as they ask.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from popgate.errors import PeerWireError
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import IS_ONEWAY, Command, RemotingWire, encode_command
from processors.budgets import Allowance
from protocols.remoting.connections.calls import RemotingCall
from protocols.remoting.connections.connection import RemotingConnection
from protocols.remoting.door import Door
from protocols.remoting.requests import DoorContext
from protocols.remoting.tools.refused import RefusedCodes
from tests.fuzz.sites import Site, Wrong, each_batch
from tests.fuzz.test_remoting_fuzz import Odd, judge
from tests.fuzz.test_wire_fuzz import RUNNING, mutated

ADDRESS = "127.0.0.1:8080"
CONNECTION = "remoting connection"
"""Stands for bytes that are no frames, in place of a code."""
_LONGEST_FIELD = 2_000


def served() -> list[str]:
    """The names of the codes that the door serves and does not refuse by name, and of bytes beside them."""
    return [*map(name_of, ClassicSite(Path("never made")).codes), CONNECTION]


def name_of(code: int) -> str:
    return f"remoting {RequestCode(code).name}"


class Shorter(Odd):
    """Makes requests wrong, mostly without making them large: making those is what takes the time."""

    def change(self, fields: dict[str, str], body: bytes) -> bytes:
        changed = super().change(fields, body)
        if self.random.random() > 0.02:
            for name in [name for name, value in fields.items() if len(value) > _LONGEST_FIELD]:
                fields[name] = fields[name][: self.random.randrange(300)]
        return changed

    def reply(self, asked: Command) -> Command:
        """To a request of the gateway, which may be handed on to who made it ask."""
        code = self.random.choice((0, 0, 0, 1, *ResponseCode))
        body = RUNNING if self.random.random() < 0.5 else mutated(self.random, RUNNING)
        return asked.answer(code, "so be it", body=body)


class ClassicSite(Site):
    """With the remoting door; a `calls.Host` of its connections."""

    max_requests = 1024
    max_waiting = 4096

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        door_context = DoorContext(self.processor, self.clock, lambda _: ADDRESS)
        self.door = Door(door_context)
        refused = RefusedCodes(door_context).handlers()
        self.codes = [int(one) for one in RequestCode if self.door.serves(one) and one not in refused]
        self.under_way: set[RemotingCall] = set()
        self.unfinished = 0
        """Bytes of requests that have not come as a whole."""

    def on_open(self, connection: RemotingConnection) -> bool:
        return True

    def on_told(self, connection: RemotingConnection, peer: tuple[str, int] | None) -> bool:
        return True

    def on_closed(self, connection: RemotingConnection) -> None:
        """Nothing is counted here."""

    def on_violation(self, connection: RemotingConnection, kind: str) -> None:
        """Expected of who says bytes that are no frames."""

    def on_refused(self, connection: RemotingConnection) -> None:
        """Its answer says so."""

    def turns_away(self, command: Command) -> bool:
        return False

    def holds_back(self, call: RemotingCall, answer: Command) -> bool:
        return False

    def on_unfinished(self, connection: RemotingConnection, more: int) -> None:
        self.unfinished += more

    def allowance(self, connection: RemotingConnection) -> Allowance:
        return self.processor.budgets.allowance(connection.key)

    def on_begin(self, call: RemotingCall) -> None:
        self.under_way.add(call)

    def on_end(self, call: RemotingCall) -> None:
        self.under_way.discard(call)

    async def quiet(self) -> None:
        """Until all that is under way has ended. Raises Wrong for what it leaves behind."""
        await self.all_done([Ending(self)])
        if self.unfinished or self.processor.budgets.used:
            raise Wrong(
                f"{self.unfinished} bytes of unfinished requests and {self.processor.budgets.used} of the"
                " budgets are held by nobody"
            )


class Ending:
    """Everything that a site has under way, as something to wait for."""

    def __init__(self, site: ClassicSite) -> None:
        self._site = site

    def done(self) -> bool:
        return not self._site.under_way

    def get_name(self) -> str:
        return str([call.request.command.code for call in self._site.under_way])


class Talk(asyncio.Transport):
    """A connection to the door, and the client at its other end."""

    def __init__(self, site: ClassicSite, odd: Shorter, port: int, serialization: Serialization) -> None:
        super().__init__({"peername": ("10.0.0.9", port), "sockname": ("127.0.0.1", 8080)})
        self._odd = odd
        self._serialization = serialization
        self._wire = RemotingWire()
        self._loop = asyncio.get_running_loop()
        self._opaque = 0
        self._closing = False
        self.open: dict[int, asyncio.Future[Command]] = {}
        """What was asked and is not answered, by number."""
        self.is_odd = False
        """Whether anything may be answered, since nobody knows what was asked."""
        self.connection = RemotingConnection(self._loop, site)
        self.connection.connection_made(self)

    # -- what the client says ---------------------------------------------------------------------

    def request(self, code: int, fields: dict[str, str], body: bytes, *, oneway: bool = False) -> bytes:
        self._opaque += 1
        # A binary header has two bytes for a code.
        serialization = self._serialization if code <= 0x7FFF else Serialization.JSON
        return encode_command(
            Command(
                *(code, self._opaque, IS_ONEWAY if oneway else 0, fields, body),
                language=self._odd.random.choice(("JAVA", "CPP", "GO", "OTHER")),
                version=self._odd.random.choice((513, 513, 399, 0)),
                serialization=serialization,
            )
        )

    def ask(self, data: bytes) -> asyncio.Future[Command]:
        """Say what `request` made; its answer."""
        answer = self.open[self._opaque] = self._loop.create_future()
        self.say(data)
        return answer

    def say(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self._closing:
            room = self.connection.get_buffer(-1)
            piece = data[at : at + len(room)]
            room[: len(piece)] = piece
            at += len(piece)
            self.connection.buffer_updated(len(piece))

    def end(self) -> None:
        if not self._closing:
            self.abort()

    def _heard(self, data: bytes) -> None:
        self._wire.receive(data)
        while (event := self._wire.next_event()) is not None:
            if event.is_response:
                if not self.is_odd:
                    self.open.pop(event.opaque).set_result(event)
            elif not event.is_oneway:
                self._loop.call_soon(self.say, encode_command(self._odd.reply(event)))

    # -- what the connection asks of its transport ------------------------------------------------

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._heard(b"".join(list_of_data))

    def write(self, data: Any) -> None:
        self._heard(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        self._closing = True
        self._loop.call_soon(self.connection.connection_lost, None)

    def close(self) -> None:
        self.abort()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything is heard at once."""

    def pause_reading(self) -> None:
        """What comes meanwhile is taken all the same."""

    def resume_reading(self) -> None:
        """See above."""


class Answering:
    """A request, as something to wait for."""

    def __init__(
        self, code: int, data: bytes, fields: dict[str, str], answer: asyncio.Future[Command]
    ) -> None:
        self.code, self.data, self.fields, self.answer = code, data, fields, answer

    def done(self) -> bool:
        return self.answer.done()

    def get_name(self) -> str:
        return name_of(self.code)


async def fuzz_classic(seed: str, inputs: int, end: float, told: Counter[str]) -> None:
    """Count in `told` how many inputs each code got, and what was answered. Raises Wrong."""
    odd = Shorter(0)
    odd.random = random.Random(seed)
    await each_batch(ClassicSite, lambda site, many: fuzz_batch(site, odd, told, many), inputs, end)


async def fuzz_batch(site: ClassicSite, odd: Shorter, told: Counter[str], many: int) -> None:
    """So many requests of every code at the same time, and bytes that are no frames beside them."""
    talks = [Talk(site, odd, 40_000 + way, way) for way in Serialization]
    asked: list[Answering] = []
    for code in site.codes * many:
        talk = odd.random.choice(talks)
        fields, body = odd.right(code)
        body = odd.change(fields, body)
        if odd.random.random() < 0.02:
            talk.say(talk.request(code, fields, body, oneway=True))
            told[name_of(code)] += 1
            continue
        data = talk.request(code, fields, body)
        asked.append(Answering(code, data, fields, talk.ask(data)))
    nonsense(site, odd, told, many)
    await site.all_done(asked)
    for one in asked:
        answer = one.answer.result()
        told[name_of(one.code)] += 1
        told[f"{name_of(one.code)} {answer.code}"] += 1
        try:
            judge(one.code, one.fields, answer)
        except AssertionError as error:
            raise Wrong(f"{one.get_name()}: {error}; input {one.data.hex()}") from error
        odd.learn(answer)
    for talk in talks:
        talk.end()
    await site.quiet()


def nonsense(site: ClassicSite, odd: Shorter, told: Counter[str], many: int) -> None:
    """Connections of their own, which say changed frames and end."""
    for number in range(many):
        talk = Talk(site, odd, 50_000 + number, odd.random.choice(list(Serialization)))
        talk.is_odd = True
        frames = []
        for _ in range(2):
            code = odd.random.choice(site.codes)
            fields, body = odd.right(code)
            frames.append(talk.request(code, fields, body, oneway=odd.random.random() < 0.5))
        data = mutated(odd.random, b"".join(frames))
        told[CONNECTION] += 1
        try:
            talk.say(data)
        except PeerWireError as error:
            raise Wrong(f"a connection was not cut off for {error}; input {data.hex()}") from error
        talk.end()
