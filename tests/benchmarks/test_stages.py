from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "stages.py"


def test_without_its_tool_it_says_what_is_missing() -> None:
    command = [sys.executable, SCRIPT, "--quick", "--py-spy", "/nonexistent/py-spy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "py-spy is not there: pip install py-spy\n"


def test_each_work_tells_what_its_stages_take(measured: Callable[..., list[str]], tmp_path: Path) -> None:
    works, out = ("send_32", "receive_1"), tmp_path / "stages.json"
    lines = measured("stages.py", "--work", ",".join(works), "--out", str(out))
    heads = [line for line in lines[1:] if not line.startswith(" ")]
    form = r"embedded, (\w+): \d+\.\d us of CPU per message, 0 errors, \d+ samples"
    assert [re.fullmatch(form, line)[1] for line in heads] == list(works)  # type: ignore[index]
    assert all(
        re.fullmatch(r"  \S.* +\d+\.\d % +\d+\.\d\d us", line) for line in lines[1:] if line not in heads
    )
    written = json.loads(out.read_text())
    assert written["machine"]["revision"].strip("+")[:12] in lines[0]
    assert {tier: tuple(told) for tier, told in written["runs"].items()} == {"embedded": works}
