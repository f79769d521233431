"""aiohttp is loaded without the authorities that its client would trust."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[4]
_FIGURES = """\
import os
import proxy.admin
import aiohttp.connector
print(aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509"], os.environ.get("SSL_CERT_FILE"))
"""


@pytest.mark.parametrize("named", [True, False])
def test_no_authority_is_read_and_the_variable_stays_as_it_was(named: bool) -> None:
    found = ssl.get_default_verify_paths().cafile
    if found is None:
        pytest.skip("this machine has no file of authorities")
    others = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(
        [sys.executable, "-c", _FIGURES],
        cwd=_ROOT,
        env={**others, "SSL_CERT_FILE": found} if named else others,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0", found if named else "None"]
