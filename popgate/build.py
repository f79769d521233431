"""Which form of the gateway runs: its sources, or what deploy/compile.py made of them."""

from __future__ import annotations


def is_compiled() -> bool:
    """Whether the modules on the way of a message run as machine code; this one is compiled with them."""
    return not __file__.endswith((".py", ".pyc"))


def version_text(version: str) -> str:
    """A version for people: with what tells a compiled form from the sources."""
    return f"{version} (compiled)" if is_compiled() else version
