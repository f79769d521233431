"""proxy.tls.door_tls: what clients may speak at a door, and what it shows them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings, Tls
from popgate.testing.clock import MovableClock
from popgate.testing.papers import Papers
from protocols.adapter import parse_listen
from protocols.tls import Certificate
from proxy.config.error import SettingsWrong
from proxy.config.loader import load_settings
from proxy.config.settings import Settings
from proxy.tls import door_tls
from proxy.tls.door_tls import OWN_FOLDER, certificate, door_urls, tls_warnings
from proxy.tls.self_signed import CERTIFICATE, KEY

PLAIN = "grpc://127.0.0.1:8081"


def settings(mode: str = "optional", data: Path = Path("data"), **tls: str) -> Settings:
    return load_settings(environment={}, flags={"data": str(data), "tls": {"mode": mode, **tls}})


def urls(mode: str, *listen: str) -> tuple[str, ...]:
    flags: dict[str, Any] = {"listen": list(listen), "tls": {"mode": mode}}
    return door_urls(load_settings(environment={}, flags=flags))


@pytest.mark.parametrize(
    ("mode", "added"), [("off", ""), ("optional", "?tls=permissive"), ("required", "?tls=true")]
)
def test_the_mode_counts_where_the_address_is_silent(mode: str, added: str) -> None:
    assert urls(mode, PLAIN) == (f"{PLAIN}{added}",)
    more = f"{PLAIN}?advertised=a:1"
    assert urls(mode, more) == (f"{more}{added.replace('?', '&')}",)


@pytest.mark.parametrize("mode", ["off", "optional", "required"])
@pytest.mark.parametrize("option", ["true", "false", "permissive"])
def test_an_address_that_speaks_of_tls_stays_as_it_is(mode: str, option: str) -> None:
    assert urls(mode, f"{PLAIN}?tls={option}") == (f"{PLAIN}?tls={option}",)


@pytest.mark.parametrize("url", ["grpc+unix:/run/popgate.sock", "no address at all"])
def test_sockets_and_nonsense_stay_as_they_are(url: str) -> None:
    assert urls("required", url) == (url,)


def test_grpcio_has_tls_or_not_but_never_both() -> None:
    url = f"{PLAIN}?transport=grpcio"
    assert urls("optional", url) == (url,)
    assert urls("required", url) == (f"{url}&tls=true",)


def test_a_second_look_changes_nothing() -> None:
    """The processes of a gateway are given addresses that were looked at before."""
    once = urls("optional", PLAIN, "remoting://127.0.0.1:0")
    assert urls("optional", *once) == once


def test_nothing_is_made_before_it_is_opened(tmp_path: Path) -> None:
    assert certificate(settings("off", tmp_path), [parse_listen(PLAIN)]) is None
    found = certificate(settings("optional", tmp_path), [parse_listen(f"{PLAIN}?tls=true")])
    assert found is not None
    assert (found.figures(), found.warnings()) == ({}, []), "the admin page is open before the doors are"
    assert not (tmp_path / OWN_FOLDER).exists()


def opened(data: Path, *, tell: bool = True) -> Certificate:
    found = certificate(settings(data=data), [parse_listen(f"{PLAIN}?tls=permissive")], tell=tell)
    assert found is not None
    found.open()
    return found


def test_the_certificate_is_made_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = opened(tmp_path / "new")
    folder = tmp_path / "new" / OWN_FOLDER
    assert "nobody can verify it" in caplog.text
    assert str(folder / CERTIFICATE) in caplog.text
    second = opened(tmp_path / "new", tell=False)
    assert first.pem() == second.pem() == ((folder / KEY).read_bytes(), (folder / CERTIFICATE).read_bytes())
    assert caplog.text.count("nobody can verify it") == 1
    assert {path.name for path in folder.iterdir()} == {CERTIFICATE, KEY}
    assert [path.name for path in folder.parent.iterdir()] == [OWN_FOLDER]
    assert not second.asks_clients
    assert second.current() is second.current()


def test_the_key_is_for_this_user_only(tmp_path: Path) -> None:
    opened(tmp_path)
    assert (tmp_path / OWN_FOLDER / KEY).stat().st_mode & 0o077 == 0


def test_an_own_certificate_goes_before(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"/nowhere/tls\.crt cannot be read"):
        certificate(settings(data=tmp_path, certificate="/nowhere/tls.crt"), [parse_listen(PLAIN)])
    assert not (tmp_path / OWN_FOLDER).exists()


@pytest.mark.parametrize("name", ["key", "client_ca", "crl_file"])
def test_half_of_what_is_needed_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsWrong, match=f"tls.{name} needs tls.certificate"):
        certificate(settings(data=tmp_path, **{name: "/nowhere/x"}), [parse_listen(PLAIN)])


def test_lists_need_the_authorities_whose_they_are(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    given = dict(zip(("certificate", "key"), map(str, papers.pair("gateway")), strict=True))
    with pytest.raises(SettingsWrong, match=r"tls\.crl_file needs tls\.client_ca"):
        certificate(settings(data=tmp_path, **given, crl_file="/nowhere"), [parse_listen(PLAIN)])


def test_lists_are_refused_where_the_transport_takes_none(tmp_path: Path) -> None:
    papers, lists = Papers(tmp_path), tmp_path / "lists.pem"
    lists.write_bytes(papers.revocations())
    given = dict(zip(("certificate", "key"), map(str, papers.pair("gateway")), strict=True))
    wanted = settings(data=tmp_path, **given, client_ca=str(papers.authority), crl_file=str(lists))
    plain, secured = (parse_listen(f"{PLAIN}?transport=grpcio{more}") for more in ("", "&tls=true"))
    found = certificate(wanted, [plain, parse_listen(f"{PLAIN}?tls=true")])
    assert found is not None
    assert found.revocation is not None
    with pytest.raises(SettingsWrong, match=r"tls\.crl_file has no effect at grpc://127\.0\.0\.1:8081"):
        certificate(wanted, [secured])


def test_warnings_about_lists_name_file_authority_and_date(tmp_path: Path) -> None:
    """Those for clients and those for brokers."""
    papers, lists = Papers(tmp_path), tmp_path / "lists.pem"
    lists.write_bytes(papers.revocations(begins=timedelta(days=-3), ends=timedelta(days=-1)))
    shown = Certificate(*papers.pair("gateway"), client_ca=papers.authority, crl_file=lists)
    remote = RemoteSettings(name_servers=("127.0.0.1:1",), tls=Tls(ca=papers.authority, crl=lists))
    clock = MovableClock()
    broker = RemoteBroker(remote, clock=clock)
    of_clients, of_brokers = tls_warnings(shown, broker)
    for sentence, name in ((of_clients, "tls"), (of_brokers, "remote")):
        assert sentence.startswith(f"{name}.crl_file, {lists}, has a list of CN=authority that expired at ")
    assert tls_warnings(None, RemoteBroker(RemoteSettings(name_servers=("127.0.0.1:1",)), clock=clock)) == []


def test_where_none_can_be_made_it_is_said_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_folder: Path) -> tuple[Path, Path]:
        raise OSError("no certificate could be made: read-only file system")

    monkeypatch.setattr(door_tls, "pair_in", refuse)
    with pytest.raises(OSError, match=r"read-only file system \(set tls\.certificate .* tls\.mode to off\)"):
        opened(tmp_path)


def test_a_pair_that_was_spoilt_is_said(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / OWN_FOLDER / CERTIFICATE).write_text("nothing")
    with pytest.raises(
        OSError, match=r"are no TLS certificate .* \(remove .*tls to have one made anew, or set"
    ):
        opened(tmp_path)
