"""Doors that speak TLS, and doors that are sockets in the file system, of whole gateways."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from popgate.testing.frames import PREFACE, settings
from popgate.testing.gateway import GatewayDidNotStart, GatewayProcess
from popgate.testing.papers import Papers
from popgate.wire.frames.remoting import Command, encode_command
from tests.support.waiting import PATIENCE_S, wait_until

TRANSPORTS = ("http2", "grpcio")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


def options(pair: tuple[Path, Path], *more: str) -> list[str]:
    return ["--set", f"tls.certificate={pair[0]}", "--set", f"tls.key={pair[1]}", *more]


@pytest.fixture(scope="module", params=TRANSPORTS)
def gateway(request: pytest.FixtureRequest, papers: Papers) -> Iterator[GatewayProcess]:
    listen = (f"grpc://127.0.0.1:0?tls=true&transport={request.param}",)
    with GatewayProcess(listen=listen, options=options(papers.pair("gateway"))) as gateway:
        yield gateway


def refusal(folder: Path, listen: str, *options: str) -> str:
    """What a gateway says that cannot start."""
    with pytest.raises(GatewayDidNotStart) as refused:
        GatewayProcess(folder / "refused", listen=(listen,), options=options).start()
    return str(refused.value)


def serves(channel: grpc.Channel) -> bool:
    answer = health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(), timeout=PATIENCE_S, wait_for_ready=True
    )
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def secured(endpoint: str, papers: Papers) -> grpc.Channel:
    return grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(papers.authority.read_bytes()))


def test_scenario_17_a_client_that_trusts_the_authority_is_served(
    gateway: GatewayProcess, papers: Papers
) -> None:
    with secured(gateway.endpoint, papers) as channel:
        assert serves(channel)


def test_scenario_17_a_client_of_another_authority_is_not(gateway: GatewayProcess, tmp_path: Path) -> None:
    with secured(gateway.endpoint, Papers(tmp_path)) as channel, pytest.raises(grpc.RpcError) as refused:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_scenario_17_clients_show_a_certificate_where_that_is_asked_for(
    papers: Papers, tmp_path: Path, transport: str
) -> None:
    others = Papers(tmp_path)
    listen = (f"grpc://127.0.0.1:0?tls=true&transport={transport}",)
    asking = options(papers.pair("gateway"), "--set", f"tls.client_ca={others.authority}")

    def served(pair: tuple[Path, Path] | None) -> bool:
        chain, key = (pair[0].read_bytes(), pair[1].read_bytes()) if pair is not None else (None, None)
        credentials = grpc.ssl_channel_credentials(papers.authority.read_bytes(), key, chain)
        with grpc.secure_channel(gateway.endpoint, credentials) as channel:
            try:
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            except grpc.RpcError as refused:
                return refused.code() is not grpc.StatusCode.UNAVAILABLE
        return True

    with GatewayProcess(listen=listen, options=asking) as gateway:
        assert served(others.pair("client"))
        assert not served(papers.pair("client"))
        assert not served(None)


@pytest.mark.parametrize("protocols", [[], ["http/1.1"]])
def test_a_client_that_does_not_name_http2_is_refused(
    gateway: GatewayProcess, papers: Papers, protocols: list[str]
) -> None:
    host, _, port = gateway.endpoint.rpartition(":")
    context = ssl.create_default_context(cafile=papers.authority)
    context.set_alpn_protocols(protocols)
    refused = False
    try:
        with (
            socket.create_connection((host, int(port)), PATIENCE_S) as link,
            context.wrap_socket(link, server_hostname=host) as secure,
        ):
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            refused = secure.recv(1) == b""
    except OSError:
        refused = True
    assert refused


def test_a_client_without_tls_is_refused_and_others_are_served(
    gateway: GatewayProcess, papers: Papers
) -> None:
    host, _, port = gateway.endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        heard = b""
        try:
            while data := link.recv(1024):
                heard += data
        except ConnectionResetError:
            pass
    assert not heard.startswith(b"\0\0"), "frames in the clear"
    with secured(gateway.endpoint, papers) as channel:
        assert serves(channel)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_scenario_17_a_certificate_is_renewed_without_a_restart(
    papers: Papers, tmp_path: Path, transport: str
) -> None:
    pair = tmp_path / "tls.crt", tmp_path / "tls.key"

    def install(name: str) -> None:
        for target, source in zip(pair, papers.pair(name), strict=True):
            target.write_bytes(source.read_bytes())

    def shown(endpoint: str) -> str:
        host, _, port = endpoint.rpartition(":")
        context = ssl.create_default_context(cafile=papers.authority)
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), PATIENCE_S) as link,
            context.wrap_socket(link, server_hostname=host) as secure,
        ):
            told = secure.getpeercert()
        assert told is not None
        subject: str = told["subject"][0][0][1]
        return subject

    install("gateway")
    listen = (f"grpc://127.0.0.1:0?tls=true&transport={transport}",)
    with GatewayProcess(listen=listen, options=options(pair)) as gateway:
        assert shown(gateway.endpoint) == "gateway"
        with secured(gateway.endpoint, papers) as channel:
            assert serves(channel)
            install("renewed")
            wait_until(lambda: shown(gateway.endpoint) == "renewed")
            assert serves(channel), "the connection from before goes on"
        assert gateway.terminate() == 0, gateway.log


def greeting(scheme: str) -> bytes:
    """What a client of a door says first, so that the door answers."""
    return PREFACE + settings() if scheme == "grpc" else encode_command(Command(105, opaque=1))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_clients_that_come_again_go_on_with_their_session(
    papers: Papers, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """And after the certificate was renewed they are served all the same, and shown the new one."""
    pair = tmp_path / "tls.crt", tmp_path / "tls.key"

    def install(name: str) -> None:
        for target, source in zip(pair, papers.pair(name), strict=True):
            target.write_bytes(source.read_bytes())

    def dial(
        context: ssl.SSLContext, address: str, session: ssl.SSLSession | None
    ) -> tuple[bool, str, ssl.SSLSession | None]:
        """Whether it went on with the session, whom the door names itself, and a session for next time."""
        scheme, _, place = address.partition("://")
        host, _, port = place.partition("?")[0].rpartition(":")
        with (
            socket.create_connection((host, int(port)), PATIENCE_S) as link,
            context.wrap_socket(link, server_hostname=host, session=session) as secure,
        ):
            secure.sendall(greeting(scheme))
            assert secure.recv(1), "it answers; of TLS 1.3 the ticket comes before that"
            told = secure.getpeercert()
            assert told is not None
            return bool(secure.session_reused), told["subject"][0][0][1], secure.session

    install("gateway")
    listen = ("grpc://127.0.0.1:0?tls=permissive", "remoting://127.0.0.1:0?tls=permissive")
    with GatewayProcess(listen=listen, options=options(pair)) as gateway:
        contexts, sessions = {}, {}
        for address in gateway.addresses:
            context = contexts[address] = ssl.create_default_context(cafile=papers.authority)
            context.maximum_version = version
            if address.startswith("grpc"):
                context.set_alpn_protocols(["h2"])
            reused, name, session = dial(context, address, None)
            assert (reused, name) == (False, "gateway")
            reused, _, sessions[address] = dial(context, address, session)
            assert reused, address
        install("renewed")
        for address, context in contexts.items():
            wait_until(lambda c=context, a=address: dial(c, a, None)[1] == "renewed")
            reused, name, session = dial(context, address, sessions[address])
            assert (reused, name) == (False, "renewed"), address
            assert dial(context, address, session)[0], address


@pytest.mark.parametrize(
    ("listen", "settings", "says"),
    [
        ("?tls=true", ["tls.certificate=/nowhere/tls.crt"], "/nowhere/tls.crt cannot be read: no such file"),
        ("", ["tls.key=/nowhere/tls.key"], "tls.key needs tls.certificate"),
        ("", ["tls.client_ca=/nowhere/ca.crt"], "tls.client_ca needs tls.certificate"),
        ("?tls=maybe", [], "the option tls is true or false, not 'maybe'"),
        ("?mode=660", [], "is no socket in the file system"),
    ],
)
def test_what_cannot_be_is_told_at_the_start(
    tmp_path: Path, listen: str, settings: list[str], says: str
) -> None:
    told = [word for setting in settings for word in ("--set", setting)]
    refused = refusal(tmp_path, f"grpc://127.0.0.1:0{listen}", *told)
    assert says in refused
    assert "Traceback" not in refused


# -- without a setting ----------------------------------------------------------------------------

AS_SHIPPED = {"POPGATE_TLS__MODE": "optional"}
"""Gateways of tests are in the clear unless they say otherwise."""


def test_clients_with_and_without_tls_are_served_by_a_gateway_that_nobody_told_of_tls(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data", environment=AS_SHIPPED) as gateway:
        with grpc.insecure_channel(gateway.endpoint) as channel:
            assert serves(channel)
        made = tmp_path / "data" / "tls" / "certificate.pem"
        trusted = grpc.ssl_channel_credentials(made.read_bytes())
        with grpc.secure_channel(gateway.endpoint, trusted) as channel:
            assert serves(channel)
        before = presented(gateway.endpoint)
        assert "nobody can verify it" in gateway.log
        assert gateway.terminate() == 0
        with gateway.successor() as successor:
            assert presented(successor.endpoint) == before, "it is kept with the data"


@pytest.mark.parametrize("workers", [1, 2])
def test_required_is_one_setting_away(tmp_path: Path, papers: Papers, workers: int) -> None:
    more = options(papers.pair("gateway"), "--set", "tls.mode=required", "--set", f"workers={workers}")
    with GatewayProcess(tmp_path / "data", options=more) as gateway:
        with secured(gateway.endpoint, papers) as channel:
            assert serves(channel)
        with socket.create_connection(address_of(gateway.endpoint), timeout=PATIENCE_S) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            assert not plain.recv(1 << 16).startswith(bytes(3)), "no SETTINGS frame"
        assert not (tmp_path / "data" / "tls").exists()


def test_another_mode_needs_no_restart_of_a_gateway_with_workers(tmp_path: Path) -> None:
    file = tmp_path / "popgate.toml"
    file.write_text('workers = 2\n[tls]\nmode = "off"\n')
    # As the file says it: what tests say otherwise goes before files.
    own = {"POPGATE_TLS__MODE": ""}
    with GatewayProcess(tmp_path / "data", options=("--config", str(file)), environment=own) as gateway:
        with pytest.raises(OSError, match=r"."):
            presented(gateway.endpoint)
        file.write_text('workers = 2\n[tls]\nmode = "optional"\n')
        gateway.signal(signal.SIGHUP)

        def speaks_tls() -> bool:
            try:
                return bool(presented(gateway.endpoint))
            except OSError:
                return False

        wait_until(speaks_tls)
        with grpc.insecure_channel(gateway.endpoint) as channel:
            # A worker of before may take the connection: it serves, says that it leaves, and goes.
            wait_until(lambda: serves(channel))
        assert "is left out" not in gateway.log


def address_of(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def presented(endpoint: str) -> bytes:
    """The certificate that a client is shown that does not verify it, as the official ones."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(address_of(endpoint), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
    assert shown is not None
    return shown


