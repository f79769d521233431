"""The states of a gateway, as probes are told of them."""

from __future__ import annotations

from typing import Literal

State = Literal["starting", "ready", "failing", "draining", "stopped"]
"""Failing: its broker cannot write."""
