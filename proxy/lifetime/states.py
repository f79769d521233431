"""The states of a gateway that probes report."""

from __future__ import annotations

from typing import Literal

State = Literal["starting", "ready", "failing", "draining", "stopped"]
"""Failing: its broker cannot write."""
