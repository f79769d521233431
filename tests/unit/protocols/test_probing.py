"""protocols.probing: what an address looks like from outside."""

from __future__ import annotations

import pytest

from protocols.probing import port_trouble
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("host", "port"),
    [("gateway..example.com", 8081), (f"{'g' * 64}.example.com", 8081), ("127.0.0.1", 65_536)],
    ids=["an empty label", "a long label", "a high port"],
)
async def test_an_address_that_cannot_be_is_a_finding(host: str, port: int) -> None:
    """`advertised.address` may be misspelt, or come from a gateway of somebody else."""
    trouble = await port_trouble(host, port, PATIENCE_S)
    assert trouble == ("no such host, or no such port, is possible", "check the spelling")
