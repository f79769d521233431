"""`popgate cluster`: the RocketMQ cluster behind a gateway, as that gateway sees it."""

from __future__ import annotations

from typing import Any

from proxy.cli.console import terminal
from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown
from proxy.cli.console.terminal import Output, Printer
from proxy.config.units import counted

_BROKER_COLUMNS = (
    "cluster",
    "broker",
    "role",
    "address",
    "links",
    "answer",
    "version",
    "writable",
    "trouble",
)
_WRITE = 2
_READ = 4


def cluster(admin: Admin = DEFAULT_ADMIN, output: Shown = Output.AUTO) -> None:
    """Show the name servers and brokers behind the gateway; `popgate doctor --admin` judges them."""
    with Gateway(admin) as gateway:
        view = gateway.get("cluster")
    printer = Printer(output)
    if printer.as_json:
        printer.facts({}, view)
        return
    servers = [
        (
            server["address"],
            "in use" if server["in_use"] else "silent" if server["trouble"] else "ready",
            _answer(server),
            None if server["brokers"] is None else counted(len(server["brokers"]), "broker"),
            server["trouble"],
        )
        for server in view["name_servers"]
    ]
    brokers = [
        (
            *(broker["cluster"], broker["name"], broker["role"], broker["address"], broker["links"]),
            *(
                _answer(broker),
                broker["version"],
                permission_text(broker),
                broker["trouble"] or broker["settings_trouble"],
            ),
        )
        for broker in view["brokers"]
    ]
    if printer.output is Output.PLAIN:
        for row in servers:
            printer.item(("name-server", *row), "", None)
        for broker in brokers:
            printer.item(("broker", *broker), "", None)
        return
    printer.table(("name server", "state", "answer", "tells", "trouble"), servers, None)
    printer.item((), "", None)
    printer.table(_BROKER_COLUMNS, brokers, None)
    if view["not_asked"]:
        printer.item((), terminal.faint(f"{view['not_asked']} more were not asked"), None)
    printer.item((), terminal.faint(gateway_text(view["gateway"])), None)


def permission_text(broker: dict[str, Any]) -> str | None:
    """What a broker permits clients to do; None if it does not report that."""
    permission = broker["settings"].get("brokerPermission", "")
    if not permission.isdigit():
        return None
    if broker["role"] != "master":
        return "no"
    return (
        "yes"
        if int(permission) & _WRITE
        else "no, reads only"
        if int(permission) & _READ
        else "no, nor readable"
    )


def gateway_text(gateway: dict[str, Any]) -> str:
    parts = [
        f"{counted(int(gateway['links_open']), 'connection')} open",
        f"{counted(int(gateway['routes']), 'route')} known, the oldest {gateway['oldest_route_s']:.0f} s old",
        f"{counted(int(gateway['clients_registered']), 'client')} registered",
    ]
    if gateway["clients_merged"]:
        parts.append(f"{int(gateway['clients_merged'])} of them merged with others")
    return "this gateway: " + ", ".join(parts)


def _answer(peer: dict[str, Any]) -> str | None:
    return None if peer["answer_ms"] is None else f"{peer['answer_ms']:.0f} ms"
