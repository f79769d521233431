"""gRPC's interoperability tests with the client of grpc-go, and compression with that of grpcio.

https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md: every case that the client of
grpc-go has. It has none with compression (`client_compressed_unary` and its like); those are below, with the
client of grpcio, but for their probe with `expect_compressed`, by which a service refuses a request that did
not come compressed: what serves a call here is given its messages, and not how they came.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from popgate.testing.papers import Papers
from protocols.grpc.servers.http2_server import Http2Server
from protocols.tls import Certificate
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.timeout(1800)  # the first one compiles the client

HERE = Path(__file__).parent
PACKAGE = "google.golang.org/grpc/interop/client"
CASE_S = 4 * PATIENCE_S
"""Each case is a process of its own, and some send megabytes through Python."""
CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "pick_first_unary",
    "rpc_soak",
    "channel_soak",
    "orca_per_rpc",
    "orca_oob",
)
WITH_CREDENTIALS = (
    "compute_engine_creds",
    "service_account_creds",
    "jwt_token_creds",
    "per_rpc_creds",
    "oauth2_auth_token",
    "google_default_credentials",
    "compute_engine_channel_credentials",
)
"""Over TLS alone: no client gives its token away without."""
SOAK = (
    "--soak_iterations=100",
    "--soak_num_threads=4",
    "--soak_overall_timeout_seconds=300",
    # No test asserts a time: without this none may take longer than a second.
    "--soak_per_iteration_max_acceptable_latency_ms=60000",
)
ORCA = ('--service_config_json={"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}',)


def _interop(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"interop_{name}", HERE / "interop" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


serving, granting = _interop("serving"), _interop("granting")


@pytest.fixture(scope="module")
def pb(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return serving.messages(tmp_path_factory.mktemp("messages"))


@pytest.fixture(params=["plain", "tls"])
async def server(request: pytest.FixtureRequest, papers: Papers, pb: Any) -> AsyncIterator[Http2Server]:
    certificate = Certificate(*papers.pair("gateway")) if request.param == "tls" else None
    # Nobody sends messages here.
    door = cast(Any, None)
    server = Http2Server(door, "127.0.0.1", 0, tls=certificate.current if certificate is not None else None)
    serving.Service(server, pb, {granting.TOKEN: (granting.ACCOUNT, granting.SCOPE)})
    await server.start()
    yield server
    left = [connection.wire for connection in server.connections]
    await server.stop()
    assert not any(wire.streams for wire in left), "a stream is left behind"


@pytest.mark.parametrize("case", CASES)
async def test_a_case_of_grpc_go(
    case: str, server: Http2Server, judge: Callable[[str, str], Path], papers: Papers
) -> None:
    given = SOAK if case.endswith("soak") else ORCA if case.startswith("orca") else ()
    await _passed(judge("interop", PACKAGE), case, server, papers, *given)


@pytest.mark.parametrize("server", ["tls"], indirect=True)
@pytest.mark.parametrize("case", WITH_CREDENTIALS)
async def test_a_case_of_grpc_go_with_credentials(
    case: str,
    server: Http2Server,
    judge: Callable[[str, str], Path],
    papers: Papers,
    tmp_path: Path,
) -> None:
    google = granting.Granting(tmp_path)
    await google.start()
    given = [f"--default_service_account={granting.ACCOUNT}", f"--oauth_scope={granting.SCOPE}"]
    if not case.startswith(("compute", "google")):
        given.append(f"--service_account_key_file={google.key_file}")
    try:
        await _passed(judge("interop", PACKAGE), case, server, papers, *given, environment=google.environment)
    finally:
        await google.stop()


CHANNELS = {
    "google_default_credentials": "google_default_credentials",
    "compute_engine_channel_credentials": "compute_engine_channel_creds",
}
"""Credentials that bring TLS with them, and trust what the system trusts."""


async def _passed(
    program: Path,
    case: str,
    server: Http2Server,
    papers: Papers,
    *given: str,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run a case and see that its client is content."""
    secured: tuple[str, ...] = ()
    if case in CHANNELS:
        secured = (f"--custom_credentials_type={CHANNELS[case]}",)
    elif server.is_secured:
        secured = ("--use_tls", "--use_test_ca", f"--ca_file={papers.authority}")
    process = await asyncio.create_subprocess_exec(
        str(program),
        f"--test_case={case}",
        "--server_host=127.0.0.1",
        f"--server_port={server.port}",
        *secured,
        *given,
        env={**os.environ, "SSL_CERT_FILE": str(papers.authority), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), CASE_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, said.decode()


# -- compression, which grpc-go's client has no cases of ------------------------------------------


@pytest.fixture
async def channel(server: Http2Server, papers: Papers) -> AsyncIterator[grpc.aio.Channel]:
    at, options = f"127.0.0.1:{server.port}", [("grpc.default_compression_algorithm", 2)]
    if server.is_secured:
        trusted = grpc.ssl_channel_credentials(papers.authority.read_bytes())
        channel = grpc.aio.secure_channel(at, trusted, options)
    else:
        channel = grpc.aio.insecure_channel(at, options)
    async with channel:
        yield channel


def stub(channel: grpc.aio.Channel, kind: str, name: str, request: Any, answer: Any) -> Any:
    return getattr(channel, kind)(
        serving.SERVICE + name,
        request_serializer=request.SerializeToString,
        response_deserializer=answer.FromString,
    )


async def test_client_and_server_compressed_unary(channel: grpc.aio.Channel, pb: Any) -> None:
    call = stub(channel, "unary_unary", "UnaryCall", pb.SimpleRequest, pb.SimpleResponse)
    for compressed in (True, False):
        request = pb.SimpleRequest(
            response_size=314_159,
            payload=pb.Payload(body=bytes(271_828)),
            response_compressed=pb.BoolValue(value=compressed),
        )
        calling = call(request, timeout=CASE_S)
        answer = await calling
        assert answer.payload.body == bytes(314_159)
        assert ("x-encoded-by", "gzip") in list(await calling.trailing_metadata())


async def test_client_compressed_streaming(channel: grpc.aio.Channel, pb: Any) -> None:
    call = stub(
        channel,
        "stream_unary",
        "StreamingInputCall",
        pb.StreamingInputCallRequest,
        pb.StreamingInputCallResponse,
    )

    async def said() -> AsyncIterator[Any]:
        for size in (27_182, 45_904, 0, 1_000_000):
            yield pb.StreamingInputCallRequest(payload=pb.Payload(body=bytes(size)))

    answer = await call(said(), timeout=CASE_S)
    assert answer.aggregated_payload_size == 27_182 + 45_904 + 1_000_000


async def test_server_compressed_streaming(channel: grpc.aio.Channel, pb: Any) -> None:
    call = stub(
        channel,
        "unary_stream",
        "StreamingOutputCall",
        pb.StreamingOutputCallRequest,
        pb.StreamingOutputCallResponse,
    )
    sizes = ((31_415, True), (92_653, False), (1_000_000, True))
    wanted = [
        pb.ResponseParameters(size=size, compressed=pb.BoolValue(value=compressed))
        for size, compressed in sizes
    ]
    request = pb.StreamingOutputCallRequest(response_parameters=wanted)
    found = [len(one.payload.body) async for one in call(request, timeout=CASE_S)]
    assert found == [size for size, _ in sizes]
