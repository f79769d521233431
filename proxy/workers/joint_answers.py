"""Responses of the admin port that are merged from all processes of the gateway.

Any process can answer for the broker. Clients and counters are known to each process separately: the process
that receives the request asks the others, on the sockets in the private folder, and merges the responses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from popgate.errors import Fault, GatewayError
from proxy.metrics.names import SPECS
from proxy.workers.counts import added
from proxy.workers.queries import Part, ask_others
from proxy.workers.roster import Roster

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Facts = dict[str, Any]
Merge = Callable[[Facts, Sequence[Facts]], Facts]

_MOST_CLIENTS = 10_000
_ELSEWHERE = frozenset({Fault.CLIENT_NOT_FOUND, Fault.PRECONDITION_FAILED})
"""Another process may know the client, or have its stream."""


def from_outside(request: web.Request) -> bool:
    """Whether the request came by the admin port; on a private socket it comes from another process."""
    transport = request.transport
    return transport is not None and bool(transport.get_extra_info("peername"))


class Together:
    """A middleware of the admin server of one process."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._merges: dict[tuple[str, str], Merge] = {
            ("GET", "/api/clients"): _clients,
            ("POST", "/api/clients"): _counts,
            ("GET", "/api/groups/{group}"): _group,
            ("GET", "/api/groups/{group}/stuck"): _stuck,
            ("GET", "/api/cluster"): _cluster,
        }

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        place = request.method, resource.canonical if resource is not None else ""
        if not from_outside(request):
            return await handler(request)
        if place[1].startswith("/api/clients/{client}/"):
            return await self._first(request, handler)
        merge = self._merges.get(place)
        return await handler(request) if merge is None else await self._merged(request, handler, merge)

    async def _merged(self, request: web.Request, handler: Handler, merge: Merge) -> web.StreamResponse:
        body = await request.read()
        own, (parts, _) = await asyncio.gather(
            handler(request), ask_others(self._roster, request.method, request.path_qs, body)
        )
        if own.status != 200 or not isinstance(own, web.Response) or not isinstance(own.body, bytes):
            return own
        merged = merge(json.loads(own.body), [part.facts() for part in parts if part.status == 200])
        return web.json_response(merged)

    async def _first(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Of one client: it may have come to another process, or its stream may be there."""
        body = await request.read()
        try:
            return await handler(request)
        except GatewayError as error:
            if error.fault not in _ELSEWHERE:
                raise
            refused = error
        parts, _ = await ask_others(self._roster, request.method, request.path_qs, body, long=True)
        for part in sorted(parts, key=_usefulness):
            if part.status != 404:
                return web.Response(body=part.body, status=part.status, content_type="application/json")
        raise refused

    async def metrics(self, own: bytes) -> bytes:
        """The sum over all processes. `own`: what this one counts."""
        roster = self._roster
        parts, silent = await ask_others(roster, "GET", "/metrics")
        texts = {part.number: part.body.decode("utf-8", "replace") for part in parts if part.status == 200}
        texts[roster.number] = own.decode()
        text = await asyncio.to_thread(added, roster.folder, texts, [self._of_crew(silent)])
        return text.encode()

    def _of_crew(self, silent: int) -> str:
        figures = {
            "popgate_ready": self._roster.state == "ready",
            "popgate_workers": self._roster.serving(),
            "popgate_workers_silent": silent,
            "popgate_worker_restarts_total": self._roster.restarts,
        }
        return "".join(
            f"# HELP {name} {SPECS[name].about}\n# TYPE {name} {SPECS[name].kind}\n{name} {float(value)}\n"
            for name, value in figures.items()
        )


def _usefulness(part: Part) -> int:
    """The answer first, then why there is none, then that there is no stream, or no such client."""
    return {200: 0, 412: 2, 404: 3}.get(part.status, 1)


def _clients(own: Facts, others: Sequence[Facts]) -> Facts:
    """A client with connections to two processes is listed once, as the one with its stream knows it.

    Classic clients have one id for many groups, and clients of several accounts may have one.
    """
    known: dict[tuple[str, ...], Facts] = {}
    for client in [client for facts in (own, *others) for client in facts.get("clients", ())]:
        member = client["client_id"], client["kind"], client["group"]
        before = known.get(member)
        if before is None or (client.get("connected") and not before.get("connected")):
            known[member] = client
    left_out = sum(facts["count"] - len(facts["clients"]) for facts in (own, *others) if "clients" in facts)
    shown = sorted(known.values(), key=lambda client: str(client["client_id"]))[:_MOST_CLIENTS]
    return {**own, "clients": shown, "count": len(known) + left_out}


def _counts(own: Facts, others: Sequence[Facts]) -> Facts:
    return {name: value + sum(facts.get(name, 0) for facts in others) for name, value in own.items()}


def _group(own: Facts, others: Sequence[Facts]) -> Facts:
    return {**own, "clients": own["clients"] + sum(facts.get("clients", 0) for facts in others)}


def _stuck(own: Facts, others: Sequence[Facts]) -> Facts:
    """The broker's part is the same everywhere; the reasons come from the process with the most consumers."""
    all_of = [own, *(facts for facts in others if "consumers" in facts)]
    best = max(all_of, key=lambda facts: facts["consumers"])
    return {**best, "consumers": sum(facts["consumers"] for facts in all_of)}


_PER_PROCESS = ("route_failures", "links_open", "connections_lost", "clients_registered", "clients_merged")
_WORST = ("numbers_unkept",)
"""Values that each process observes separately for the same objects."""


def _cluster(own: Facts, others: Sequence[Facts]) -> Facts:
    gateway = dict(own["gateway"])
    for name in _PER_PROCESS:
        if name in gateway:
            gateway[name] += sum(facts.get("gateway", {}).get(name, 0) for facts in others)
    for name in _WORST:
        if name in gateway:
            gateway[name] = max([gateway[name], *(facts.get("gateway", {}).get(name, 0) for facts in others)])
    return {**own, "gateway": gateway}
