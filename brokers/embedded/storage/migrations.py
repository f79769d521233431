"""The version of the store's layout: newer stores are refused, older ones migrated step by step.

A step's changes and its new version number are one synced batch: a crash between two steps, or
within one, leaves a store of one of the two versions, from which the next start continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from brokers.embedded.storage.keys import META, SPACES
from popgate.errors import BrokerUnavailable

FORMAT = 2
"""The version of the layout in `keys`; raised whenever an older program could misread it."""

FORMAT_KEY = b"format"


class Upgradable(Protocol):
    """What an upgrade may do: read what is committed, and add to the step's batch."""

    path: Path

    def get(self, space: str, key: bytes) -> bytes | None: ...

    def first(self, space: str, begin: bytes, end: bytes | None = None) -> tuple[bytes, bytes] | None: ...

    def scan(self, space: str, begin: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]: ...

    def put(self, space: str, key: bytes, value: bytes) -> None: ...

    def delete(self, space: str, key: bytes) -> None: ...

    def delete_range(self, space: str, begin: bytes, end: bytes) -> None: ...

    def write_now(self) -> None: ...


Upgrade = Callable[[Upgradable], None]
"""Brings a store from the version it is listed under to the next one. Only adds to the batch."""


def _allow_blocks(store: Upgradable) -> None:
    """Version 1 has each record in a value of its own, as version 2 still may."""


UPGRADES: Mapping[int, Upgrade] = {1: _allow_blocks}
"""From version to the step that leaves it. Version 1 is the first."""


def bring_up_to_date(
    store: Upgradable, *, target: int = FORMAT, upgrades: Mapping[int, Upgrade] = UPGRADES
) -> int:
    """Bring a store to version `target`; the version it had (`target` for a new store).

    Raises BrokerUnavailable: newer than `target`, no way from its version, no version beside data.
    """
    name = f"the store in {store.path}"
    stored = store.get(META, FORMAT_KEY)
    if stored is None:
        if any(store.first(space, b"") is not None for space in SPACES):
            raise BrokerUnavailable(f"{name} is damaged: it holds data but does not say of which format")
        _write_version(store, target)
        return target
    if not stored.isdigit() or len(stored) > 9:
        raise BrokerUnavailable(f"{name} is damaged: its format is {stored[:40]!r}, which is no number")
    version = first = int(stored)
    if version > target:
        raise BrokerUnavailable(
            f"{name} has format {version}, this version of popgate reads up to format {target}:"
            " start the newer version that wrote it"
        )
    while version < target:
        step = upgrades.get(version)
        if step is None:
            raise BrokerUnavailable(
                f"{name} has format {version}, and this version of popgate cannot upgrade it to format"
                f" {target}: start a version that can, once, in between"
            )
        step(store)
        version += 1
        _write_version(store, version)
    return first


def _write_version(store: Upgradable, version: int) -> None:
    store.put(META, FORMAT_KEY, b"%d" % version)
    store.write_now()
