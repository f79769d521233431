from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path


def test_clients_that_come_and_go_leave_nothing_behind(
    measured: Callable[..., list[str]], tmp_path: Path
) -> None:
    lines = measured("soak.py", "--out", str(tmp_path / "soak.json"))
    told = dict(found.groups() for line in lines if (found := re.match(r"soak\.(\w+) (\d+)", line)))
    assert told.keys() == {"rate", "send", "receive", "rude", "left", "violations"}
    assert int(told.pop("left")) == 0
    assert all(int(count) > 0 for count in told.values())
    written = json.loads((tmp_path / "soak.json").read_text())
    assert (written["left"], written["wrong"]) == ([0], [])
    assert all(sample["pss_mb"] > 10 for sample in written["samples"])
