"""A test start of the current program, before the supervisor re-executes itself as that."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from brokers.open_broker import folder_of
from protocols.adapter import parse_listen
from protocols.schemes import load_for
from proxy.app import build
from proxy.config.error import SettingsWrong
from proxy.config.handover import TRIAL
from proxy.tls.door_tls import door_urls

if TYPE_CHECKING:
    from proxy.config.settings import Settings

_OF_BROKERS: Mapping[str, tuple[str, ...]] = {
    "embedded": ("brokers.shared.broker",),
    "rocketmq": ("brokers.remote.broker",),
    "popgate": ("brokers.shared.broker",),
    "popgate+unix": ("brokers.shared.broker",),
}
"""Modules that workers need, without RocksDB: only the host loads that for an embedded broker."""


def is_asked_for() -> bool:
    return TRIAL in os.environ


def load_all(settings: Settings) -> None:
    """Load what workers need before they are forked, so that it is in memory once for all of them."""
    for name in _OF_BROKERS.get(settings.broker.partition(":")[0], ()):
        import_module(name)
    for url in door_urls(settings):
        with suppress(ValueError):  # what is wrong with it is told by who builds
            load_for(parse_listen(url))
    for name in ("uvloop", "aiohttp"):
        try:
            import_module(name)
        except ImportError:
            continue


def look(settings: Settings) -> None:
    """Load and build everything without opening anything; then leave the settings for the caller.

    Raises SettingsWrong, ImportError, OSError.
    """
    load_all(settings)
    build(settings)
    if settings.broker.startswith("embedded:"):
        _check_folder(folder_of(settings.broker, settings.data))
    with suppress(FileNotFoundError):  # who asked has ended
        Path(os.environ[TRIAL]).write_bytes(pickle.dumps(settings))


def _check_folder(folder: Path) -> None:
    """If the process of the broker cannot start, which is renewed last, the others have no way back."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise SettingsWrong(f"the embedded broker cannot write in {folder}: {there} is no folder for it")
