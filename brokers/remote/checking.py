"""Checks: a broker asks what became of a half message that nobody ended, and a producer is asked.

The broker stored the half message again before it asked, at new offsets: the id that goes out with
the question names those. Sources: protocol facts 3.9, 5.5 (39) and 7.8; the requests as 5.5.0 makes them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from brokers.port import CheckHandler
from brokers.remote.ends import Ending
from brokers.remote.pulling import stored
from brokers.remote.settings import RemoteSettings
from brokers.remote.transacting import Transacting, end_fields
from brokers.remote.transaction_ids import Half, make_transaction_id
from popgate.clock import Clock
from popgate.errors import PeerWireError, shown
from popgate.model import Resolution, StoredMessage, TransactionCheck
from popgate.wire.codes import RequestCode
from popgate.wire.properties import (
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    drop_properties,
    split_properties,
)
from popgate.wire.records import decode_record
from popgate.wire.remoting import Command

_log = logging.getLogger(__name__)

_OF_THE_HALF = tuple(
    name.encode()
    for name in (TRAN_MSG, REAL_TOPIC, REAL_QID, TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET)
)
"""Properties that a half message has and the message that it becomes has not."""
_LARGEST = (1 << 63) - 1


class Checking(Transacting):
    """`Transactions.on_check` of the port."""

    def __init__(self, settings: RemoteSettings, *, clock: Clock) -> None:
        super().__init__(settings, clock=clock)
        self._check_handler: CheckHandler | None = None
        self._checks = self._unasked_checks = self._settled_checks = self._bad_checks = 0
        self.links.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._check)

    def figures(self) -> dict[str, float]:
        return {
            **super().figures(),
            "checks_total": self._checks,
            "checks_unasked_total": self._unasked_checks,
            "checks_settled_total": self._settled_checks,
            "checks_unreadable_total": self._bad_checks,
        }

    def on_check(self, handler: CheckHandler) -> None:
        """Who is asked. A check that nobody here could be asked comes again, perhaps to another replica."""
        self._check_handler = handler

    def _check(self, address: str, link: int, request: Command) -> Awaitable[None] | None:
        self._checks += 1
        try:
            half, message = self._read_check(address, request)
        except PeerWireError as error:
            self._bad_checks += 1
            # Once: a broker asks again and again.
            level = logging.WARNING if self._bad_checks == 1 else logging.DEBUG
            _log.log(level, "a check of broker %s cannot be read: %s", address, error)
            return None
        known = self.ends.of(half)
        if known.verdict is not None:
            # It has ended, and the broker had not written that down when it asked: the copy that it made
            # for the check must not become a second message, and must not be asked about for hours.
            self._settled_checks += 1
            fields = end_fields(half, Resolution.ROLLBACK)
            self.links.tell(address, RequestCode.END_TRANSACTION, {**fields, "bname": half.broker}, link=link)
            return None
        check = TransactionCheck(
            half.topic,
            half.producer_group,
            make_transaction_id(self.settings.transaction_keys[0], half),
            message,
            # The broker's own count has every look at the message, also those before it may ask.
            known.asked + 1,
        )
        asked = self._check_handler is not None and self._check_handler(check)
        if isinstance(asked, bool):
            self._check_asked(half, known, asked)
            return None
        return self._check_asked_later(half, known, asked)

    async def _check_asked_later(self, half: Half, known: Ending, asked: Awaitable[bool]) -> None:
        self._check_asked(half, known, await asked)

    def _check_asked(self, half: Half, known: Ending, asked: bool) -> None:
        known.asked += asked
        if not asked:
            self._unasked_checks += 1
            self.register.nobody_asked(half.topic, half.producer_group)

    def _read_check(self, address: str, request: Command) -> tuple[Half, StoredMessage]:
        """Raises PeerWireError."""
        commit_offset = _offset(request, "commitLogOffset")
        queue_offset = _offset(request, "tranStateTableOffset")
        record = decode_record(request.body)
        properties = split_properties(record.properties)
        message_id = _text(properties.get(UNIQ_KEY.encode())) or request.fields.get("transactionId", "")
        broker = request.fields.get("bname") or self.routes.clusters.at(address)
        if not broker or not record.topic or not message_id or record.born_ms < 0:
            raise PeerWireError("it does not say which message of which broker it is about")
        group = _text(properties.get(PGROUP.encode())) or record.topic
        half = Half(
            broker, record.topic, group, message_id, commit_offset, queue_offset, record.born_ms, checked=True
        )
        message = stored(record, broker, record.queue_id, record.offset)
        message.properties = drop_properties(record.properties, _OF_THE_HALF)
        return half, message


def _offset(request: Command, name: str) -> int:
    told = request.fields.get(name, "")
    if not (told.isascii() and told.isdigit() and len(told) < 20 and int(told) <= _LARGEST):
        raise PeerWireError(f"{name} is {shown(told)}")
    return int(told)


def _text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""
