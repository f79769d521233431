"""What follows a write."""

import asyncio
import logging

import pytest

from brokers.embedded.storage.commit_group import CommitGroup
from popgate.errors import BrokerTimeout, BrokerUnavailable


async def test_what_goes_wrong_after_a_write_keeps_nothing_else_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else messages of the same moment would stay unseen, in whatever part they are: a stuck queue."""
    called: list[str] = []

    def fails() -> None:
        called.append("first")
        raise BrokerUnavailable("a table cannot be read")

    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with caplog.at_level(logging.ERROR):
        CommitGroup([fails, lambda: called.append("second")], [answer]).finish()
    assert called == ["first", "second"]
    assert answer.done()
    assert answer.exception() is None
    assert "a table cannot be read" in caplog.text


@pytest.mark.parametrize(("written", "kind"), [(False, BrokerUnavailable), (True, BrokerTimeout)])
async def test_a_failure_says_whether_it_may_be_done(written: bool, kind: type[Exception]) -> None:
    loop = asyncio.get_running_loop()
    answer, cancelled = loop.create_future(), loop.create_future()
    cancelled.cancel()
    steps = CommitGroup([lambda: pytest.fail("nothing follows")], [answer, cancelled])
    steps.written = written
    steps.fail(BrokerUnavailable("no room"))
    with pytest.raises(kind, match="no room"):
        await answer
