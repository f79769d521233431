"""The child processes of a gateway: started, exchanging messages, and reaped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from proxy.logs import logger
from proxy.supervision.poll_loop import READ, WRITE, PollLoop
from proxy.supervision.replacement import SIGNALS, SupervisorState
from proxy.workers import counts
from proxy.workers.channel import REST_S, Channel
from proxy.workers.crew import ADMIN, Member, Post, Role, Stage, choose, choose_for_admin, state_of
from proxy.workers.roster import admin_socket

_log = logger("popgate.supervisor")

LONGER_S = 15.0
"""How long a process may take beyond its drain before it is killed, while others go on,"""
_LAST_S = 10.0
"""and when the gateway ends as a whole, beyond the time in which that must be gone."""
ASK_S = 5.0
_MOST_UNANSWERED = 12
"""A serving process is pinged. After so many unanswered pings it is killed as hanging; pings are counted, not
seconds, because the whole machine may pause."""
_MOST_STARTING = {Role.WORKER: 24, Role.HOST: 360}
"""So many times (two minutes) a process is found starting before it counts as hanging. That of the broker has
half an hour: it may have to go through a store that was not closed well, or to save a damaged log."""
_MOST_HANDED = 1024
"""Copies of connections kept for a process that does not confirm them: a channel holds no more."""
_TELL_S = 0.2
_SOON_S = 0.1
_FULL_S = 1.0


class Forked(BaseException):
    """Raised in a process that was just made, so that nothing of the supervisor goes on in it."""

    def __init__(self, post: Post) -> None:
        super().__init__(post.number)
        self.post = post


class Processes:
    """The children of the supervisor, with callbacks.

    `changed` is called after each event, `ended` when a process ends unexpectedly, `returned` with a
    connection for which a process had no free descriptor, and its door, and `renew` when a process receives a
    reload request, with the fault that it found in the settings, if any.
    """

    def __init__(
        self,
        turning: PollLoop,
        staying: SupervisorState,
        drain_s: float,
        *,
        changed: Callable[[], None],
        ended: Callable[[Member, int], None],
        returned: Callable[[int, socket.socket], None] | None = None,
        renew: Callable[[str], None] = lambda wrong: None,
    ) -> None:
        self._turning = turning
        self._staying = staying
        self._patience_s = drain_s + LONGER_S
        self._changed = changed
        self._unasked = ended
        self._returned = returned if returned is not None else _close
        self._renew = renew
        self._handed = staying.generation << 40  # no number is of two programs, of which one was loaded anew
        self._members: dict[int, Member] = {}
        self._turn = 0
        self._telling = False
        self._resting = False
        """Channels that are `short` are written to in a moment."""
        self.leaving = False
        self.alone = False
        """Whether the broker ends with them, once they leave: nobody else serves their clients."""
        self.ends: float | None = None
        """When all must be gone, once that is so; in seconds of the machine's monotonic clock."""
        self.farewell: dict[str, int] = {}
        """The sum of the drain reports of all ended processes."""

    def __repr__(self) -> str:
        return f"<Processes {sorted(self._members)}>"

    def __iter__(self) -> Any:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def of(self, role: Role) -> list[Member]:
        return [member for member in self._members.values() if member.role is role]

    # -- made -------------------------------------------------------------------------------------

    def take_over(self, member: Member) -> None:
        """Adopt a process that was started before the program was re-executed."""
        self._members[member.number] = member
        self._watch(member)
        if member.stage is Stage.DRAINING:
            self.kill_later(member, self._patience_s)

    def make(self, role: Role, make_post: Callable[[int, Channel], Post]) -> None:
        """A copy of this process. Raises Forked there, and OSError here when none can be made."""
        ours, theirs = Channel.pair()
        number = self._staying.next_number()
        post = make_post(number, theirs)
        # A signal for the child must not be told to the parent: they share what signals are told through.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                ours.close()
                for other in self._members.values():
                    if not other.gone:
                        other.channel.close()
                    for _, copy in other.handed.values():
                        os.close(copy)
                raise Forked(post)
        except OSError:
            ours.close()
            theirs.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            raise
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        theirs.close()
        generation, serves = self._staying.generation, frozenset(door.number for door in post.doors)
        member = Member(number, role, pid, ours, serves, generation, since=time.monotonic())
        member.is_guest = bool(post.broker)
        self.take_over(member)
        self.tell_all()

    # -- heard ------------------------------------------------------------------------------------

    def _watch(self, member: Member) -> None:
        channel = member.channel
        events = READ | WRITE if channel.kept and not channel.short else READ
        self._turning.watch(channel.fileno(), events, lambda: self._turned(member))
        if channel.short and not self._resting:
            self._resting = True
            self._turning.later(REST_S, self._rested)

    def _rested(self) -> None:
        self._resting = False
        for member in self:
            if member.channel.short:
                self._turned(member)

    def _turned(self, member: Member) -> None:
        if member.gone:
            return
        with contextlib.suppress(OSError):  # it is gone, and that is read next
            member.channel.flush()
        self._watch(member)
        if member.behind and not member.channel.kept:
            self.tell(member, self._told_of_all())
            member.behind = False
        if self._hear(member):
            self.tell_all()
            self._changed()

    def _hear(self, member: Member) -> bool:
        """Read its messages; returns whether the others should be informed.

        At the end of the channel it is gone, or about to be.
        """
        news = False
        try:
            while (came := member.channel.receive()) is not None:
                news |= self._heard(member, came[0])
        except EOFError:
            self._close(member)
            self._kill_in_time(member)
            return True
        return news

    def _heard(self, member: Member, message: dict[str, Any]) -> bool:
        member.unanswered = 0
        if "alive" in message:
            return False
        if "took" in message:
            member.took(message["took"])
            if len(message) == 1:
                return False
        if "full" in message:
            self._full(member, message["full"])
        if "closed" in message:
            member.connections -= message["closed"]
            self._tell_soon()
            return False
        if "admin" in message:
            member.has_admin = message["admin"]
            if not member.has_admin:
                self.tell(member, {"admin": False})  # it comes after the last connection that it was handed
        if "renew" in message:
            self._renew(message["renew"])
        if "ready" in message:
            member.stage = Stage.READY
            member.ready_at = time.monotonic()
            self._staying.share = message["ready"] or self._staying.share
            if member.role is Role.HOST and member.generation == self._staying.generation:
                self._staying.note_host()
        if "failed" in message:
            member.failure = message["failed"], message["usage"]
        if "draining" in message:
            self._drains(member)
            # Not yet: of a signal to all processes the supervisor may hear only now.
            self._turning.later(_SOON_S, lambda: self.tell(member, {"drain": True, "alone": self.alone}))
        if "farewell" in message:
            member.farewell = message["farewell"]
        return True

    # -- told -------------------------------------------------------------------------------------

    def tell(self, member: Member, message: dict[str, Any]) -> None:
        if not member.gone:
            with contextlib.suppress(OSError):
                member.channel.send(message)
                self._watch(member)

    def tell_all(self) -> None:
        """Send the crew to all. A process that does not read gets it later, so that nothing piles up."""
        message = self._told_of_all()
        for member in self:
            if member.channel.kept:
                member.behind = True
            else:
                self.tell(member, message)

    def _told_of_all(self) -> dict[str, Any]:
        members = list(self._members.values())
        crew = {
            "state": state_of(members, leaving=self.leaving),
            "restarts": self._staying.restarts,
            "reload": self._staying.reload,
            "renewing": any(member.generation != self._staying.generation for member in members),
            "members": [member.facts() for member in members if not member.gone],
        }
        return {"crew": crew}

    def _tell_soon(self) -> None:
        """Connections change often: their number is reported from time to time."""
        if not self._telling:
            self._telling = True
            self._turning.later(_TELL_S, self._told_late)

    def _told_late(self) -> None:
        self._telling = False
        self.tell_all()

    def hand(self, door: int, descriptor: int) -> bool:
        """Give a connection to a process; whether one could take it."""
        members = self._members.values()
        for member in choose_for_admin(members) if door == ADMIN else choose(members, door):
            try:
                if not member.channel.offer(
                    b'{"door": %d, "number": %d}' % (door, self._handed + 1), descriptor
                ):
                    continue
            except OSError:
                continue
            self._handed += 1
            self._keep(member, self._handed, door, descriptor)
            self._turn += 1
            member.turn = self._turn
            member.connections += door != ADMIN
            self._tell_soon()
            return True
        return False

    def _keep(self, member: Member, number: int, door: int, descriptor: int) -> None:
        """Keep a copy until the connection is accepted: the system closes it if a process has no free
        descriptor."""
        with contextlib.suppress(OSError):  # no room here: then without
            member.handed[number] = door, os.dup(descriptor)
        if len(member.handed) > _MOST_HANDED:
            member.took(next(iter(member.handed)))

    def _full(self, member: Member, number: int) -> None:
        """The connection goes to another one, and so do the next ones, or they wait."""

        def over() -> None:
            member.full = False

        if not member.full:
            member.full = True
            _log.warning("a process has no descriptor left", number=member.number, pid=member.pid)
            self._turning.later(_FULL_S, over)
        door, copy = member.handed.pop(number, (ADMIN, -1))
        if copy >= 0:
            self._returned(door, socket.socket(fileno=copy))

    def ask(self) -> None:
        """From now on see whether those that serve live, and the others start: a process may hang."""
        for member in self:
            if member.stage is Stage.STARTING and not member.gone:
                member.starting += 1
                if member.starting > _MOST_STARTING[member.role]:
                    self._kill(member, "a process does not become ready, and is killed")
            if member.stage is not Stage.READY or member.gone:
                continue
            if member.unanswered >= _MOST_UNANSWERED:
                self._kill(member, "a process does not answer, and is killed")
                continue
            member.unanswered += 1
            if not member.channel.kept:
                self.tell(member, {"alive": True})
        self._turning.later(ASK_S, self.ask)

    # -- ended ------------------------------------------------------------------------------------

    def drain(self, member: Member, *, alone: bool = False, ends: float | None = None) -> None:
        """Ask it to stop when its requests are finished; `alone`: no other process serves its clients.

        `ends`: the deadline, by default a drain's time from now.
        """
        _log.info("a process drains", number=member.number, pid=member.pid, role=member.role.value)
        self.tell(member, {"drain": True, "alone": alone, "ends": ends})
        self._drains(member)
        self.tell_all()

    def stop(self, seconds: float) -> None:
        """Ask all to end at once, and kill those that have not after so long."""
        for member in self:
            self.tell(member, {"stop": True})
            self.kill_later(member, seconds)

    def _drains(self, member: Member) -> None:
        if member.stage is not Stage.DRAINING:
            member.stage = Stage.DRAINING
            self._kill_in_time(member)

    def _kill_in_time(self, member: Member) -> None:
        left = None if self.ends is None else max(self.ends - time.monotonic(), 0.0) + _LAST_S
        self.kill_later(member, self._patience_s if left is None else left)

    def kill_later(self, member: Member, seconds: float) -> None:
        def kill() -> None:
            if self._members.get(member.number) is member:
                self._kill(member, "a process does not end, and is killed")

        self._turning.later(seconds, kill)

    def _kill(self, member: Member, sentence: str) -> None:
        _log.error(sentence, number=member.number, pid=member.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)

    def over(self, pid: int, code: int) -> None:
        """A child has ended."""
        for member in [member for member in self._members.values() if member.pid == pid]:
            if not member.gone:
                self._hear(member)
            self._close(member)  # also while a process that it made holds the other end
            del self._members[member.number]
            with contextlib.suppress(OSError):
                counts.add_to_past(self._staying.folder, member.number)
            with contextlib.suppress(OSError):
                admin_socket(self._staying.folder, member.number).unlink()
            for name, count in member.farewell.items():
                self.farewell[name] = self.farewell.get(name, 0) + count
            if member.stage is not Stage.DRAINING and not self.leaving:
                self._unasked(member, code)
            self.tell_all()

    def kill_all(self) -> None:
        """Kill the remaining processes at the very end."""
        for member in self:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(member.pid, 0)

    def _close(self, member: Member) -> None:
        if not member.gone:
            member.gone = True
            self._turning.forget(member.channel.fileno())
            member.channel.close()
            # Operators that it did not take are as they came: somebody else answers them.
            for number in [
                connection_number for connection_number, (door, _) in member.handed.items() if door == ADMIN
            ]:
                self._returned(ADMIN, socket.socket(fileno=member.handed.pop(number)[1]))
            member.took(self._handed)


def _close(_door: int, connection: socket.socket) -> None:
    connection.close()
