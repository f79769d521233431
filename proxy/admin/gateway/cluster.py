"""/api/cluster: the current state of the name servers and brokers behind this gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from brokers.capabilities import TellsCluster
from brokers.port import Broker
from popgate.cluster import BrokerView, ClusterView, NameServerView
from popgate.errors import Unsupported

_FIGURES = {
    "routes": "routes",
    "oldest_route_s": "oldest_route_s",
    "name_servers_silent_s": "name_servers_silent_s",
    "route_failures": "route_failures_total",
    "numbers_unkept": "numbers_unkept",
    "links_open": "links_open",
    "connections_lost": "connections_lost_total",
    "clients_registered": "clients_registered",
    "clients_merged": "clients_merged",
    "client_links": "client_links",
}
"""The gateway's own metrics, by the names of this page and of the broker."""


class Cluster:
    """`settings`: the settings of this gateway that are shown with the cluster."""

    def __init__(self, broker: Broker, settings: Callable[[], Mapping[str, object]]) -> None:
        self._broker = broker
        self._settings = settings

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/cluster", self._show)]

    async def _show(self, _request: web.Request) -> web.Response:
        """Takes as long as the slowest of them, 10 s at most for each."""
        cluster = self._broker.capability(TellsCluster)
        if cluster is None:
            raise Unsupported(
                "a look at the cluster of this gateway",
                "its broker is not one of RocketMQ (rocketmq://…); /metrics and /api/store tell of it",
            )
        view = await cluster.cluster()
        figures = self._broker.figures()
        gateway_figures = {name: figures[figure] for name, figure in _FIGURES.items() if figure in figures}
        return web.json_response({**cluster_out(view), "gateway": {**gateway_figures, **self._settings()}})


def cluster_out(view: ClusterView) -> dict[str, Any]:
    return {
        "name_servers": [_name_server_out(name_server) for name_server in view.name_servers],
        "brokers": [_broker_out(broker) for broker in view.brokers],
        "not_asked": view.not_asked,
        "refusals": dict(view.refusals),
        "unserved": [
            {"group": group, "broker": broker, "why": why}
            for (group, broker), why in sorted(view.unserved.items())
        ],
    }


def _name_server_out(view: NameServerView) -> dict[str, Any]:
    return {
        "address": view.address,
        "trouble": view.trouble,
        "answer_ms": None if view.trouble else round(view.answer_ms, 1),
        "in_use": view.in_use,
        "brokers": None if view.trouble else dict(view.brokers),
    }


def _broker_out(view: BrokerView) -> dict[str, Any]:
    ahead = view.clock_ahead_ms
    return {
        "cluster": view.cluster,
        "name": view.name,
        "number": view.number,
        "address": view.address,
        "role": view.role,
        "links": view.links,
        "trouble": view.trouble,
        "answer_ms": None if view.trouble else round(view.answer_ms, 1),
        "version": view.version or None,
        "clock_ahead_ms": None if ahead is None else [round(ahead[0]), round(ahead[1])],
        "settings": dict(view.settings),
        "settings_trouble": view.settings_trouble,
        "figures": dict(view.figures),
    }
