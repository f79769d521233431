"""Scripted brokers and name servers, on real sockets with ports that the system chose.

async with ScriptedPeer() as broker:
    broker.on(RequestCode.SEND_MESSAGE_V2, lambda request: request.answer(0, fields={"msgId": "1"}))
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType

from popgate.sockets.servers import close_server
from popgate.sockets.wire_driver import WireDriver
from popgate.wire.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command, RemotingWire

Reply = Command | Iterable[Command] | None
"""An answer, several, or none."""
Script = Callable[[Command], Reply | Awaitable[Reply]]

_KEPT = 100_000


class PeerConnection(WireDriver[RemotingWire, Command]):
    """One client's connection at a scripted peer."""

    def __init__(self, peer: ScriptedPeer) -> None:
        super().__init__(RemotingWire(), asyncio.get_running_loop())
        self.peer = peer
        self.opaque = 0
        self.asked: dict[int, asyncio.Future[Command]] = {}
        self.deaf = False
        """Whether received data is discarded."""

    def send(self, command: Command) -> None:
        self.wire.send(command)
        self.write_soon()

    async def ask(self, command: Command) -> Command:
        """Ask the client something, as a broker does, and wait for its answer."""
        self.opaque += 1
        command.opaque = self.opaque
        future = self.asked[command.opaque] = self.loop.create_future()
        self.send(command)
        answer: Command = await future
        return answer

    def say(self, command: Command) -> None:
        """Send the client a one-way command."""
        command.flag |= 2
        self.send(command)

    def on_open(self, transport: asyncio.Transport) -> None:
        self.peer._joined(self)

    def on_heard(self) -> None:
        self.peer._heard(self)

    def leave(self) -> None:
        """Close it gracefully: done when the other side has closed its end."""
        self.deaf = True
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self.paused or not transport.can_write_eof():
            self.cut()
            return
        try:
            transport.write_eof()
        except OSError:  # the other side was first
            self.cut()

    def outgoing(self) -> list[bytes]:
        return [] if self.deaf else super().outgoing()

    def on_event(self, event: Command) -> None:
        if self.deaf:
            return
        if event.is_response:
            future = self.asked.pop(event.opaque, None)
            if future is not None and not future.done():
                future.set_result(event)
            return
        self.peer._asked(self, event)

    def on_gone(self, error: BaseException | None) -> None:
        self.peer._left(self)
        for future in self.asked.values():
            future.cancel()


