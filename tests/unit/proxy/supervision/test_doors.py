"""proxy.supervision.doors: ports that are bound at once, listened at when somebody serves, and handed on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protocols.adapter import parse_listen
from proxy.supervision.doors import Doors, with_options
from proxy.supervision.poll_loop import PollLoop
from proxy.workers.crew import ADMIN, Door


class Hands:
    """Takes connections while `full` is not set."""

    def __init__(self, turning: PollLoop) -> None:
        self.turning = turning
        self.full = False
        self.asked = 0
        self.got: list[tuple[int, tuple[str, int]]] = []
        self.wanted = 0

    def __call__(self, door: int, descriptor: int) -> bool:
        self.asked += 1
        if self.full:
            self.turning.over = self.asked >= 2
            return False
        with socket.socket(fileno=os.dup(descriptor)) as taken:
            self.got.append((door, taken.getpeername()[:2]))
        self.turning.over = len(self.got) >= self.wanted
        return True

    def take(self, count: int) -> None:
        self.wanted, self.turning.over = len(self.got) + count, False
        self.turning.run()


@pytest.fixture
def turning() -> Iterator[PollLoop]:
    made = PollLoop()
    yield made
    made.close()


@pytest.fixture
def hands(turning: PollLoop) -> Hands:
    return Hands(turning)


@pytest.fixture
def doors(turning: PollLoop, hands: Hands) -> Iterator[Doors]:
    made = Doors(turning, hands)
    yield made
    made.close()


@pytest.fixture
def dial() -> Iterator[Callable[..., socket.socket]]:
    links: list[socket.socket] = []

    def connect(address: str) -> socket.socket:
        host, _, port = address.partition("://")[2].rpartition(":")
        links.append(socket.create_connection((host.strip("[]"), int(port)), 5.0))
        return links[-1]

    yield connect
    for link in links:
        link.close()


def test_a_port_is_taken_at_once_and_refuses_until_somebody_serves(
    doors: Doors, hands: Hands, dial: Callable[..., socket.socket]
) -> None:
    doors.bind(3, "grpc://127.0.0.1:0")
    (door,) = doors.served
    assert (door.number, door.url, door.listen.port > 0) == (3, "grpc://127.0.0.1:0", True)
    with pytest.raises(ConnectionRefusedError):
        dial(door.address)
    doors.open([3, 99])
    ends = [dial(door.address) for _ in range(3)]
    hands.take(3)
    assert sorted(hands.got) == sorted((3, one.getsockname()) for one in ends)


def test_the_admin_port_is_no_door_for_clients(
    doors: Doors, hands: Hands, dial: Callable[..., socket.socket]
) -> None:
    assert doors.admin == ""
    doors.bind(ADMIN, "http://127.0.0.1:0")
    assert doors.served == ()
    doors.open([ADMIN])
    dial(doors.admin)
    hands.take(1)
    assert hands.got[0][0] == ADMIN


def test_a_name_with_several_addresses_is_one_port(
    doors: Doors, hands: Hands, dial: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    doors.bind(1, "grpc://gateway:0?advertised=x:1")
    monkeypatch.undo()
    (door,) = doors.served
    assert (door.listen.host, door.listen.options) == ("gateway", {"advertised": "x:1"})
    doors.open([1])
    for host in ("127.0.0.1", "127.0.0.2"):
        dial(f"grpc://{host}:{door.listen.port}")
    hands.take(2)


def test_what_nobody_can_take_now_is_taken_later(
    doors: Doors, hands: Hands, dial: Callable[..., socket.socket]
) -> None:
    doors.bind(1, "grpc://127.0.0.1:0")
    doors.open([1])
    ends = [dial(doors.served[0].address) for _ in range(3)]
    hands.full = True
    hands.take(1)
    hands.full = False
    hands.take(3)
    assert sorted(hands.got) == sorted((1, one.getsockname()) for one in ends)


def test_a_taken_port_and_a_strange_host_are_sentences(doors: Doors) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"grpc://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match=f"^cannot listen at {url}: address already in use$"):
            doors.bind(1, url)
    with pytest.raises(OSError, match=r"^cannot listen at grpc://no\.such\.host\.invalid:0: "):
        doors.bind(1, "grpc://no.such.host.invalid:0")
    with pytest.raises(ValueError, match="no address"):
        doors.bind(1, "grpc:")
    assert doors.served == ()


def test_a_path_that_another_gateway_took_before_somebody_served_is_lost(
    turning: PollLoop, doors: Doors, socket_folder: Path
) -> None:
    """Nobody listens there until a process serves, so that its file looks like one that was left behind."""
    url = f"grpc+unix:{socket_folder}/s"
    doors.bind(3, url)
    others = Doors(turning, lambda *_: True)
    others.bind(4, url)
    assert others.open({4}) == []
    assert doors.open({3}) == [(3, f"cannot listen at {url}: address already in use")]
    assert doors.served == ()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{socket_folder}/s")
    others.close()
    assert list(socket_folder.iterdir()) == []


def test_who_dialled_before_the_end_is_still_served(
    doors: Doors, hands: Hands, dial: Callable[..., socket.socket]
) -> None:
    doors.bind(1, "grpc://127.0.0.1:0")
    doors.bind(ADMIN, "http://127.0.0.1:0")
    doors.open([1, ADMIN])
    address = doors.served[0].address
    dial(address)
    doors.close(keep_admin=True)
    assert len(hands.got) == 1
    assert doors.served == ()
    with pytest.raises(ConnectionRefusedError):
        dial(address)
    dial(doors.admin)
    hands.take(1)


def test_a_port_is_taken_over_with_those_that_wait_there(
    doors: Doors, hands: Hands, turning: PollLoop, dial: Callable[..., socket.socket]
) -> None:
    before = Doors(turning, lambda door, descriptor: False)
    before.bind(5, "grpc://127.0.0.1:0")
    before.open([5])
    ((door, links),) = before.sockets().values()
    dial(door.address)
    inherited = [os.dup(link.fileno()) for link in links]
    before.close()
    doors.take_over(door, inherited)
    assert doors.served == (door,)
    doors.open([5])
    dial(door.address)
    hands.take(1)


def test_connections_that_nobody_could_take_are_taken_over_with_their_port(
    doors: Doors, hands: Hands, turning: PollLoop, dial: Callable[..., socket.socket]
) -> None:
    """Those of doors that are no more are closed."""
    hands.full = True
    before = Doors(turning, hands)
    before.bind(5, "grpc://127.0.0.1:0")
    before.bind(6, "grpc://127.0.0.1:0")
    before.open([5, 6])
    (door, links), (other, _) = before.sockets().values()
    client, lost = dial(door.address), dial(other.address)
    while before.waiting().keys() != {5, 6}:
        turning.over = False
        turning.later(0.01, lambda: setattr(turning, "over", True))
        turning.run()
    waiting = {number: [os.dup(link.fileno()) for link in held] for number, held in before.waiting().items()}
    inherited = [os.dup(link.fileno()) for link in links]
    before.close()
    hands.full = False
    doors.take_over(door, inherited)
    doors.keep_former([], waiting)
    doors.open([5])
    assert hands.got == [(5, client.getsockname())]
    assert lost.recv(1) == b""


def test_doors_that_listen_by_themselves_are_only_held(doors: Doors, hands: Hands) -> None:
    doors.bind(1, "grpc://127.0.0.1:0?transport=grpcio")
    port = doors.served[0].listen.port
    doors.open([1])
    with socket.socket() as worker:
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        worker.bind(("127.0.0.1", port))
        worker.listen()
        # All connections are its own.
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", port), 5.0):
                worker.accept()[0].close()
    assert hands.asked == 0


def test_what_is_given_back_is_handed_on_again_or_waits(
    doors: Doors, hands: Hands, dial: Callable[..., socket.socket]
) -> None:
    doors.bind(1, "grpc://127.0.0.1:0")
    doors.open([1])
    end = dial(doors.served[0].address)
    back: list[socket.socket] = []

    def keep(door: int, descriptor: int) -> bool:
        back.append(socket.socket(fileno=os.dup(descriptor)))
        hands.turning.over = True
        return True

    doors._hand = keep
    hands.turning.run()
    doors._hand = hands
    hands.full = True
    doors.give_back(1, back[0])
    hands.full = False
    hands.take(1)
    assert hands.got == [(1, end.getsockname())]


def test_what_is_given_back_while_nobody_has_room_is_looked_at_again_by_one_for_all(
    doors: Doors, hands: Hands, turning: PollLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each would be looked at again by itself, for as long as processes have no descriptors."""
    doors.bind(1, "grpc://127.0.0.1:0")
    doors.open([1])
    looks: list[Callable[[], None]] = []
    monkeypatch.setattr(turning, "later", lambda _seconds, work: looks.append(work))
    hands.full = True
    pairs = [socket.socketpair() for _ in range(5)]
    for ours, _ in pairs:
        doors.give_back(1, ours)
    assert len(looks) == 1
    looks.pop()()
    assert len(looks) == 1, "it is still so"
    taken: list[int] = []
    doors._hand = lambda door, descriptor: taken.append(door) or True  # type: ignore[func-returns-value]
    looks.pop()()
    assert (taken, looks) == ([1] * 5, [])
    for _, client in pairs:
        client.close()


