"""Client certificates that are revoked, expired or not valid yet, at the doors of whole gateways."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import urllib.request
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from popgate.testing.frames import PREFACE, settings
from popgate.testing.gateway import GatewayDidNotStart, GatewayProcess
from popgate.testing.papers import Papers
from popgate.wire.frames.remoting import Command, encode_command
from tests.e2e.commands import run_command
from tests.support.waiting import PATIENCE_S, wait_until

DAY = timedelta(days=1)
DOORS = (
    "grpc://127.0.0.1:0?tls=true",
    "grpc://127.0.0.1:0?tls=permissive",
    "remoting://127.0.0.1:0?tls=true",
    "remoting://127.0.0.1:0?tls=permissive",
)
"""Doors of each protocol, with connections that are TLS from the start, and such as may be."""


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    (tmp_path / "papers").mkdir()
    return Papers(tmp_path / "papers")


@pytest.fixture
def lists(papers: Papers, tmp_path: Path) -> Path:
    """The file of revocation lists; `bad` is revoked."""
    file = tmp_path / "lists.pem"
    file.write_bytes(papers.revocations("bad"))
    return file


def options(papers: Papers, lists: Path, *more: str) -> list[str]:
    certificate, key = papers.pair("gateway")
    values = (
        f"certificate={certificate}",
        f"key={key}",
        f"client_ca={papers.authority}",
        f"crl_file={lists}",
    )
    return [*(word for value in values for word in ("--set", f"tls.{value}")), *more]


class Client:
    """A connection with TLS that asks a door one thing after the other."""

    def __init__(
        self,
        papers: Papers,
        address: str,
        pair: tuple[Path, Path],
        *,
        context: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        """Raises OSError when it is refused."""
        self.scheme, _, place = address.partition("://")
        host, _, port = place.partition("?")[0].rpartition(":")
        self.context = context if context is not None else self._context(papers, pair)
        with contextlib.ExitStack() as on_refusal:
            link = on_refusal.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            self.link = self.context.wrap_socket(link, server_hostname=host, session=session)
            on_refusal.enter_context(self.link)
            self.link.sendall(PREFACE + settings() if self.scheme == "grpc" else self._question())
            self._read()
            on_refusal.pop_all()

    def _context(self, papers: Papers, pair: tuple[Path, Path]) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=papers.authority)
        context.load_cert_chain(*pair)
        if self.scheme == "grpc":
            context.set_alpn_protocols(["h2"])
        return context

    def _question(self) -> bytes:
        return encode_command(Command(105, opaque=1))

    def ask(self) -> None:
        """Raises OSError when the connection is over."""
        ping = b"\0\0\x08\x06\0\0\0\0\0" + b"pingpong"
        self.link.sendall(ping if self.scheme == "grpc" else self._question())
        self._read()

    def _read(self) -> None:
        if not self.link.recv(1 << 16):
            raise ConnectionResetError("the door closed the connection")

    def close(self) -> None:
        self.link.close()


def served(papers: Papers, address: str, pair: tuple[Path, Path]) -> bool:
    try:
        Client(papers, address, pair).close()
    except OSError:
        return False
    return True


def refusals(gateway: GatewayProcess, name: str) -> list[str]:
    return [line for line in gateway.log.splitlines() if "is refused at" in line and f"'CN={name}'" in line]


def test_a_revoked_client_is_refused_at_every_door(papers: Papers, lists: Path) -> None:
    with GatewayProcess(listen=DOORS, options=options(papers, lists)) as gateway:
        assert len(gateway.addresses) == len(DOORS)
        for address in gateway.addresses:
            assert served(papers, address, papers.pair("good")), address
            assert not served(papers, address, papers.pair("bad")), address
            place = address.partition("?")[0]
            wait_until(lambda p=place: any(f"at {p}: " in line for line in refusals(gateway, "bad")))
        lines = refusals(gateway, "bad")
        assert len(lines) == len(DOORS)
        assert all(
            f"it is revoked, or an authority in its chain is; subject 'CN=bad', serial "
            f"{papers.serial('bad')}, valid from" in line
            for line in lines
        )
        assert not refusals(gateway, "good")


def test_clients_out_of_their_time_are_refused_at_every_door(papers: Papers, lists: Path) -> None:
    expired = papers.dated("expired", -3 * DAY, -DAY)
    early = papers.dated("early", DAY, 3 * DAY)
    with GatewayProcess(listen=DOORS, options=options(papers, lists)) as gateway:
        for address in gateway.addresses:
            assert not served(papers, address, expired), address
            assert not served(papers, address, early), address
            assert served(papers, address, papers.pair("good")), address
        for name, why in (("expired", "it has expired"), ("early", "it is not valid yet")):
            wait_until(lambda n=name: len(refusals(gateway, n)) == len(DOORS))
            assert all(why in line for line in refusals(gateway, name))


def test_clients_out_of_their_time_are_refused_by_grpcio_too(papers: Papers) -> None:
    certificate, key = papers.pair("gateway")
    values = (f"certificate={certificate}", f"key={key}", f"client_ca={papers.authority}")
    given = [word for value in values for word in ("--set", f"tls.{value}")]
    with GatewayProcess(listen=(f"{DOORS[0]}&transport=grpcio",), options=given) as gateway:
        (address,) = gateway.addresses
        assert served(papers, address, papers.pair("good"))
        assert not served(papers, address, papers.dated("expired", -3 * DAY, -DAY))
        assert not served(papers, address, papers.dated("early", DAY, 3 * DAY))
        assert served(papers, address, papers.pair("good"))


def test_a_list_is_renewed_under_connections_that_go_on(papers: Papers, lists: Path, tmp_path: Path) -> None:
    """Also half a list is no reason to let somebody in, or to refuse anybody."""

    def renew(data: bytes) -> None:
        fresh = tmp_path / "fresh.pem"
        fresh.write_bytes(data)
        os.replace(fresh, lists)

    orders, good = papers.pair("orders"), papers.pair("good")
    with GatewayProcess(listen=DOORS, options=options(papers, lists)) as gateway:
        connected = [Client(papers, address, orders) for address in gateway.addresses]
        sessions = [client.link.session for client in connected]
        assert all(sessions)
        credentials = grpc.ssl_channel_credentials(
            papers.authority.read_bytes(), orders[1].read_bytes(), orders[0].read_bytes()
        )
        endpoint = gateway.addresses[0].partition("://")[2].partition("?")[0]
        with grpc.secure_channel(endpoint, credentials) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S, wait_for_ready=True)

            renew(papers.revocations("bad", "orders"))
            for address in gateway.addresses:
                wait_until(lambda a=address: not served(papers, a, orders))
                assert served(papers, address, good)
            for client, session, address in zip(connected, sessions, gateway.addresses, strict=True):
                client.ask()  # it goes on
                with pytest.raises(OSError, match=r"."):
                    Client(papers, address, orders, context=client.context, session=session)
            health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)

            for data, reason in ((papers.revocations()[:150], "written only in part"), (b"", "is empty")):
                renew(data)
                wait_until(lambda r=reason: served(papers, gateway.addresses[0], good) and r in gateway.log)
                for address in gateway.addresses:
                    assert served(papers, address, good)
                    assert not served(papers, address, orders)
            assert f"tls.crl_file, {lists}, is empty" in gateway.log
            assert "the revocation lists from before stay in force" in gateway.log

            renew(papers.revocations("bad"))
            for address in gateway.addresses:
                wait_until(lambda a=address: served(papers, a, orders))
            for client in connected:
                client.ask()
                client.close()
        assert gateway.terminate() == 0, gateway.log


def test_lists_are_switched_on_without_a_restart(papers: Papers, lists: Path, tmp_path: Path) -> None:
    certificate, key = papers.pair("gateway")
    table = f"[tls]\ncertificate = '{certificate}'\nkey = '{key}'\nclient_ca = '{papers.authority}'\n"
    file = tmp_path / "popgate.toml"
    file.write_text(table)
    with GatewayProcess(listen=DOORS[:1], options=("--config", str(file))) as gateway:
        (address,) = gateway.addresses
        client = Client(papers, address, papers.pair("good"))
        assert served(papers, address, papers.pair("bad"))
        file.write_text(f"{table}crl_file = '/nowhere/lists.pem'\n")
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: "tls.crl_file, /nowhere/lists.pem, cannot be read: no such file" in gateway.log)
        client.ask()
        file.write_text(f"{table}crl_file = '{lists}'\n")
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: not served(papers, address, papers.pair("bad")))
        assert served(papers, address, papers.pair("good"))
        client.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_list_near_its_end_is_reported_before_it_matters(papers: Papers, lists: Path, workers: int) -> None:
    lists.write_bytes(papers.revocations(begins=-30 * DAY, ends=DAY))
    more = options(papers, lists, "--set", f"workers={workers}")
    with GatewayProcess(listen=DOORS[1:2], options=more) as gateway:
        sentence = f"tls.crl_file, {lists}, has a list of CN=authority that expires at "
        wait_until(lambda: sentence in gateway.log)
        assert served(papers, gateway.addresses[0], papers.pair("good"))
        with urllib.request.urlopen(f"{gateway.admin}/metrics") as answer:
            metrics = answer.read().decode()
        assert "\npopgate_tls_crl_warnings 1.0\n" in metrics
        assert "\npopgate_tls_crl_expiry_timestamp_seconds " in metrics
        looked = run_command(
            "doctor",
            gateway.endpoint,
            "--admin",
            gateway.admin,
            "--no-write",
            "-o",
            "json",
            "--timeout",
            "60s",
        )
        (finding,) = [each for each in json.loads(looked.out) if each["check"] == "revocation"]
        assert finding["level"] == "warning"
        assert json.dumps(finding).count(sentence) == 1


def refusal(folder: Path, listen: str, options: list[str]) -> str:
    """What a gateway says that cannot start."""
    with pytest.raises(GatewayDidNotStart) as refused:
        GatewayProcess(folder / "refused", listen=(listen,), options=options).start()
    assert "Traceback" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_list_that_cannot_be_used_is_told_at_the_start(
    papers: Papers, lists: Path, tmp_path: Path, workers: int
) -> None:
    lists.write_bytes(papers.revocations()[:150])
    said = refusal(tmp_path, DOORS[0], options(papers, lists, "--set", f"workers={workers}"))
    assert f"tls.crl_file, {lists}, ends inside of a list: it is written only in part" in said


def test_grpcio_takes_no_lists(papers: Papers, lists: Path, tmp_path: Path) -> None:
    said = refusal(tmp_path, f"{DOORS[0]}&transport=grpcio", options(papers, lists))
    assert "tls.crl_file has no effect at grpc://127.0.0.1:" in said
    assert "leave transport=grpcio out, or the list" in said
