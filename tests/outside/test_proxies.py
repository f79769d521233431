"""Official Python clients before a gateway: plain and over TLS, with nginx and HAProxy between."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.papers import Papers
from tests.support import proxies

pytestmark = pytest.mark.timeout(1800)  # the first ones fetch what is not installed

HERE = Path(__file__).parent
LONGEST_S = 1000.0
# Asked soon, and not again before the answer can be there.
CHECK_SOON = ("--set", "transactions.first_check_s=2", "--set", "transactions.check_interval_s=60")
WAYS = ("nginx-plain", "nginx-tls", "haproxy-plain", "haproxy-tls", "gateway-plain", "gateway-tls")


@pytest.fixture(scope="module")
def runs(
    papers: Papers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[tuple[str, str]]]]:
    """Clients that go every way, side by side, since they mostly wait: what they print, by the way."""
    certificate, key = papers.pair("gateway")
    options = ("--set", f"tls.certificate={certificate}", "--set", f"tls.key={key}", *CHECK_SOON)
    listen = ("grpc://127.0.0.1:0", "grpc://127.0.0.1:0?tls=true")
    papers.pair("proxy")
    with (
        GatewayProcess(listen=listen, options=options) as gateway,
        ThreadPoolExecutor(len(WAYS)) as pool,
    ):
        yield {way: pool.submit(run, way, gateway, papers, tmp_path_factory.mktemp("way")) for way in WAYS}


def run(way: str, gateway: GatewayProcess, papers: Papers, folder: Path) -> tuple[str, str]:
    """Raises Missing."""
    name, _, kind = way.partition("-")
    secured = kind == "tls"
    topic = json.dumps({"name": f"topic-{way}", "types": ["NORMAL", "TRANSACTION"]}).encode()
    asked = urllib.request.Request(f"{gateway.admin}/api/topics", topic, {"Content-Type": "application/json"})
    urllib.request.urlopen(asked, timeout=60).close()
    at = gateway.addresses[int(secured)].partition("://")[2]
    with contextlib.ExitStack() as closing:
        if name != "gateway":
            at = closing.enter_context(proxies.proxy(name, folder, at, papers if secured else None))
        command = [str(HERE / "official.py"), at, str(int(secured)), f"topic-{way}", f"group-{way}"]
        roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(papers.authority)}
        ended = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, "HOME": str(folder), **roots},
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_S,
        )
    return ended.stdout, ended.stderr


@pytest.mark.conformance
@pytest.mark.parametrize("way", WAYS)
def test_a_client_sends_waits_acknowledges_and_is_asked(
    way: str, runs: Mapping[str, Future[tuple[str, str]]], refuse: Any
) -> None:
    try:
        said, words = runs[way].result()
    except Missing as what:
        refuse(what)
    facts = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    told = [fact.pop("fact") for fact in facts]
    assert told == [
        "started",
        "polled",
        *("received", "whole", "acknowledged") * 2,
        "asked",
        "received",
        "acknowledged",
        "end",
    ], f"{said}{words}"
    assert facts[1]["found"] == 0
    assert facts[1]["waited_s"] >= 4, "the poll was not a long one"
    assert all(fact["whole"] for fact in facts if "whole" in fact)