class ScriptedPeer:
    """Answers requests by the script of their code; heartbeats with SUCCESS, others with 'not supported'.

    `requests` has all received requests, including heartbeats. While `silent`, none is answered, not even
    later. `stop` and `start` again use the same port.
    """

    def __init__(self, *, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.tls = tls
        self.silent = False
        self.requests: list[Command] = []
        self.connections: list[PeerConnection] = []
        self.joined = 0
        """How many connections there were in all."""
        self.heard: Callable[[PeerConnection], None] | None = None
        """Told whenever bytes come, for tests of idle times."""
        self._scripts: dict[int, Script] = {RequestCode.HEART_BEAT: lambda request: request.answer(0)}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> ScriptedPeer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()  # nobody asks any more, and who does not run cannot notice
        await self.stop()

    def on(self, code: int, script: Script) -> None:
        """Answer requests of this code with the result of `script`, which may be async."""
        self._scripts[code] = script

    def of(self, code: int) -> list[Command]:
        """The requests of this code that came so far."""
        return [request for request in self.requests if request.code == code]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: PeerConnection(self), "127.0.0.1", self.port, ssl=self.tls, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and close every connection, like a killed process.

        Afterwards no client can still use a connection that seems open.
        """
        if self._server is not None:
            await close_server(self._server)
            self._server = None
        for connection in list(self.connections):
            connection.leave()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.until(lambda: not self.connections)

    def cut(self) -> None:
        """End every connection without a word."""
        for connection in list(self.connections):
            connection.cut()

    async def until(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait for something that requests or connections bring about. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def _joined(self, connection: PeerConnection) -> None:
        self.connections.append(connection)
        self.joined += 1
        self._changed.set()

    def _left(self, connection: PeerConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        self._changed.set()

    def _heard(self, connection: PeerConnection) -> None:
        if self.heard is not None:
            self.heard(connection)

    def _asked(self, connection: PeerConnection, request: Command) -> None:
        if len(self.requests) < _KEPT:
            self.requests.append(request)
        self._changed.set()
        if self.silent:
            return
        script = self._scripts.get(request.code)
        reply = (
            request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request {request.code} not scripted")
            if script is None
            else script(request)
        )
        if inspect.isawaitable(reply):
            task = asyncio.ensure_future(_later(reply, connection, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            _reply(connection, request, reply)


async def _later(reply: Awaitable[Reply], connection: PeerConnection, request: Command) -> None:
    _reply(connection, request, await reply)


def _reply(connection: PeerConnection, request: Command, reply: Reply) -> None:
    if request.is_oneway:
        return
    for command in () if reply is None else [reply] if isinstance(reply, Command) else reply:
        connection.send(command)


class ScriptedNameServer(ScriptedPeer):
    """Knows the topics and brokers that a test puts into `topics` and `brokers`, and no others."""

    def __init__(self, *, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(port=port, tls=tls)
        self.brokers: dict[str, BrokerData] = {}
        self.topics: dict[str, TopicRoute] = {}
        self.on(RequestCode.GET_BROKER_CLUSTER_INFO, self._cluster)
        self.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)

    def add_broker(
        self, name: str, *addresses: str, cluster: str = "DefaultCluster", zone: str = ""
    ) -> BrokerData:
        """A broker by its addresses, the master first."""
        data = BrokerData(cluster, name, dict(enumerate(addresses)), zone)
        self.brokers[name] = data
        return data

    def add_topic(self, topic: str, *brokers: str, queues: int = 4, perm: int = 6) -> TopicRoute:
        """Add a topic on known brokers; by default on all of them."""
        names = brokers or tuple(self.brokers)
        route = TopicRoute(
            tuple(QueueData(name, queues, queues, perm) for name in names),
            tuple(self.brokers[name] for name in names if name in self.brokers),
        )
        self.topics[topic] = route
        return route

    def _cluster(self, request: Command) -> Command:
        clusters: dict[str, list[str]] = {}
        for name, data in self.brokers.items():
            clusters.setdefault(data.cluster, []).append(name)
        info = ClusterInfo(self.brokers, {name: tuple(names) for name, names in clusters.items()})
        return request.answer(ResponseCode.SUCCESS, body=info.encode())

    def _route(self, request: Command) -> Command:
        topic = request.fields.get("topic", "")
        route = self.topics.get(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}"
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, remark)
        return request.answer(ResponseCode.SUCCESS, body=route.encode())


class ScriptedCluster:
    """A name server and masters, as `scripted_cluster` has them, while it is open."""

    def __init__(self, brokers: Iterable[str], topics: Iterable[str]) -> None:
        self._servers = ScriptedNameServer()
        self._masters = {name: ScriptedPeer() for name in brokers}
        self._topics = tuple(topics)

    async def __aenter__(self) -> tuple[ScriptedNameServer, dict[str, ScriptedPeer]]:
        await self._servers.start()
        failure: BaseException | None = None
        try:
            for name, master in self._masters.items():
                await master.start()
                self._servers.add_broker(name, master.address)
            for topic in self._topics:
                self._servers.add_topic(topic)
        except BaseException as error:
            failure = error
        if failure is not None:
            await self._stop()
            raise failure
        return self._servers, self._masters

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for peer in (self._servers, *self._masters.values()):
            await peer.stop()


def scripted_cluster(*brokers: str, topics: Iterable[str] = ()) -> ScriptedCluster:
    """A name server and a master for each name, with these topics on all of them."""
    return ScriptedCluster(brokers, topics)