# -- sockets in the file system -------------------------------------------------------------------


@pytest.fixture
def path(socket_folder: Path) -> Path:
    return socket_folder / "grpc.sock"


@pytest.mark.parametrize(("transport", "workers"), [("http2", 1), ("http2", 2), ("grpcio", 1)])
def test_a_socket_in_the_file_system(papers: Papers, path: Path, transport: str, workers: int) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    listen = (f"grpc+unix:{path}?mode=660&transport={transport}", "grpc://127.0.0.1:0?tls=true")
    more = options(papers.pair("gateway"), "--set", f"workers={workers}")
    with GatewayProcess(listen=listen, options=more) as gateway:
        assert f"grpc+unix:{path}" in gateway.addresses
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        with grpc.insecure_channel(f"unix:{path}") as channel:
            assert serves(channel)
        with secured(gateway.addresses[1].partition("://")[2], papers) as channel:
            assert serves(channel)
        assert f"somebody listens at unix:{path} already" in refusal(path.parent, f"grpc+unix:{path}")
        assert gateway.terminate() == 0, gateway.log
    assert not path.exists()


def test_processes_that_cannot_share_a_socket_are_told_so(path: Path) -> None:
    refused = refusal(path.parent, f"grpc+unix:{path}?transport=grpcio", "--set", "workers=2")
    assert "cannot be shared by processes" in refused


@pytest.mark.parametrize("mode", ["9", "1777", "rw"])
def test_a_mode_that_is_none(path: Path, mode: str) -> None:
    assert "a mode is three digits" in refusal(path.parent, f"grpc+unix:{path}?mode={mode}")
