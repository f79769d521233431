"""The launcher: finds the application, in a wheel beside this file, in a checkout at the root."""

import os
import sys
from importlib import import_module


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    bundle = os.path.join(here, "_app")
    # First, so that no other package called `proxy` on the user's machine can stand in its way.
    sys.path.insert(0, bundle if os.path.isdir(bundle) else os.path.dirname(here))
    # `serve` has another process read its settings: see proxy/served.py.
    if sys.argv[1:2] == ["serve"] and "_POPGATE_SETTINGS" not in os.environ:
        import_module("proxy.served").main()
    else:
        import_module("proxy.cli").main()


if __name__ == "__main__":
    main()
