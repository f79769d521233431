"""Starts a gateway from its settings: in this process, or as the supervisor of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.config.settings import Settings


def run_as_set(settings: Settings) -> None:
    """In this process, or in several. Raises CannotStart, SettingsWrong."""
    from proxy.running import run
    from proxy.supervision import trial
    from proxy.supervision.cores import workers_of
    from proxy.supervision.replacement import stayed

    workers, staying = workers_of(settings), stayed()
    if trial.is_asked_for():
        trial.look(settings)
    elif workers > 1 or staying is not None:
        from proxy.supervision.fork import supervise

        supervise(settings, workers, staying)
    else:
        run(settings)
