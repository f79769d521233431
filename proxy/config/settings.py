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

from pydantic import Field, model_validator

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
    Policies,
    Remoting,
    Retention,
    Stopping,
    Texts,
    Topics,
    Tracing,
    Transactions,
)
from proxy.config.tls_table import Tls


class Settings(Group):
    """Everything that can be set."""

    broker: str = Field(default="embedded:", max_length=1024)
    """Where messages are kept: `embedded:` is a broker in this process, in the data folder;
    `embedded:./path` one in another folder; `rocketmq://ns-1:9876,ns-2:9876` is a RocketMQ cluster, by its
    name servers; `popgate://host:port` or `popgate+unix:/path` the broker that another gateway shares."""
    share_broker: str = Field(default="", max_length=1024)
    """Where other gateways reach the embedded broker of this one: `unix:/path`, a socket that only this user
    can open, or `tcp://host:port`; beyond this machine only with `shared.secret`. Empty: it is not shared."""
    data: Path = Path("./data")
    """The folder of everything local; made when it is not there."""
    workers: Count = Field(default=0, ge=0, le=256)
    """Processes that serve clients; more than one need Linux. 0: one for each core that this process may use
    (by its affinity and its control group), and one in all where the broker is embedded."""
    durability: Durability = Durability.INTERVAL
    """When a sent message counts as kept: `sync`, on the disk (it survives power loss); `interval`, with
    the operating system (it survives the end of the process), on the disk a moment later; `none`, with the
    operating system, which decides about the disk."""
    listen: Texts = Field(
        default=("grpc://127.0.0.1:8081", "remoting://127.0.0.1:8080"), min_length=1, max_length=64
    )
    """Doors for clients, one URL each: `grpc://host:port`, or `grpc+unix:/path`, a socket in the file system;
    and `remoting://host:port`, for the classic clients of RocketMQ 4 and 5, which take it for a name server.
    Port 0 lets the system choose; the choice is printed. Behind it options may follow: `?tls=true`, `false`
    or `permissive` (TLS or not), in the place of `tls.mode`; `advertised=host:port`, for this door alone;
    `mode=660`, who may connect to a socket; `transport=grpcio`, gRPC's own library in the place of this
    gateway's HTTP/2; `proxy_protocol=true`, for remoting behind a balancer that says in front of each
    connection who makes it (PROXY protocol, 1 or 2).
    `grpc+remoting://host:port` serves both at one port: the first byte of a connection shows which it is.
    Neither that nor `tls=permissive` goes with `transport=grpcio`; at both, `proxy_protocol` is for gRPC,
    too."""
    admin: str = Field(default="http://127.0.0.1:8083", max_length=1024)
    """The admin port; `off` for none. It has no authentication: open it to people you trust only."""
    namespaces: Namespaces = Namespaces.IGNORED
    """What the namespace of a gRPC client means: `ignored`, nothing, as to RocketMQ's own proxy; `prefixed`,
    its topics and groups are its own: `orders` of the namespace `shop` is `shop%orders` everywhere else, and
    clients may not write `%` in names."""
    reflection: bool = True
    """Whether gRPC doors tell tools like grpcurl what they serve (server reflection); it costs nothing until
    somebody asks."""
    faults: str = Field(default="", max_length=4096)
    """For tests of the gateway itself, never for anything else: what is to go wrong on purpose, like
    `seed=7;drop=AckMessage:0.1;kill=commit:after=37` (see docs/faults.md). Empty: nothing."""
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
