"""proxy.workers.channel: messages and descriptors between two processes, in order, and the end."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.workers.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    made = Channel.pair()
    yield made
    for end in made:
        end.close()


def heard(channel: Channel) -> list[dict[str, Any]]:
    told = []
    while (came := channel.receive()) is not None:
        told.append(came[0])
    return told


def test_messages_stay_apart_and_in_order(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    for number in range(3):
        one.send({"number": number, "text": "é" * number})
    assert heard(other) == [{"number": number, "text": "é" * number} for number in range(3)]
    assert other.receive() is None


def test_a_descriptor_comes_with_its_message_and_is_not_inherited(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    near, far = socket.socketpair()
    with near, far:
        assert one.offer(b'{"door": 1}', far.fileno())
        one.send({"after": True})
        came = other.receive()
        assert came is not None
        assert came[0] == {"door": 1}
        with socket.socket(fileno=came[1]) as handed:
            assert not os.get_inheritable(handed.fileno())
            handed.send(b"here")
            assert near.recv(10) == b"here"
        assert other.receive() == ({"after": True}, -1)


def test_what_has_no_room_is_kept_and_a_connection_is_not_taken(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    sent = 0
    while not one.kept:
        one.send({"number": sent})
        sent += 1
    one.send({"number": sent})
    assert one.kept == 2
    with socket.socket() as connection:
        assert not one.offer(b'{"door": 1}', connection.fileno())
    assert [told["number"] for told in heard(other)] == list(range(sent - 1))
    one.flush()
    assert one.kept == 0
    assert [told["number"] for told in heard(other)] == [sent - 1, sent]


def test_a_full_channel_takes_no_connection(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    with socket.socket() as connection:
        offered = 0
        while one.offer(b'{"door": 1}', connection.fileno()):
            offered += 1
        assert offered
        assert one.kept == 0
        for _ in range(offered):
            came = other.receive()
            assert came is not None
            os.close(came[1])
        assert one.offer(b'{"door": 1}', connection.fileno())


def test_what_is_kept_can_be_taken_along_and_stays(ends: tuple[Channel, Channel]) -> None:
    one, _ = ends
    while one.kept < 2:
        one.send({"told": True})
    assert one.kept_messages() == [{"told": True}, {"told": True}]
    assert one.kept == 2


@pytest.mark.parametrize("unread", [False, True])
def test_what_was_said_before_the_end_is_heard(ends: tuple[Channel, Channel], unread: bool) -> None:
    one, other = ends
    if unread:
        other.send({"never": "read"})
    one.send({"last": "words"})
    one.close()
    assert other.receive() == ({"last": "words"}, -1)
    with pytest.raises(EOFError):
        other.receive()
    with pytest.raises(OSError, match="pipe"):
        other.send({"too": "late"})


def test_an_inherited_end_goes_on(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.set_inheritable(True)
    again = Channel.of(os.dup(one.fileno()))
    with contextlib.closing(again):
        assert not os.get_inheritable(again.fileno())
        again.send({"again": 1})
        assert heard(other) == [{"again": 1}]
