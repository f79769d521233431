"""h2spec (https://github.com/summerwind/h2spec), all of it and strictly: no exceptions."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from popgate.testing.gateway import GatewayProcess

pytestmark = pytest.mark.timeout(1800)  # the first one compiles it

PACKAGE = "github.com/summerwind/h2spec/cmd/h2spec"
CASES = 146
"""Of version 2.2.1, the latest that Go's module proxy has; of 2.6.0 it lacks one."""


def verdicts(program: Path, endpoint: str, folder: Path, *options: str) -> dict[str, str]:
    """What became of each case: empty, or why it did not pass."""
    host, _, port = endpoint.rpartition(":")
    report = folder / "report.xml"
    command = [str(program), "--strict", "--host", host, "--port", port, "--timeout", "20", *options]
    ended = subprocess.run(
        [*command, "--junit-report", str(report)], capture_output=True, text=True, check=False, timeout=1500
    )
    assert report.exists(), f"{ended.stdout}{ended.stderr}"
    found = {}
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for number, case in enumerate(suite.iter("testcase"), 1):
            told = [child for child in case if child.tag in ("failure", "error", "skipped")]
            words = "; ".join(f"{one.tag}: {''.join(one.itertext()).strip()}" for one in told)
            found[f"{suite.get('package')}/{number}: {case.get('classname')}"] = words
    return found


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_every_case_passes(
    gateway: GatewayProcess, judge: Callable[[str, str], Path], tmp_path: Path, tls: bool
) -> None:
    endpoint = gateway.addresses[int(tls)].partition("://")[2]
    secured = ("--tls", "--insecure") if tls else ()
    found = verdicts(judge("h2spec", PACKAGE), endpoint, tmp_path, *secured)
    assert {case: words for case, words in found.items() if words} == {}
    assert len(found) == CASES
