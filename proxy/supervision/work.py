"""The work of a child process of the supervisor: it serves until it is told to stop."""

from __future__ import annotations

import asyncio
import copy
import shutil
import signal
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from popgate.sockets.unix_sockets import make_room
from protocols.adapter import Listen
from proxy.announcement import write_out
from proxy.app import App, CannotStart, build
from proxy.config.error import SettingsWrong
from proxy.garbage_collection import serve_long
from proxy.lifetime.end_signals import EndSignals
from proxy.logs import logger, loop_trouble, set_up_logs
from proxy.running import loop_factory
from proxy.supervision.replacement import SIGNALS
from proxy.workers.crew import Post
from proxy.workers.membership import Membership

if TYPE_CHECKING:
    from proxy.config.settings import Settings

_log = logger("popgate.worker")

_LOOK_S = 0.05
_ANSWER_S = 1.0
"""How long the supervisor may take to answer that it hands over nothing more."""


def work(settings: Settings, post: Post) -> int:
    """Serve at a post; returns the exit status. Errors are not raised but reported to the supervisor."""
    _forget_signals()
    set_up_logs(settings.log, process=post.number)
    membership = Membership(post)
    membership.settings = settings
    try:
        app = build(settings_at(settings, post), membership=membership)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(app, membership))
    except (SettingsWrong, CannotStart) as error:
        membership.tell({"failed": str(error), "usage": isinstance(error, SettingsWrong)})
        return 1
    except Exception as error:
        _log.exception("this process failed")
        membership.tell({"failed": f"{type(error).__name__}: {error}"[:500], "usage": False})
        return 1
    finally:
        if membership.orphaned:
            _clear(membership)
        write_out()
    return 0


def settings_at(settings: Settings, post: Post) -> Settings:
    """The settings as they are for one process: with the ports that were chosen, and where the broker is."""
    own = copy.copy(settings)
    overrides: dict[str, object] = {
        "listen": tuple(_url(listen) for listen in post.listens) or settings.listen
    }
    overrides["share_broker"] = post.share
    if post.admin:
        overrides["admin"] = post.admin
    if post.broker:
        overrides["broker"] = post.broker
    own.__dict__.update(overrides)
    return own


def _url(listen: Listen) -> str:
    options = f"?{urlencode(listen.options)}" if listen.options else ""
    return listen.url(listen.port) + options


async def _serve(app: App, membership: Membership) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(loop_trouble)
    ending = EndSignals(loop)
    membership.attach(loop, ending)
    asked: float | None = None

    def told_to_end() -> None:
        nonlocal asked
        asked = app.clock.monotonic()
        # What was handed over by then is served: the answer comes after it, and begins the drain.
        membership.tell({"draining": True})
        loop.call_later(_ANSWER_S, ending.begin)

    loop.add_signal_handler(signal.SIGTERM, told_to_end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        started = await ending.first_of(app.start())
        if started:
            membership.on_leave = app.leave
            membership.tell({"ready": app.shared_at})
            serve_long()
            await ending.wait()
            membership.tell({"draining": True})
            since = app.clock.monotonic() if asked is None else asked
            if membership.is_host and (asked is not None or membership.orphaned):
                await ending.second_of(_guests_gone(app, since))
            if not await ending.second_of(app.drain(since, membership.ends)):
                _log.warning("the drain is cut short")
        await app.stop()
        membership.keep(app.metrics.text())
        membership.tell({"farewell": app.farewell() if started else {}})
    finally:
        if not sys.exc_info()[0]:
            membership.detach()


async def _guests_gone(app: App, since: float) -> None:
    """Wait for the workers, which drain at the same time and need the broker to the end."""
    ends = (app.before_closing(since) + since + app.drain_s) / 2  # they close, too, and before this one
    host = app.host
    # Guests go without telling anybody here.
    while host and host.figures()["shared_guests"] and app.clock.monotonic() < ends:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)


def _forget_signals() -> None:
    """A terminal signals all its processes; only the supervisor reacts to that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _clear(membership: Membership) -> None:
    """Without a supervisor the last process removes stale sockets."""
    folder = membership.post.folder
    try:
        for path in (membership.admin_path, *folder.glob("admin-*")):
            make_room(str(path))
    except OSError:
        return  # somebody is there, or cleans up at this moment
    shutil.rmtree(folder, ignore_errors=True)
