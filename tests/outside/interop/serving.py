"""gRPC's TestService on this gateway's own HTTP/2, as the interoperability tests describe it."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from grpc_tools import protoc  # type: ignore[import-untyped]

from protocols.grpc.http2.events import Shape
from protocols.grpc.servers.http2_calls import Http2Call
from protocols.grpc.servers.http2_server import Http2Server

HERE = Path(__file__).parent
NOBODY = ("nobody", "nothing")
SERVICE = "/grpc.testing.TestService/"
ECHO_INITIAL = "x-grpc-test-echo-initial"
ECHO_TRAILING = "x-grpc-test-echo-trailing-bin"
LOAD = "endpoint-load-metrics-bin"
LOADS = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"


def messages(folder: Path) -> ModuleType:
    """The messages of `testing.proto`, generated into a folder."""
    assert protoc.main(["protoc", f"-I{HERE}", f"--python_out={folder}", "testing.proto"]) == 0
    spec = importlib.util.spec_from_file_location("interop_testing_pb2", folder / "testing_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


class Service:
    """What it serves, at a server that is not started."""

    def __init__(
        self, server: Http2Server, pb: Any, accounts: Mapping[str, tuple[str, str]] = MappingProxyType({})
    ) -> None:
        """`accounts`: by access token, whose it is and what it is for."""
        self._pb = pb
        self._accounts = accounts
        self._load = pb.OrcaLoadReport()
        self._new_load = asyncio.Event()
        for name, shape, serve in (
            ("EmptyCall", Shape.ONE, self._empty),
            ("UnaryCall", Shape.ONE, self._unary),
            ("StreamingOutputCall", Shape.ONE, self._streaming_output),
            ("StreamingInputCall", Shape.MANY, self._streaming_input),
            ("FullDuplexCall", Shape.MANY, self._full_duplex),
        ):
            server.add(SERVICE + name, shape, serve)
        server.add(LOADS, Shape.ONE, self._loads)

    async def _empty(self, call: Http2Call, _message: bytes) -> None:
        call.answer(self._pb.Empty().SerializeToString())

    async def _unary(self, call: Http2Call, message: bytes) -> None:
        request = self._pb.SimpleRequest.FromString(message)
        initial, trailing = _echoed(call)
        if request.HasField("orca_per_query_report"):
            trailing.append((LOAD, self._report(request.orca_per_query_report).SerializeToString()))
        if request.response_status.code:
            call.finish(request.response_status.code, request.response_status.message, trailing)
            return
        gzip = bool(request.response_compressed.value)
        answer = self._pb.SimpleResponse(payload=self._payload(request.response_size))
        if request.fill_username:
            answer.username, scope = self._caller(call)
            answer.oauth_scope = scope if request.fill_oauth_scope else ""
        if request.fill_server_id:
            answer.server_id = "the only one"
        call.open_answer(initial, gzip=gzip)
        await call.write_bytes(answer.SerializeToString(), gzip=gzip)
        call.finish(metadata=trailing)

    def _caller(self, call: Http2Call) -> tuple[str, str]:
        """Who calls, by the header that only calls with credentials have, and for what."""
        kind, _, token = call.header("authorization").partition(" ")
        if kind != "Bearer":
            return NOBODY
        known = self._accounts.get(token)
        if known is None and token.count(".") == 2:
            # One that the client made itself (RFC 7519), for this server.
            claims = token.split(".")[1]
            told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
            return str(told["iss"]), ""
        return known or NOBODY

    async def _streaming_output(self, call: Http2Call, message: bytes) -> None:
        request = self._pb.StreamingOutputCallRequest.FromString(message)
        gzip = any(one.compressed.value for one in request.response_parameters)
        call.open_answer(gzip=gzip)
        await self._write_all(call, request)
        call.finish()

    async def _streaming_input(self, call: Http2Call, _message: bytes) -> None:
        size = 0
        while (message := await call.read_bytes()) is not None:
            size += len(self._pb.StreamingInputCallRequest.FromString(message).payload.body)
        call.answer(self._pb.StreamingInputCallResponse(aggregated_payload_size=size).SerializeToString())

    async def _full_duplex(self, call: Http2Call, _message: bytes) -> None:
        initial, trailing = _echoed(call)
        call.open_answer(initial)
        while (message := await call.read_bytes()) is not None:
            request = self._pb.StreamingOutputCallRequest.FromString(message)
            if request.HasField("orca_oob_report"):
                self._load = self._report(request.orca_oob_report)
                self._new_load.set()
            if request.response_status.code:
                call.finish(request.response_status.code, request.response_status.message, trailing)
                return
            await self._write_all(call, request)
        call.finish(metadata=trailing)

    async def _loads(self, call: Http2Call, _message: bytes) -> None:
        while True:
            await call.write_bytes(self._load.SerializeToString())
            self._new_load.clear()
            await self._new_load.wait()

    async def _write_all(self, call: Http2Call, request: Any) -> None:
        for one in request.response_parameters:
            await asyncio.sleep(one.interval_us / 1e6)
            answer = self._pb.StreamingOutputCallResponse(payload=self._payload(one.size))
            await call.write_bytes(answer.SerializeToString(), gzip=bool(one.compressed.value))

    def _payload(self, size: int) -> Any:
        return self._pb.Payload(body=bytes(size))

    def _report(self, asked: Any) -> Any:
        return self._pb.OrcaLoadReport(
            cpu_utilization=asked.cpu_utilization,
            mem_utilization=asked.memory_utilization,
            request_cost=asked.request_cost,
            utilization=asked.utilization,
        )


def _echoed(call: Http2Call) -> tuple[list[tuple[str, str | bytes]], list[tuple[str, str | bytes]]]:
    """The metadata that its client wants back, in front of the answer and behind it."""
    initial: list[tuple[str, str | bytes]] = []
    trailing: list[tuple[str, str | bytes]] = []
    for name, value in call.metadata:
        if name == ECHO_INITIAL:
            initial.append((name, value))
        elif name == "grpc-encoding":
            trailing.append(("x-encoded-by", value))
        elif name == ECHO_TRAILING:
            trailing.append((name, base64.b64decode(value + "=" * (-len(value) % 4))))
    return initial, trailing
