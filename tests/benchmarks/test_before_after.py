from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path


def test_a_wheel_is_built_and_run_on_both_sides(measured: Callable[..., list[str]], tmp_path: Path) -> None:
    lines = measured("before_after.py", "--only", "processor", "--out", str(tmp_path))
    rows = [line for line in lines if line.startswith("| processor.")]
    assert len(rows) == 8
    for row in rows:
        assert re.fullmatch(
            r"\| \S+ (\| [\d,.]+ us/op ){2}\| [\d.]+ \([\d.]+ to [\d.]+, 1 pairs\) \|", row
        ), row
    kept = json.loads((tmp_path / "before-after-checkout.json").read_text())
    assert [(run["part"], run["side"]) for run in kept["runs"]] == [
        ("processor", "before"),
        ("processor", "after"),
    ]
    assert rows[0] in (tmp_path / "before-after-checkout.md").read_text()
