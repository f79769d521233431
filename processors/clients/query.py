"""Questions to a connected client, and the pending answer. Source: protocol facts 1.7.

`processors.clients.client_queries` creates them; a door accepts a question through `ClientHandle.ask`, sends
it to the client and settles it. How an answer is matched with its question on the wire is up to the door.
"""

from __future__ import annotations

import asyncio

from popgate.errors import GatewayError
from popgate.groups.verdict import Verdict
from popgate.model import StoredMessage


class ClientQuery:
    """A question to one client. Settled once: with an answer, or with why there is none."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str | bytes | Verdict] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'settled' if self.settled else 'open'}>"

    @property
    def settled(self) -> bool:
        """Also true for a question that was withdrawn."""
        return self.answer.done()

    def answered(self, answer: str | bytes | Verdict) -> None:
        if not self.settled:
            self.answer.set_result(answer)

    def failed(self, error: GatewayError) -> None:
        if not self.settled:
            self.answer.set_exception(error)

    def withdraw(self) -> None:
        """Nobody waits for the answer any more."""
        if not self.answer.cancel() and not self.answer.cancelled():
            # Looked at, so that asyncio does not complain of a failure that nobody saw.
            self.answer.exception()


class StackQuestion(ClientQuery):
    """What are your threads doing? The answer is text."""


class RunningInfoQuestion(ClientQuery):
    """What do you run? The answer is an encoded `ConsumerRunningInfo`. Classic consumers alone can be asked.

    `with_stacks`: also what its threads are doing.
    """

    def __init__(self, *, with_stacks: bool) -> None:
        super().__init__()
        self.with_stacks = with_stacks


class VerifyQuestion(ClientQuery):
    """Consume this message now, outside of all order. The answer is a `Verdict`."""

    def __init__(self, message: StoredMessage) -> None:
        super().__init__()
        self.message = message
