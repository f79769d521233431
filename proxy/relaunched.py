"""The program that serves, with the settings that the command line handed over."""

from __future__ import annotations

import io
import sys

from proxy.relaunching import handed_over
from proxy.running import CannotStart, run
from proxy.wrong import SettingsWrong


def main() -> None:
    """Serve until a signal; a failure ends the process as the command line would."""
    settings = handed_over()
    if settings is None:
        raise SystemExit("popgate: no settings were handed over")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        run(settings)
    except (SettingsWrong, CannotStart) as error:
        # Only now is the command line needed again.
        from proxy.cli import asked_for_json
        from proxy.cli.failing import Ended, Failure, tell

        code = Ended.USAGE if isinstance(error, SettingsWrong) else Ended.NOT_STARTED
        tell(Failure(code, str(error)), as_json=asked_for_json(sys.argv))
        sys.exit(int(code))
    except KeyboardInterrupt:
        sys.exit(130)
