"""The launcher: finds the application beside this file in a wheel, or at the root of a checkout."""

import os
import signal
import sys
from importlib import import_module
from types import FrameType

_LONGEST_TRIAL_S = 120


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    bundle = os.path.join(here, "_app")
    # First, so that no other package called `proxy` on the user's machine can stand in its way.
    sys.path.insert(0, bundle if os.path.isdir(bundle) else os.path.dirname(here))
    if "_POPGATE_TRIAL" in os.environ:  # `proxy.config.handover.TRIAL`
        # Who asked ends it after 60 s, unless that was killed: then a file that gives nothing would keep it.
        signal.alarm(_LONGEST_TRIAL_S)
    # `serve` has another process read its settings: see proxy/serve_process.py.
    if "_POPGATE_SETTINGS" in os.environ:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    if sys.argv[1:2] == ["serve"] and "_POPGATE_SETTINGS" not in os.environ:
        # Until the gateway takes them: nothing is open before. What a hang-up means it alone can tell.
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, _hold_back)
        signal.signal(signal.SIGTERM, _end)
        import_module("proxy.serve_process").main()
    else:
        import_module("proxy.cli").main()


def _end(number: int, _frame: FrameType | None) -> None:
    """End as without a handler, which the first process of a container does not: the signal would be lost."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _hold_back(number: int, _frame: FrameType | None) -> None:
    """Let it wait. Only one that came is blocked: programs that are started meanwhile inherit what is."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    # To this thread: another one, where it is not blocked, would bring it here again.
    signal.raise_signal(number)


if __name__ == "__main__":
    main()
