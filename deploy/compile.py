"""Compile the modules on the way of a message to machine code, with mypyc.

    python deploy/compile.py wheel dist     # a wheel for this Python and processor, into the folder dist
    python deploy/compile.py here           # in this checkout, beside the sources, as the tests use it
    python deploy/compile.py undo           # remove what `here` made

The sources stay what is written, read and tested first, and what runs where nothing is compiled; a compiled
wheel has them as well. What is compiled takes about two thirds of the CPU for single calls
(docs/performance.md). Needs mypy, setuptools and wheel (the dependency group `compiled`), a C compiler, and
Python's headers; takes about five minutes on two cores.

Compiled code checks the types of what it is given, where Python believes the annotations: what a library
returns has to be of the type that its stubs say, and an interpreted class cannot inherit from a compiled one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

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
        *("processors/messaging.py", "protocols/listening.py"),
    ),
    "they inherit from several classes": (
        *("brokers/embedded/broker.py", "brokers/port.py"),
        *("brokers/capabilities.py", "brokers/dead_letters.py", "brokers/relaying.py", "brokers/resets.py"),
    ),
    "asynchronous generators, which mypyc has not": (
        *("brokers/remote/access/keyed_lock.py", "processors/consume/resets.py", "protocols/grpc/caller.py"),
        *("protocols/grpc/probing.py", "protocols/probing.py", "protocols/remoting/probing.py"),
    ),
    "not on the way of a message": (
        *("brokers/opening.py", "brokers/embedded/log/age_marks.py", "brokers/embedded/log/compaction.py"),
        *("brokers/embedded/log/garbage_collection.py", "brokers/embedded/log/retention.py"),
        *("brokers/embedded/storage/backup_files.py", "brokers/embedded/storage/damaged_records.py"),
        *("brokers/embedded/storage/disk_guard.py", "brokers/embedded/storage/migrations.py"),
        *("brokers/embedded/storage/open_rocksdb.py", "brokers/embedded/storage/store_metrics.py"),
        *("brokers/embedded/storage/wal_repair.py", "brokers/remote/rpc/tls.py"),
        *("popgate/__main__.py", "popgate/blocking.py", "popgate/cluster.py", "popgate/faults.py"),
        *(
            "popgate/queue_client.py",
            "protocols/accepting.py",
            "protocols/adapter.py",
            "protocols/finding.py",
        ),
        *("protocols/proxy_protocol.py", "protocols/secured.py", "protocols/sharing.py"),
        *("protocols/sniffing.py", "protocols/tls.py", "protocols/grpc/adapter.py"),
        *("protocols/grpc/rpcs/health.py", "protocols/grpc/rpcs/reflection.py"),
        *("protocols/grpc/servers/grpcio_calls.py", "protocols/grpc/servers/grpcio_server.py"),
        "protocols/remoting/adapter.py",
    ),
}
"""Modules of those packages that stay interpreted, by the reason."""

_BUNDLED = ("brokers", "processors", "protocols", "proxy")
"""Packages that lie in `popgate/_app` in a wheel (ADR 1)."""


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


def translate(target: Path) -> Sequence[object]:
    """Write the C code of all modules to `target` and return what setuptools has to build.

    Raises SystemExit where mypyc refuses a module, after it has said why.
    """
    from mypyc.build import mypycify

    os.chdir(ROOT)
    by_library = modules()
    return mypycify(
        [*(path for paths in by_library.values() for path in paths), "--strict"],
        opt_level=os.environ.get("POPGATE_COMPILE_LEVEL", "2"),
        debug_level="0",
        multi_file=True,
        separate=[(paths, library) for library, paths in by_library.items()],
        target_dir=str(target),
    )


def build(folder: Path, jobs: int) -> list[Path]:
    """Compile into `folder`, laid out as the checkout is, and return the files made."""
    from setuptools import Distribution

    with tempfile.TemporaryDirectory() as work:
        extensions = translate(Path(work, "c"))
        for extension in extensions:
            # mypyc declares what libraries share in a header, without `extern`: one common symbol for all.
            extension.extra_compile_args += ["-w", "-g0", "-fcommon"]  # type: ignore[attr-defined]
        distribution = Distribution({"name": "popgate-native", "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.build_lib, command.build_temp, command.parallel = str(folder), f"{work}/o", jobs  # type: ignore[attr-defined]
        command.ensure_finalized()
        command.run()
    return sorted(folder.rglob("*" + sysconfig.get_config_var("EXT_SUFFIX")))


def make_wheel(out: Path, jobs: int) -> Path:
    """Build the plain wheel, add what is compiled, and name it for this Python and processor."""
    run = [sys.executable, "-m"]
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([*run, "build", "--wheel", "--no-isolation", "-o", work, str(ROOT)], check=True)
        (plain,) = Path(work).glob("*.whl")
        subprocess.run([*run, "wheel", "unpack", "-d", work, str(plain)], check=True)
        (tree,) = (path for path in Path(work).iterdir() if path.is_dir())
        compiled = Path(work, "compiled")
        compiled.mkdir()
        for file in build(compiled, jobs):
            place = file.relative_to(compiled)
            inside = Path("popgate/_app", place) if place.parts[0] in _BUNDLED else place
            (tree / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, tree / inside)
        (facts,) = tree.glob("*.dist-info/WHEEL")
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        facts.write_text(
            facts.read_text()
            .replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
            .replace("Tag: py3-none-any", f"Tag: {tag}-{tag}-{system}")
        )
        out.mkdir(parents=True, exist_ok=True)
        subprocess.run([*run, "wheel", "pack", "-d", str(out), str(tree)], check=True)
    return next(out.glob(f"popgate-*-{tag}-{tag}-{system}.whl"))


def compiled_here() -> Iterator[Path]:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for folder in (*_BUNDLED, "popgate"):
        yield from (ROOT / folder).rglob("*" + suffix)
    yield from ROOT.glob("popgate_native_*" + suffix)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("wheel", "here", "undo", "check"))
    parser.add_argument("out", nargs="?", type=Path, default=Path("dist"), help="the folder of the wheel")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    chosen = parser.parse_args()
    match chosen.what:
        case "wheel":
            print(make_wheel(chosen.out.resolve(), chosen.jobs))
        case "here":
            print(f"{len(build(ROOT, chosen.jobs))} files")
        case "undo":
            for file in list(compiled_here()):
                file.unlink()
        case "check":
            with tempfile.TemporaryDirectory() as work:
                translate(Path(work))
            print("mypyc takes all of them")


if __name__ == "__main__":
    main()
