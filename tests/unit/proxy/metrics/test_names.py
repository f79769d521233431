"""The names of the metrics are a contract: kept, told by a running gateway, and in the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from proxy.app import App
from proxy.metrics.broker_names import OF_CLIENTS, OF_CLUSTER, OF_SHARING
from proxy.metrics.names import SPECS, contract
from proxy.metrics.reference import CONTRACT_FILE, METRICS_PAGE, metrics_page
from proxy.metrics.tls_names import OF_REVOCATION

ROOT = Path(__file__).parents[4]


def test_names_types_and_labels_are_those_that_were_promised() -> None:
    """A line that is gone, or another, breaks dashboards: `python -m proxy.metrics.reference` on purpose."""
    assert contract() == (ROOT / CONTRACT_FILE).read_text().splitlines()


def test_the_page_is_current() -> None:
    assert (ROOT / METRICS_PAGE).read_text() == metrics_page()


def test_names_say_what_prometheus_expects() -> None:
    for spec in SPECS.values():
        assert spec.name.startswith("popgate_")
        assert spec.name.endswith("_total") == (spec.kind == "counter"), spec.name
        assert spec.about.endswith("."), spec.name


async def test_scenario_13_a_running_gateway_tells_all_of_them_by_default(app: App, api: Any) -> None:
    async with api.session.get(f"{app.admin_address}/metrics") as answer:
        assert answer.content_type == "text/plain"
        text = await answer.text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    told = {}
    for name, family in families.items():
        if name.startswith("popgate_"):
            told[name + ("_total" if family.type == "counter" else "")] = family.type
    of_others = {spec.name for spec in (*OF_SHARING, *OF_CLUSTER, *OF_CLIENTS, *OF_REVOCATION)}
    assert told == {spec.name: spec.kind for spec in SPECS.values() if spec.name not in of_others}
    for expected in ("process_resident_memory_bytes", "process_open_fds", "python_gc_collections"):
        assert expected in families


async def test_labels_are_those_of_the_list(app: App, api: Any) -> None:
    await api.post("/api/topics/orders/messages", {"messages": [{"body": "x"}]})
    for _ in range(2):
        await api.post("/api/topics/orders/receive", {"group": "billing", "max_messages": 1})
    await api.post("/api/topics/orders/ack", {"group": "billing", "receipts": ["no handle"]})
    async with api.session.get(f"{app.admin_address}/metrics") as answer:
        text = await answer.text()
    for family in text_string_to_metric_families(text):
        spec = SPECS.get(family.name) or SPECS.get(f"{family.name}_total")
        for sample in family.samples if spec is not None else ():
            assert spec is not None
            assert set(sample.labels) - {"le"} == set(spec.labels), sample
    assert 'popgate_group_in_flight{group="billing",topic="orders"} 1.0' in text


async def test_scenario_04_ack_failures_are_counted_by_group(app: App, api: Any) -> None:
    await api.post("/api/topics/orders/messages", {"messages": [{"body": "x"}]})
    _, told = await api.post("/api/topics/orders/receive", {"group": "billing", "max_messages": 1})
    receipt = told["messages"][0]["receipt"]
    receipts = [receipt.replace(" ", " 9", 1), "no handle", receipt]
    await api.post("/api/topics/orders/ack", {"group": "billing", "receipts": receipts})
    async with api.session.get(f"{app.admin_address}/metrics") as answer:
        text = await answer.text()
    assert 'popgate_messages_ack_refused_total{group="billing",topic="orders"} 2.0' in text
    assert 'popgate_messages_acked_total{group="billing",topic="orders"} 1.0' in text
