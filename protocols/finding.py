"""Finding the door for an address: the package `protocols.<scheme>` has it."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import protocols
from protocols.adapter import Adapter, House, Listen


def schemes() -> list[str]:
    """Every scheme that can be listened at."""
    return sorted(module.name for module in pkgutil.iter_modules(protocols.__path__) if module.ispkg)


def make_adapter(listen: Listen, house: House) -> Adapter:
    """The adapter for this address, not started. Raises ValueError with a sentence for the operator."""
    known = schemes()
    if listen.scheme not in known:
        raise ValueError(f"there is no protocol {listen.scheme!r}; these are: {', '.join(known)}")
    adapter: Adapter = import_module(f"protocols.{listen.scheme}").make_adapter(listen, house)
    return adapter
