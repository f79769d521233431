"""aiohttp is loaded without the authorities that its client would trust."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from popgate.testing.papers import Papers

_ROOT = Path(__file__).parents[4]
_FIGURES = """\
import os
import proxy.admin
import aiohttp.connector
print(aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509"])
print(os.environ.get("SSL_CERT_FILE"))
"""


@pytest.mark.parametrize("named", [True, False])
def test_no_authority_is_read_and_the_variable_stays_as_it_was(named: bool, tmp_path: Path) -> None:
    file = str(Papers(tmp_path).authority)
    others = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(
        [sys.executable, "-c", _FIGURES],
        cwd=_ROOT,
        env={**others, "SSL_CERT_FILE": file} if named else others,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["0", file if named else "None"]
