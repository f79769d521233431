"""The Helm chart, by judges that others wrote: Helm itself, and the schemas of Kubernetes."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import kubernetes_validate
import pytest

from popgate.model import GroupStatus, Resolution
from popgate.testing.gateway import GatewayProcess
from proxy.config.loader import load_settings
from proxy.config.settings import Settings
from proxy.metrics.exposition import Metrics
from proxy.metrics.labels import OTHER
from proxy.metrics.names import SPECS
from tests.outside import charts
from tests.support.waiting import wait_until

CLUSTER = ("mode=cluster", "cluster.nameServers={ns:9876}")
pytestmark = pytest.mark.timeout(1800)  # the first one compiles Helm

VERSIONS = ("1.28", "1.34")
"""Of Kubernetes: one of the oldest that are in use, and a late one."""
_CUSTOM = {"GRPCRoute", "TCPRoute", "ServiceMonitor", "PrometheusRule"}
"""Kinds that are not Kubernetes' own, so its schemas do not know them."""


@functools.cache
def golden(name: str) -> list[dict[str, Any]]:
    """The objects of a value set, of the golden file: what Helm makes is compared with it by a test."""
    return list(charts.documents((charts.GOLDEN / f"{name}.yaml").read_text()))


def of_kind(name: str, kind: str) -> dict[str, Any]:
    (found,) = [one for one in golden(name) if one["kind"] == kind]
    return found


def workload(name: str) -> dict[str, Any]:
    (found,) = [one for one in golden(name) if one["kind"] in ("Deployment", "StatefulSet")]
    return found


