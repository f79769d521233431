"""Environment variables for processes that tests start from threads."""

from __future__ import annotations

import contextlib
import os


def variables() -> dict[str, str]:
    """Those of this process, now. Other threads may change them: pytest does in each phase of a test."""
    while True:
        with contextlib.suppress(KeyError):  # deleted after it was listed
            return dict(os.environ)
