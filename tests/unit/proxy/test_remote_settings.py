"""The settings of a RocketMQ cluster, and what they become."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brokers.remote.settings import Verify
from popgate.testing.peers import scripted_cluster
from proxy.app import CannotStart, build
from proxy.config.error import SettingsWrong
from proxy.config.handover import settle
from proxy.config.loader import load_settings
from proxy.config.mapping import policies_values, remote_values, transactions_are_bound
from proxy.config.settings import Settings
from proxy.metrics.broker_names import OF_CLIENTS, OF_CLUSTER
from proxy.pages.reference import sample_file

ROOT = Path(__file__).parents[3]


def settings(environment: dict[str, str] | None = None, **remote: Any) -> Settings:
    return load_settings(environment=environment or {}, flags={"remote": remote})


def test_without_settings_a_cluster_is_reached_plainly() -> None:
    values = remote_values(settings())
    assert (values.credentials, values.tls) == (None, None)


def test_an_account_has_its_secret_from_a_setting_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(" hush \n")
    for given in ({"secret_key": "hush"}, {"secret_key_file": str(tmp_path / "secret")}):
        account = remote_values(settings(access_key="key", **given)).credentials
        assert account is not None
        assert (account.access_key, account.secret_key) == ("key", "hush")


def test_a_secret_is_shown_nowhere() -> None:
    held = settings({"POPGATE_REMOTE__SECRET_KEY": "hush"}, access_key="key")
    assert held.remote.secret_key == "hush"
    assert settle(held).remote.secret_key == "hush"
    for told in (
        sample_file(held),
        json.dumps(held.model_dump(mode="json")),
        json.dumps(settle(held).model_dump(mode="json")),
    ):
        assert "hush" not in told
        assert "********" in told
    with pytest.raises(SettingsWrong, match=r"remote\.secret_key") as caught:
        settings(secret_key=4711)
    assert "4711" not in str(caught.value)


def test_options_of_a_policy_of_a_package_are_shown_nowhere() -> None:
    """They may be secrets: nobody here can know."""
    held = load_settings(
        environment={},
        flags={"policies": {"identity": "ldap?bind=hush", "rate": "per-client?rate=5", "backoff": "odd"}},
    )
    assert settle(held).policies.identity == held.policies.identity == "ldap?bind=hush"
    for told in (held.model_dump(mode="json"), settle(held).model_dump(mode="json")):
        policies = told["policies"]
        assert policies["identity"] == "ldap?********"
        assert (policies["rate"], policies["backoff"]) == ("per-client?rate=5", "odd")
    assert "hush" not in sample_file(held)
    with pytest.raises(
        SettingsWrong, match=r"policies\.identity is 'ldap\?\*+': no identity policy"
    ) as caught:
        policies_values(held)
    assert "hush" not in str(caught.value)


def test_options_of_a_policy_are_not_shown_where_they_do_not_belong() -> None:
    for wrong in ({"identity": ["ldap?bind=hush"]}, "ldap?bind=hush"):
        with pytest.raises(SettingsWrong, match="policies") as caught:
            load_settings(environment={}, flags={"policies": wrong})
        assert "hush" not in str(caught.value)


def test_a_password_of_the_collector_is_shown_nowhere() -> None:
    url = "https://anna:hu/sh@otel.example:4318"
    held = load_settings(environment={}, flags={"tracing": {"endpoint": url}})
    assert settle(held).tracing.endpoint == held.tracing.endpoint == url
    for told in (held, settle(held)):
        assert told.model_dump(mode="json")["tracing"]["endpoint"] == "https://********@otel.example:4318"
    assert 'endpoint = "https://********@otel.example:4318"' in sample_file(held)
    with pytest.raises(SettingsWrong, match=r"ftp://\*+@otel") as caught:
        load_settings(environment={}, flags={"tracing": {"endpoint": url.replace("https", "ftp")}})
    assert "hu/sh" not in str(caught.value)


def test_transactions_have_a_key_of_their_own_or_one_that_all_gateways_share(tmp_path: Path) -> None:
    (one,), (other,) = (remote_values(settings()).transaction_keys for _ in range(2))
    assert one != other
    assert len(one) == 32
    (tmp_path / "key").write_text("a-key-of-16-chars\n")
    for given in (
        {"transaction_key": "a-key-of-16-chars"},
        {"transaction_key_file": str(tmp_path / "key")},
    ):
        assert remote_values(settings(**given)).transaction_keys == (b"a-key-of-16-chars",)
    both = {"transaction_key_before": "the-one-of-before", **given}
    assert remote_values(settings(**both)).transaction_keys == (b"a-key-of-16-chars", b"the-one-of-before")
    assert remote_values(settings(transaction_check_s=60)).transaction_check_after_s == 60
    assert b"a-key" not in repr(remote_values(settings(**both))).encode()


def test_a_gateway_without_the_key_is_bound_to_its_transactions() -> None:
    def bound(broker: str, **remote: Any) -> bool:
        flags = {"broker": broker, "remote": remote}
        return transactions_are_bound(load_settings(environment={}, flags=flags))

    assert bound("rocketmq://ns:9876")
    assert not bound("rocketmq://ns:9876", transaction_key="a-key-of-16-chars")
    assert not bound("rocketmq://ns:9876", transaction_key_file="somewhere")
    assert not bound("embedded:")


@pytest.mark.parametrize(
    ("remote", "told"),
    [
        ({"access_key": "a"}, "remote.access_key with"),
        ({"secret_key": "a"}, "remote.access_key with"),
        ({"access_key": "a", "secret_key_file": "/nowhere/secret"}, "cannot be read: No such file"),
        ({"access_key": "a", "secret_key_file": "/dev/null"}, "is empty"),
        ({"ca_file": "x"}, "need remote.tls"),
        ({"transaction_key": "fifteen-letters"}, "transaction_key has 15 characters, at least 16"),
        ({"transaction_key_before": "a-key-of-16-chars"}, "is beside remote.transaction_key"),
    ],
)
def test_values_that_do_not_go_together_are_refused(remote: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsWrong, match=told):
        remote_values(settings(**remote))


def test_tls_has_its_files_and_what_is_looked_at() -> None:
    values = remote_values(settings(tls=True, ca_file="ca", cert_file="c", verify="chain", server_name="n"))
    tls = values.tls
    assert tls is not None
    assert (tls.ca, tls.certificate, tls.key) == (Path("ca"), Path("c"), None)
    assert (tls.verify, tls.server_name) == (Verify.CHAIN, "n")


def test_files_that_are_not_there_are_told_before_anything_is_opened(tmp_path: Path) -> None:
    flags = {
        "broker": "rocketmq://127.0.0.1:1",
        "data": str(tmp_path),
        "remote": {"tls": True, "ca_file": str(tmp_path / "absent.pem")},
    }
    with pytest.raises(SettingsWrong, match=r"absent\.pem cannot be read"):
        build(load_settings(environment={}, flags=flags))


def _flags(servers: str, data: Path) -> dict[str, Any]:
    return {
        "broker": f"rocketmq://{servers}",
        "data": str(data),
        "listen": ["grpc://127.0.0.1:0"],
        "admin": "off",
    }


async def test_a_gateway_starts_in_front_of_a_cluster(tmp_path: Path) -> None:
    async with scripted_cluster("a", topics=["t"]) as (servers, _):
        app = build(load_settings(environment={}, flags=_flags(servers.address, tmp_path / "data")))
        await app.start()
        assert app.condition() == "ready"
        figures = {f"popgate_broker_{name}" for name in app.broker.figures()}
        assert {spec.name for spec in (*OF_CLUSTER, *OF_CLIENTS)} <= figures
        await app.stop()


def test_a_gateway_in_front_of_a_cluster_loads_no_store_of_its_own(tmp_path: Path) -> None:
    program = (
        "import sys; from proxy.app import build; from proxy.config.loader import load_settings;"
        f"build(load_settings(environment={{}}, flags={_flags('ns:1', tmp_path)!r}));"
        "sys.exit('rocksdict' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


async def test_a_gateway_without_a_name_server_does_not_start_and_says_why(tmp_path: Path) -> None:
    app = build(load_settings(environment={}, flags=_flags("127.0.0.1:1,127.0.0.1:2", tmp_path / "data")))
    with pytest.raises(CannotStart, match=r"127\.0\.0\.1:. cannot be reached: Connection refused"):
        await app.start()
    assert app.state == "stopped"