def settings(name: str, folder: Path) -> Settings:
    """What a gateway would read in the pod: the file and the variables."""
    (file,) = [one["data"]["popgate.toml"] for one in golden(name) if "popgate.toml" in one.get("data", {})]
    (folder / "popgate.toml").write_text(file)
    (container,) = workload(name)["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}
    return load_settings(config=folder / "popgate.toml", environment=environment)


def test_there_are_six_value_sets_and_a_golden_file_for_each() -> None:
    assert len(charts.VALUES) >= 6
    assert {path.stem for path in charts.GOLDEN.iterdir()} == set(charts.VALUES)


@pytest.mark.parametrize("name", charts.VALUES)
def test_helm_finds_nothing_to_say(helm: Path, name: str, tmp_path: Path) -> None:
    values = str(charts.VALUES[name])
    linted = charts.run(helm, "lint", "--strict", str(charts.CHART_FOLDER), "--values", values, home=tmp_path)
    assert linted.returncode == 0, linted.stdout
    assert "[WARNING]" not in linted.stdout


@pytest.mark.parametrize("name", charts.VALUES)
def test_what_helm_renders_is_the_golden_file(helm: Path, name: str, tmp_path: Path) -> None:
    made = charts.rendered(helm, name, tmp_path)
    assert made == (charts.GOLDEN / f"{name}.yaml").read_text(), "run `python -m tests.outside.charts`"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", charts.VALUES)
def test_kubernetes_schemas_hold(name: str, version: str) -> None:
    objects = golden(name)
    assert len(objects) >= 6
    for one in objects:
        if one["kind"] not in _CUSTOM:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_example_beside_a_broker_holds() -> None:
    text = (charts.CHART_FOLDER / "examples" / "beside-a-broker.yaml").read_text()
    objects = list(charts.documents(text))
    assert [one["kind"] for one in objects] == ["ConfigMap", "Service", "StatefulSet"]
    for one in objects:
        kubernetes_validate.validate(one, "1.34", strict=True)


def test_the_example_beside_a_broker_has_settings_that_load(tmp_path: Path) -> None:
    text = (charts.CHART_FOLDER / "examples" / "beside-a-broker.yaml").read_text()
    (file,) = [one["data"]["popgate.toml"] for one in charts.documents(text) if one["kind"] == "ConfigMap"]
    (tmp_path / "popgate.toml").write_text(file)
    loaded = load_settings(config=tmp_path / "popgate.toml", environment={})
    assert loaded.broker == "rocketmq://namesrv:9876"
    (pod,) = [
        one["spec"]["template"]["spec"] for one in charts.documents(text) if one["kind"] == "StatefulSet"
    ]
    assert pod["terminationGracePeriodSeconds"] >= loaded.stopping.drain_s + 10
    # Secrets are root's: an ordinary user reads them as one of the group.
    assert pod["securityContext"]["fsGroup"]


@pytest.mark.parametrize("name", charts.VALUES)
def test_settings_load_and_fit_the_pod(name: str, tmp_path: Path) -> None:
    loaded = settings(name, tmp_path)
    pod = workload(name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    listened = {url.partition("://")[0]: int(re.split("[:?]", url)[2]) for url in loaded.listen}
    assert {**listened, "admin": int(loaded.admin.rpartition(":")[2])} == ports
    assert pod["terminationGracePeriodSeconds"] == loaded.stopping.drain_s + 10
    readiness = container["readinessProbe"]
    noticed = readiness["periodSeconds"] * readiness["failureThreshold"] + readiness["timeoutSeconds"]
    assert noticed <= loaded.stopping.lame_duck_s / 2
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    claims = workload(name)["spec"].get("volumeClaimTemplates", ())
    volumes = {one["name"] for one in pod["volumes"]} | {one["metadata"]["name"] for one in claims}
    assert set(mounts.values()) == volumes
    assert str(loaded.data) in mounts
    files = [
        *(loaded.tls.certificate, loaded.tls.key, loaded.tls.client_ca, loaded.tls.crl_file),
        *(loaded.remote.secret_key_file, loaded.remote.transaction_key_file, loaded.remote.ca_file),
        *(loaded.remote.cert_file, loaded.remote.key_file, loaded.remote.transaction_key_before_file),
        loaded.remote.crl_file,
    ]
    for file in filter(None, files):
        assert str(Path(file).parent) in mounts, file


@pytest.mark.parametrize("name", charts.VALUES)
def test_a_changed_configmap_reaches_the_running_pod(name: str) -> None:
    """Kubernetes never updates a file that is mounted by `subPath`: a reload would read the old one."""
    pod = workload(name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "settings"]
    assert "subPath" not in mount
    assert container["args"] == ["serve", "--config", f"{mount['mountPath']}/popgate.toml"]


@pytest.mark.parametrize("name", charts.VALUES)
def test_services_and_policies_point_at_ports_of_the_pod(name: str) -> None:
    template = workload(name)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    ports = {one["name"] for one in container["ports"]}
    labels = template["metadata"]["labels"].items()
    services = [one for one in golden(name) if one["kind"] == "Service"]
    assert {port["targetPort"] for one in services for port in one["spec"]["ports"]} == ports
    assert all(one["spec"]["selector"].items() <= labels for one in services)
    policy = of_kind(name, "NetworkPolicy")["spec"]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports
    assert all("from" in rule for rule in policy["ingress"] if rule["ports"][0]["port"] == "admin")
    names = {one["metadata"]["name"] for one in services}
    routed = {
        *(
            backend["name"]
            for one in golden(name)
            if one["kind"] in ("GRPCRoute", "TCPRoute")
            for rule in one["spec"]["rules"]
            for backend in rule["backendRefs"]
        ),
        *(
            path["backend"]["service"]["name"]
            for one in golden(name)
            if one["kind"] == "Ingress"
            for rule in one["spec"]["rules"]
            for path in rule["http"]["paths"]
        ),
    }
    assert routed <= names


def test_what_is_given_for_the_embedded_broker_is_read(tmp_path: Path) -> None:
    loaded = settings("embedded", tmp_path)
    assert loaded.broker == "embedded:"
    assert loaded.durability.value == "sync"
    assert loaded.retention.age_s == 7 * 86_400
    assert loaded.limits.max_body_bytes == 8 << 20
    outside, classic = loaded.listen
    assert outside == "grpc://0.0.0.0:8081?tls=permissive"
    advertised = "mq-popgate-remoting.messaging.svc.cluster.local:8080"
    assert classic == f"remoting://0.0.0.0:8080?tls=permissive&advertised={advertised}"


def test_what_is_given_for_a_cluster_is_read(tmp_path: Path) -> None:
    loaded = settings("cluster", tmp_path)
    assert loaded.broker == "rocketmq://namesrv-0.rocketmq:9876,namesrv-1.rocketmq:9876"
    assert loaded.remote.secret_key_file == "/etc/popgate/credentials/secret-key"
    assert loaded.remote.transaction_key_before_file == "/etc/popgate/transactions/transaction-key-before"
    (container,) = workload("cluster")["spec"]["template"]["spec"]["containers"]
    assert [one["name"] for one in container["env"]] == ["POPGATE_REMOTE__ACCESS_KEY"]
    assert "replicas" not in workload("cluster")["spec"]


def test_tls_reaches_doors_and_brokers(tmp_path: Path) -> None:
    loaded = settings("tls", tmp_path)
    assert [url.partition("?")[2].split("&")[0] for url in loaded.listen] == ["tls=true", "tls=permissive"]
    assert loaded.remote.tls
    assert loaded.remote.verify.value == "chain"
    assert loaded.remote.cert_file == "/etc/popgate/broker-tls/tls.crt"
    assert loaded.tls.client_ca == "/etc/popgate/client-ca/ca.crt"
    assert loaded.tls.crl_file == "/etc/popgate/crl/ca.crl"
    assert loaded.remote.crl_file == "/etc/popgate/broker-tls/ca.crl"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["mode=cluster"], "cluster.nameServers is needed with mode=cluster"),
        (["cluster.nameServers={ns:9876}"], "but mode is embedded"),
        (["doors.grpc.enabled=false", "doors.remoting.enabled=false"], "no listener is enabled"),
        (["doors.grpc.port=8083"], "doors.grpc.port (8083) is taken"),
        (["doors.grpc.port=8080"], "doors.remoting.port (8080) is taken"),
        (
            ["ingress.enabled=true", "ingress.host=a.example.com", "doors.grpc.enabled=false"],
            "need doors.grpc.enabled",
        ),
        (["tls.clientCa.existingSecret=clients"], "tls.clientCa needs tls.existingSecret"),
        (["tls.crl.existingSecret=lists"], "tls.crl needs tls.clientCa.existingSecret"),
        (["cluster.tls.crlKey=ca.crl"], "cluster.tls.crlKey needs cluster.tls.existingSecret"),
        (
            ["doors.remoting.service.type=NodePort"],
            "doors.remoting.advertised is needed with a Service of type NodePort",
        ),
        (["stopping.lameDuckSeconds=20"], "at least twice stopping.lameDuckSeconds"),
        (["ingress.enabled=true"], "ingress.host is needed"),
        (["gatewayApi.enabled=true"], "gatewayApi.grpcParents or gatewayApi.remotingParents"),
        (
            ["gatewayApi.enabled=true", "gatewayApi.remotingParents[0].name=g"],
            "needs doors.remoting.advertised",
        ),
        (["doors.gprc.enabled=true"], "gprc"),
        (["config.limits.max_bodybytes=8MiB"], "max_bodybytes"),
        (["config.limits.max_properties=5000"], "max_properties"),
        (["config.remote.secret_key=x"], "secret_key"),
        (["config.listen={grpc://0.0.0.0:1}"], "listen"),
        (
            [*CLUSTER, "cluster.credentials.existingSecret=a", "config.remote.access_key=b"],
            "remove config.remote.access_key, or unset cluster.credentials.existingSecret",
        ),
        (
            [*CLUSTER, "cluster.tls.enabled=true", "config.remote.tls=false"],
            "remove config.remote.tls, or unset cluster.tls.enabled",
        ),
        (
            ["prometheusRule.enabled=true", "config.budgets.process_bytes=many"],
            '"many" is no size',
        ),
        (["config.share_broker=tcp://0.0.0.0:8084"], "the chart opens no port"),
        (["mode=local"], "mode"),
        (["image.digest=latest"], "digest"),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_wrong_values_are_refused_with_their_names(
    render: Callable[..., subprocess.CompletedProcess[str]], options: list[str], sentence: str
) -> None:
    ended = render(*(part for one in options for part in ("--set", one)))
    assert ended.returncode != 0
    assert sentence in ended.stderr


def one_rendered(ended: subprocess.CompletedProcess[str], kind: str) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr
    (found,) = [one for one in charts.documents(ended.stdout) if one["kind"] == kind]
    return found


def test_annotations_of_an_ingress_go_before_the_charts_own(
    render: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    name = "nginx.ingress.kubernetes.io/proxy-read-timeout"
    told = json.dumps({"enabled": True, "host": "mq.example.com", "annotations": {name: "60"}})
    ended = render("--set-json", f"ingress={told}")
    assert one_rendered(ended, "Ingress")["metadata"]["annotations"][name] == "60"
    assert ended.stdout.count(name) == 1


def test_commands_in_the_pod_find_an_admin_port_of_another_number(
    render: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """As `kubectl exec … -- popgate topic list`, which looks at 8083 otherwise."""
    ended = render("--set", "admin.port=9000")
    pod = one_rendered(ended, "StatefulSet")["spec"]["template"]["spec"]
    (variable,) = pod["containers"][0]["env"]
    (file,) = [
        one["data"]["popgate.toml"] for one in charts.documents(ended.stdout) if one["kind"] == "ConfigMap"
    ]
    (tmp_path / "popgate.toml").write_text(file)
    # It is a setting as well, which goes before the file.
    loaded = load_settings(config=tmp_path / "popgate.toml", environment={})
    assert variable == {"name": "POPGATE_ADMIN", "value": loaded.admin}
    assert loaded.admin == "http://0.0.0.0:9000"


def test_tests_of_the_release_reach_doors_that_are_for_some_only(
    render: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    some = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
    ended = render("--set-json", f"networkPolicy.clientsFrom={json.dumps([some])}")
    doors, _ = one_rendered(ended, "NetworkPolicy")["spec"]["ingress"]
    own = {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": charts.RELEASE}}}
    assert doors["from"] == [own, some]


def test_processors_may_be_used_beyond_what_is_requested(
    render: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    scaled = json.dumps({"enabled": True, "targetCPUUtilizationPercentage": 150})
    cluster = ("--set", "mode=cluster", "--set", "cluster.nameServers={ns:9876}")
    ended = render(*cluster, "--set-json", f"autoscaling={scaled}")
    (cpu,) = one_rendered(ended, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert cpu["resource"]["target"]["averageUtilization"] == 150


def test_the_key_of_transactions_is_random_and_long_enough(
    render: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    options = ("--set", "mode=cluster", "--set", "cluster.nameServers={ns:9876}")
    keys = [
        one["data"]["transaction-key"]
        for ended in (render(*options), render(*options))
        for one in charts.documents(ended.stdout)
        if one["kind"] == "Secret"
    ]
    assert len(keys) == len({*keys}) == 2
    assert all(len(key) >= 22 for key in keys)


def metrics_in(text: str) -> set[str]:
    """Names of metrics, without what Prometheus appends to histograms."""
    return {re.sub("_(bucket|count|sum)$", "", name) for name in re.findall(r"\bpopgate_[a-z_]+", text)}


def test_alerts_and_the_dashboard_ask_for_metrics_that_there_are() -> None:
    rules = [
        rule
        for name in ("cluster", "nodeport")
        for group in of_kind(name, "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
    ]
    assert len({rule["alert"] for rule in rules}) >= 15
    asked = {name for rule in rules for name in metrics_in(rule["expr"])}
    board = json.loads((charts.CHART_FOLDER / "files" / "dashboard.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) >= 20
    asked |= {name for expression in expressions for name in metrics_in(expression)}
    assert asked <= SPECS.keys()


@pytest.mark.parametrize("name", ["cluster", "loadbalancer", "nodeport"])
def test_a_reload_that_failed_is_an_alert(name: str) -> None:
    (group,) = of_kind(name, "PrometheusRule")["spec"]["groups"]
    (rule,) = [one for one in group["rules"] if one["alert"] == "PopgateReloadFailed"]
    assert re.sub(r"\{.*\}", "", rule["expr"]) == "popgate_config_last_reload_successful == 0"


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        ((), "unless"),
        (("--set", "config.share_broker=unix:/tmp/broker"), "and"),
        (("--set", "mode=cluster", "--set", "cluster.nameServers={ns:9876}"), "and"),
    ],
    ids=["embedded", "shared", "cluster"],
)
def test_a_group_that_nobody_fetches_for_is_stuck(
    render: Callable[..., subprocess.CompletedProcess[str]], options: tuple[str, ...], judged: str
) -> None:
    """It has a lag and no counters: what is compared with a series that is not there is not told at all."""

    async def standings(_start: int, _queues: int) -> tuple[list[GroupStatus], int | None]:
        return [GroupStatus("billing", "orders", 5, 5, 0, 0, 0, 0, 0, False, 0, 0)], None

    metrics = Metrics()
    metrics.standings.ask = standings
    told = asyncio.run(metrics.scrape()).decode()
    assert 'popgate_group_lag{group="billing",topic="orders"} 5.0' in told
    assert "popgate_messages_acked_total{" not in told
    assert "popgate_messages_received_total{" not in told
    ended = render("--set", "prometheusRule.enabled=true", *options)
    (group,) = one_rendered(ended, "PrometheusRule")["spec"]["groups"]
    (rule,) = [one for one in group["rules"] if one["alert"] == "PopgateGroupStuck"]
    _, *others = rule["expr"].splitlines()[:3]
    # Before a cluster, and where others serve the broker's messages too, no counters may mean another way.
    assert [line.split()[0] for line in others] == [judged] * 2
    assert [line.rpartition(") ")[2] for line in others] == ["> 0" if judged == "unless" else "== 0"] * 2
    # Groups that are counted together have no counters of their own, either.
    assert rule["expr"].count(f'group="{OTHER}"') == (judged == "unless")


def test_failures_are_judged_by_all_requests_of_an_operation() -> None:
    """The metric of times counts those that went well, under several names for what came of them: without the
    others an operation that fails each time would not be told, and empty receives would count for none."""
    counters = Metrics().counters
    counters.sent("t", 1, 1, 0.1)
    for count in (0, 1):
        counters.received("t", "g", count, 1, 0.1)
        counters.pulled("t", "g", count, 1, 0.1)
    counters.acked("t", "g", 1, 0, 0.1)
    counters.changed("t", "g", 0.1)
    for resolution in Resolution:
        counters.ended("t", resolution, 0.1)
    (group,) = of_kind("nodeport", "PrometheusRule")["spec"]["groups"]
    (rule,) = [one for one in group["rules"] if one["alert"] == "PopgateRequestsFail"]
    failed, requests = rule["expr"].split("> 0.01 * ")
    (judged,) = re.findall(r'operation=~"([^"]*)"', failed)
    assert "popgate_request_failures_total{" in requests
    found = re.search(r'"of", "\$1", "operation", "(.*?)"\)', requests)
    assert found is not None
    names = {operation: re.fullmatch(found[1], operation) for operation, _ in counters.operations()}
    assert {name and name[1] for name in names.values()} == {*judged.split("|")}


def test_alerts_name_this_release_only() -> None:
    for name in ("cluster", "loadbalancer", "nodeport"):
        (group,) = of_kind(name, "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]:
            # Only a broker of its own tells that.
            assert name == "nodeport" or "popgate_group_dead_letters" not in rule["expr"]
            selectors = re.findall(r"popgate_[a-z_]+\{([^}]*)\}", rule["expr"])
            assert selectors
            assert all('namespace="messaging", service="mq-popgate-admin"' in one for one in selectors)


def test_the_dashboard_in_the_configmap_is_the_file() -> None:
    (text,) = [
        one["data"]["popgate.json"] for one in golden("cluster") if "popgate.json" in one.get("data", {})
    ]
    assert json.loads(text) == json.loads((charts.CHART_FOLDER / "files" / "dashboard.json").read_text())


def test_notes_say_what_to_do_next(helm: Path, tmp_path: Path) -> None:
    """Helm shows them after an installation only: here they are part of a manifest."""
    chart = tmp_path / "popgate"
    shutil.copytree(charts.CHART_FOLDER, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes")
    (chart / "templates" / "notes.yaml").write_text('notes: |\n{{ tpl (.Files.Get "notes") . | indent 2 }}\n')
    ended = charts.run(
        *(helm, "template", charts.RELEASE, str(chart), "--namespace", charts.NAMESPACE),
        *("--values", str(charts.VALUES["loadbalancer"]), "--show-only", "templates/notes.yaml"),
        *("--kube-version", charts.KUBERNETES),
        home=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    (document,) = charts.documents(ended.stdout)
    notes = document["notes"]
    assert "Clients are told to connect to classic.mq.example.com:9876." in notes
    assert "helm test mq -n messaging" in notes
    assert "a certificate that each pod made for itself" in notes


def probe(gateway: GatewayProcess, container: dict[str, Any], name: str) -> int:
    """The status that a probe of the pod gets."""
    asked = container[name]["httpGet"]
    assert asked["port"] == "admin"
    try:
        with urllib.request.urlopen(f"{gateway.admin}{asked['path']}", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_what_the_pod_says_runs_as_a_process(tmp_path: Path) -> None:
    """Its arguments, its file, its probes, and its end: it serves on while it is not ready any more."""
    pod = workload("nodeport")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings("nodeport", tmp_path)
    file = tmp_path / "popgate.toml"
    file.write_text(re.sub(r"://0\.0\.0\.0:\d+", "://127.0.0.1:0", file.read_text()))
    command, *options = container["args"]
    assert (command, options) == ("serve", ["--config", "/etc/popgate/settings/popgate.toml"])
    # Longer than in the chart, so that a machine that stands still does not end it; a second signal does.
    longer = ("--set", "stopping.lame_duck_s=300", "--set", "stopping.drain_s=900")
    with GatewayProcess(tmp_path / "data", listen=(), options=("--config", str(file), *longer)) as gateway:
        assert [url.partition("://")[0] for url in gateway.addresses] == ["grpc", "remoting"]
        assert probe(gateway, container, "startupProbe") == 200
        assert probe(gateway, container, "readinessProbe") == 200
        assert probe(gateway, container, "livenessProbe") == 200
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: probe(gateway, container, "readinessProbe") == 503)
        assert probe(gateway, container, "livenessProbe") == 200
        with grpc.insecure_channel(gateway.endpoint) as channel:
            grpc.channel_ready_future(channel).result(timeout=30)  # new connections are served on
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
