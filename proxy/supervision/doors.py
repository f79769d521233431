"""The gateway's ports: bound and accepted from by the supervisor, served by the workers."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from popgate.sockets.unix_sockets import UnixSocket, identity_of, remove
from protocols.adapter import Listen, joined, mode_of, parse_listen
from protocols.schemes import listens_by_itself
from proxy.supervision.poll_loop import READ, PollLoop
from proxy.workers.crew import ADMIN, Door

_BACKLOG = 4096
_AT_ONCE = 64
_REST_S = 0.05
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Hand = Callable[[int, int], bool]
"""Pass a connection to the door of a number, by its descriptor; False: no process can take it now."""


@dataclass(slots=True)
class _Bound:
    door: Door
    sockets: list[socket.socket]
    only_held: bool
    former: bool = False
    """The settings name it no more."""
    open: bool = False
    waiting: list[socket.socket] = field(default_factory=list)
    """Accepted connections that no process can take yet."""
    resting: bool = False
    """It is looked at again in a moment."""


class Doors:
    """All that is listened at. Of doors that must listen by themselves the ports are only held here."""

    def __init__(self, turning: PollLoop, hand: Hand) -> None:
        self._turning = turning
        self._hand = hand
        self._bound: dict[int, _Bound] = {}

    @property
    def served(self) -> tuple[Door, ...]:
        """Those for clients that the settings name."""
        return tuple(
            bound.door for number, bound in self._bound.items() if number != ADMIN and not bound.former
        )

    @property
    def admin(self) -> str:
        """The address of the admin port; empty: there is none."""
        return self._bound[ADMIN].door.address if ADMIN in self._bound else ""

    def bind(self, number: int, url: str) -> None:
        """Take an address, without listening there yet. Raises OSError with a sentence for the operator."""
        listen = parse_listen(url)
        only_held = number != ADMIN and listens_by_itself(listen)
        if listen.path:
            self._bound[number] = _bind_path(Door(number, url, listen), only_held=only_held)
            return
        sockets = _bind(listen, shared=only_held)
        port = sockets[0].getsockname()[1]
        door = Door(number, url, replace(listen, port=port))
        self._bound[number] = _Bound(door, sockets, only_held)

    def take_over(self, door: Door, descriptors: Sequence[int]) -> None:
        """Adopt a door of the settings that was bound before the program was re-executed."""
        self._adopt(door, descriptors)
        if door.file is not None and identity_of(door.listen.path) == door.file:
            with contextlib.suppress(OSError):  # it was removed just now, and nobody finds it any more
                os.chmod(door.listen.path, mode_of(door.listen))

    def _adopt(self, door: Door, descriptors: Sequence[int]) -> None:
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for link in sockets:
            link.setblocking(False)
            link.set_inheritable(False)
        only_held = door.number != ADMIN and listens_by_itself(door.listen)
        self._bound[door.number] = _Bound(door, sockets, only_held)

    def keep_former(
        self, left: Iterable[tuple[Door, Sequence[int]]], waiting: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        """Adopt doors that the settings name no more, until no process serves them: see `open`.

        They are all that clients have, should no process start with the new settings. Any process serves
        operators, at the address that is named now. `waiting`: connections of all doors, as `waiting` has
        them.
        """
        for door, descriptors in left:
            if door.number == ADMIN:
                for descriptor in descriptors:
                    os.close(descriptor)
                continue
            self._adopt(door, descriptors)
            self._bound[door.number].former = True
        for number, connections in (waiting or {}).items():
            for descriptor in connections:
                connection = socket.socket(fileno=descriptor)
                connection.set_inheritable(False)
                if number in self._bound:
                    self._bound[number].waiting.append(connection)
                else:
                    connection.close()

    def waiting(self) -> dict[int, list[socket.socket]]:
        """Accepted connections that no process can take yet, by the numbers of their doors."""
        return {number: bound.waiting for number, bound in self._bound.items() if bound.waiting}

    def sockets(self) -> dict[int, tuple[Door, list[socket.socket]]]:
        return {number: (bound.door, bound.sockets) for number, bound in self._bound.items()}

    def open(self, numbers: Collection[int]) -> list[tuple[int, str]]:
        """Listen and accept; idempotent. Doors that cannot are dropped: their numbers, and why.

        Somebody else may be bound to the same port, and listen there first. Former doors that are not among
        these are closed.
        """
        for number in [number for number, bound in self._bound.items() if bound.former]:
            if number not in numbers:
                self.drop(number)
        dropped: list[tuple[int, str]] = []
        for number in numbers:
            bound = self._bound.get(number)
            if bound is None or bound.only_held:
                continue
            if not bound.open:
                try:
                    _check_own(bound)
                    for link in bound.sockets:
                        link.listen(_BACKLOG)
                except OSError as error:
                    dropped.append((number, _sentence(bound.door.address, error)))
                    self.drop(number)
                    continue
                bound.open = True
            self._again(bound)
        return dropped

    def drop(self, number: int) -> None:
        """Listen there no more."""
        bound = self._bound.pop(number, None)
        if bound is not None:
            self._close(bound)

    def close(self, *, keep_admin: bool = False) -> None:
        """Stop listening; accepted connections are still served."""
        for number in [number for number in self._bound if not (keep_admin and number == ADMIN)]:
            if self._bound[number].open:
                self._accept(number)
            self.drop(number)

    def abandon(self) -> None:
        """In a child, which has copies of everything: they are the parent's business."""
        for bound in self._bound.values():
            for link in (*bound.sockets, *bound.waiting):
                link.close()
        self._bound.clear()

    def give_back(self, number: int, connection: socket.socket) -> None:
        """One that was handed on, and for which there was no room: others get it, or it waits."""
        bound = self._bound.get(number)
        if bound is None or not bound.open:
            connection.close()
            return
        bound.waiting.append(connection)
        self._accept(number)

    def _close(self, bound: _Bound) -> None:
        bound.open = False
        for link in bound.sockets:
            self._turning.forget(link.fileno())
            link.close()
        for link in bound.waiting:
            link.close()
        bound.waiting.clear()
        remove(bound.door.listen.path, bound.door.file)

    def _watch(self, number: int) -> None:
        bound = self._bound.get(number)
        if bound is not None and bound.open:
            for link in bound.sockets:
                self._turning.watch(link.fileno(), READ, lambda: self._accept(number))

    def _rest(self, bound: _Bound) -> None:
        """No worker can accept more: pause accepting for a moment."""
        for link in bound.sockets:
            self._turning.forget(link.fileno())
        if bound.resting:
            return  # many may be given back at once, each for nobody: one look is for all of them

        def over() -> None:
            bound.resting = False
            self._again(bound)

        bound.resting = True
        self._turning.later(_REST_S, over)

    def _again(self, bound: _Bound) -> None:
        number = bound.door.number
        if self._bound.get(number) is bound:
            self._watch(number)
            if bound.waiting:
                self._accept(number)

    def _accept(self, number: int) -> None:
        bound = self._bound.get(number)
        if bound is None or not bound.open:
            return
        for link in bound.sockets:
            for _ in range(_AT_ONCE):
                if bound.waiting:
                    came = bound.waiting.pop()
                else:
                    try:
                        came, _ = link.accept()
                    except BlockingIOError:
                        break
                    except OSError as error:
                        if error.errno in _NO_ROOM:
                            self._rest(bound)
                            return
                        continue  # it is gone already
                if not self._hand(number, came.fileno()):
                    bound.waiting.append(came)
                    self._rest(bound)
                    return
                came.close()


