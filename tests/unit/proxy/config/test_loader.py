"""proxy.config.loader and proxy.config.settings: which layer wins, and what a mistake sounds like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.config.enums import Durability
from proxy.config.loader import (
    SettingsWrong,
    environment_name,
    known_settings,
    load_settings,
    nest,
    parse_assignment,
)
from proxy.config.settings import Settings


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "popgate.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("value", ["1e308", "4e9", "'200000d'"])
def test_no_duration_is_longer_than_a_hundred_years(written: Any, value: str) -> None:
    with pytest.raises(SettingsWrong, match=r"limits.max_recovery_s in .*longer than a hundred years"):
        load_settings(config=written(f"[limits]\nmax_recovery_s = {value}"), environment={})


@pytest.mark.parametrize("name", ['["*"]', "a b*", "*.orders", "o?"])
@pytest.mark.parametrize("setting", ["mapped_groups", "pulled_groups"])
def test_what_no_group_can_be_named_is_refused_among_names_of_groups(
    written: Any, setting: str, name: str
) -> None:
    with pytest.raises(SettingsWrong, match=f"remoting.{setting} .*names no group: .*only letters, digits"):
        load_settings(config=written(f"[remoting]\n{setting} = '{name}'"), environment={})
    taken = load_settings(
        config=written(f"[remoting]\n{setting} = ['*', 'bill-*', 'a%b|c*d']"), environment={}
    )
    assert getattr(taken.remoting, setting) == ("*", "bill-*", "a%b|c*d")


def test_without_any_layer_the_defaults_hold() -> None:
    settings = load_settings(environment={})
    assert settings == Settings()
    assert settings.listen == ("grpc://127.0.0.1:8081", "remoting://127.0.0.1:8080")
    assert settings.admin == "http://127.0.0.1:8083"


def test_flags_win_over_the_environment_which_wins_over_the_file(written: Any) -> None:
    config = written(
        "durability = 'sync'\n[limits]\nmax_body_bytes = '1MiB'\nmax_delay_s = '1d'\nmax_wait_s = 1"
    )
    settings = load_settings(
        config=config,
        environment={"POPGATE_LIMITS__MAX_DELAY_S": "2d", "POPGATE_LIMITS__MAX_WAIT_S": "2s"},
        flags={"limits": {"max_wait_s": "3s"}},
    )
    assert settings.durability is Durability.SYNC
    assert settings.limits.max_body_bytes == 1 << 20
    assert settings.limits.max_delay_s == 172_800
    assert settings.limits.max_wait_s == 3


def test_a_list_is_a_list_in_every_layer(written: Any) -> None:
    both = ("grpc://127.0.0.1:1", "grpc://127.0.0.1:2")
    assert load_settings(config=written(f"listen = {list(both)}"), environment={}).listen == both
    assert load_settings(environment={"POPGATE_LISTEN": ", ".join(both)}).listen == both
    assert load_settings(environment={}, flags={"listen": list(both)}).listen == both


def test_an_empty_variable_sets_nothing() -> None:
    assert load_settings(environment={"POPGATE_DURABILITY": ""}).durability is Durability.INTERVAL


def test_scenario_12_variables_that_kubernetes_makes_are_left_alone() -> None:
    environment = {
        "POPGATE_PORT": "tcp://10.0.0.1:8081",
        "POPGATE_PORT_8081_TCP": "tcp://10.0.0.1:8081",
        "POPGATE_PORT_8081_TCP_ADDR": "10.0.0.1",
        "POPGATE_SERVICE_HOST": "10.0.0.1",
        "POPGATE_SERVICE_PORT_GRPC": "8081",
        "POPGATE_ADMIN_SERVICE_HOST": "10.0.0.2",
    }
    assert load_settings(environment=environment) == Settings()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("POPGATE_LIMITS_MAX_BODY_BYTES", "POPGATE_LIMITS__MAX_BODY_BYTES"),
        ("POPGATE_DURABILTY", "POPGATE_DURABILITY"),
        ("POPGATE_MAX_BDY", "POPGATE_LIMITS__MAX_BODY_BYTES"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(SettingsWrong, match=f"{name} is no setting; did you mean {nearest}\\?"):
        load_settings(environment={name: "1"})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[limits]\nmax_body = 3", "limits.max_body in .* is no setting; did you mean limits.max_body_bytes"),
        ("max_body_bytes = 3", "max_body_bytes in .* is no setting; did you mean limits.max_body_bytes"),
        ("[limitz]\nmax_body_bytes = 3", "limitz.max_body_bytes in .*; did you mean limits.max_body_bytes"),
        ("max_bdy = 3", "max_bdy in .* is no setting; did you mean limits.max_body_bytes"),
        ("[limits]\nmax_dlay = 3", "limits.max_dlay in .* is no setting; did you mean limits.max_delay_s"),
        ("[limits]\nmax_invisble_ms = 3", "no setting; did you mean limits.max_invisible_s"),
        ("[embeded]\nsync_intervall = 3", "no setting; did you mean embedded.sync_interval_s"),
        ("[holdings]\nmax_clints = 3", "no setting; did you mean holding.max_clients"),
        ("qqq = 3", "qqq in .* is no setting; `popgate settings` lists them all"),
        ("limits = 3", "limits in .* is a group of settings, not the value 3"),
        ("data = {a = 1}", "data.a in .* is no setting"),
        ("durability = 'sink'", "durability in .* is 'sink': input should be 'sync', 'interval' or 'none'"),
        ("listen = []", "listen in .*"),
        ("listen = [3]", "listen in .*"),
        ("[topics]\nqueues = 0", "topics.queues in .* is 0: .* greater than or equal to 1"),
        ("[topics]\nqueues = true", "topics.queues in .*: a number is needed"),
        ("[limits]\nmax_body_bytes = true", "limits.max_body_bytes in .*: a number is needed"),
        ("[limits]\nmax_delay_s = 'soon'", "limits.max_delay_s in .*: 'soon' is no duration"),
        ("[limits]\nmax_delay_s = nan", "limits.max_delay_s in .*"),
        ("a =", "is no TOML: .*"),
        ("\x00", "is no TOML: .*"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence_that_names_it(written: Any, text: str, sentence: str) -> None:
    with pytest.raises(SettingsWrong, match=sentence) as caught:
        load_settings(config=written(text), environment={})
    assert "\n" not in str(caught.value)


def test_a_wrong_value_is_blamed_on_the_layer_it_came_from(written: Any) -> None:
    config = written("[topics]\nqueues = 0")
    with pytest.raises(SettingsWrong, match=r"topics\.queues in the environment is '-1'"):
        load_settings(config=config, environment={"POPGATE_TOPICS__QUEUES": "-1"})
    with pytest.raises(SettingsWrong, match=r"topics\.queues among the flags is '-2'"):
        load_settings(config=config, environment={}, flags={"topics": {"queues": "-2"}})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsWrong, match=r"nowhere\.toml cannot be read: No such file"):
        load_settings(config=tmp_path / "nowhere.toml", environment={})
    with pytest.raises(SettingsWrong, match="cannot be read: Is a directory"):
        load_settings(config=tmp_path, environment={})


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(SettingsWrong, match="larger than 1048576 bytes"):
        load_settings(config=Path("/dev/zero"), environment={})


def test_an_assignment_is_a_dotted_name_and_a_text() -> None:
    assert parse_assignment("limits.max_body_bytes=8MiB") == (("limits", "max_body_bytes"), "8MiB")
    assert parse_assignment("data=a=b") == (("data",), "a=b")
    with pytest.raises(SettingsWrong, match="write name=value"):
        parse_assignment("limits")


def test_a_value_cannot_have_settings_within() -> None:
    flags: dict[str, Any] = {}
    nest(("durability",), "sync", flags)
    with pytest.raises(SettingsWrong, match="durability is a value, not a group"):
        nest(("durability", "x"), "1", flags)


def test_every_setting_can_be_set_from_the_environment_with_its_own_default_as_text() -> None:
    defaults = Settings()
    environment = {}
    for path, _field in known_settings():
        value: Any = defaults
        for key in path:
            value = getattr(value, key)
        if hasattr(value, "value"):
            value = value.value
        if isinstance(value, tuple):
            value = ",".join(value)
        environment[environment_name(path)] = str(value)
    assert load_settings(environment=environment) == defaults


CLUSTER = "rocketmq://ns-1:9876"


@pytest.mark.parametrize(
    ("broker", "created"),
    [("embedded:", True), ("popgate://gateway:8084", True), ("popgate+unix:/run/b", True), (CLUSTER, False)],
)
@pytest.mark.parametrize("table", ["topics", "groups"])
def test_what_is_created_on_first_use_by_default_follows_from_the_broker(
    written: Any, table: str, broker: str, created: bool
) -> None:
    def auto_create(**layers: Any) -> bool:
        return bool(getattr(load_settings(**{"environment": {}, **layers}), table).auto_create)

    assert auto_create(flags={"broker": broker}) is created
    assert auto_create(environment={"POPGATE_BROKER": broker}) is created
    assert auto_create(config=written(f'broker = "{broker}"\n[{table}]\nmax_auto_created = 5')) is created
    # What is set explicitly wins, in both directions and in every layer.
    for wanted in (True, False):
        text = str(wanted).lower()
        assert auto_create(flags={"broker": broker, table: {"auto_create": wanted}}) is wanted
        given = {"POPGATE_BROKER": broker, f"POPGATE_{table.upper()}__AUTO_CREATE": text}
        assert auto_create(environment=given) is wanted
        config = written(f"[{table}]\nauto_create = {text}")
        assert auto_create(config=config, flags={"broker": broker}) is wanted


def test_a_table_that_is_none_is_refused_before_a_cluster_too() -> None:
    with pytest.raises(SettingsWrong, match=r"topics .*is a group of settings"):
        load_settings(environment={}, flags={"broker": CLUSTER, "topics": 5})


@pytest.mark.parametrize("table", ["shared", "remote"])
def test_what_stands_in_the_place_of_a_table_with_secrets_is_not_shown(table: str) -> None:
    with pytest.raises(SettingsWrong) as raised:
        load_settings(environment={}, flags={table: "s3cret"})
    assert str(raised.value) == f"{table} among the flags is a group of settings, not a value"


def test_a_long_value_in_the_place_of_a_table_is_cut() -> None:
    with pytest.raises(SettingsWrong) as raised:
        load_settings(environment={}, flags={"limits": "x" * 100_000})
    assert len(str(raised.value)) < 200
