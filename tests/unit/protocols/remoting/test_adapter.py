"""protocols.remoting.adapter: the options of an address, and what clients are told to connect to."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from popgate.clock import SystemClock
from popgate.context import Context
from popgate.testing.papers import Papers
from popgate.testing.remoting import RemotingClient
from popgate.wire.frames.codes import ResponseCode
from protocols.adapter import AdapterContext, parse_listen
from protocols.remoting.adapter import RemotingAdapter
from protocols.schemes import listens_by_itself, load_for, make_adapter, schemes
from protocols.tls import Certificate
from tests.support.waiting import until


@pytest.fixture
def adapter_context(stage: Any) -> AdapterContext:
    return AdapterContext(stage.processor, SystemClock())


def made(url: str, adapter_context: AdapterContext) -> RemotingAdapter:
    adapter = make_adapter(parse_listen(url), adapter_context)
    assert isinstance(adapter, RemotingAdapter)
    return adapter


def test_it_is_found_by_its_scheme() -> None:
    listen = parse_listen("remoting://127.0.0.1:0")
    load_for(listen)

    assert "remoting" in schemes()
    assert not listens_by_itself(listen)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("remoting://127.0.0.1:0?transport=x", "has no option 'transport'; there are: advertised, mode"),
        ("remoting://127.0.0.1:0?tls=yes", "the option tls is true or false, not 'yes'"),
        ("remoting://127.0.0.1:0?tls=true", "has nothing to show: set tls.certificate and tls.key"),
        ("remoting://127.0.0.1:0?proxy_protocol=1", "the option proxy_protocol is true or false, not '1'"),
        ("remoting://127.0.0.1:0?advertised=:::", "is no address to advertise"),
        ("remoting://127.0.0.1:0?mode=600", "is no socket in the file system"),
        ("remoting+unix:/tmp/door", "has no port to advertise: say advertised=host:port"),
        ("remoting+unix:/tmp/door?advertised=gw", "has no port to advertise"),
    ],
)
async def test_options_that_cannot_be(adapter_context: AdapterContext, url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        made(url, adapter_context)


@pytest.mark.parametrize(
    ("option", "advertised", "told"),
    [
        ("", "", "10.9.8.7:1234"),
        ("?advertised=gw.example.com:80", "", "gw.example.com:80"),
        ("?advertised=gw.example.com", "", "gw.example.com:{port}"),
        # The port that is advertised for all doors is that of gRPC.
        ("", "gw.example.com:8081", "gw.example.com:{port}"),
        ("?advertised=other:80", "gw.example.com:8081", "other:80"),
        ("", "[2001:db8::1]:8081", "[2001:db8::1]:{port}"),
    ],
)
async def test_what_clients_are_told_to_connect_to(
    adapter_context: AdapterContext, option: str, advertised: str, told: str
) -> None:
    adapter = made(f"remoting://127.0.0.1:0{option}", replace(adapter_context, advertised=advertised))
    assert adapter.addresses == []
    await adapter.start()
    try:
        port = adapter.addresses[0].rpartition(":")[2]
        assert adapter.addresses == [f"remoting://127.0.0.1:{port}"]
        assert adapter._address(Context(local="10.9.8.7:1234")) == told.format(port=port)
    finally:
        await adapter.stop()


async def test_numbers_of_brokers_are_asked_for_before_it_listens(
    adapter_context: AdapterContext, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = made("remoting://127.0.0.1:0", adapter_context)
    listening: list[list[str]] = []

    async def prime() -> None:
        listening.append(adapter.addresses)

    monkeypatch.setattr(stage.processor.queue_numbering, "prime", prime)
    await adapter.start()
    await adapter.stop()
    assert listening == [[]]


async def test_it_serves_and_drains(adapter_context: AdapterContext, tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    adapter = made(
        "remoting://127.0.0.1:0?tls=true",
        replace(adapter_context, certificate=Certificate(*papers.pair("gateway"))),
    )
    await adapter.start()
    port = int(adapter.addresses[0].rpartition(":")[2])
    client = await RemotingClient.connect(
        "127.0.0.1", port, tls=ssl.create_default_context(cafile=papers.authority)
    )

    assert (await client.call(77_777)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    draining = asyncio.ensure_future(adapter.drain(time.monotonic() + 60))
    await client.until_over()
    await draining

    assert adapter.farewell().cut_off == 0
    await adapter.stop()


def listeners_of(processor: Any) -> list[object]:
    """What a processor tells something to."""
    latest = processor.clients.on_members, processor.classic._reply_handlers
    many = processor.mapped_groups._told, processor.retry_reclaimer._first, processor.door_figures._doors
    many = *many, processor.offsets.on_reset._here
    return [*(one.now for one in latest), *(told for listeners in many for told in listeners)]


async def test_a_processor_forgets_a_closed_door(adapter_context: AdapterContext, stage: Any) -> None:
    before = listeners_of(stage.processor)
    adapter = made("remoting://127.0.0.1:0", adapter_context)
    await adapter.start()
    assert adapter._server is not None
    door = weakref.ref(adapter._server.door)
    await adapter.drain(time.monotonic() + 60)
    await adapter.stop()
    await until(lambda: listeners_of(stage.processor) == before)
    del adapter
    gc.collect()
    assert door() is None


async def test_a_processor_forgets_a_door_that_could_not_be_opened(
    adapter_context: AdapterContext, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prime() -> None:
        raise OSError("not now")

    monkeypatch.setattr(stage.processor.queue_numbering, "prime", prime)
    before = listeners_of(stage.processor)
    adapter = made("remoting://127.0.0.1:0", adapter_context)
    with pytest.raises(OSError, match="not now"):
        await adapter.start()
    await adapter.stop()
    await until(lambda: listeners_of(stage.processor) == before)


async def test_one_that_never_started_ends(adapter_context: AdapterContext) -> None:
    adapter = made("remoting://127.0.0.1:0", adapter_context)

    await adapter.drain(0.0)
    await adapter.stop()

    assert adapter.farewell().connections == 0
