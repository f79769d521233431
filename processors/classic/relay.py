"""Commands of tools that are answered by brokers of a cluster, or by gateways that share a broker.

See `brokers.relay`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from brokers.port import Broker
from brokers.relay import (
    ABOUT_CLIENTS,
    RELAYED,
    AsksGateways,
    CommandHandler,
    HearsBrokers,
    Relayed,
    RelaysCommands,
)
from popgate.context import Context
from popgate.errors import Unsupported
from popgate.kinds import Action


class CommandRelay:
    """`admit` is the first step of every request, as in `processors.messaging`."""

    def __init__(self, broker: Broker, admit: Callable[..., None]) -> None:
        self._name = broker.name
        self._relays = broker.capability(RelaysCommands)
        self._hears = broker.capability(HearsBrokers)
        self._gateways: AsksGateways | None = broker.capability(AsksGateways)
        self._admit = admit

    def __repr__(self) -> str:
        return f"<CommandRelay to {self._name if self.available else 'nobody'}>"

    @property
    def available(self) -> bool:
        """Whether there are brokers behind this gateway that know more than it does."""
        return self._relays is not None

    async def relay(
        self,
        context: Context,
        code: int,
        fields: Mapping[str, str],
        *,
        broker: str = "",
        topic: str = "",
        group: str = "",
    ) -> Relayed:
        """Ask one broker, those of a topic, or all. The caller needs the permission to read, or to change.

        Where gateways share an embedded broker, commands about clients go to all of them, this one too.
        Raises as `RelaysCommands.relay` and `AsksGateways.ask_gateways`, and Forbidden, TooManyRequests;
        Unsupported where there is nobody to ask.
        """
        self.admit(context, code, topic=topic, group=group)
        if self._relays is not None:
            return await self._relays.relay(context, code, fields, broker=broker, topic=topic)
        if self._gateways is not None and code in ABOUT_CLIENTS:
            return await self._gateways.ask_gateways(context, code, fields)
        raise Unsupported(f"a command for the brokers behind broker {self._name}, which has none")

    @property
    def shared(self) -> bool:
        """Whether other gateways share the broker, and know clients that this one does not."""
        return self._gateways is not None

    def serve(self, handler: CommandHandler, host: AsksGateways | None = None) -> None:
        """Have other gateways, or the brokers of a cluster, answered about the clients of this one.

        `host`: what this gateway shares its own broker by.
        """
        if self._hears is not None:
            self._hears.on_command(handler)
        if host is not None:
            self._gateways = host
        if self._gateways is not None:
            self._gateways.on_command(handler)

    def admit(self, context: Context, code: int, *, topic: str = "", group: str = "") -> None:
        """Check that the caller may read, or change, with this command. Raises Forbidden, TooManyRequests."""
        command = RELAYED.get(code)
        changes = command is not None and command.changes
        self._admit(context, Action.UPDATE if changes else Action.GET, topic=topic, group=group)
