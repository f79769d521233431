"""brokers.open_broker: a broker by its URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.open_broker import STORE_FOLDER, open_broker
from brokers.shared.broker import SharedBroker
from brokers.shared.settings import SharedSettings
from popgate.clock import SystemClock
from popgate.errors import BadRequest


@pytest.mark.parametrize(
    ("url", "folder"),
    [("embedded:", f"data/{STORE_FOLDER}"), ("embedded:./here", "./here"), ("embedded:/there", "/there")],
)
def test_an_embedded_broker_is_in_the_data_folder_or_where_it_says(url: str, folder: str) -> None:
    broker = open_broker(url, data=Path("data"), clock=SystemClock(), embedded=EmbeddedSettings(name="b"))
    assert isinstance(broker, EmbeddedBroker)
    assert broker.name == "b"
    assert str(Path(folder)) in repr(broker)


@pytest.mark.parametrize("url", ["popgate://host:1", "popgate+unix:/run/there"])
def test_the_broker_of_another_gateway_is_reached_by_its_address(url: str) -> None:
    broker = open_broker(url, data=Path("data"), clock=SystemClock(), shared=SharedSettings(secret="s"))
    assert isinstance(broker, SharedBroker)
    assert "not reached yet" in repr(broker)


@pytest.mark.parametrize("url", ["popgate:", "popgate://", "popgate://host", "popgate+unix:"])
def test_another_gateway_without_a_proper_address_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(BadRequest, match=r"is no address|no shared broker|names no socket"):
        open_broker(url, data=Path("data"), clock=SystemClock())


@pytest.mark.parametrize(
    "url",
    ["rocketmq:", "rocketmq:ns-1", "rocketmq://", "rocketmq:// ; ,", "rocketmq://ns:0", "rocketmq://ns:1:2"],
)
def test_a_cluster_without_proper_name_servers_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(BadRequest, match="name server"):
        open_broker(url, data=Path("data"), clock=SystemClock())


@pytest.mark.parametrize("url", ["", "nothing", "kafka://x", "embedded://x", "\x1b[2J:"])
def test_what_is_no_broker_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(BadRequest, match="is no broker") as caught:
        open_broker(url, data=Path("data"), clock=SystemClock())
    assert str(caught.value).isprintable()
