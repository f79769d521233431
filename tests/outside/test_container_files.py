"""The Containerfile and the compose files, by the parsers of BuildKit and of Compose themselves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from popgate.testing.made import Missing
from popgate.testing.variables import variables
from proxy.config.loader import load_settings
from proxy.pages.chart_schema import VALUES_FILE
from tests.outside.charts import ROOT
from tests.outside.go_programs import go_program
from tests.support.needed import missing

pytestmark = pytest.mark.timeout(1800)  # the first one compiles the program

CONTAINERFILE = ROOT / "deploy" / "Containerfile"
COMPOSE = sorted((ROOT / "deploy" / "compose").glob("*.yaml"))
SET = {"POPGATE_TRANSACTION_KEY": "sixteen characters or more"}

Read = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def read() -> Read:
    """Has a file of a kind read, `file` or `compose`, with variables."""
    try:
        program = go_program("containers", ".")
    except Missing as what:
        missing(what)

    def run(kind: str, file: Path, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, kind, str(file)],
            env={**variables(), **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


def made(ended: subprocess.CompletedProcess[str]) -> Any:
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_linter_of_containerfiles_finds_nothing(read: Read) -> None:
    assert made(read("file", CONTAINERFILE))["Warnings"] == []


def test_the_image_is_what_the_chart_takes_it_for(read: Read) -> None:
    """No root, the chart's ports, and a command that is told its options alone."""
    last = made(read("file", CONTAINERFILE))["Stages"][-1]
    commands = {one["Is"]: one["Of"] for one in last["Commands"]}
    values = yaml.safe_load((ROOT / VALUES_FILE).read_text())
    ports = {values["admin"]["port"], *(door["port"] for door in values["doors"].values())}
    assert {int(port) for port in commands["EXPOSE"]["Ports"]} == ports
    assert commands["USER"]["User"] == "10001:10001"
    assert (commands["ENTRYPOINT"]["CmdLine"], commands["ENTRYPOINT"]["PrependShell"]) == (["popgate"], False)
    assert commands["CMD"]["CmdLine"][0] == "serve"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("FROM python as x\n", "casing"),
        ("MAINTAINER me\n", "Maintainer"),
        ("RUNN true\n", "unknown instruction"),
    ],
)
def test_what_is_wrong_in_a_containerfile_is_told(read: Read, tmp_path: Path, line: str, told: str) -> None:
    spoilt = tmp_path / "Containerfile"
    spoilt.write_text(CONTAINERFILE.read_text() + line)
    ended = read("file", spoilt)
    words = ended.stderr if ended.returncode else " ".join(made(ended)["Warnings"])
    assert told in words


@pytest.mark.parametrize("file", COMPOSE, ids=lambda file: file.stem)
def test_compose_takes_the_file_and_a_gateway_its_settings(read: Read, tmp_path: Path, file: Path) -> None:
    services = made(read("compose", file, **SET))["services"]
    gateways = [one for one in services.values() if one["image"] == "popgate"]
    assert gateways
    for one in gateways:
        loaded = load_settings(environment={**one["environment"], "POPGATE_DATA": str(tmp_path)})
        assert [url.partition("://")[0] for url in loaded.listen] == ["grpc", "remoting"]
        assert one["read_only"]


def test_a_file_of_compose_with_a_misspelt_name_is_refused(read: Read, tmp_path: Path) -> None:
    spoilt = tmp_path / "compose.yaml"
    spoilt.write_text(COMPOSE[0].read_text().replace("read_only: true", "readonly: true"))
    ended = read("compose", spoilt, **SET)
    assert ended.returncode != 0
    assert "readonly" in ended.stderr


def test_a_cluster_without_a_key_of_its_own_is_refused(read: Read) -> None:
    ended = read("compose", ROOT / "deploy" / "compose" / "cluster.yaml")
    assert "POPGATE_TRANSACTION_KEY is missing a value: set it to 16 characters" in ended.stderr
