"""The callbacks of one write batch and the callers that wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from popgate.errors import BrokerTimeout, BrokerUnavailable

_log = logging.getLogger(__name__)


class CommitGroup:
    """The steps of one batch: what to call, and whom to answer, once it counts as done.

    `written`: RocksDB has it, or what it waits for, so that after a failure it may be found again or not.
    """

    __slots__ = ("after", "answers", "written")

    def __init__(self, after: list[Callable[[], None]], answers: list[asyncio.Future[None]]) -> None:
        self.after = after
        self.answers = answers
        self.written = False

    def finish(self) -> None:
        """Run all callbacks, then resolve the futures: a failing callback affects no other one."""
        for callback in self.after:
            try:
                callback()
            except Exception:
                _log.exception("what follows a write went wrong: %r", callback)
        for answer in self._waiting():
            answer.set_result(None)

    def fail(self, failure: BrokerUnavailable) -> None:
        """Fail all: nothing was written, or the outcome is unknown."""
        error: BrokerUnavailable | BrokerTimeout = failure
        if self.written:
            error = BrokerTimeout(f"it is not known whether this was done: {failure.sentence}")
            error.__cause__ = failure.__cause__
        for answer in self._waiting():
            answer.set_exception(error)
            answer.exception()  # whoever awaited it sees it; nobody has to

    def _waiting(self) -> list[asyncio.Future[None]]:
        """Those not cancelled, unless their loop is gone."""
        answers = self.answers
        if answers and answers[0].get_loop().is_closed():
            return []
        return [answer for answer in answers if not answer.done()]
