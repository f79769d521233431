"""The reload transaction: settings are read, checked, and applied as a whole; a fault changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from popgate.clock import Clock
from popgate.errors import GatewayError
from processors.adjust import adjust
from protocols.adapter import AdapterContext, parse_listen
from proxy.config.error import SettingsWrong
from proxy.config.handover import Settled
from proxy.config.mapping import context_values, limits_values, new_group
from proxy.logs import logger, set_up_logs
from proxy.reload.changes import Change, changes
from proxy.reload.effects import Effect, effect_of
from proxy.reload.listeners import Listeners, Turnover
from proxy.reload.settings_process import read_anew
from proxy.tls.door_tls import certificate, door_urls

if TYPE_CHECKING:
    from processors.limits import Limits
    from processors.messaging import MessagingProcessor
    from protocols.adapter import Adapter
    from protocols.tls import Certificate
    from proxy.config.settings import Settings

_log = logger("popgate.reload")

_OF_CERTIFICATE = frozenset({"tls.certificate", "tls.key", "tls.client_ca", "tls.crl_file"})
_OF_ADDRESSES = frozenset({"listen", "tls.mode"})
"""They change the URLs of listeners, and only those that they are about."""


class AdminPort(Protocol):
    """The admin port, as far as a reload changes it."""

    def allow_hosts(self, hosts: Sequence[str]) -> None:
        """The names under which it may be reached while it listens on loopback only."""


class Gateway(Protocol):
    """The gateway that is changed: a `proxy.app.App`."""

    processor: MessagingProcessor
    doors: Sequence[Adapter]
    certificate: Certificate | None
    clock: Clock
    drain_s: float
    lame_duck_s: float

    @property
    def admin(self) -> AdminPort | None: ...
    @property
    def state(self) -> str: ...
    @property
    def addresses(self) -> list[str]: ...


class Reloads(Protocol):
    """The interface for the admin port."""

    async def reload(self) -> Outcome:
        """Raises SettingsWrong with the reason: nothing has changed."""
        ...

    async def look(self) -> list[Change]:
        """The changes that a reload would make. Raises SettingsWrong."""
        ...

    def standing(self) -> ReloadState: ...


@dataclass(slots=True)
class ReloadState:
    """How the last reload ended; of a gateway that has only started, its start. `at_ms` is of the last good
    one."""

    at_ms: int
    successful: bool = True
    reason: str = ""
    waiting: list[str] = field(default_factory=list)
    """Settings, and addresses, whose new values count after a restart."""

    def facts(self) -> dict[str, Any]:
        return {
            "successful": self.successful,
            "reason": self.reason,
            "last_good_at_ms": self.at_ms,
            "needs_restart": self.waiting,
        }

    def figures(self) -> dict[str, float]:
        """For the metrics."""
        return {
            "config_last_reload_successful": self.successful,
            "config_last_reload_success_timestamp_seconds": self.at_ms / 1000,
            "config_restart_pending": len(self.waiting),
        }


@dataclass(slots=True, frozen=True)
class Outcome:
    """Of a reload that went well."""

    message: str
    changes: list[Change]
    waiting: list[str]
    listening: list[str]

    def facts(self) -> dict[str, Any]:
        return {
            "message": self.message,
            "changes": [change.facts() for change in self.changes],
            "needs_restart": self.waiting,
            "listening": self.listening,
        }


class Reloader:
    """Of a gateway of one process. `settings` are those that it runs with, and stay so."""

    def __init__(
        self,
        gateway: Gateway,
        settings: Settled,
        listeners: Listeners,
        read: Callable[[], Awaitable[Settled]] = read_anew,
    ) -> None:
        self._gateway = gateway
        self._running = settings
        self._listeners = listeners
        self.read = read
        self._lock = asyncio.Lock()
        self._standing = ReloadState(gateway.clock.now_ms())
        self._asked: asyncio.Task[None] | None = None
        self._again = False

    def __repr__(self) -> str:
        return f"<Reloader {'good' if self._standing.successful else 'failed'}>"

    def standing(self) -> ReloadState:
        return self._standing

    def ask(self) -> None:
        """Reload in the background; the log has the outcome. Said again meanwhile, it is done once more."""
        if self._asked is not None and not self._asked.done():
            self._again = True
            return
        self._asked = asyncio.get_running_loop().create_task(self._reload_asked())

    async def _reload_asked(self) -> None:
        while True:
            self._again = False
            with contextlib.suppress(SettingsWrong):  # it is in the log
                await self.reload()
            if not self._again:
                return

    async def look(self) -> list[Change]:
        async with self._lock:  # one process beside is enough
            return changes(self._running, await self.read())

    async def reload(self) -> Outcome:
        async with self._lock:
            try:
                read = await self.read()
                self._check_ready()
                return await self._take(read)
            except Exception as error:
                reason = _reason(error)
                self._standing = replace(self._standing, successful=False, reason=reason)
                _log.error("the settings were not reloaded; all goes on as it was", why=reason)
                raise SettingsWrong(reason) from None
            except asyncio.CancelledError:
                _log.warning("a reload was cut short; all goes on as it was")
                raise

    def _check_ready(self) -> None:
        if self._gateway.state != "ready":
            raise SettingsWrong(f"the gateway is {self._gateway.state}: it takes no settings")

    async def _take(self, read: Settled) -> Outcome:
        """Whatever it raises: nothing has changed."""
        differences = changes(self._running, read)
        taken = [change.name for change in differences if change.effect is not Effect.RESTART]
        # New values of what is taken beside old ones of what needs a restart: they have to fit together, too.
        wanted = copy.deepcopy(self._running)
        for name in taken:
            wanted.take(read, name)
        settings = cast("Settings", wanted)
        limits = limits_values(settings, new_group(settings))
        gateway = self._gateway
        turnover = await self._turnover(settings, frozenset(taken))
        before, limits_before = copy.deepcopy(self._running), replace(gateway.processor.limits)
        try:
            self._check_ready()  # it may have been told to end meanwhile
            try:
                self._apply(wanted, limits, taken)
            except BaseException:
                self._apply(before, limits_before, taken)
                raise
        except BaseException:
            self._listeners.undo(turnover, drain_s=gateway.drain_s)
            raise
        # From here on nothing fails.
        self._listeners.commit(turnover, lame_s=gateway.lame_duck_s, drain_s=gateway.drain_s)
        gateway.doors = self._listeners.adapters
        gateway.certificate = turnover.adapter_context.certificate
        return self._done(differences, turnover)

    def _apply(self, settings: Settled, limits: Limits, names: Sequence[str]) -> None:
        """All but the listeners. `names`: of the settings that change."""
        gateway, wanted = self._gateway, cast("Settings", settings)
        for name in names:
            self._running.take(settings, name)
        adjust(gateway.processor, limits)
        gateway.drain_s, gateway.lame_duck_s = wanted.stopping.drain_s, wanted.stopping.lame_duck_s
        if gateway.admin is not None:
            gateway.admin.allow_hosts(wanted.api.hosts)
        if any(name.startswith("log.") for name in names):
            set_up_logs(wanted.log)

    async def _turnover(self, settings: Settings, names: frozenset[str]) -> Turnover:
        """New listeners, open. Whatever it raises: none accepts."""
        urls, adapter_context = door_urls(settings), self._listeners.adapter_context
        anew = {name for name in names if _is_of_listeners(name)} - _OF_ADDRESSES
        if anew or names & _OF_ADDRESSES:
            adapter_context = replace(
                adapter_context,
                **context_values(settings),
                certificate=await self._certificate(settings, adapter_context, names),
            )
        return await self._listeners.prepare(
            urls, adapter_context, anew=bool(anew), drain_s=self._gateway.drain_s
        )

    async def _certificate(
        self, settings: Settings, adapter_context: AdapterContext, names: frozenset[str]
    ) -> Certificate | None:
        """The one that is watched already, unless other files are meant."""
        listens = [parse_listen(url) for url in door_urls(settings)]
        made = certificate(settings, listens)
        if made is None or (adapter_context.certificate is not None and not names & _OF_CERTIFICATE):
            return adapter_context.certificate if made is not None else None
        await asyncio.to_thread(made.open)
        return made

    def _done(self, differences: list[Change], turnover: Turnover) -> Outcome:
        waiting = [change.name for change in differences if change.effect is Effect.RESTART]
        waiting += [f"listen: {url}" for url in turnover.fixed]
        self._standing = ReloadState(self._gateway.clock.now_ms(), waiting=waiting)
        taken = [change.name for change in differences if change.effect is not Effect.RESTART]
        _log.info("settings reloaded", changed=taken, listening=self._gateway.addresses)
        if waiting:
            _log.warning("old values count until a restart", needs_restart=waiting)
        message = f"reloaded: {len(taken)} changed" if differences or waiting else "reloaded: nothing differs"
        if waiting:
            message += f", {len(waiting)} need a restart"
        return Outcome(message, differences, waiting, self._gateway.addresses)


def _is_of_listeners(name: str) -> bool:
    return effect_of(name) is Effect.LISTENERS


def _reason(error: Exception) -> str:
    """A sentence for the operator; of a fault of ours the log has the rest."""
    if isinstance(error, GatewayError):
        return error.sentence
    if isinstance(error, (SettingsWrong, OSError, ValueError)):
        return str(error)
    _log.exception("the reload failed")
    return f"internal error of the gateway ({type(error).__name__}), its log tells more"
