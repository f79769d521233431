"""What Google's servers are to a client of gRPC: they give access tokens to accounts, and to machines."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from popgate.sockets.servers import close_server

ACCOUNT = "popgate@interop.example"
SCOPE = "https://www.googleapis.com/auth/xapi.zoo"
TOKEN = "a-token-that-was-given-here"


class Granting:
    """Answers every request with one token: looked at is what becomes of it, on its way as a header.

    `environment` is how clients find it and the account; `key_file` has the account.
    """

    def __init__(self, folder: Path) -> None:
        self.key_file = folder / "account.json"
        self._key = folder / "account.key"
        self._server: asyncio.Server | None = None
        self.environment: dict[str, str] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        at = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        command = ["openssl", "genpkey", "-algorithm", "RSA", "-out", str(self._key)]
        subprocess.run(command, check=True, capture_output=True)
        account = {
            "type": "service_account",
            "client_email": ACCOUNT,
            "client_id": "1",
            "private_key_id": "1",
            "private_key": self._key.read_text(),
            "token_uri": f"http://{at}/token",
        }
        self.key_file.write_text(json.dumps(account))
        self.environment = {
            "GCE_METADATA_HOST": at,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.key_file),
        }

    async def stop(self) -> None:
        if self._server is not None:
            await close_server(self._server)
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next((line for line in head.splitlines() if line.startswith("content-length:")), ":0")
        await reader.readexactly(int(length.partition(":")[2]))
        body = json.dumps({"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nmetadata-flavor: Google\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        writer.close()
