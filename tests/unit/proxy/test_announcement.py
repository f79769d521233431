"""proxy.announcement: what a gateway says where nobody can hear it."""

from __future__ import annotations

import sys

import pytest

from proxy.announcement import say


def test_a_gateway_whose_standard_output_was_closed_at_its_start_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by `popgate serve >&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    say("ready")
