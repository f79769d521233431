"""Compile the modules on the way of a message to machine code, with mypyc.

    python deploy/compile.py wheel dist   # a wheel for this Python and processor, into the folder dist
    python deploy/compile.py tree DIR     # a copy of the checkout with what is compiled beside the sources
    python deploy/compile.py check        # only whether mypyc takes all modules

The sources stay what is written, read and tested first; the plain wheel (`python -m build`) has nothing else,
and a compiled one has them as well. What it gains is in docs/performance.md. It needs the packages of the
dependency group `dev`, a C compiler and Python's headers, and takes about five minutes on two cores.
`--keep DIR` leaves C code and objects there for the next time; `CC="ccache gcc"` compiles only what changed.

Compiled code checks the types of what it is given, where Python believes the annotations: what a library
returns has to be of the type that its stubs say, and an interpreted class cannot inherit from a compiled one.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("brokers/", "popgate/", "processors/", "protocols/", "proxy/")
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
"""How the name of a compiled module ends for this Python and processor."""

ROOMS = {
    "popgate_native_base": """
        popgate popgate/filters popgate/groups popgate/ids popgate/messages popgate/sockets
        popgate/testing/peers.py popgate/testing/remoting.py popgate/wire/bodies/pop_info.py
        popgate/wire/bodies/small_bodies.py popgate/wire/frames popgate/wire/json_syntax popgate/wire/messages
    """,
    "popgate_native_embedded": """
        brokers/embedded brokers/embedded/catalog brokers/embedded/engine brokers/embedded/groups
        brokers/embedded/log brokers/embedded/produce brokers/embedded/runtime brokers/embedded/storage
        brokers/embedded/transactions
    """,
    "popgate_native_remote": """
        brokers brokers/remote/access brokers/remote/cluster brokers/remote/consume
        brokers/remote/produce brokers/remote/read/origins.py brokers/remote/read/pull.py
        brokers/remote/read/record_scan.py brokers/remote/rpc brokers/remote/settle
        brokers/remote/transactions
    """,
    "popgate_native_processors": """
        processors processors/classic/queue_numbers.py processors/clients processors/consume
        processors/deliveries processors/members processors/policies processors/produce
    """,
    "popgate_native_grpc": """
        protocols protocols/grpc protocols/grpc/codec protocols/grpc/http2 protocols/grpc/http2/frames
        protocols/grpc/http2/hpack protocols/grpc/rpcs protocols/grpc/servers protocols/grpc/service
        protocols/grpc/telemetry
    """,
    "popgate_native_remoting": """
        protocols/remoting protocols/remoting/codec protocols/remoting/connections
        protocols/remoting/consume protocols/remoting/mapped/offsets.py protocols/remoting/mapped/seeks.py
        protocols/remoting/produce protocols/remoting/virtual
    """,
    "popgate_native_proxy": """
        proxy/metrics/counters.py proxy/metrics/histograms.py proxy/metrics/labels.py
    """,
}
"""The libraries that are made, and the packages whose modules are in each, but for `__init__`.

A module that is named by itself has a class that inherits from a compiled one, or is what a pop, a pull or an
acknowledgement needs of a package whose other modules are not on the way of a message.
"""

INTERPRETED = {
    "interpreted classes inherit from theirs": """
        brokers/embedded/engine/facet.py brokers/numbering.py popgate/errors.py processors/messaging.py
        protocols/entrances.py
    """,
    "classes of tests inherit from theirs": """
        popgate/clock.py processors/observer.py protocols/observers.py
    """,
    "they inherit from several classes": """
        brokers/capabilities.py brokers/client_registration.py brokers/dead_letters.py
        brokers/embedded/broker.py brokers/port.py brokers/relay.py brokers/resets.py
    """,
    "asynchronous generators, which mypyc has not": """
        brokers/remote/access/keyed_lock.py processors/consume/resets.py protocols/grpc/caller.py
        protocols/grpc/probing.py protocols/probing.py protocols/remoting/probing.py
    """,
    "they wait while an exception is handled": """
        processors/consume/offsets.py
    """,
    "not on the way of a message": """
        brokers/embedded/log/age_marks.py brokers/embedded/log/compaction.py
        brokers/embedded/log/garbage_collection.py brokers/embedded/log/retention.py
        brokers/embedded/storage/backup_files.py brokers/embedded/storage/damaged_records.py
        brokers/embedded/runtime/disk_guard.py brokers/embedded/storage/migrations.py
        brokers/embedded/storage/open_rocksdb.py brokers/embedded/storage/store_metrics.py
        brokers/embedded/storage/wal_repair.py brokers/open_broker.py brokers/remote/rpc/tls.py
        popgate/__main__.py popgate/blocking.py popgate/cluster.py popgate/faults.py
        popgate/queue_client.py popgate/sockets/servers.py popgate/wire/json_syntax/parts.py
        protocols/handed_connections.py protocols/adapter.py protocols/schemes.py protocols/grpc/adapter.py
        protocols/grpc/rpcs/health.py protocols/grpc/rpcs/reflection.py
        protocols/grpc/servers/grpcio_calls.py protocols/grpc/servers/grpcio_server.py
        protocols/proxy_protocol.py protocols/remoting/adapter.py protocols/secured.py
        protocols/shared_adapter.py protocols/sniffing.py protocols/tls.py
    """,
}
"""Modules of those packages that stay interpreted, by the reason."""


FLAGS = [
    *("-w", "-g0"),
    # mypyc declares what libraries share in a header, without `extern`: one common symbol for all.
    "-fcommon",
    # Functions of one library are called directly, and small ones inlined; only what Python starts a module
    # with is found from outside. Otherwise each call looks up where another library may have put another one.
    *("-fvisibility=hidden", "-fno-semantic-interposition"),
]
"""Of the C compiler, beside Python's own and those of mypyc."""