def test_what_is_given_back_where_nobody_listens_any_more_is_closed(doors: Doors) -> None:
    doors.bind(1, "grpc://127.0.0.1:0")
    doors.close()
    ours, client = socket.socketpair()
    doors.give_back(1, ours)
    with client:
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("grpc://127.0.0.1:8081", "grpc://127.0.0.1:8081?tls=permissive", True),
        ("remoting://127.0.0.1:0?advertised=a:1", "remoting://127.0.0.1:0?advertised=b:2", True),
        ("grpc+unix:/run/a.sock?mode=660", "grpc+unix:/run/a.sock?mode=660", True),
        ("grpc+unix:/run/a.sock?mode=660", "grpc+unix:/run/a.sock", True),
        ("grpc+unix:/run/a.sock", "grpc+unix:/run/b.sock", False),
        ("grpc://127.0.0.1:8081", "grpc://127.0.0.1:8082", False),
        ("grpc://127.0.0.1:8081", "grpc+remoting://127.0.0.1:8081", True),
        ("grpc://127.0.0.1:8081", "grpc+remoting://127.0.0.1:8082", False),
        ("grpc://127.0.0.1:0", "remoting://127.0.0.1:0", False),
        ("grpc://127.0.0.1:8081", "grpc://127.0.0.1:8081?transport=grpcio", False),
    ],
)
def test_a_door_at_which_other_things_are_spoken_is_the_same(before: str, now: str, same: bool) -> None:
    door = Door(3, before, replace(parse_listen(before), port=4711))
    found = with_options(door, now)
    assert found == (Door(3, now, replace(parse_listen(now), port=4711)) if same else None)


def test_a_mode_that_is_none_is_refused_before_a_door_has_it() -> None:
    """The program that takes the door over could only end."""
    door = Door(3, "grpc+unix:/run/a.sock", parse_listen("grpc+unix:/run/a.sock"))
    with pytest.raises(ValueError, match="three digits"):
        with_options(door, "grpc+unix:/run/a.sock?mode=9")
