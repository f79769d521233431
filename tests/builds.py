"""Builds and fetches all that tests need and keep in their cache, so that no test waits for it.

    python -m tests.builds               # everything
    python -m tests.builds java rust     # what has one of these texts in its name

A line per part says that it is there, or why not; the tests that need it skip then, with CI=true they fail.
The exit code is 1 where a program of this repository does not compile, else 0.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.beside import driving
from popgate.testing.made import Missing
from popgate.testing.rocketmq import downloads
from tests.classic import conftest as classic
from tests.conformance import drivers
from tests.outside import charts, go_programs, test_h2spec, test_interop
from tests.support import proxies
from tests.tools import conftest as tools

AT_ONCE = 2
"""Several of them wait for registries most of the time, compilers use all cores by themselves."""


def parts() -> dict[str, Callable[[], object]]:
    """What to call for each part; each raises Missing where it cannot be had."""
    made: dict[str, Callable[[], object]] = {"RocketMQ": lambda: downloads.jars(downloads.chosen_version())}
    # Longest first: a cold build of the Rust client takes minutes.
    for client in reversed(drivers.CLIENTS):
        made[f"client {client}"] = partial(drivers.command_of, client)
    made["classic client driver"] = classic.classes
    for version in classic.VERSIONS:
        made[f"classic client {version}"] = partial(classic.jars, version)
    made["mqadmin driver"] = tools.classes
    made["h2spec"] = partial(go_programs.go_program, "h2spec", test_h2spec.PACKAGE)
    made["helm"] = charts.helm
    made["promrules"] = partial(go_programs.go_program, "promrules", ".")
    made["containers"] = partial(go_programs.go_program, "containers", ".")
    made["interop"] = partial(go_programs.go_program, "interop", test_interop.PACKAGE)
    for proxy in proxies.PACKAGES:
        made[f"proxy {proxy}"] = partial(proxies.command_of, proxy)
    made["load generator"] = driving.build
    return made


def build(wanted: Sequence[str] = ()) -> bool:
    """Make the parts; whether all programs of this repository compile."""
    printing = threading.Lock()

    def one(name: str, make: Callable[[], object]) -> bool:
        began, compiles = time.monotonic(), True
        try:
            make()
            told = "there"
        except Missing as missing:
            told = f"missing: {missing}"
        except AssertionError as wrong:
            told, compiles = f"WRONG: {wrong}", False
        with printing:
            print(f"{name}: {told} ({time.monotonic() - began:.0f} s)", flush=True)
        return compiles

    chosen = {
        name: make
        for name, make in parts().items()
        if not wanted or any(text.lower() in name.lower() for text in wanted)
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return all(list(pool.map(one, chosen, chosen.values())))


if __name__ == "__main__":
    sys.exit(0 if build(sys.argv[1:]) else 1)
