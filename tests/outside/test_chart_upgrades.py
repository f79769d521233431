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
from proxy.metrics.names import SPECS
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


class Release:
    """A release in a cluster, as Helm 3 keeps it: the number of pods and the manifests by revision.

    Helm patches what a new manifest sets, and removes what the manifest before set and the new one does not;
    Kubernetes makes a removed `replicas` 1. A rollback applies a manifest as it was stored, and a failing
    `upgrade --atomic` rolls back to the revision before. Labels and annotations go by the same rule.
    Source: https://helm.sh/docs/faq/changes_since_helm2/#improved-upgrade-strategy-3-way-strategic-merge-patches
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._revisions: list[dict[str, Any]] = []
        self.pods = 0
        self._applied: dict[str, Any] = {}
        self._live: dict[str, dict[str, str]] = {"labels": {}, "annotations": {}}

    def upgrade(self, *options: str) -> int:
        """Install it, or upgrade it. The number of pods."""
        live = {"metadata": self._live, "spec": {"replicas": self.pods}}
        there = {DEPLOYMENT: live} if self._applied else {}
        return self._apply(of_kind(in_a_cluster(self._render, there, *options), "Deployment"))

    def roll_back(self, revision: int) -> int:
        """To a revision, counted from 1. The number of pods."""
        return self._apply(self._revisions[revision - 1])

    def undo(self, revision: int) -> None:
        """`kubectl rollout undo`: the pod template and the annotations of then, which its ReplicaSet keeps.

        Source: `DeploymentRollbacker` of kubectl, pkg/polymorphichelpers/rollback.go.
        """
        self._live["annotations"] = dict(self._revisions[revision - 1]["metadata"].get("annotations", {}))

    def _apply(self, manifest: dict[str, Any]) -> int:
        before, now = self._applied.get("spec", {}).get("replicas"), manifest["spec"].get("replicas")
        if now is not None:
            self.pods = now
        elif before is not None or not self._applied:
            self.pods = 1
        for kind, live in self._live.items():
            for name in self._applied.get("metadata", {}).get(kind, {}):
                live.pop(name, None)
            live |= manifest["metadata"].get(kind, {})
        self._applied = manifest
        self._revisions.append(manifest)
        return self.pods


OFF = ("--set", "replicas=3")


def test_no_upgrade_lowers_what_an_autoscaler_holds(render: Render) -> None:
    """Off, on, on again, off with a number of its own, on."""
    release = Release(render)
    assert release.upgrade(*OFF) == 3
    assert release.upgrade(*SCALED) == 3
    release.pods = 7
    assert release.upgrade(*SCALED) == 7
    assert release.upgrade(*OFF) == 3
    assert release.upgrade(*SCALED) == 3


def test_a_release_that_began_scaled_is_rolled_back_as_it_is(render: Render) -> None:
    """Nor does a failing `upgrade --atomic` change the number: no manifest has one."""
    release = Release(render)
    release.upgrade(*SCALED)
    release.pods = 7
    assert release.upgrade(*SCALED) == 7
    assert release.upgrade(*SCALED, "--set", "admin.port=9091") == 7
    assert [release.roll_back(revision) for revision in (1, 2, 3)] == [7, 7, 7]


def test_a_switched_release_is_rolled_back_to_a_number_of_then(render: Render) -> None:
    """No template can change a stored manifest: README.md says what to do instead. Never is it one pod."""
    release = Release(render)
    release.upgrade(*OFF)
    release.upgrade(*SCALED)
    release.pods = 7
    release.upgrade(*SCALED)
    release.pods = 9
    assert release.roll_back(3) == 7
    assert release.roll_back(2) == 3
    assert release.roll_back(1) == 3


def test_a_rollback_across_the_switch_off_is_one_pod(render: Render) -> None:
    """What no template can keep from happening; README.md names it."""
    release = Release(render)
    release.upgrade(*SCALED)
    release.pods = 7
    assert release.upgrade(*OFF) == 3
    assert release.roll_back(1) == 1


def test_an_undone_roll_out_does_not_hide_that_there_is_a_number(render: Render) -> None:
    """Off by Helm, undone by kubectl, on by Helm."""
    release = Release(render)
    release.upgrade(*SCALED)
    release.pods = 7
    assert release.upgrade(*OFF) == 3
    release.undo(1)
    assert release.upgrade(*SCALED) == 3


def test_the_marker_is_of_the_deployment_alone(render: Render) -> None:
    """In a selector it could not change, and in the template it would make new pods."""
    made = of_kind(in_a_cluster(render, {}, *SCALED), "Deployment")
    assert made["metadata"]["labels"]["popgate/replicas"] == "autoscaler"
    assert "popgate/replicas" not in str(made["spec"])


@pytest.mark.parametrize(("replicas", "made"), [(0, 2), (1, 2), (7, 7)])
def test_scaling_that_is_switched_on_begins_with_its_least(render: Render, replicas: int, made: int) -> None:
    """An autoscaler does nothing at 0."""
    there = {DEPLOYMENT: {"spec": {"replicas": replicas}}}
    assert of_kind(in_a_cluster(render, there, *SCALED), "Deployment")["spec"]["replicas"] == made


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


def test_a_secret_of_others_is_not_read(render: Render) -> None:
    """It may be made in the same step, or not be readable for whoever installs the chart."""
    with cluster_api({}, charts.NAMESPACE, forbidden="/secrets/") as address:
        options = (*CLUSTER, "--dry-run=server", "--kube-apiserver", address)
        refused = render(*options)
        ended = render(*options, "--set", "cluster.transactionKey.existingSecret=mine")
    assert refused.returncode != 0  # what the next line rests on
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "name", ["transaction_key_file", "ca_file", "cert_file", "key_file", "secret_key_file"]
)
def test_a_file_of_config_goes_before_the_charts_own(render: Render, name: str) -> None:
    tls = ("enabled=true", "existingSecret=a", "clientCertificate=true")
    values = (
        *(f"cluster.tls.{one}" for one in tls),
        "cluster.credentials.existingSecret=b",
        f"config.remote.{name}=/mine",
    )
    ended = render(*CLUSTER, *(part for one in values for part in ("--set", one)))
    assert ended.returncode == 0, ended.stderr
    (file,) = [one["data"] for one in charts.documents(ended.stdout) if "popgate.toml" in one.get("data", {})]
    assert f'{name} = "/mine"' in file["popgate.toml"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            ["cluster.transactionKey.key=other"],
            'key is "other", and the Secret mq-popgate-transactions has no such key, only transaction-key',
        ),
        (
            ["cluster.transactionKey.previousKey=old"],
            'previousKey is "old", and the Secret mq-popgate-transactions has no such key, only',
        ),
    ],
    ids=["renamed", "previous"],
)
def test_a_key_that_is_not_there_is_refused(render: Render, values: list[str], sentence: str) -> None:
    there = {SECRET: {"data": {"transaction-key": KEY}}}
    ended = in_a_cluster(render, there, *(part for one in values for part in ("--set", one)))
    assert ended.returncode != 0
    assert f"cluster.transactionKey.{sentence}" in ended.stderr


@pytest.mark.parametrize(
    ("values", "most", "several"),
    [
        ([], 256 << 20, False),
        (["config.budgets.process_bytes=1.5GiB"], 3 << 29, False),
        (["config.budgets.process_bytes=100000000", "workers=4"], 100_000_000, True),
        (["config.budgets.process_bytes=64 MB", "workers=0"], 64_000_000, True),
    ],
    ids=["as shipped", "a size", "a number, workers", "a worker for each core"],
)
def test_the_alert_of_memory_comes_before_the_budget_is_used_up(
    render: Render, values: list[str], most: int, several: bool
) -> None:
    ended = render(
        "--set", "prometheusRule.enabled=true", *(part for one in values for part in ("--set", one))
    )
    (group,) = of_kind(ended, "PrometheusRule")["spec"]["groups"]
    (rule,) = [one for one in group["rules"] if one["alert"] == "PopgateMemoryBudget"]
    above, *refused = rule["expr"].split("\nand ")
    assert above.endswith(f" > {most * 4 // 5}")
    # Several processes have so much together without a fault.
    assert [one.count("popgate_rpc_answers_total{") for one in refused] == [1] * several
    assert "popgate_rpc_answers_total" in SPECS
    assert "may be refusing" in rule["annotations"]["summary"]
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


@pytest.mark.parametrize(
    "mode", [(), CLUSTER, ("--set", "workers=4")], ids=["embedded", "cluster", "several processes"]
)
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
