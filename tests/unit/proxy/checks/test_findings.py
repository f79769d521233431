"""proxy.checks: every fault of a configuration with its place, and what is probably a mistake."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.papers import Papers
from proxy.checks.findings import Configuration, Finding
from proxy.checks.places import line_of


def found(tmp_path: Path, text: str = "", environment: Any = None, **flags: Any) -> list[Finding]:
    file = tmp_path / "popgate.toml"
    file.write_text(text)
    return Configuration(file, environment or {}, flags).findings()


def test_every_fault_is_told_with_its_place_value_and_limit(tmp_path: Path) -> None:
    told = found(
        tmp_path,
        "durability = 'sometimes'\n\n[limits]\nmax_body_bytes = '2GiB' # too much\nmax_bodi = 3\n",
        {"POPGATE_LIMITS__MAX_FOUND": "0", "POPGATE_NONSENSE": "1"},
        budgets={"process_bytes": 3},
    )
    file = str(tmp_path / "popgate.toml")
    assert {(one.level, one.name, one.place) for one in told} == {
        ("fault", "POPGATE_NONSENSE", "POPGATE_NONSENSE"),
        ("fault", "limits.max_bodi", f"{file}:5"),
        ("fault", "durability", f"{file}:1"),
        ("fault", "limits.max_body_bytes", f"{file}:4"),
        ("fault", "limits.max_found", "POPGATE_LIMITS__MAX_FOUND"),
        ("fault", "budgets.process_bytes", "--set budgets.process_bytes"),
    }
    sentence = next(one.what for one in told if one.name == "limits.max_body_bytes")
    assert "2147483648" in sentence
    assert "1073741824" in sentence


def test_a_file_that_is_no_toml_is_told_with_the_line(tmp_path: Path) -> None:
    (one,) = found(tmp_path, "[limits]\nmax_found = = 3\n")
    assert one.place == f"{tmp_path}/popgate.toml:2"


@pytest.mark.parametrize(
    ("text", "name", "what"),
    [
        ("[limits]\nmin_invisible_s = 50000\n", "limits.min_invisible_s", "is above"),
        ("[remote]\nsecret_key = 'x'\n", "remote.secret_key", "an account at the cluster"),
        ("[tls]\ncertificate = '/nowhere'\n", "tls.certificate", "cannot be read"),
        ("listen = ['grpc://127.0.0.1:1', 'grpc://0.0.0.0:1']\n", "listen", "are one address"),
        ("listen = ['http://127.0.0.1:1']\n", "listen", "there is no protocol"),
    ],
)
def test_values_that_do_not_go_together_are_faults(tmp_path: Path, text: str, name: str, what: str) -> None:
    (one,) = found(tmp_path, text)
    assert (one.level, one.name) == ("fault", name)
    assert what in one.what
    assert one.place.startswith(str(tmp_path))


def test_a_key_of_another_certificate_is_a_fault(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    certificate, key = papers.pair("one")[0], papers.pair("other")[1]
    (one,) = found(tmp_path, f"[tls]\ncertificate = '{certificate}'\nkey = '{key}'\n")
    assert (one.level, "is not that of the certificate" in one.what) == ("fault", True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("faults = 'seed=7;drop=AckMessage:0.1'\n", "faults"),
        ("broker = 'rocketmq://a:9876'\n", "remote.transaction_key"),
        ("[connections]\nmax_age_s = 60\nage_grace_s = 5\n", "connections.age_grace_s"),
        ("[connections]\nmax = 5\n", "connections.max_per_address"),
        (
            "[budgets]\nprocess_bytes = 65536\ngroup_bytes = 65537\nconnection_bytes = 1\n",
            "budgets.group_bytes",
        ),
        ("[limits]\ndefault_wait_s = 21\n", "limits.default_wait_s"),
        ("[limits]\nmax_invisible_s = 600\n", "groups.consume_timeout_s"),
        ("[tls]\nmode = 'required'\n", "tls.mode"),
        ("[remote]\nzone = 'a'\n", "remote.zone"),
        ("[shared]\nsecret = 'x'\n", "shared.secret"),
    ],
)
def test_what_is_probably_a_mistake_is_a_warning(tmp_path: Path, text: str, name: str) -> None:
    told = found(tmp_path, text.replace("connection_bytes = 1\n", "connection_bytes = 65536\n"))
    assert [(one.level, one.name) for one in told] == [("warning", name)]


def test_revocation_lists_that_cannot_be_used_are_a_fault(tmp_path: Path) -> None:
    (one,) = found(tmp_path, _with_lists(Papers(tmp_path), tmp_path, b"nonsense"))
    assert (one.level, one.name, one.place) == ("fault", "tls.crl_file", f"{tmp_path}/popgate.toml:5")
    assert f"{tmp_path}/lists.pem, has no revocation list in PEM" in one.what


@pytest.mark.parametrize(("begins", "ends", "verb"), [(-29, 1, "expires"), (-3, -1, "expired")])
def test_revocation_lists_that_end_are_a_warning(tmp_path: Path, begins: int, ends: int, verb: str) -> None:
    papers = Papers(tmp_path)
    lists = papers.revocations(begins=timedelta(days=begins), ends=timedelta(days=ends))
    findings = found(tmp_path, _with_lists(papers, tmp_path, lists))
    (one,) = [finding for finding in findings if finding.name != "tls.certificate"]
    assert (one.level, one.name) == ("warning", "tls.crl_file")
    assert f"{tmp_path}/lists.pem, has a list of CN=authority that {verb} at" in one.what


def test_revocation_lists_for_brokers_that_end_are_a_warning(tmp_path: Path) -> None:
    papers, lists = Papers(tmp_path), tmp_path / "lists.pem"
    lists.write_bytes(papers.revocations(begins=timedelta(days=-29), ends=timedelta(days=1)))
    remote = f"[remote]\ntls = true\nca_file = '{papers.authority}'\ncrl_file = '{lists}'\n"
    findings = found(tmp_path, f"broker = 'rocketmq://127.0.0.1:1'\n{remote}")
    (one,) = [finding for finding in findings if finding.name == "remote.crl_file"]
    assert one.level == "warning"
    assert "brokers and name servers with a certificate from there are refused from then on" in one.what
    lists.write_bytes(b"nonsense")
    (one,) = found(tmp_path, f"broker = 'rocketmq://127.0.0.1:1'\n{remote}")
    assert (one.level, one.name) == ("fault", "remote.crl_file")


def _with_lists(papers: Papers, tmp_path: Path, lists: bytes) -> str:
    """A table `[tls]`; the certificate itself ends soon."""
    certificate, key = papers.pair("one")
    (tmp_path / "lists.pem").write_bytes(lists)
    return (
        f"[tls]\ncertificate = '{certificate}'\nkey = '{key}'\nclient_ca = '{papers.authority}'\n"
        f"crl_file = '{tmp_path}/lists.pem'\n"
    )


def test_a_certificate_that_ends_soon_is_a_warning(tmp_path: Path) -> None:
    certificate, key = Papers(tmp_path).pair("one")
    (one,) = found(tmp_path, f"[tls]\ncertificate = '{certificate}'\nkey = '{key}'\n")
    assert (one.level, one.name) == ("warning", "tls.certificate")
    assert "expires at" in one.what


def test_a_certificate_that_is_not_valid_yet_is_a_warning(tmp_path: Path) -> None:
    days = timedelta(days=1)
    certificate, key = Papers(tmp_path).dated("one", begins=days, ends=90 * days)
    (one,) = found(tmp_path, f"[tls]\ncertificate = '{certificate}'\nkey = '{key}'\n")
    assert (one.level, one.name) == ("warning", "tls.certificate")
    assert f"{certificate} is not valid before" in one.what


def test_a_certificate_that_is_valid_has_no_finding(tmp_path: Path) -> None:
    days = timedelta(days=1)
    certificate, key = Papers(tmp_path).dated("one", begins=-days, ends=90 * days)
    assert found(tmp_path, f"[tls]\ncertificate = '{certificate}'\nkey = '{key}'\n") == []


def test_defaults_have_no_finding_and_nothing_is_opened(tmp_path: Path) -> None:
    assert found(tmp_path, f"data = '{tmp_path}/data'\n") == []
    assert [path.name for path in tmp_path.iterdir()] == ["popgate.toml"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[a]\nb = 1\n", 2),
        ("a.b = 1\n", 1),
        ("[other]\nb = 1\n# [a]\n[ a ] # here\n\n'b' = 2\n", 6),
        ("a = { b = 1 }\n", 1),
        ("[other]\nb = 1\n", 0),
    ],
)
def test_the_line_of_a_setting_is_found_however_it_is_written(text: str, line: int) -> None:
    assert line_of(text, ("a", "b")) == line
