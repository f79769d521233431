"""What compiled code takes off: the figures of `benchmarks/door.py`, interpreted and compiled.

    python benchmarks/compiled.py             # compiles for about five minutes, then two rounds of a minute
    python benchmarks/compiled.py --tree DIR  # with what `deploy/compile.py tree DIR` made before
    python benchmarks/compiled.py --quick     # only whether mypyc takes all modules

A copy of the checkout is compiled by deploy/compile.py, and `benchmarks/door.py` runs in both in turn: one
line for each figure, interpreted and compiled, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs.figures import figures_in
from deploy.compile import ROOT, differences, make_tree, modules, translate

ROUNDS = 2


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
    parser.add_argument("--tree", type=Path, metavar="DIR", help="a compiled copy of this checkout")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if chosen.quick:
            translate(ROOT, Path(folder))
            print(f"compiled.modules {sum(map(len, modules().values()))}")
            return
        if chosen.tree is None:
            tree = Path(folder, "tree")
            make_tree(tree)
        else:
            tree = chosen.tree.resolve()
            if different := differences(tree):
                parser.error(f"the copy is not of this checkout: {', '.join(different[:5])} differ")
        runs = [(door(ROOT), door(tree)) for _ in range(ROUNDS)]
    for figure in runs[0][0]:
        before = statistics.median(plain[figure] for plain, _ in runs)
        after = statistics.median(compiled[figure] for _, compiled in runs)
        name, unit = figure.split(" ")
        print(f"compiled.{name} {before:.2f} {unit} {after:.2f} {unit} {after / before:.2f} x")


if __name__ == "__main__":
    main()
