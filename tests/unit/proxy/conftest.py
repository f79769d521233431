"""A gateway in this process, on ports that the system chose, and somebody who asks its admin port."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.app import App, build
from proxy.config.loader import load_settings
from proxy.config.settings import Settings


class Api:
    """Requests to the admin port; an answer is (status, JSON)."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self.session = session
        self.address = address

    async def get(self, path: str, **query: str) -> tuple[int, Any]:
        return await self._ask("GET", path, params=query)

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        data = io.BytesIO(json.dumps(body).encode())
        return await self._ask("POST", path, data=data, headers={"Content-Type": "application/json"})

    async def delete(self, path: str) -> tuple[int, Any]:
        return await self._ask("DELETE", path)

    async def _ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.address + path, **more) as answer:
            return answer.status, await answer.json() if answer.content_type == "application/json" else None


@pytest.fixture
def settings_for(tmp_path: Path) -> Callable[..., Settings]:
    def make(**flags: Any) -> Settings:
        usual = {
            "data": tmp_path / "data",
            "listen": ["grpc://127.0.0.1:0"],
            "admin": "http://127.0.0.1:0",
            "tls": {"mode": "off"},
            "durability": "none",
            "stopping": {"drain_s": 60, "lame_duck_s": 0},
            # Longer than any patience: what ends such a wait in time is not its own end.
            "limits": {"min_invisible_s": 1, "max_wait_s": 300},
            "api": {"max_wait_s": 300},
        }
        return load_settings(environment={}, flags={**usual, **flags})

    return make


@pytest.fixture
async def app(settings_for: Callable[..., Settings]) -> AsyncIterator[App]:
    app = build(settings_for())
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


@pytest.fixture
async def api_of() -> AsyncIterator[Callable[[App], Api]]:
    """Somebody who asks the admin port of an app."""
    async with aiohttp.ClientSession() as session:
        yield lambda app: Api(session, app.admin_address)


@pytest.fixture
async def api(app: App, api_of: Callable[[App], Api]) -> Api:
    return api_of(app)
