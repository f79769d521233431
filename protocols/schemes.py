"""Finds the adapter for the scheme of an address, in the package `protocols.<scheme>`.

Where a scheme names several protocols (`grpc+remoting`), or TLS is optional, `protocols.shared_adapter` puts
the adapters behind one address.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import protocols
from brokers.relay import BrokerAnswer, CommandHandler
from popgate.clock import Clock
from processors.messaging import MessagingProcessor
from protocols.adapter import Adapter, AdapterContext, Listen
from protocols.shared_adapter import Member, SharedAdapter, is_shared
from protocols.sniffing import Mark


def schemes() -> list[str]:
    """Every scheme that can be listened at."""
    return sorted(module.name for module in pkgutil.iter_modules(protocols.__path__) if module.ispkg)


def make_adapter(listen: Listen, adapter_context: AdapterContext) -> Adapter:
    """The adapter for this address, not started. Raises ValueError with a sentence for the operator."""
    known = schemes()
    for scheme in listen.schemes:
        if scheme not in known:
            raise ValueError(f"there is no protocol {scheme!r}; these are: {', '.join(known)}")
    if is_shared(listen):
        return SharedAdapter(listen, adapter_context, {scheme: _member(scheme) for scheme in listen.schemes})
    adapter: Adapter = import_module(f"protocols.{listen.scheme}").make_adapter(listen, adapter_context)
    return adapter


def listens_by_itself(listen: Listen) -> bool:
    """Whether the adapter for this address cannot take connections that another process accepted."""
    if is_shared(listen):
        return False
    asked = _optional(listen.scheme, "listens_by_itself")
    return bool(asked(listen)) if asked is not None else False


def load_for(listen: Listen) -> None:
    """Load what an adapter for this address will need."""
    for scheme in listen.schemes:
        load = _optional(scheme, "load")
        if load is not None:
            load(replace(listen, scheme=scheme))


def command_handler(processor: MessagingProcessor, clock: Clock) -> CommandHandler:
    """Answers other gateways about the clients of all doors of this one; loaded when the first one asks."""
    neighbours: Any = None

    async def answer(code: int, fields: Mapping[str, str]) -> BrokerAnswer:
        nonlocal neighbours
        if neighbours is None:
            neighbours = import_module("protocols.remoting.members.neighbours").Neighbours(processor, clock)
        response: BrokerAnswer = await neighbours.answer(code, fields)
        return response

    return answer


def _member(scheme: str) -> Member:
    package = import_module(f"protocols.{scheme}")
    return Member(
        Mark(package.FIRST_BYTES, package.ALPN),
        frozenset(import_module(f"protocols.{scheme}.adapter").OPTIONS),
        package.make_adapter,
        package.listens_by_itself,
    )


def _optional(scheme: str, name: str) -> Any:
    if scheme not in schemes():
        return None
    return getattr(import_module(f"protocols.{scheme}"), name, None)
