"""The supervisor process: it accepts connections, passes them to workers, and restarts workers that die."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

from proxy.announcement import say
from proxy.app import CannotStart, build
from proxy.config.error import SettingsWrong
from proxy.garbage_collection import freeze_loaded
from proxy.lifetime.deadline import closing_s, lame_duck_s
from proxy.lifetime.terminal import Terminal
from proxy.logs import logger
from proxy.supervision.doors import Doors, with_options
from proxy.supervision.poll_loop import Appointment, PollLoop
from proxy.supervision.processes import Processes
from proxy.supervision.replacement import SIGNALS, SupervisorState, load_anew
from proxy.supervision.trial_process import bind_anew, kill_trial, spawn_trial, why_failed
from proxy.tls.door_tls import door_urls
from proxy.workers.channel import Channel
from proxy.workers.crew import ADMIN, Backoff, Door, Member, Post, Role, Stage, broker_at, end_told

if TYPE_CHECKING:
    from proxy.config.settings import Settings

_log = logger("popgate.supervisor")
_TRIAL_S = 60.0
_HOST_PART = 0.5
"""The share of the time after the last client that the process of an embedded broker has alone."""
_CUT_S = 5.0
"""How long processes may take to end after a second signal."""


class Supervisor:
    """The supervisor of `workers` processes. `staying`: the state from before the program was re-executed."""

    def __init__(self, settings: Settings, workers: int, staying: SupervisorState | None = None) -> None:
        self._settings = settings
        self._wanted = workers
        self._hosts = settings.broker.startswith("embedded:")
        self._told_ready = staying is not None
        self._staying = staying = staying if staying is not None else SupervisorState.first()
        staying.note_waiting(settings)
        self._turning = PollLoop()
        self._processes = Processes(
            self._turning,
            staying,
            settings.stopping.drain_s,
            changed=self._tend,
            ended=self._ended_unasked,
            returned=lambda door, connection: self._doors.give_back(door, connection),
            renew=lambda wrong: self._refuse(wrong) if wrong else self._renew(),
        )
        self._doors = Doors(self._turning, self._processes.hand)
        self._terminal = Terminal()
        self._backoffs = {role: Backoff() for role in Role}
        self._pauses: dict[Role, Appointment] = {}
        self._failure: Exception | None = None
        self._trial = 0
        self._again = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Supervisor {self._processes!r}>"

    def run(self) -> None:
        """Until all have ended. Raises CannotStart, SettingsWrong; Forked in each process that it makes."""
        try:
            self._begin()
            self._tend()
            self._turning.run()
        finally:
            if os.getpid() == self._pid:
                self._end()
            else:
                self._turning.close()
                self._doors.abandon()
        if self._failure is not None:
            raise self._failure
        farewell = self._processes.farewell
        _log.info("stopped", **farewell)
        say("stopped " + " ".join(f"{name}={count}" for name, count in farewell.items()))

    # -- the beginning and the end ----------------------------------------------------------------

    def _begin(self) -> None:
        self._take_doors()
        for member in self._staying.members:
            self._processes.take_over(member)
        self._staying.members.clear()
        self._turning.on_signals(SIGNALS, self._signalled)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._reap()
        freeze_loaded()
        if self._staying.generation:
            _log.info("renewing", generation=self._staying.generation, workers=self._wanted)
        self._processes.ask()
        self._open()

    def _take_doors(self) -> None:
        left, self._staying.doors = self._staying.doors, []
        for url in door_urls(self._settings):
            self._take(url, left)
        if self._settings.admin not in ("", "off"):
            self._take(self._settings.admin, left, admin=True)
        self._doors.keep_former(left, self._staying.waiting)

    def _take(self, url: str, left: list[tuple[Door, list[int]]], *, admin: bool = False) -> None:
        try:
            for door_links in sorted(left, key=lambda door_links: door_links[0].url != url):
                door, links = door_links
                if (door.number == ADMIN) is admin and (now := with_options(door, url)) is not None:
                    left.remove(door_links)
                    self._doors.take_over(now, links)
                    return
            self._doors.bind(ADMIN if admin else self._staying.next_number(), url)
        except ValueError as error:
            raise SettingsWrong(str(error)) from None
        except OSError as error:
            if not self._staying.generation:
                build(self._settings)  # what is wrong with the settings goes before a port that is taken
                raise CannotStart(f"{error} (choose another {'--admin' if admin else '--listen'})") from None
            _log.error("an address that the settings name now is left out", why=str(error))

    def _end(self) -> None:
        """Nothing stays: no port, no process, no folder."""
        self._doors.close()
        if self._trial:
            kill_trial(self._trial)
        self._processes.kill_all()
        self._turning.close()
        shutil.rmtree(self._staying.folder, ignore_errors=True)

    # -- who is there, and who should be ----------------------------------------------------------

    def _is_old(self, member: Member) -> bool:
        return member.generation != self._staying.generation

    def _tend(self) -> None:
        """Take the next step towards the desired crew. Called after every event."""
        self._open()
        if self._processes.leaving:
            self._tend_leaving()
        elif self._tend_host() and not self._tend_workers():
            self._tend_old_host()
        if self._again:
            self._renew()

    def _open(self) -> None:
        if self._processes.leaving:
            return
        # Not what a reload has just named: at an address that nobody serves clients would wait.
        wanted = {door for member in self._processes if member.stage is Stage.READY for door in member.serves}
        wanted |= {ADMIN for member in self._processes if member.has_admin}
        for number, why in self._doors.open(wanted):
            if self._told_ready:
                _log.error("an address is left out", why=why)
            elif self._failure is None:
                which = "--admin" if number == ADMIN else "--listen"
                self._failure = CannotStart(f"{why} (choose another {which})")
                self._leave()

    def _tend_host(self) -> bool:
        """Whether workers may be made: they are told where the process of an embedded broker serves it."""
        if not self._hosts:
            return True
        if not self._processes.of(Role.HOST):
            self._make(Role.HOST)
        return bool(self._staying.share)

    def _tend_workers(self) -> bool:
        """Whether something is under way. A newcomer is ready before an old one goes, one after the other."""
        workers = self._processes.of(Role.WORKER)
        staff = [member for member in workers if member.stage is not Stage.DRAINING]
        if len(staff) < self._wanted:
            for _ in range(self._wanted - len(staff)):
                self._make(Role.WORKER)
            return True
        if any(member.stage is Stage.STARTING for member in staff):
            return True
        self._all_ready()
        surplus = len(staff) > self._wanted
        old = [member for member in staff if self._is_old(member)]
        if not surplus and not old:
            return False
        if len(workers) > len(staff):
            return True  # one drains
        if surplus:
            self._processes.drain((old or staff)[0])
        else:
            self._make(Role.WORKER)
        return True

    def _tend_old_host(self) -> None:
        """Last of all: its guests wait a moment for the next one. If there is to be none they go first."""
        needed = not self._hosts and any(member.is_guest for member in self._processes)
        if needed or any(member.stage is Stage.DRAINING for member in self._processes):
            return
        for host in self._processes.of(Role.HOST):
            if not self._hosts or self._is_old(host):
                self._processes.drain(host)
                return

    def _tend_leaving(self) -> None:
        """Workers go first: they need the broker to the last."""
        workers = self._processes.of(Role.WORKER)
        if all(worker.stage is not Stage.READY for worker in workers):
            self._doors.close(keep_admin=True)  # who dials from now on would wait for nobody
        if not workers:
            self._drain_hosts()
        if not len(self._processes):
            self._turning.over = True

    def _all_ready(self) -> None:
        if self._told_ready:
            return
        self._told_ready = True
        served = [door.address for door in self._doors.served]
        _log.info("ready", workers=self._wanted, listening=served, admin=self._doors.admin)
        say(
            *(f"listening {address}" for address in served),
            *([f"sharing {self._staying.share}"] if self._settings.share_broker else []),
            *([f"admin {self._doors.admin}"] if self._doors.admin else []),
            "ready",
        )

    def _make(self, role: Role) -> None:
        """A new process, unless one of its kind died just now. Raises Forked there."""
        if role in self._pauses:
            return
        try:
            self._processes.make(role, lambda number, channel: self._post(role, number, channel))
        except OSError as error:
            _log.error("no process can be made", why=error.strerror)
            self._pause(role, 1.0)

    def _post(self, role: Role, number: int, channel: Channel) -> Post:
        staying, is_host = self._staying, role is Role.HOST
        return Post(
            number=number,
            role=role,
            channel=channel,
            folder=staying.folder,
            doors=() if is_host else self._doors.served,
            admin=self._doors.admin,
            listens=tuple(door.listen for door in self._doors.served),
            broker=broker_at(staying.share) if self._hosts and not is_host else "",
            share=staying.place_of_broker(self._settings.share_broker) if is_host else "",
            secret=staying.secret,
            first=not len(self._processes),
        )

    def _pause(self, role: Role, seconds: float) -> None:
        def over() -> None:
            self._pauses.pop(role, None)
            self._tend()

        self._pauses[role] = self._turning.later(seconds, over)

    def _ended_unasked(self, member: Member, code: int) -> None:
        sentence, usage = member.failure or (f"a {member.role.value} process {end_told(code)}", False)
        facts = {"number": member.number, "pid": member.pid, "role": member.role.value}
        if not self._told_ready:
            self._failure = SettingsWrong(sentence) if usage else CannotStart(sentence)
            self._leave()
            return
        # A renewal that is asked for would wait until such a process starts, which none may ever do.
        is_new = not self._is_old(member) and any(map(self._is_old, self._processes))
        if is_new and (member.failure is not None or self._again):
            _log.error("what is new cannot start; those that were there go on", why=sentence, **facts)
            if member.failure is not None:
                self._staying.note_reload(sentence)
            for current in self._processes:
                current.generation = self._staying.generation
            return
        if member.role is Role.HOST and not self._is_old(member):
            self._staying.note_host(sentence)
        self._staying.restarts += 1
        rest_s = self._backoffs[member.role].after(member, time.monotonic())
        _log.error("a process ended and is started again", why=sentence, in_s=rest_s, **facts)
        if rest_s:
            self._pause(member.role, rest_s)

    # -- signals ----------------------------------------------------------------------------------

    def _signalled(self, number: signal.Signals) -> None:
        if number is signal.SIGCHLD:
            self._reap()
        elif number is signal.SIGHUP and not self._terminal.is_gone():
            self._renew()
        elif not self._processes.leaving:
            wanted = self._settings.stopping
            lame_s = lame_duck_s(wanted.lame_duck_s, wanted.drain_s)
            _log.info("stopping", drain_s=wanted.drain_s, lame_duck_s=lame_s)
            self._leave(lame_s)
        elif number is not signal.SIGHUP:  # a terminal that closes sends several, which count as one
            _log.warning("a second signal: the drain is cut short")
            self._doors.close(keep_admin=True)
            self._processes.stop(_CUT_S)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = reaped[0], os.waitstatus_to_exitcode(reaped[1])
                if pid == self._trial:
                    self._tried(code)
                else:
                    self._processes.over(pid, code)
        self._tend()

    def _leave(self, lame_s: float = 0.0) -> None:
        """`lame_s`: for how long all is served on before the doors are closed."""
        processes, drain_s = self._processes, self._settings.stopping.drain_s
        processes.leaving, processes.alone = True, self._hosts
        if self._failure is not None:
            self._doors.close(keep_admin=True)
            processes.stop(_CUT_S)
        else:
            processes.ends = time.monotonic() + drain_s
            if self._hosts:
                self._turning.later(drain_s - closing_s(drain_s) * _HOST_PART, self._drain_hosts)
            ready = [member for member in processes.of(Role.WORKER) if member.stage is Stage.READY]
            if lame_s and ready:
                for member in ready:
                    processes.tell(member, {"leave": True})
                processes.tell_all()
                self._turning.later(lame_s, self._drain_workers)
            else:
                self._drain_workers()
        self._tend()

    def _drain_workers(self) -> None:
        """With an embedded broker they are gone before it has to close."""
        drain_s, ends = self._settings.stopping.drain_s, self._processes.ends
        if ends is not None and self._hosts:
            ends -= closing_s(drain_s) * _HOST_PART
        self._doors.close(keep_admin=True)
        for member in self._processes.of(Role.WORKER):
            self._processes.drain(member, alone=self._hosts, ends=ends)

    def _drain_hosts(self) -> None:
        for host in self._processes.of(Role.HOST):
            if host.stage is not Stage.DRAINING:
                self._processes.drain(host, ends=self._processes.ends)

    def _renew(self) -> None:
        """See first, in a process beside, whether the program starts as it is now, with its settings."""
        if self._processes.leaving:
            return
        if self._trial or not self._told_ready or any(map(self._is_old, self._processes)):
            self._again = True
            return
        self._again = False
        _log.info("asked to renew: the settings are looked at")
        try:
            self._trial = spawn_trial(self._staying.folder)
        except OSError as error:
            self._refuse(error.strerror or str(error))
            return
        trial = self._trial
        self._turning.later(_TRIAL_S, lambda: self._give_up(trial))

    def _give_up(self, trial: int) -> None:
        """A trial that hangs would keep all later ones from being made."""
        if self._trial == trial:
            kill_trial(trial)

    def _refuse(self, why: str) -> None:
        _log.error("what is new cannot start; all goes on as it was", why=why)
        self._staying.note_reload(why)
        self._processes.tell_all()

    def _tried(self, code: int) -> None:
        self._trial = 0
        if self._processes.leaving or (self._again and not self._turning.hears(signal.SIGHUP)):
            return  # what was asked meanwhile cannot be told to a program that replaces this one
        staying = self._staying
        if why := why_failed(staying.folder, code) if code else bind_anew(self._doors, staying):
            self._refuse(why)
            return
        reload = staying.reload
        staying.note_reload()
        staying.members = list(self._processes)
        staying.generation += 1
        # What was told this program and not heard is for the next one, which finds it held back.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        again, self._again = self._again, False
        for number in {*self._turning.unheard(), *([signal.SIGHUP] if again else ())}:
            signal.raise_signal(number)
        try:
            load_anew(staying, self._doors)
        except OSError as error:
            staying.generation -= 1
            staying.members, staying.reload = [], reload
            self._refuse(f"the program cannot be loaded anew: {error.strerror}")