def with_options(door: Door, url: str) -> Door | None:
    """This door with the protocols and options of `url`; None: another address, or another kind of socket.

    Its port stays bound: binding it again would fail. A port that the system chose is that of the same
    protocols. Raises ValueError.
    """
    asked, before = parse_listen(url), parse_listen(door.url)
    if asked.path:
        mode_of(asked)  # which nobody else looks at before the file has it
    if url != door.url and (
        (asked.host, asked.port, asked.path) != (before.host, before.port, before.path)
        or (not asked.port and not asked.path and asked.scheme != before.scheme)
        or listens_by_itself(asked) is not listens_by_itself(before)
    ):
        return None
    return replace(door, url=url, listen=replace(asked, port=door.listen.port))


def _bind_path(door: Door, *, only_held: bool) -> _Bound:
    """A socket in the file system. Raises OSError."""
    if only_held:
        raise OSError(f"{door.address} cannot be shared by processes with this transport: set workers = 1")
    made = UnixSocket(door.listen.path, mode_of(door.listen))
    made.link.setblocking(False)
    return _Bound(replace(door, file=identity_of(made.path)), [made.link], only_held)


def _bind(listen: Listen, *, shared: bool) -> list[socket.socket]:
    """One socket for each address of the host, all with one port. Raises OSError."""
    host, port, made = listen.host, listen.port, list[socket.socket]()
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            link = socket.socket(family, socket.SOCK_STREAM)
            made.append(link)
            link.setblocking(False)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
            link.bind((address[0], port or (made[0].getsockname()[1] if len(made) > 1 else 0), *address[2:]))
    except OSError as error:
        for link in made:
            link.close()
        raise OSError(_sentence(f"{listen.scheme}://{joined(host, listen.port)}", error)) from None
    return made


def _check_own(bound: _Bound) -> None:
    """Raises OSError where somebody took the path: as long as nobody listens, its file looks left behind."""
    file = identity_of(bound.door.listen.path) if bound.door.file is not None else None
    if file != bound.door.file:
        number = errno.ENOENT if file is None else errno.EADDRINUSE
        raise OSError(number, os.strerror(number))


def _sentence(address: str, error: OSError) -> str:
    return f"cannot listen at {address}: {(error.strerror or str(error)).lower()}"
