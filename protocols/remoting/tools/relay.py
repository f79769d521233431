"""Passes requests of tools to the brokers behind the gateway, or to the gateways that share its broker, and
reads the responses.

They carry the gateway's own account; the caller's permission was checked before (`processors.classic.relay`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from brokers.relay import BrokerAnswer
from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, GatewayError, PeerWireError, TopicNotFound, shown
from popgate.wire.bodies.broker_stats import Rates, decode_producers
from popgate.wire.bodies.consumer_info import decode_positions
from popgate.wire.bodies.heartbeats import Connection, ConsumerConnection, decode_producer_connections
from popgate.wire.bodies.small_bodies import MessageQueue, decode_kv_table
from popgate.wire.frames.codes import RequestCode, ResponseCode
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.fields import text
from protocols.remoting.codec.merged_responses import (
    Producers,
    alike,
    figures_of,
    mean_rates,
    settings_in,
)
from protocols.remoting.requests import DoorContext

Told = TypeVar("Told")

_CODES: Final = {int(code): code for code in ResponseCode}
_LONGEST_REMARK: Final = 500
_NONE: Final[frozenset[int]] = frozenset()
_NOT_ONLINE: Final = frozenset({int(ResponseCode.CONSUMER_NOT_ONLINE)})
_MOST_TRIED: Final = 16
"""Brokers that are asked for one client, one after the other."""
_TRYING_S: Final = 15.0


class BrokersBehind:
    """The brokers of a cluster, for rooms whose answers they know better than this gateway.

    About clients the other gateways are asked where they share a broker.
    """

    def __init__(self, door_context: DoorContext) -> None:
        self._relaying = door_context.processor.command_relay
        self._processor = door_context.processor
        self._clock = door_context.clock

    def __repr__(self) -> str:
        return f"<BrokersBehind {self._relaying!r}>"

    @property
    def there(self) -> bool:
        """Whether there are any. All methods below need brokers, except those about clients."""
        return self._relaying.available

    @property
    def know_clients(self) -> bool:
        """Whether brokers, or other gateways, know clients that this gateway does not."""
        return self._relaying.available or self._relaying.shared

    async def figures(self, context: Context, broker: str = "") -> dict[str, str]:
        """What brokers count. Raises BrokerUnavailable, BrokerTimeout, Refused."""
        return figures_of(
            await self._told(context, RequestCode.GET_BROKER_RUNTIME_INFO, {}, decode_kv_table, broker=broker)
        )

    async def settings(self, context: Context, broker: str = "") -> dict[str, str]:
        """Settings that are the same for all brokers, without possible secrets. Raises as `figures`."""
        by_broker = await self._told(context, RequestCode.GET_BROKER_CONFIG, {}, settings_in, broker=broker)
        return alike(by_broker.values())

    async def rates(self, context: Context, name: str, key: str, topic: str) -> Rates:
        """The mean of the brokers that have the topic, and count it. Raises as `figures`."""
        fields = {"statsName": name, "statsKey": key}
        by_broker = await self._told(
            context, RequestCode.VIEW_BROKER_STATS_DATA, fields, Rates.decode, topic=topic
        )
        return mean_rates(list(by_broker.values()))

    async def everywhere(self, context: Context, code: int) -> None:
        """Have all masters do something. Raises what the first said that did not."""
        relayed = await self._relaying.relay(context, code, {})
        for failure in relayed.failures.values():
            raise failure
        for name, answer in relayed.answers.items():
            if answer.code != ResponseCode.SUCCESS:
                raise _refused(name, answer)

    async def producers(self, context: Context) -> list[Producers]:
        """As each broker reports them. Raises as `figures`."""
        by_broker = await self._told(context, RequestCode.GET_ALL_PRODUCER_INFO, {}, decode_producers)
        return list(by_broker.values())

    async def producers_in(self, context: Context, group: str) -> list[tuple[Connection, ...]]:
        """Producers of a group, as each broker reports them; empty where none knows any."""
        # All that a broker says then, in words; a gateway has a code for it.
        nothing = _NOT_ONLINE | {int(ResponseCode.SYSTEM_ERROR)}
        by_broker = await self._told(
            context,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            {"producerGroup": group},
            decode_producer_connections,
            nothing=nothing,
        )
        return list(by_broker.values())

    async def consumers_in(self, context: Context, group: str) -> list[ConsumerConnection]:
        """As `producers_in`."""
        by_broker = await self._told(
            context,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            {"consumerGroup": group},
            ConsumerConnection.decode,
            group=group,
            nothing=_NOT_ONLINE,
        )
        return list(by_broker.values())

    async def positions_in(
        self, context: Context, fields: Mapping[str, str], group: str
    ) -> list[dict[str, dict[MessageQueue, int]]]:
        """Positions of a group's classic members, as each gateway reports them. Raises as `figures`."""
        by_broker = await self._told(
            context,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            fields,
            decode_positions,
            group=group,
            nothing=_NOT_ONLINE,
        )
        return list(by_broker.values())

    async def positions_elsewhere(
        self, context: Context, fields: Mapping[str, str], group: str
    ) -> dict[str, dict[MessageQueue, int]] | None:
        """As the brokers of the topic report them, which ask the members connected to them; None: none does.

        Raises as `figures`, and BrokerUnavailable for an answer that cannot be decoded.
        """
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        topic = text(fields, "topic")
        try:
            relayed = await self._relaying.relay(context, code, fields, topic=topic, group=group)
        except TopicNotFound:  # members may have subscribed to a topic that does not exist yet
            relayed = await self._relaying.relay(context, code, fields, group=group)
        merged: dict[str, dict[MessageQueue, int]] = {}
        failures: list[GatewayError] = list(relayed.failures.values())
        for broker, answer in relayed.answers.items():
            if answer.code != ResponseCode.SUCCESS:
                continue
            try:
                positions = decode_positions(answer.body)
            except PeerWireError as error:
                failures.append(BrokerUnavailable(f"positions from broker {broker} make no sense: {error}"))
                continue
            for client_id, offsets in positions.items():
                merged.setdefault(client_id, {}).update(offsets)
        if failures and not merged:
            raise failures[0]
        return merged or None

    async def client_answer(
        self, context: Context, code: int, fields: Mapping[str, str], *, group: str, broker: str = ""
    ) -> BrokerAnswer | None:
        """The answer of a client that is connected elsewhere: the first one with success; else None.

        `broker`: the one to ask; else one after the other, since a client is connected to all of them. Only
        one gateway has the client: its refusal is returned, too. Raises as `figures`.
        """
        if not self._relaying.available:
            relayed = await self._relaying.relay(context, code, fields, group=group)
            there = [candidate for candidate in relayed.answers.values() if candidate.code not in _NOT_ONLINE]
            failures = list(relayed.failures.values())
            if failures and not there:
                raise failures[0]
            return min(there, key=lambda candidate: candidate.code != ResponseCode.SUCCESS, default=None)
        until = self._clock.monotonic() + _TRYING_S
        names = (
            [broker] if broker else [place.name for place in await self._processor.metadata.brokers(context)]
        )
        for name in dict.fromkeys(names[:_MOST_TRIED]):
            if self._clock.monotonic() > until:
                break
            with contextlib.suppress(BadRequest):  # a broker without a master
                relayed = await self._relaying.relay(context, code, fields, broker=name, group=group)
                for answer in relayed.answers.values():
                    if answer.code == ResponseCode.SUCCESS:
                        return answer
        return None

    async def _told(
        self,
        context: Context,
        code: int,
        fields: Mapping[str, str],
        read: Callable[[bytes], Told],
        *,
        broker: str = "",
        topic: str = "",
        group: str = "",
        nothing: Collection[int] = _NONE,
    ) -> dict[str, Told]:
        """Results by broker name. Without any, raises the first failure, unless its code is in `nothing`.

        Brokers know the same clients; each gateway has its own, and one that failed may have the requested
        ones.
        """
        relayed = await self._relaying.relay(context, code, fields, broker=broker, topic=topic, group=group)
        by_broker: dict[str, Told] = {}
        failures: list[GatewayError] = list(relayed.failures.values())
        empty = False
        for name, answer in relayed.answers.items():
            if answer.code in nothing:
                empty = True
            elif answer.code != ResponseCode.SUCCESS:
                failures.insert(0, _refused(name, answer))
            else:
                try:
                    by_broker[name] = read(answer.body)
                except PeerWireError as error:
                    failures.append(BrokerUnavailable(f"what broker {name} answered makes no sense: {error}"))
                await asyncio.sleep(0)  # an answer may be long
        if not by_broker and failures and not (empty and self._relaying.available):
            raise failures[0]
        return by_broker


def _refused(broker: str, answer: BrokerAnswer) -> GatewayError:
    remark = shown(answer.remark, _LONGEST_REMARK) if answer.remark else "no reason given"
    code = _CODES.get(answer.code, ResponseCode.SYSTEM_ERROR)
    return Refused(code, f"broker {broker} says {remark}")
