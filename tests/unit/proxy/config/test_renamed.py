"""proxy.config.renamed: former names of settings still work, with a warning."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from proxy.checks.findings import Configuration
from proxy.config.error import SettingsWrong
from proxy.config.loader import environment_name, examine, known_settings, load_settings
from proxy.config.renamed import FORMER_NAMES


def test_former_names_lead_to_settings_of_the_same_table() -> None:
    known = {path for path, _ in known_settings()}
    for former, present in FORMER_NAMES.items():
        assert former not in known
        assert present in known
        assert former[:-1] == present[:-1]


def test_a_former_name_works_in_each_layer_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "popgate.toml"
    file.write_text('[embedded]\nkeep_free_bytes = "1MiB"\n')
    environment = {environment_name(("embedded", "repeat_window_s")): "7"}
    flags = {"shared": {"start_patience_s": "3s"}, "embedded": {"max_known_sends": 4096}}
    with caplog.at_level(logging.WARNING):
        settings = load_settings(config=file, environment=environment, flags=flags)
    assert settings.embedded.min_free_disk_bytes == 1 << 20
    assert settings.embedded.dedup_window_s == 7
    assert settings.embedded.dedup_max_ids == 4096
    assert settings.shared.startup_timeout_s == 3
    assert sorted(record.getMessage().partition(";")[0] for record in caplog.records) == [
        f"embedded.keep_free_bytes in {file} is now named embedded.min_free_disk_bytes",
        "embedded.max_known_sends among the flags is now named embedded.dedup_max_ids",
        "embedded.repeat_window_s in the environment is now named embedded.dedup_window_s",
        "shared.start_patience_s among the flags is now named shared.startup_timeout_s",
    ]


def test_a_later_layer_wins_whichever_names_are_used(tmp_path: Path) -> None:
    file = tmp_path / "popgate.toml"
    file.write_text("[embedded]\ndedup_max_ids = 10\n")
    later = {"embedded": {"max_known_sends": 20}}
    assert load_settings(config=file, environment={}, flags=later).embedded.dedup_max_ids == 20
    file.write_text("[embedded]\nmax_known_sends = 10\n")
    later = {"embedded": {"dedup_max_ids": 30}}
    assert load_settings(config=file, environment={}, flags=later).embedded.dedup_max_ids == 30


def test_a_setting_under_both_names_in_one_layer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "popgate.toml"
    file.write_text("[embedded]\nmax_known_sends = 10\ndedup_max_ids = 20\n")
    with pytest.raises(SettingsWrong, match=r"max_known_sends in .* is the former name of"):
        load_settings(config=file, environment={})


def test_a_wrong_value_under_a_former_name_is_refused(tmp_path: Path) -> None:
    examined = examine(environment={}, flags={"embedded": {"max_known_sends": 1}})
    assert examined.settings is None
    (mistake,) = examined.mistakes
    assert mistake.sentence.startswith("embedded.max_known_sends among the flags")
    assert "greater than or equal to 2" in mistake.sentence


def test_a_setting_under_both_names_is_the_only_fault_of_its_layer() -> None:
    flags = {"embedded": {"keep_free_bytes": 1, "min_free_disk_bytes": 2, "repeat_window_s": 3}}
    examined = examine(environment={}, flags=flags)
    assert [mistake.path for mistake in examined.mistakes] == [("embedded", "keep_free_bytes")]


def test_former_names_are_not_suggested() -> None:
    examined = examine(environment={"POPGATE_EMBEDDED__MAX_KNOWN_SEND": "1"}, flags={})
    assert "MAX_KNOWN_SENDS" not in examined.mistakes[0].sentence


def test_the_place_is_that_of_the_layer_that_counts(tmp_path: Path) -> None:
    file = tmp_path / "popgate.toml"
    file.write_text("[embedded]\ndedup_max_ids = 4096\n")
    variable = environment_name(("embedded", "max_known_sends"))
    configuration = Configuration(file, {variable: "8192"}, {})
    assert configuration.place("embedded.dedup_max_ids") == variable


def test_config_check_warns_of_a_former_name_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "popgate.toml"
    file.write_text(f'data = "{tmp_path}"\n[embedded]\nmax_known_sends = 4096\n')
    configuration = Configuration(file, {}, {})
    (finding,) = configuration.findings()
    assert (finding.level, finding.name, finding.place) == (
        "warning",
        "embedded.max_known_sends",
        f"{file}:3",
    )
    assert configuration.place("embedded.dedup_max_ids") == f"{file}:3"
