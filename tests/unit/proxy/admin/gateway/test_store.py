"""/api/store: what is stored, and the disk on which it lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from proxy.app import App, build
from proxy.config.settings import Settings


async def test_a_disk_is_told_by_the_gateway_that_has_the_store_only(
    settings_for: Callable[..., Settings], api_of: Callable[[App], Any], socket_folder: Path
) -> None:
    """A guest knows the socket of its host, which lies on another disk, mostly a small one."""
    path = socket_folder / "s"
    host = build(settings_for(share_broker=f"unix:{path}"))
    guest = build(settings_for(broker=f"popgate+unix:{path}"))
    for app in (host, guest):
        await app.start()
    try:
        status, facts = await api_of(host).get("/api/store")
        assert status == 200
        assert facts["free_bytes"] > 0
        status, facts = await api_of(guest).get("/api/store")
        assert status == 200
        assert (facts["bytes"], facts["free_bytes"], facts["total_bytes"]) == (None, None, None)
    finally:
        await guest.stop()
        await host.stop()
