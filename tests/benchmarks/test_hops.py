from __future__ import annotations

import re
from collections.abc import Callable


def test_hops_are_counted_for_each_call(measured: Callable[..., list[str]]) -> None:
    lines = measured("hops.py", "--functions")
    counts = {
        match[1]: (int(match[2]), int(match[3]))
        for line in lines
        if (match := re.fullmatch(r"hops\.embedded\.(\w+) (\d+) functions in (\d+) modules", line))
    }
    assert list(counts) == ["send", "receive", "acknowledge"]
    assert all(functions > modules > 20 for functions, modules in counts.values())
    named = [line for line in lines if line.startswith("    ")]
    assert len(named) == sum(functions for functions, _ in counts.values())
    assert "    brokers/embedded/port/pop.py:PopFacet.pop" in named
