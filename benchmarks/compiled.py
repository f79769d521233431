"""What compiled code would take off: the modules on the way of a message through mypyc, beside themselves.

    python benchmarks/compiled.py            # compiles for about five minutes, then two rounds of a minute
    python benchmarks/compiled.py --quick    # only whether mypyc takes all modules

A copy of the checkout is compiled (mypyc is part of mypy; a C compiler and Python's headers are needed), and
`benchmarks/door.py` runs in both in turn: one line for each figure, interpreted and compiled, and the ratio
of the medians. What is compiled is no part of a release: it checks the types of what it is given where Python
believes the annotations, so that what libraries return has to be of the types in their stubs, and the tests
have to pass in that form first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs.figures import figures_in

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 2

ROOMS = {
    "popgate_native_base": (
        *(
            "popgate",
            "popgate/filters",
            "popgate/groups",
            "popgate/ids",
            "popgate/messages",
            "popgate/sockets",
        ),
        *("popgate/sql", "popgate/wire/frames", "popgate/wire/json_syntax", "popgate/wire/messages"),
    ),
    "popgate_native_embedded": (
        *(
            "brokers/embedded",
            "brokers/embedded/catalog",
            "brokers/embedded/engine",
            "brokers/embedded/groups",
        ),
        *("brokers/embedded/log", "brokers/embedded/produce", "brokers/embedded/runtime"),
        *("brokers/embedded/storage", "brokers/embedded/transactions"),
    ),
    "popgate_native_remote": (
        *("brokers", "brokers/remote/access", "brokers/remote/cluster", "brokers/remote/consume"),
        *(
            "brokers/remote/produce",
            "brokers/remote/rpc",
            "brokers/remote/settle",
            "brokers/remote/transactions",
        ),
    ),
    "popgate_native_processors": (
        *("processors", "processors/clients", "processors/consume", "processors/deliveries"),
        *("processors/members", "processors/policies", "processors/produce"),
    ),
    "popgate_native_grpc": (
        *("protocols", "protocols/grpc", "protocols/grpc/codec", "protocols/grpc/http2"),
        *("protocols/grpc/http2/frames", "protocols/grpc/http2/hpack", "protocols/grpc/rpcs"),
        *("protocols/grpc/servers", "protocols/grpc/service", "protocols/grpc/telemetry"),
    ),
    "popgate_native_remoting": (
        *("protocols/remoting", "protocols/remoting/codec", "protocols/remoting/connections"),
        *("protocols/remoting/consume", "protocols/remoting/produce"),
    ),
}
"""The libraries that are made, and the packages whose modules are in each."""

INTERPRETED = {
    "interpreted classes inherit from theirs": (
        *("brokers/embedded/engine/facet.py", "brokers/numbering.py", "popgate/errors.py"),
        *("processors/messaging.py", "protocols/entrances.py"),
    ),
    "they inherit from several classes": (
        *("brokers/embedded/broker.py", "brokers/port.py"),
        *("brokers/capabilities.py", "brokers/dead_letters.py", "brokers/relay.py", "brokers/resets.py"),
    ),
    "asynchronous generators, which mypyc has not": (
        *("brokers/remote/access/keyed_lock.py", "processors/consume/resets.py", "protocols/grpc/caller.py"),
        *("protocols/grpc/probing.py", "protocols/probing.py", "protocols/remoting/probing.py"),
    ),
    "not on the way of a message": (
        *(
            "brokers/open_broker.py",
            "brokers/embedded/log/age_marks.py",
            "brokers/embedded/log/compaction.py",
        ),
        *("brokers/embedded/log/garbage_collection.py", "brokers/embedded/log/retention.py"),
        *("brokers/embedded/storage/backup_files.py", "brokers/embedded/storage/damaged_records.py"),
        *("brokers/embedded/storage/disk_guard.py", "brokers/embedded/storage/migrations.py"),
        *("brokers/embedded/storage/open_rocksdb.py", "brokers/embedded/storage/store_metrics.py"),
        *("brokers/embedded/storage/wal_repair.py", "brokers/remote/rpc/tls.py"),
        *("popgate/__main__.py", "popgate/blocking.py", "popgate/cluster.py", "popgate/faults.py"),
        *(
            "popgate/queue_client.py",
            "protocols/handed_connections.py",
            "protocols/adapter.py",
            "protocols/schemes.py",
        ),
        *("protocols/proxy_protocol.py", "protocols/secured.py", "protocols/shared_adapter.py"),
        *("protocols/sniffing.py", "protocols/tls.py", "protocols/grpc/adapter.py"),
        *("protocols/grpc/rpcs/health.py", "protocols/grpc/rpcs/reflection.py"),
        *("protocols/grpc/servers/grpcio_calls.py", "protocols/grpc/servers/grpcio_server.py"),
        "protocols/remoting/adapter.py",
    ),
}
"""Modules of those packages that stay interpreted, by the reason."""


def modules() -> dict[str, list[str]]:
    """The modules that are compiled, by library, as paths relative to the root.

    Raises SystemExit for a name in INTERPRETED that is no module.
    """
    left = {path for paths in INTERPRETED.values() for path in paths}
    if gone := sorted(path for path in left if not (ROOT / path).is_file()):
        raise SystemExit(f"not a module: {', '.join(gone)}")
    return {
        library: sorted(
            path
            for package in packages
            for path in (str(file.relative_to(ROOT)) for file in (ROOT / package).glob("*.py"))
            if path not in left and not path.endswith("/__init__.py")
        )
        for library, packages in ROOMS.items()
    }


def translate(tree: Path, target: Path) -> Sequence[object]:
    """Write the C code of the modules of `tree` to `target` and return what setuptools has to build.

    Raises SystemExit where mypyc refuses a module, after it has said why.
    """
    from mypyc.build import mypycify

    by_library = modules()
    os.chdir(tree)
    return mypycify(
        [*(path for paths in by_library.values() for path in paths), "--strict"],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        separate=[(paths, library) for library, paths in by_library.items()],
        target_dir=str(target),
    )


def build(tree: Path, work: Path) -> None:
    """Compile in `tree`, beside the sources."""
    from setuptools import Distribution

    extensions = translate(tree, work / "c")
    for extension in extensions:
        # mypyc declares what libraries share in a header, without `extern`: one common symbol for all.
        extension.extra_compile_args += ["-w", "-g0", "-fcommon"]  # type: ignore[attr-defined]
    distribution = Distribution({"name": "popgate-compiled", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(tree), str(work / "o")  # type: ignore[attr-defined]
    command.parallel = os.cpu_count()  # type: ignore[attr-defined]
    command.ensure_finalized()
    command.run()


def copied(tree: Path) -> None:
    """Copy what git knows of the checkout, as it is now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)


def door(tree: Path) -> dict[str, float]:
    """The figures of `benchmarks/door.py` in that tree. Raises CalledProcessError."""
    command = [sys.executable, str(tree / "benchmarks" / "door.py")]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ran = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return figures_in(ran.stdout.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only translate")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if chosen.quick:
            translate(ROOT, Path(folder))
            print(f"compiled.modules {sum(map(len, modules().values()))}")
            return
        tree = Path(folder, "tree")
        copied(tree)
        build(tree, Path(folder))
        runs = [(door(ROOT), door(tree)) for _ in range(ROUNDS)]
    for figure in runs[0][0]:
        before = statistics.median(plain[figure] for plain, _ in runs)
        after = statistics.median(compiled[figure] for _, compiled in runs)
        name, unit = figure.split(" ")
        print(f"compiled.{name} {before:.2f} {unit} {after:.2f} {unit} {after / before:.2f} x")


if __name__ == "__main__":
    main()
