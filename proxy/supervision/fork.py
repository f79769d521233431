"""`popgate serve` with more than one process."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

from proxy.logs import set_up_logs
from proxy.running import allow_many_files
from proxy.supervision.processes import Forked
from proxy.supervision.replacement import stayed
from proxy.supervision.supervisor import Supervisor
from proxy.supervision.trial import load_all
from proxy.supervision.work import work

if TYPE_CHECKING:
    from proxy.config.settings import Settings
    from proxy.supervision.replacement import SupervisorState


def supervise(settings: Settings, workers: int, staying: SupervisorState | None) -> None:
    """Serve with `workers` processes until a signal. Raises CannotStart, SettingsWrong."""
    set_up_logs(settings.log)
    allow_many_files()
    load_all(settings)
    try:
        Supervisor(settings, workers, staying).run()
    except Forked as forked:
        post = forked.post
    else:
        return
    code = 1
    try:
        code = work(settings, post)
    except BaseException:
        traceback.print_exc()
    finally:
        # What the supervisor would do at its own end is not for its children.
        os._exit(code)


__all__ = ["stayed", "supervise"]
