"""Probes an address as a RocketMQ client: health, route, limits, a round trip, clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address

import grpc
import grpc.aio

from popgate.pb import definition_pb2 as pb
from popgate.pb import health_pb2
from popgate.pb import service_pb2 as rpc
from protocols.adapter import joined
from protocols.grpc.caller import SERVICE, Caller, Refused
from protocols.probing import Finding, Level, Wish, nothing_sent, port_trouble, spoken

_LARGEST_TRY = 16 << 20
_POLL_S = 1.0
_SKEW_S = 1.0


class GrpcProber:
    """Opens one channel, as a client has, and goes on as far as it gets."""

    async def spoken(self, host: str, port: int, patience_s: float) -> Finding:
        """HTTP/2 in clear text."""
        return await spoken(host, port, patience_s)

    async def probe(self, wish: Wish) -> AsyncIterator[Finding]:
        async with _Probe(wish) as client:
            async for finding in client.look():
                yield finding


def make_prober() -> GrpcProber:
    return GrpcProber()


class _Probe(Caller):
    """The looks, one after the other, as far as they get."""

    _is_there = True
    """Whether the topic of the round trip is, or was made."""

    async def look(self) -> AsyncIterator[Finding]:
        try:
            yield await self._health()
            async for finding in self._route():
                yield finding
            yield await self._limits()
            if not self.wish.write:
                yield Finding("round-trip", Level.SKIPPED, "nothing is written", "leave out --no-write")
                return
            if not self._is_there:
                yield nothing_sent(self.topic)
                return
            async for finding in self._round_trip():
                yield finding
            yield await self._large()
            yield await self._long_poll()
        except Refused as refused:
            yield refused.finding

    # -- one look each ------------------------------------------------------------------------

    async def _health(self) -> Finding:
        method = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await method(health_pb2.HealthCheckRequest(), timeout=self.wish.patience_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return Finding(
                    "health",
                    Level.WARNING,
                    "gRPC answers, without a health check: this is no popgate, or something is before it",
                )
            raise self.broken("health", error) from None
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return Finding("health", Level.OK, "the gateway serves")
        return Finding(
            "health",
            Level.PROBLEM,
            "the gateway answers, and says that it does not serve",
            "it is stopping, or its store cannot be written: its log and /ready at its admin port say which",
        )

    async def _route(self) -> AsyncIterator[Finding]:
        wish = self.wish
        if not wish.write and not wish.topic and not wish.known:
            yield Finding(
                "route",
                Level.SKIPPED,
                "asking for a route may make a topic",
                "name one that is there: --topic",
            )
            return
        # Without a wish to write, one that is there is asked for: the other might be made.
        topic = self.topic if wish.write or wish.topic else wish.known
        answer = await self._asked(topic)
        if answer.status.code == pb.Code.TOPIC_NOT_FOUND and not wish.topic and topic != wish.known:
            self._is_there = False
            if not wish.known:
                yield Finding(
                    "route",
                    Level.OK,
                    f"routes are told; topic {topic} has none, and is not made on first use",
                    "to see one: name a topic that is there, --topic",
                )
                return
            topic = wish.known
            answer = await self._asked(topic)
        if answer.status.code == pb.Code.TOPIC_NOT_FOUND:
            raise Refused(
                Finding(
                    "route",
                    Level.PROBLEM,
                    f"topic {topic} is not there, and is not made on first use",
                    f"popgate topic create {topic}, or name another one: --topic",
                )
            )
        self.expect("route", answer.status)
        queues = answer.message_queues
        yield Finding("route", Level.OK, f"topic {topic} has {len(queues)} queues")
        addresses = {
            (address.host, address.port): None
            for queue in queues
            for address in queue.broker.endpoints.addresses
        }
        for host, port in addresses:
            yield await self._advertised(host, port)

    async def _asked(self, topic: str) -> rpc.QueryRouteResponse:
        request = rpc.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=self.endpoints)
        answer: rpc.QueryRouteResponse = await self.call("route", "QueryRoute", request)
        return answer

    async def _advertised(self, host: str, port: int) -> Finding:
        """Clients connect to what the route says, wherever they asked for it."""
        wish, address = self.wish, joined(host.strip("[]"), port)
        if (_plain(host), port) == (_plain(wish.host), wish.port):
            return Finding("advertised", Level.OK, f"clients are told to use {address}, this address")
        trouble = await port_trouble(host.strip("[]"), port, wish.patience_s)
        if trouble is None:
            finding = await spoken(host.strip("[]"), port, wish.patience_s)
            trouble = None if finding.level is Level.OK else (finding.what, finding.advice)
        how = (
            "leave `advertised.address` empty, then clients are told what they dialled; or set it to an"
            " address that all of them reach"
        )
        if trouble is None:
            return Finding(
                "advertised",
                Level.WARNING,
                f"clients are told to use {address}, not {joined(wish.host, wish.port)}; it answers here",
                f"if that is not meant: {how}",
            )
        return Finding(
            "advertised",
            Level.PROBLEM,
            f"clients are told to use {address}, which cannot be reached from here: {trouble[0]}",
            how,
        )

    async def _limits(self) -> Finding:
        method = self.channel.stream_stream(
            f"{SERVICE}Telemetry",
            request_serializer=rpc.TelemetryCommand.SerializeToString,
            response_deserializer=rpc.TelemetryCommand.FromString,
        )
        stream = method(None, metadata=self.metadata)
        settings = pb.Settings(
            client_type=pb.ClientType.PRODUCER,
            access_point=self.endpoints,
            publishing=pb.Publishing(topics=[pb.Resource(name=self.topic)] if self.wish.write else []),
        )
        try:
            async with asyncio.timeout(self.wish.patience_s):
                await stream.write(rpc.TelemetryCommand(settings=settings))
                answer = await stream.read()
        except TimeoutError:
            return Finding(
                "limits",
                Level.PROBLEM,
                f"the telemetry stream says nothing for {self.wish.patience_s:g} s",
                "a proxy in between holds back streams: it must pass gRPC without buffering",
            )
        except grpc.aio.AioRpcError as error:
            raise self.broken("limits", error) from None
        finally:
            stream.cancel()
        if not isinstance(answer, rpc.TelemetryCommand) or not answer.HasField("settings"):
            return Finding("limits", Level.PROBLEM, "the telemetry stream ended without settings")
        publishing = answer.settings.publishing
        self.max_body = publishing.max_body_size or self.max_body
        checks = "checked" if publishing.validate_message_type else "not checked"
        return Finding(
            "limits", Level.OK, f"bodies of up to {self.max_body} bytes; message types are {checks}"
        )

    async def _round_trip(self) -> AsyncIterator[Finding]:
        began = time.perf_counter()
        message_id, sent_ms = await self.send("round-trip", b"how are you?")
        sent_s = time.perf_counter() - began
        message, asked_ms, told_ms = await self.receive(message_id)
        took_s = time.perf_counter() - began
        if message is None:
            yield Finding(
                "round-trip",
                Level.PROBLEM,
                f"a message was taken in, and not given out for {2 * self.wish.patience_s:g} s",
                "popgate stuck popgate-doctor, at the gateway's machine, says who has it",
            )
            return
        yield Finding(
            "round-trip",
            Level.OK,
            f"sent in {sent_s * 1000:.1f} ms; sent, received and acknowledged in {took_s * 1000:.1f} ms",
        )
        yield self._clocks(message, sent_ms, asked_ms, told_ms)

    def _clocks(self, message: pb.Message, sent_ms: int, asked_ms: int, told_ms: int) -> Finding:
        """It was stored between the send and the answer to the receive, by the broker's clock."""
        stored = message.system_properties.store_timestamp
        stored_ms = stored.seconds * 1000 + stored.nanos // 1_000_000
        early, late = sent_ms - stored_ms, stored_ms - told_ms
        skew_s = max(early, late, 0) / 1000
        if skew_s <= _SKEW_S:
            return Finding("clocks", Level.OK, "this clock and the broker's agree to a second")
        word = "behind" if early > late else "ahead of"
        return Finding(
            "clocks",
            Level.WARNING,
            f"the clock of the gateway's broker is {skew_s:.1f} s {word} this one",
            "delivery times are moments: delayed messages come too late or too early; let NTP set both",
        )

    async def _large(self) -> Finding:
        """Proxies in between have limits of their own."""
        size = min(self.max_body, _LARGEST_TRY)
        try:
            message_id, _ = await self.send("message-size", bytes(size))
        except Refused as refused:
            return Finding(
                "message-size",
                Level.PROBLEM,
                f"a body of {size} bytes, which the settings allow, is not taken: {refused.finding.what}",
                "a proxy in between has a smaller limit: raise it, or set limits.max_body_bytes to it",
            )
        message, _, _ = await self.receive(message_id)
        if message is None:
            return Finding("message-size", Level.PROBLEM, f"a body of {size} bytes does not come back")
        return Finding("message-size", Level.OK, f"a body of {size} bytes comes through in both directions")

    async def _long_poll(self) -> Finding:
        began = time.perf_counter()
        async for frame in self.frames(_POLL_S):
            if frame.WhichOneof("content") == "message":
                await self._give_up(frame.message)
                return Finding("long-poll", Level.SKIPPED, f"topic {self.topic} is in use")
        took = time.perf_counter() - began
        if took < _POLL_S / 2:
            return Finding(
                "long-poll",
                Level.WARNING,
                f"an empty receive that may wait for {_POLL_S:g} s is answered after {took:.1f} s",
                "consumers ask again at once and burn time: is limits.max_wait_s very small?",
            )
        return Finding("long-poll", Level.OK, f"an empty receive waits: {took:.1f} s of {_POLL_S:g} s")


def _plain(host: str) -> str:
    """Hosts that are written differently and mean the same."""
    bare = host.strip("[]").lower().rstrip(".")
    try:
        return str(ip_address(bare))
    except ValueError:
        return bare