def modules(root: Path = ROOT) -> dict[str, list[str]]:
    """The modules that are compiled, by library, as paths relative to the root.

    Raises SystemExit for a name in INTERPRETED that is no module.
    """
    left = set(" ".join(INTERPRETED.values()).split())
    if gone := sorted(path for path in left if not (root / path).is_file()):
        raise SystemExit(f"not a module: {', '.join(gone)}")
    return {
        library: sorted(
            path
            for package in packages.split()
            for path in (str(file.relative_to(root)) for file in _sources(root / package))
            if path not in left and not path.endswith("/__init__.py")
        )
        for library, packages in ROOMS.items()
    }


def _sources(place: Path) -> Iterable[Path]:
    return (place,) if place.suffix else place.glob("*.py")


def translate(root: Path, work: Path) -> list[Any]:
    """Write the C code of the modules of `root` to `work` and return what setuptools has to build.

    Raises SystemExit where mypyc refuses a module, after it has said why.
    """
    from mypyc.build import mypycify

    by_library = modules(root)
    # mypyc failed, or would, with what it had found of sources that have changed since.
    shutil.rmtree(work / "mypy", ignore_errors=True)
    with contextlib.chdir(root):
        return mypycify(
            [
                *(path for paths in by_library.values() for path in paths),
                *("--strict", "--cache-dir", str(work / "mypy")),
            ],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            separate=[(paths, library) for library, paths in by_library.items()],
            target_dir=str(work / "c"),
        )


def build(root: Path, work: Path) -> list[tuple[Path, str]]:
    """Compile the modules of `root` in the folder `work`.

    Returns the files, and where each belongs: relative to the root.
    """
    from setuptools import Distribution  # type: ignore[import-untyped]

    extensions = translate(root, work)
    for extension in extensions:
        # Not in place: mypyc's extensions share one list.
        extension.extra_compile_args = [*extension.extra_compile_args, *FLAGS]
        extension.extra_link_args = [*extension.extra_link_args, "-Wl,-s"]
    distribution = Distribution({"name": "popgate-compiled", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "o")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    with contextlib.chdir(root):
        command.run()
    made = sorted(map(Path, command.get_outputs()))
    return [(file, str(file.relative_to(work / "lib"))) for file in made]


@contextlib.contextmanager
def folder_of_work(kept: Path | None) -> Iterator[Path]:
    """The folder of what a build leaves: the one to be kept, or a temporary one."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def make_tree(tree: Path, kept: Path | None = None) -> int:
    """Copy what git knows of the checkout, as it is now, and compile it there; returns the files made.

    Raises SystemExit for a folder that has the checkout in it: its packages would be removed.
    """
    if ROOT.is_relative_to(tree):
        raise SystemExit(f"{tree} cannot be the folder of the copy, the checkout is in it: name another one")
    for package in PACKAGES:  # of an earlier time; an environment beside them is none of ours
        shutil.rmtree(tree / package, ignore_errors=True)
    for file in tree.glob(f"popgate_native_*{SUFFIX}"):
        file.unlink()
    for name in _tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    with folder_of_work(kept) as work:
        made = build(ROOT, work)
        for file, place in made:
            shutil.copy2(file, tree / place)
    return len(made)


def differences(tree: Path) -> list[str]:
    """What is not as in the checkout of a copy that `make_tree` made, as paths relative to the root.

    Sources of the product that differ or are only in one of the two, and compiled modules that are missing.
    """
    here = {name for name in _tracked() if name.endswith(".py") and name.startswith(PACKAGES)}
    there = {str(file.relative_to(tree)) for package in PACKAGES for file in (tree / package).rglob("*.py")}
    compiled = {path for paths in modules().values() for path in paths}
    return sorted(
        {path for path in compiled if not (tree / path).with_suffix(SUFFIX).is_file()}
        | (here ^ there)
        | {path for path in here & there if not filecmp.cmp(ROOT / path, tree / path, shallow=False)}
    )


def _tracked() -> list[str]:
    """The files of the checkout that git knows, without those that were removed since."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in filter(None, listed.stdout.split("\0")) if (ROOT / name).is_file()]


def make_wheel(out: Path, kept: Path | None = None) -> None:
    """Build the wheel with what is compiled in it, by deploy/compile_hook.py."""
    variables = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true"}
    if kept is not None:
        variables["POPGATE_COMPILE_KEEP"] = str(kept.resolve())
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out.resolve())],
        cwd=ROOT,
        env={**os.environ, **variables},
        check=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("wheel", "tree", "check"))
    parser.add_argument("out", nargs="?", type=Path, help="the folder of the wheel, or of the copy")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="of C code and objects, for the next time")
    chosen = parser.parse_args()
    if chosen.what == "check":
        with folder_of_work(chosen.keep) as work:
            translate(ROOT, work)
        print(f"mypyc takes all {sum(map(len, modules().values()))} modules")
        return
    if chosen.out is None:
        parser.error(f"{chosen.what} needs a folder")
    if chosen.what == "wheel":
        make_wheel(chosen.out, chosen.keep)
    else:
        print(f"{make_tree(chosen.out.resolve(), chosen.keep)} compiled files")


if __name__ == "__main__":
    main()
