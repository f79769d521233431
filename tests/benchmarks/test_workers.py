from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path


def test_spread_memory_and_throughput_are_told(measured: Callable[..., list[str]], tmp_path: Path) -> None:
    out = tmp_path / "workers.json"
    lines = measured("workers.py", "--out", str(out))
    written = json.loads(out.read_text())
    even, memory = written["even"], written["memory_mb"]
    by_supervisor = f"{even['by_supervisor']} of {even['rounds']} rounds"
    assert f"two and two of four by the supervisor: {by_supervisor}" in lines
    assert min(memory.values()) > 10
    kinds = {f"{kind}_32 per {unit}" for kind in ("send", "receive") for unit in ("second", "CPU second")}
    told = written["one_and_two_workers"]
    assert told.keys() == {*kinds, "loaded_32, MB"} or "no throughput" in lines[-1]
    assert all(one > 0 and two > 0 for one, two in told.values())
