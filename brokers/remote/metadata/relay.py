"""Passes commands of tools on to the brokers that they concern: see `brokers.relay`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from brokers.relay import (
    MOST_BROKERS,
    MOST_TOLD,
    RELAYED,
    BrokerAnswer,
    Relayed,
    RelaysCommands,
    relayed_fields,
)
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import of_each
from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, Unsupported, shown
from popgate.wire.frames.codes import RequestCode

_AT_ONCE: Final = 16


class CommandRelay(RelaysCommands):
    """`brokers.relay.RelaysCommands`."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._client = access.client
        self._settings = access.settings

    async def relay(
        self, context: Context, code: int, fields: Mapping[str, str], *, broker: str = "", topic: str = ""
    ) -> Relayed:
        command = RELAYED.get(code)
        if command is None:
            raise Unsupported(f"request code {code} at a broker of the cluster, which it is not passed on to")
        relayed = relayed_fields(code, fields)
        names = await self._named(broker, topic, changes=command.changes)
        if len(names) > MOST_BROKERS:
            raise BadRequest(
                f"the cluster has {len(names)} brokers, the limit of one command is {MOST_BROKERS}"
            )
        gate = asyncio.Semaphore(_AT_ONCE)
        ask = self._client.call if command.changes else self._access.read_from
        limit_s = self._settings.slow_s if command.slow else None
        taken = 0

        async def answer(name: str) -> BrokerAnswer:
            nonlocal taken
            async with gate:
                response = await ask(name, RequestCode(code), relayed, context=context, timeout_s=limit_s)
            if taken and taken + len(response.body) > MOST_TOLD:
                raise BrokerUnavailable(f"broker {name} tells more than fits: the limit is {MOST_TOLD} bytes")
            taken += len(response.body)
            return BrokerAnswer(response.code, response.remark, response.fields, bytes(response.body))

        return Relayed(*await of_each(names, answer))

    async def _named(self, broker: str, topic: str, *, changes: bool) -> list[str]:
        known = await (self._access.masters() if changes else self._access.brokers())
        if broker:
            if broker not in known:
                raise BadRequest(f"the cluster has no broker {shown(broker)} that can be asked now")
            return [broker]
        if topic:
            having = {broker_data.name for broker_data in (await self._access.routes.of(topic)).brokers}
            return [name for name in known if name in having] or known
        return known
