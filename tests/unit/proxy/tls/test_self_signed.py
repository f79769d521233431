"""proxy.tls.self_signed: one pair for all processes that make it at once; what fails is a sentence."""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.tls import self_signed
from proxy.tls.self_signed import CERTIFICATE, KEY, pair_in


def test_several_that_make_it_at_once_have_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    with ThreadPoolExecutor(4) as pool:
        pairs = list(pool.map(lambda _: pair_in(folder), range(4)))
    assert {*pairs} == {(folder / CERTIFICATE, folder / KEY)}
    assert list(tmp_path.iterdir()) == [folder]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pairs[0])  # they belong together


def test_half_a_pair_is_said_and_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    pair_in(folder)
    (folder / KEY).unlink()
    kept = (folder / CERTIFICATE).read_bytes()
    with pytest.raises(OSError, match=r"key\.pem"):
        pair_in(folder)
    assert (folder / CERTIFICATE).read_bytes() == kept
    assert list(tmp_path.iterdir()) == [folder]


def test_what_went_wrong_is_the_last_line_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('there is no entropy')\n")
    monkeypatch.setattr(self_signed, "__file__", str(program))
    with pytest.raises(OSError, match="no certificate could be made: there is no entropy"):
        pair_in(tmp_path / "tls")
    assert list(tmp_path.iterdir()) == [program]


def test_packages_are_found_where_this_process_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's own folder, for one, and never beside the program."""
    program, packages = tmp_path / "beside" / "program.py", tmp_path / "packages"
    program.parent.mkdir()
    packages.mkdir()
    (program.parent / "logs.py").write_text("raise SystemExit('what is beside it')")
    (packages / "logs.py").write_text("raise SystemExit('what is installed')")
    program.write_text("import logs")
    monkeypatch.setattr(self_signed, "__file__", str(program))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    with pytest.raises(OSError, match="no certificate could be made: what is installed"):
        pair_in(tmp_path / "tls")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        pair_in(tmp_path / "file" / "tls")
