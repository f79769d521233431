"""Which messages of a pop response go to the caller: those that pass the filter, have attempts left, and fit.

The others are acknowledged, dead-lettered or returned. Source: protocol facts 4.8, any-replica section 1.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brokers.dead_letters import DeadLetterHandler, ReportsDeadLetters
from brokers.remote.settle.ack_batcher import Ack
from brokers.remote.settle.deliveries import SUSPENDS_FROM, Deliveries
from popgate.context import Allowance, Context
from popgate.errors import GatewayError, TooManyRequests
from popgate.ids.receipt import Receipt, parse_receipt
from popgate.model import GroupConfig, Pop, StoredMessage
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import UNIQ_KEY, find_property

_log = logging.getLogger(__name__)

_UNIQ_KEY: Final = UNIQ_KEY.encode()


@dataclass(slots=True, init=False)
class PopAttempt:
    """A pop as it goes on: the request, what the group's settings and the route say of it."""

    context: Context
    request: Pop
    config: GroupConfig
    route: TopicRoute
    brokers: list[str]
    rest: int
    """How much more there is at the broker that was asked last, by its own words."""

    # Written out, because mypyc does not compile what a dataclass makes, and there is one for every receive.
    def __init__(
        self, context: Context, request: Pop, config: GroupConfig, route: TopicRoute, brokers: list[str]
    ) -> None:
        self.context = context
        self.request = request
        self.config = config
        self.route = route
        self.brokers = brokers
        self.rest = 0


class PopFilter(ReportsDeadLetters):
    """Sorts popped messages into those to deliver, acknowledge, dead-letter or return."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self.given_back = 0
        self.buried = 0
        self._dead_letter_handler: DeadLetterHandler | None = None

    def on_dead_letter(self, handler: DeadLetterHandler) -> None:
        """For dead letters that this gateway creates: brokers do not report their own."""
        self._dead_letter_handler = handler

    def passing(
        self, want: PopAttempt, broker: str, answer: Command, messages: list[StoredMessage]
    ) -> list[StoredMessage]:
        """What this consumer gets: a broker filters tags by their hash, and counts no attempts (4.8)."""
        request, config = want.request, want.config
        everything = request.filter.everything
        counts_returns = request.ordered or answer.version < SUSPENDS_FROM
        if everything and not counts_returns:
            most = config.max_attempts
            if not [None for message in messages if message.attempt > most]:
                return messages
        again: set[str] = set()
        if request.ordered and messages:
            popped = [(parse_receipt(message.receipt), message.attempt) for message in messages]
            finished = self._deliveries.ordered.popped_again(
                request.topic, request.group, popped, attempt_id=request.attempt_id
            )
            again = {receipt.encode() for receipt in finished}
        passing = []
        for message in messages:
            if message.receipt in again:
                self._finish_quietly(request.topic, request.group, message.receipt)
                continue
            if request.ordered:
                self._deliveries.ordered.dealt(message.receipt)
                if message.receipt in self._deliveries.replaced:
                    # Popped in the millisecond of a pop that is being given back: so is this one, or will be.
                    self.return_popped_messages(want, [message])
                    continue
            if not everything and not request.filter.matches(message.properties):
                self._finish_quietly(request.topic, request.group, message.receipt)
                continue
            if counts_returns or message.attempt > config.max_attempts:
                name = find_property(message.properties, _UNIQ_KEY) or message.receipt.encode()
                undelivered = self._deliveries.returns.times(request.group, name)
                if message.attempt - undelivered > config.max_attempts:
                    self.buried += 1
                    self._deliveries.in_background(self._bury_used_up(request.topic, request.group, message))
                    continue
                if counts_returns:
                    self._deliveries.returns.delivered(message.receipt, request.group, name)
            passing.append(message)
        return passing

    def within(
        self, want: PopAttempt, taken: list[StoredMessage], allowance: Allowance
    ) -> list[StoredMessage]:
        """What there is still room for: others may have taken meanwhile what was free when it was asked for.

        It is told that these are held; the others are returned. Raises TooManyRequests.
        """
        size = sum([len(message.body) for message in taken])
        try:
            room = allowance.room()
        except TooManyRequests:
            self.return_popped_messages(want, taken)
            raise
        if size > room:
            kept, size = 1, len(taken[0].body)
            while kept < len(taken) and size + len(taken[kept].body) <= room:
                size += len(taken[kept].body)
                kept += 1
            self.return_popped_messages(want, taken[kept:])
            taken = taken[:kept]
        allowance.add(size)
        return taken

    def return_popped_messages(self, want: PopAttempt, messages: Sequence[StoredMessage]) -> None:
        topic, group = want.request.topic, want.request.group
        if want.request.ordered:
            messages = [
                message for message in messages if self._deliveries.ordered.is_returned(message.receipt)
            ]
            # From now on, for who is dealt the same handles before the broker has answered.
            self._deliveries.replaced.add_all([message.receipt for message in messages])
        self.given_back += len(messages)
        for message in messages:
            handle = message.receipt
            freeing = self._deliveries.free(topic, group, handle, parse_receipt(handle))
            self._deliveries.in_background(freeing)

    def return_unread(self, want: PopAttempt, receipts: Sequence[Receipt]) -> None:
        self.given_back += len(receipts)
        for receipt in receipts:
            freeing = self._deliveries.free(want.request.topic, want.request.group, receipt.encode(), receipt)
            self._deliveries.in_background(freeing)

    def _finish_quietly(self, topic: str, group: str, handle: str) -> None:
        """Acknowledge what does not pass the filter; failing that it comes again, and does not pass again."""
        receipt = parse_receipt(handle)
        self._deliveries.acking.finish(receipt.broker, [Ack(topic, group, receipt, handle)])

    async def _bury_used_up(self, topic: str, group: str, message: StoredMessage) -> None:
        """Failing that, the message comes again when its time is over, and is buried then."""
        try:
            handle = message.receipt
            await self._deliveries.bury(None, topic, group, handle, parse_receipt(handle))
        except GatewayError as error:
            _log.warning("a message of %s with no attempts left was not buried: %s", topic, error.sentence)
            return
        if self._dead_letter_handler is not None:
            self._dead_letter_handler(group, topic, message.properties)
