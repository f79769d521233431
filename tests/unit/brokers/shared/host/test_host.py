"""brokers.shared.host.host: a broker served on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest

from popgate.errors import BadRequest, BrokerTimeout, BrokerUnavailable


def path_of(place) -> Path:
    return Path(place.url.partition(":")[2])


async def test_a_socket_in_the_file_system_is_for_this_user_only_and_gone_at_the_end(place) -> None:
    host = await place.open()
    assert host.address == place.url
    assert stat.S_IMODE(os.stat(path_of(place)).st_mode) == 0o600
    await host.stop()
    assert not path_of(place).exists()
    assert host.address == ""


async def test_a_socket_left_behind_is_taken_and_one_in_use_is_not(place) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path_of(place)))
    left.close()
    await place.open()
    guest = await place.visit()
    with pytest.raises(OSError, match="somebody listens"):
        await place.make_host().start()
    assert await guest.topics_of("g") == ["g"], "it works on"


async def test_what_is_no_socket_is_left_alone(place) -> None:
    path_of(place).write_text("important")
    with pytest.raises(OSError, match="cannot listen at unix:"):
        await place.make_host().start()
    assert path_of(place).read_text() == "important"


async def test_a_socket_that_somebody_else_put_there_is_not_removed(place) -> None:
    host = await place.open()
    path_of(place).unlink()
    path_of(place).write_text("another's")
    await host.stop()
    assert path_of(place).read_text() == "another's"


async def test_a_port_is_chosen_and_told(place) -> None:
    place.host = place.make_host("tcp://127.0.0.1:0")
    await place.host.start()
    guest = place.make_guest(place.host.address.replace("tcp:", "popgate:"))
    await guest.start()
    assert await guest.topics_of("g") == ["g"]


@pytest.mark.parametrize("url", ["tcp://0.0.0.0:0", "tcp://10.0.0.1:0", "tcp://[::]:0", "tcp://gateway:0"])
async def test_beyond_this_machine_it_listens_with_a_secret_only(place, url: str) -> None:
    with pytest.raises(BadRequest, match=r"only with a secret: set shared\.secret"):
        place.make_host(url)
    place.make_host(url, secret="s")


@pytest.mark.parametrize(
    ("of_host", "of_guest", "told"),
    [
        ("one", "two", "the gateway does not know the secret"),
        ("one", "", "this side has a secret and the gateway none"),
        ("", "two", "the gateway has a secret and this side has none"),
    ],
)
async def test_who_does_not_know_the_secret_is_refused(place, of_host: str, of_guest: str, told: str) -> None:
    host = await place.open(secret=of_host)
    with pytest.raises(BrokerUnavailable, match=told):
        await place.visit(secret=of_guest)
    assert host.figures()["shared_guests"] == 0


async def test_who_knows_the_secret_is_served(place) -> None:
    host = await place.open(secret="the same")
    guest = await place.visit(secret="the same")
    assert await guest.topics_of("g") == ["g"]
    assert host.figures()["shared_guests"] == 1


async def test_another_version_is_refused_with_both_named(place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.open()
    monkeypatch.setattr(
        "brokers.shared.guest.handshake.hello_fields", lambda nonce, gateway: {"nonce": nonce}
    )
    with pytest.raises(BrokerUnavailable, match="run the same version on both sides"):
        await place.visit()


async def test_more_guests_than_there_may_be_are_refused(place, soon) -> None:
    host = await place.open(max_guests=2)
    await place.visit()
    await place.visit()
    with pytest.raises(BrokerUnavailable, match="no broker is shared"):
        await place.visit()
    await place.guests[0].stop()
    await soon(lambda: host.figures()["shared_guests"] == 1)
    await place.visit()


async def test_who_says_nothing_keeps_no_gateway_out(place, soon) -> None:
    """Whoever reaches the port could, for as long as a gateway may take to say who it is."""
    host = await place.open(max_guests=2)
    first = await asyncio.open_unix_connection(path_of(place))
    second = await asyncio.open_unix_connection(path_of(place))
    await soon(lambda: len(host._guests) == 2)
    guest = await place.visit()
    assert await guest.topics_of("g") == ["g"]
    assert await first[0].read() == b"", "the one that has been silent for longest makes room"
    other = await place.visit()
    assert await second[0].read() == b""
    with pytest.raises(BrokerUnavailable, match="no broker is shared"):
        await place.visit()
    assert await guest.topics_of("g") == await other.topics_of("g") == ["g"]
    for _, writer in (first, second):
        writer.close()


async def test_a_draining_host_takes_no_new_guests_and_serves_the_old(place) -> None:
    host = await place.open()
    guest = await place.visit()
    host.drain()
    assert await guest.topics_of("g") == ["g"]
    with pytest.raises(BrokerUnavailable):
        await place.visit()


async def test_a_stopping_host_ends_what_waits_and_lets_the_rest_finish(place, soon) -> None:
    host = await place.open(stop_s=60.0)
    guest = await place.visit(reconnect_wait_s=0.0)
    popping = asyncio.create_task(guest.pop(place.context, place.request()))
    place.broker.gate = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(guest.topics_of("g"))
    await soon(lambda: place.broker.pops and host.figures()["shared_calls"] == 2)
    stopping = asyncio.create_task(host.stop())
    with pytest.raises(BrokerUnavailable, match="its process stops"):
        await popping  # it was ended, and there is no other host to ask
    place.broker.gate.set_result(None)
    assert await asking == ["g"]
    await stopping
    assert place.broker.cancelled == ["pop"]


async def test_what_waits_goes_on_at_the_next_host_and_what_is_asked_meanwhile_waits_for_it(
    place, soon, stored
) -> None:
    host = await place.open(stop_s=60.0)
    guest = await place.visit(reconnect_wait_s=60.0)
    popping = asyncio.create_task(guest.pop(place.context, place.request()))
    await soon(lambda: place.broker.pops)
    place.broker.gate = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(guest.topics_of("before"))
    await soon(lambda: host.figures()["shared_calls"] == 2)
    stopping = asyncio.create_task(host.stop())
    await soon(lambda: place.broker.cancelled == ["pop"])
    meanwhile = asyncio.create_task(guest.topics_of("meanwhile"))
    place.broker.gate.set_result(None)
    assert await asking == ["before"]
    await stopping
    assert not meanwhile.done()
    await place.open()
    assert await meanwhile == ["meanwhile"]
    await soon(lambda: len(place.broker.pops) == 2)
    place.broker.feed(stored(b"late"))
    assert [message.body for message in await popping] == [b"late"]
    assert guest.figures()["host_reconnects_total"] == 1


async def test_a_guest_stops_well_while_its_host_does(place, soon) -> None:
    host = await place.open(stop_s=60.0)
    guest = await place.visit(reconnect_wait_s=0.0)
    place.broker.gate = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(guest.topics_of("g"))
    await soon(lambda: host.figures()["shared_calls"] == 1)
    stopping = asyncio.create_task(host.stop())
    await soon(lambda: not guest.figures()["host_connected"])
    leaving = asyncio.create_task(guest.stop())
    place.broker.gate.set_result(None)
    with contextlib.suppress(BrokerTimeout):  # both may be first
        assert await asking == ["g"]
    await asyncio.wait_for(asyncio.gather(stopping, leaving), 60)


async def test_what_does_not_finish_in_time_is_ended_and_nobody_knows_how(place, soon) -> None:
    host = await place.open(stop_s=0.05)
    guest = await place.visit(reconnect_wait_s=0.0)
    place.broker.gate = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(guest.topics_of("g"))
    await soon(lambda: host.figures()["shared_calls"] == 1)
    await host.stop()
    with pytest.raises(Exception, match="stopped before topics_of was done") as caught:
        await asking
    assert type(caught.value).__name__ == "BrokerTimeout"
