"""Commands that run in the test's own process: an interpreter for each would take longer than all it does."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass

import pytest

from proxy.cli import main


@dataclass(slots=True, frozen=True)
class Ended:
    """How a command ended; no traceback was shown."""

    code: int
    out: str
    err: str
    raw: bytes
    """What `out` is made of."""


def run_command(*arguments: object, stdin: bytes = b"", **variables: str) -> Ended:
    """Run `popgate` with these arguments. Of the variables POPGATE_… it sees those that are given here."""
    out, err = io.BytesIO(), io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("POPGATE_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["popgate", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        patch.setattr(sys, "stdout", io.TextIOWrapper(out, write_through=True))
        patch.setattr(sys, "stderr", io.TextIOWrapper(err, write_through=True))
        with pytest.raises(SystemExit) as ended:
            main()
        sys.stdout.detach()  # type: ignore[union-attr]
        sys.stderr.detach()  # type: ignore[union-attr]
    told = err.getvalue().decode(errors="replace")
    assert "Traceback" not in told, told
    return Ended(int(ended.value.code or 0), out.getvalue().decode(errors="replace"), told, out.getvalue())
