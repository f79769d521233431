"""The launcher: finds the application, in a wheel beside this file, in a checkout at the root."""

import os
import sys
from importlib import import_module


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    bundle = os.path.join(here, "_app")
    # First, so that no other package called `proxy` on the user's machine can stand in its way.
    sys.path.insert(0, bundle if os.path.isdir(bundle) else os.path.dirname(here))
    # `serve` begins anew once it has read its settings: see proxy/relaunching.py.
    if "_POPGATE_SETTINGS" in os.environ:
        import_module("proxy.relaunched").main()
    else:
        import_module("proxy.cli").main(launched=True)


if __name__ == "__main__":
    main()
