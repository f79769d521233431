"""What tests need beside Python: where it is missing they skip, or fail where everything must be."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from popgate.testing.rocketmq import Missing, SharedRocketMQ, shared_rocketmq

IN_CI = os.environ.get("CI") == "true"


def missing(what: Exception) -> NoReturn:
    """Skip the test, or fail it where everything must be."""
    if IN_CI:
        pytest.fail(str(what))
    pytest.skip(str(what))


@contextlib.contextmanager
def needed_rocketmq() -> Iterator[SharedRocketMQ]:
    """The RocketMQ that all tests share."""
    with contextlib.ExitStack() as closing:
        try:
            cluster = closing.enter_context(shared_rocketmq())
        except Missing as what:
            missing(what)
        yield cluster
