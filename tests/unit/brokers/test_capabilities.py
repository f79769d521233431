"""brokers.port.Broker.capability: what each broker can do beside the port."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokers import batches, capabilities, client_registration, dead_letters, numbering, relay, resets
from brokers.embedded.broker import EmbeddedBroker
from brokers.port import Broker
from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings
from brokers.shared.broker import SharedBroker
from popgate.clock import SystemClock

KINDS = {
    kind
    for module in (batches, capabilities, client_registration, dead_letters, numbering, relay, resets)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and kind.__module__ == module.__name__
    and getattr(kind, "__abstractmethods__", ())
}
OF_CLUSTERS = {
    batches.ForwardsBatches,
    capabilities.AssignsQueues,
    capabilities.CarriesReplies,
    capabilities.FindsByPlace,
    capabilities.LeasesQueues,
    capabilities.ReclaimsRetries,
    client_registration.RegistersClients,
    capabilities.TellsAbsence,
    capabilities.TellsBrokers,
    capabilities.TellsCluster,
    capabilities.TellsConsumers,
    capabilities.TellsReaders,
    dead_letters.ReportsDeadLetters,
    numbering.NumbersQueues,
    relay.HearsBrokers,
    relay.RelaysCommands,
    resets.HoldsResets,
}
OF_ONE_STORE = {
    resets.HoldsResets,
    capabilities.CarriesReplies,
    capabilities.FindsByPlace,
    capabilities.LiteTopics,
    capabilities.ReclaimsRetries,
    capabilities.RedrivesDeadLetters,
    client_registration.RegistersClients,
    capabilities.TakesBackups,
    capabilities.TellsConsumers,
    dead_letters.ReportsDeadLetters,
}
OF_GUESTS = OF_ONE_STORE - {capabilities.TakesBackups, dead_letters.ReportsDeadLetters} | {relay.AsksGateways}


def brokers(path: Path) -> dict[str, Broker]:
    clock = SystemClock()
    return {
        "embedded": EmbeddedBroker(path, clock=clock),
        "remote": RemoteBroker(RemoteSettings(name_servers=("127.0.0.1:1",)), clock=clock),
        "shared": SharedBroker("popgate+unix:/nowhere", clock=clock),
    }


@pytest.mark.parametrize(
    ("name", "able"), [("embedded", OF_ONE_STORE), ("remote", OF_CLUSTERS), ("shared", OF_GUESTS)]
)
def test_a_broker_can_do_what_it_is_said_to(tmp_path: Path, name: str, able: set[type]) -> None:
    broker = brokers(tmp_path)[name]
    parts = {kind: broker.capability(kind) for kind in KINDS}
    assert {kind for kind, part in parts.items() if part is not None} == able
    assert all(isinstance(parts[kind], kind) for kind in able)
    assert broker.capability(Broker) is broker
