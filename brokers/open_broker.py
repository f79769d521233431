"""A broker by its URL. The scheme decides which package is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from brokers.port import Broker
from popgate.clock import Clock
from popgate.errors import BadRequest, shown

if TYPE_CHECKING:
    from brokers.embedded.settings import EmbeddedSettings
    from brokers.remote.settings import RemoteSettings
    from brokers.shared.settings import SharedSettings
    from popgate.faults import Faults

STORE_FOLDER = "store"
"""Where an embedded broker without a path of its own lives, in the folder of everything local."""


def open_broker(
    url: str,
    *,
    data: Path,
    clock: Clock,
    embedded: EmbeddedSettings | None = None,
    remote: RemoteSettings | None = None,
    shared: SharedSettings | None = None,
    faults: Faults | None = None,
) -> Broker:
    """Make, not yet start, the broker that `url` names.

    `embedded:` is a broker in this process, in the folder `data`; `embedded:./path` one elsewhere;
    `rocketmq://ns-1:9876,ns-2:9876` a RocketMQ cluster, by its name servers; `popgate://host:port` and
    `popgate+unix:/path` the embedded broker of another gateway.
    `faults` are for tests only, and only an embedded broker has them. Raises BadRequest for what is no
    broker URL, ValueError for faults that cannot be.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise BadRequest(f"{shown(url)} is no broker: write embedded: or rocketmq://ns-1:9876")
    match scheme:
        case "embedded":
            if rest.startswith("//"):
                raise BadRequest(f"{shown(url)} is no broker: a path follows embedded: without //")
            from brokers.embedded.broker import EmbeddedBroker

            return EmbeddedBroker(folder_of(url, data), clock=clock, settings=embedded, faults=faults)
        case "rocketmq":
            return _open_remote(rest, clock, remote)
        case "popgate" | "popgate+unix":
            from brokers.shared.broker import SharedBroker

            return SharedBroker(url, clock=clock, settings=shared)
        case _:
            raise BadRequest(
                f"{shown(url)} is no broker: the scheme is embedded:, rocketmq:// or popgate://,"
                f" not {shown(scheme)}"
            )


def folder_of(url: str, data: Path) -> Path:
    """Where the embedded broker of that URL lives."""
    path = url.removeprefix("embedded:")
    return Path(path).expanduser() if path else data / STORE_FOLDER


def _open_remote(rest: str, clock: Clock, settings: RemoteSettings | None) -> Broker:
    if not rest.startswith("//"):
        raise BadRequest("rocketmq: needs name servers: write rocketmq://ns-1:9876,ns-2:9876")
    from brokers.remote.broker import RemoteBroker
    from brokers.remote.rpc.addresses import parse_servers
    from brokers.remote.settings import RemoteSettings

    servers = parse_servers(rest[2:].rstrip("/"))
    return RemoteBroker(replace(settings or RemoteSettings(), name_servers=servers), clock=clock)
