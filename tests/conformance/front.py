"""Ends TLS in front of a gateway, as load balancers do, for clients that cannot do without it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Self

from popgate.sockets.servers import close_server

_CHUNK = 64 * 1024


class TlsFront:
    """A listener on a port of its own, with a certificate of its own; carries bytes on to `target`.

    A connection that the target does not take is closed, and so is each when the other side closes:
    a gateway that is down is refused to the client as it would be without this between.
    """

    def __init__(self, target: str, folder: Path) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._context = _context(folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="tls-front")
        self._server: asyncio.Server | None = None
        self.endpoint = ""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(240)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(240)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0, ssl=self._context)
        host, port = self._server.sockets[0].getsockname()
        self.endpoint = f"{host}:{port}"

    async def _stop(self) -> None:
        assert self._server is not None
        await close_server(self._server)
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        ways = [asyncio.create_task(_pump(reader, forth)), asyncio.create_task(_pump(back, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.transport.abort()
            forth.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()


def _context(folder: Path) -> ssl.SSLContext:
    """A server's, with a certificate that nobody signed."""
    openssl = shutil.which("openssl")
    assert openssl is not None, "openssl is not on this machine"
    with tempfile.TemporaryDirectory(dir=folder) as home:
        certificate, key = Path(home) / "certificate.pem", Path(home) / "key.pem"
        command = [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ]
        named = ["-subj", "/CN=localhost", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*command, *named], check=True, capture_output=True, timeout=240)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context
