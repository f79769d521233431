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
        found = gateway.get("cluster")
    printer = Printer(output)
    if printer.as_json:
        printer.facts({}, found)
        return
    servers = [
        (
            one["address"],
            "in use" if one["in_use"] else "silent" if one["trouble"] else "ready",
            _answer(one),
            None if one["brokers"] is None else counted(len(one["brokers"]), "broker"),
            one["trouble"],
        )
        for one in found["name_servers"]
    ]
    brokers = [
        (
            *(one["cluster"], one["name"], one["role"], one["address"], one["links"]),
            *(_answer(one), one["version"], permission_text(one), one["trouble"] or one["settings_trouble"]),
        )
        for one in found["brokers"]
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
    if found["not_asked"]:
        printer.item((), terminal.faint(f"{found['not_asked']} more were not asked"), None)
    printer.item((), terminal.faint(gateway_text(found["gateway"])), None)


def permission_text(broker: dict[str, Any]) -> str | None:
    """What a broker lets clients do; None when it does not say."""
    told = broker["settings"].get("brokerPermission", "")
    if not told.isdigit():
        return None
    if broker["role"] != "master":
        return "no"
    return "yes" if int(told) & _WRITE else "no, reads only" if int(told) & _READ else "no, nor readable"


def gateway_text(gateway: dict[str, Any]) -> str:
    told = [
        f"{counted(int(gateway['links_open']), 'connection')} open",
        f"{counted(int(gateway['routes']), 'route')} known, the oldest {gateway['oldest_route_s']:.0f} s old",
        f"{counted(int(gateway['clients_registered']), 'client')} registered",
    ]
    if gateway["clients_merged"]:
        told.append(f"{int(gateway['clients_merged'])} of them merged with others")
    return "this gateway: " + ", ".join(told)


def _answer(one: dict[str, Any]) -> str | None:
    return None if one["answer_ms"] is None else f"{one['answer_ms']:.0f} ms"
