"""The tests of whole gateways on a compiled copy of the checkout: `sh tests/run.sh --long compiled`.

    python tests/support/compiled.py                           # compile, about five minutes, and run all
    python tests/support/compiled.py --keep DIR tests/e2e/test_tls.py  # leave C code and objects, run these

`deploy/compile.py` makes a copy of the checkout with what is compiled beside the sources, and a wheel. What
runs there starts gateways as processes and talks to them as clients do. Most unit tests cannot run there:
their stand-ins inherit from compiled classes, or are not of the types that compiled code checks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from deploy.compile import folder_of_work, make_tree, make_wheel
from tests.support.run import NOTHING_SELECTED, PASSED, Outcome, options_of, pytest_outcome
from tests.support.tiers import LONG, TIERS

SELECTED = (
    "tests/unit/protocols/grpc/codec",
    "tests/fuzz/test_plain_consume_fuzz.py",
    "tests/fuzz/test_plain_send_fuzz.py",
    "tests/property/test_packed_sends.py",
    "tests/e2e",
    "tests/outside/test_h2spec.py",
    "tests/outside/test_interop.py",
    "tests/outside/test_proxies.py",
    "tests/contract",
    "tests/scenarios",
    "tests/crash/test_kills.py",
    "tests/replicas/test_replicas.py",
    "tests/conformance",
    "tests/classic/test_classic.py",
    "tests/tools",
    "tests/live",
    "tests/spark",
)

_THROWN = "ignore:the (type, exc, tb) signature of throw() is deprecated:DeprecationWarning"
"""mypyc throws exceptions into coroutines so, which Python warns of since 3.12."""


def run_there(tree: Path, wheel: Path, tests: list[str]) -> int:
    """Run tests in the copy, a tier at a time; returns the first exit code that is none of a pass."""
    code = PASSED
    there = {"PYTHONPATH": str(tree), "TEST_COMPILED_WHEEL": str(wheel)}
    for tier in (*TIERS, LONG):
        arguments = [*options_of(tier, tests), "-p", "no:cacheprovider", "-W", _THROWN, *tests]
        outcome: Outcome = pytest_outcome(arguments, cwd=str(tree), TEST_TIER=tier, **there)
        for problem in outcome.problems:
            print(f"FAILED {problem}")
        if outcome.code != NOTHING_SELECTED:
            code = code or outcome.code
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="of C code and objects, for the next time")
    parser.add_argument("tests", nargs="*", help="what pytest is given, instead of all")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="popgate-compiled-") as folder,
        folder_of_work(chosen.keep) as work,
    ):
        tree, wheels = Path(folder, "tree"), Path(folder, "wheel")
        print(f"{make_tree(tree, work)} compiled files", flush=True)
        make_wheel(wheels, work)
        (wheel,) = wheels.glob("popgate-*.whl")
        return run_there(tree, wheel, chosen.tests or list(SELECTED))


if __name__ == "__main__":
    sys.exit(main())
