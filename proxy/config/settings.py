"""The reference of configuration: every setting, its default, its limits and its effect.

Layers, the later wins: the defaults here < a TOML file (`--config`) < `POPGATE_…` environment
variables < flags. `proxy.config.loader` reads them; the documentation is generated from here.
Nothing below `proxy/` uses these classes: parts get plain values in their constructors.

Names carry the unit of a plain number (`_s` seconds, `_bytes`, `_ms`); text may carry its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, FieldSerializationInfo, field_serializer, model_validator

from processors.policies.registry import shown_policy
from proxy.config.enums import Durability, Namespaces
from proxy.config.remote_table import Remote
from proxy.config.shared_table import Shared
from proxy.config.tables import (
    Advertised,
    Api,
    Broadcast,
    Budgets,
    Connections,
    Count,
    Embedded,
    Group,
    Groups,
    Holding,
    Limits,
    Lite,
    Log,
    Metrics,
    Remoting,
    Retention,
    Stopping,
    Texts,
    Topics,
    Tracing,
    Transactions,
)
from proxy.config.tls_table import Tls


class Policies(Group):
    """Replaceable policies, selected by name, with options after a question mark: `per-client?rate=100`.
    Installed packages may add more through entry points `popgate.policies.<kind>`."""

    identity: str = "anyone"
    """Authentication: `anyone` accepts every caller, without a name."""
    permission: str = "everything"
    """Authorisation: `everything` permits all operations."""
    rate: str = "unlimited"
    """Rate limit: `unlimited`, or `per-client?rate=100&burst=200` in messages per second."""
    backoff: str = "exponential"
    """Pauses between retries of the gateway: `exponential?initial=0.1&longest=5`."""
    picking: str = "groups-then-turns"
    """Choice of the queue for a message: `groups-then-turns`, one queue per message group, otherwise round
    robin."""

    @field_serializer("*", when_used="json")
    def _as_shown(self, text: str, info: FieldSerializationInfo) -> str:
        return shown_policy(info.field_name, text)


class Settings(Group):
    """All settings."""

    broker: str = Field(default="embedded:", max_length=1024)
    """The broker: `embedded:` runs in this process and stores in the data folder, `embedded:./path` in
    another folder; `rocketmq://ns-1:9876,ns-2:9876` is a RocketMQ cluster, given by its name servers;
    `popgate://host:port` or `popgate+unix:/path` is the shared broker of another gateway."""
    share_broker: str = Field(default="", max_length=1024)
    """Address at which the embedded broker is shared with other gateways: `unix:/path`, a socket that only
    this user can open, or `tcp://host:port`, beyond loopback only with `shared.secret`. Empty: not shared."""
    data: Path = Path("./data")
    """Folder for all local data; created if it does not exist."""
    workers: Count = Field(default=0, ge=0, le=256)
    """Processes that serve clients; more than one requires Linux. 0: one per available core (by CPU affinity
    and control group), but a single one with an embedded broker."""
    durability: Durability = Durability.INTERVAL
    """When a send is confirmed: `sync`, when the message is on disk (it survives a power failure);
    `interval`, when the operating system has it (it survives the end of the process), with a sync shortly
    afterwards; `none`, when the operating system has it, which decides when to write it to disk."""
    listen: Texts = Field(
        default=("grpc://127.0.0.1:8081", "remoting://127.0.0.1:8080"), min_length=1, max_length=64
    )
    """Listeners for clients, one URL each: `grpc://host:port` or `grpc+unix:/path` (a Unix socket), and
    `remoting://host:port` for classic RocketMQ 4 and 5 clients, for which it is the name server. Port 0
    selects a free port, which is printed. Options: `?tls=true` (TLS only), `false` (plain text only) or
    `permissive` (both) overrides `tls.mode`; `advertised=host:port` for this listener only; `mode=660` sets
    the permissions of a Unix socket; `transport=grpcio` uses the grpcio library instead of the gateway's own
    HTTP/2; `proxy_protocol=true`, for remoting behind a balancer that sends a PROXY protocol header (version
    1 or 2). `grpc+remoting://host:port` serves both on one port and detects the protocol by the first byte.
    Neither it nor `tls=permissive` can be combined with `transport=grpcio`; with either of them
    `proxy_protocol` applies to gRPC too."""
    admin: str = Field(default="http://127.0.0.1:8083", max_length=1024)
    """The admin port; `off` disables it. It has no authentication: make it reachable for trusted people
    only."""
    namespaces: Namespaces = Namespaces.IGNORED
    """Meaning of a gRPC client's namespace: `ignored`, as in RocketMQ's own proxy; `prefixed`, the namespace
    has its own topics and groups: `orders` in the namespace `shop` is `shop%orders` everywhere else, and
    clients may not use `%` in names."""
    reflection: bool = True
    """Whether gRPC listeners offer server reflection for tools like grpcurl; it has no cost until it is
    used."""
    faults: str = Field(default="", max_length=4096)
    """Fault injection, for tests of the gateway itself only, like
    `seed=7;drop=AckMessage:0.1;kill=commit:after=37` (see docs/faults.md). Empty: none."""
    api: Api = Api()
    advertised: Advertised = Advertised()
    connections: Connections = Connections()
    tls: Tls = Tls()
    embedded: Embedded = Embedded()
    remote: Remote = Remote()
    shared: Shared = Shared()
    limits: Limits = Limits()
    budgets: Budgets = Budgets()
    topics: Topics = Topics()
    groups: Groups = Groups()
    broadcast: Broadcast = Broadcast()
    lite: Lite = Lite()
    holding: Holding = Holding()
    remoting: Remoting = Remoting()
    policies: Policies = Policies()
    retention: Retention = Retention()
    transactions: Transactions = Transactions()
    log: Log = Log()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    stopping: Stopping = Stopping()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_broker(cls, values: Any) -> Any:
        """What is created on first use by default: before a cluster, which others use too, nothing."""
        if not isinstance(values, Mapping) or not str(values.get("broker")).startswith("rocketmq:"):
            return values
        filled = dict(values)
        for table in ("topics", "groups"):
            given = filled.get(table, {})
            if isinstance(given, Mapping):
                filled[table] = {"auto_create": False, **given}
        return filled
