"""What the chart reads of the cluster when a release is made anew, and values that alerts are made from."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from popgate.testing.made import Missing
from tests.outside import charts
from tests.outside.cluster_api import cluster_api
from tests.outside.go_programs import go_program
from tests.support.needed import missing

pytestmark = pytest.mark.timeout(1800)  # the first one compiles Helm

Render = Callable[..., subprocess.CompletedProcess[str]]

CLUSTER = ("--set", "mode=cluster", "--set", "cluster.nameServers={ns:9876}")
SCALED = ("--set", "autoscaling.enabled=true")
DEPLOYMENT = ("Deployment", "mq-popgate")
SECRET = ("Secret", "mq-popgate-transactions")
KEY = base64.b64encode(b"a key of sixteen characters").decode()


def in_a_cluster(
    render: Render, objects: dict[tuple[str, str], dict[str, Any]], *options: str
) -> subprocess.CompletedProcess[str]:
    """The chart, rendered where templates can look these objects up."""
    with cluster_api(objects, charts.NAMESPACE) as address:
        return render(*CLUSTER, "--dry-run=server", "--kube-apiserver", address, *options)


def of_kind(ended: subprocess.CompletedProcess[str], kind: str) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr
    (found,) = [one for one in charts.documents(ended.stdout) if one["kind"] == kind]
    return found


def test_scaling_that_is_switched_on_leaves_the_pods_that_there_are(render: Render) -> None:
    """Where the number were left out, Kubernetes would make it 1 until the autoscaler looks."""
    there = {DEPLOYMENT: {"spec": {"replicas": 7}}}
    spec = of_kind(in_a_cluster(render, there, *SCALED), "Deployment")["spec"]
    assert spec["replicas"] == 7


def test_a_release_that_scales_itself_begins_without_a_number(render: Render) -> None:
    """Nor has it one where nobody can look: a tool that renders would set it back each time."""
    for ended in (in_a_cluster(render, {}, *SCALED), render(*CLUSTER, *SCALED)):
        assert "replicas" not in of_kind(ended, "Deployment")["spec"]


def test_a_number_that_is_given_goes_before_what_there_is(render: Render) -> None:
    there = {DEPLOYMENT: {"spec": {"replicas": 7}}}
    ended = in_a_cluster(render, there, "--set", "replicas=3")
    assert of_kind(ended, "Deployment")["spec"]["replicas"] == 3


def test_a_key_that_was_made_is_kept(render: Render) -> None:
    there = {SECRET: {"data": {"transaction-key": KEY}}}
    assert of_kind(in_a_cluster(render, there), "Secret")["data"] == {"transaction-key": KEY}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            ["cluster.transactionKey.key=other"],
            'key is "other", and the Secret mq-popgate-transactions has no such key, only transaction-key',
        ),
        (
            ["cluster.transactionKey.existingSecret=mine"],
            'key is "transaction-key", and the Secret mine has no such key, only before, now',
        ),
        (
            [
                "cluster.transactionKey.existingSecret=mine",
                "cluster.transactionKey.key=now",
                "cluster.transactionKey.previousKey=old",
            ],
            'previousKey is "old", and the Secret mine has no such key, only before, now',
        ),
    ],
    ids=["renamed", "other secret", "previous"],
)
def test_a_key_that_is_not_there_is_refused(render: Render, values: list[str], sentence: str) -> None:
    there = {
        SECRET: {"data": {"transaction-key": KEY}},
        ("Secret", "mine"): {"data": {"now": KEY, "before": KEY}},
    }
    ended = in_a_cluster(render, there, *(part for one in values for part in ("--set", one)))
    assert ended.returncode != 0
    assert f"cluster.transactionKey.{sentence}" in ended.stderr


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ([], 256 << 20),
        (["config.budgets.process_bytes=1.5GiB"], 3 << 29),
        (["config.budgets.process_bytes=100000000", "workers=4"], 400_000_000),
        (["config.budgets.process_bytes=64 MB", "workers=0"], 64_000_000),
    ],
    ids=["as shipped", "a size", "a number, workers", "a worker for each core"],
)
def test_the_alert_of_memory_comes_before_the_budget_is_used_up(
    render: Render, values: list[str], most: int
) -> None:
    ended = render(
        "--set", "prometheusRule.enabled=true", *(part for one in values for part in ("--set", one))
    )
    (group,) = of_kind(ended, "PrometheusRule")["spec"]["groups"]
    (rule,) = [one for one in group["rules"] if one["alert"] == "PopgateMemoryBudget"]
    assert rule["expr"].endswith(f" > {most * 4 // 5}")
    assert f"at {most} bytes" in rule["annotations"]["summary"]


@pytest.fixture(scope="module")
def judged_rules() -> Callable[[dict[str, Any], Path], subprocess.CompletedProcess[str]]:
    """Has rules checked as `promtool check rules` does, by its package."""
    try:
        program = go_program("promrules", ".")
    except Missing as what:
        missing(what)

    def check(spec: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
        file = folder / "rules.yaml"
        file.write_text(yaml.safe_dump({"groups": spec["groups"]}))
        command = [str(program), str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return check


@pytest.mark.parametrize("mode", [(), CLUSTER], ids=["embedded", "cluster"])
def test_prometheus_takes_the_alerts(
    render: Render, judged_rules: Any, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    ended = render(*mode, "--set", "prometheusRule.enabled=true")
    spec = of_kind(ended, "PrometheusRule")["spec"]
    checked = judged_rules(spec, tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.split()[1] == str(len(spec["groups"][0]["rules"]))


def test_an_alert_that_prometheus_does_not_take_is_told(
    render: Render, judged_rules: Any, tmp_path: Path
) -> None:
    """What the test before rests on."""
    spec = of_kind(render("--set", "prometheusRule.enabled=true"), "PrometheusRule")["spec"]
    spec["groups"][0]["rules"][0] |= {
        "expr": "sum(popgate_ready",
        "annotations": {"summary": "{{ $labels.pod "},
    }
    checked = judged_rules(spec, tmp_path)
    assert checked.returncode != 0
    assert "could not parse expression" in checked.stderr
