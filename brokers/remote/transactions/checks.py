"""Transaction checks: a broker checks an open half message, and the gateway forwards that to a producer.

The broker stores the half message again, at new offsets, before it sends the check: the transaction id in
the check names those. Sources: protocol facts 3.9, 5.5 (39) and 7.8; the requests as 5.5.0 makes them.

It also checks some that were ended: it examines half messages whose time has not come, stores
each again behind the others, and does not match an end of the former place with the copy. So the gateway
looks the message up first: one that is stored was committed, through whatever replica.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from brokers.port import CheckHandler
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.clients.registration import ClientRegistration
from brokers.remote.read.pull import stored
from brokers.remote.transactions.end import TransactionEnder, end_fields
from brokers.remote.transactions.ids import Half, make_transaction_id
from brokers.remote.transactions.outcomes import TransactionOutcome
from popgate.errors import PeerWireError, shown
from popgate.model import HalfPlace, Resolution, StoredMessage, TransactionCheck
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import (
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
from popgate.wire.messages.records import decode_record

_log = logging.getLogger(__name__)

_OF_THE_HALF = tuple(
    name.encode()
    for name in (TRAN_MSG, REAL_TOPIC, REAL_QID, TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET)
)
"""Properties that a half message has and the message that it becomes has not."""
_LARGEST = (1 << 63) - 1
_LOOKED_UP_AT_ONCE = 32
_MOST_LOOKED_UP = 4_096
"""A broker asks about all that is open in one moment. Those beyond are asked about without a look."""
_PUT_OFF_TO = 5
"""Of the looks of a broker at a half message, which it gives up after `transactionCheckMax`, 15 as shipped:
from this one on a producer is asked although the broker does not say whether the message is there."""


class TransactionChecks:
    """`Transactions.on_check` of the port."""

    def __init__(
        self, access: ClusterAccess, ender: TransactionEnder, registration: ClientRegistration
    ) -> None:
        self._connections = access.connections
        self._settings = access.settings
        self._routes = access.routes
        self._clock = access.clock
        self._ender = ender
        self._registration = registration
        self._check_handler: CheckHandler | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._room = asyncio.Semaphore(_LOOKED_UP_AT_ONCE)
        self._checks = self._unasked_checks = self._settled_checks = self._bad_checks = 0
        self._put_off_checks = 0
        self._connections.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._check)

    def figures(self) -> dict[str, float]:
        return {
            "checks_total": self._checks,
            "checks_unasked_total": self._unasked_checks,
            "checks_settled_total": self._settled_checks,
            "checks_put_off_total": self._put_off_checks,
            "checks_unreadable_total": self._bad_checks,
        }

    def on_check(self, handler: CheckHandler) -> None:
        """Set the handler. A check without a producer here is repeated, perhaps at another replica."""
        self._check_handler = handler

    def _check(self, address: str, link: int, request: Command) -> Awaitable[None] | None:
        self._checks += 1
        if self._stopped:
            return None  # its broker asks again
        try:
            half, message, looks = self._read_check(address, request)
        except PeerWireError as error:
            self._bad_checks += 1
            # Once: a broker asks again and again.
            level = logging.WARNING if self._bad_checks == 1 else logging.DEBUG
            _log.log(level, "a check of broker %s cannot be read: %s", address, error)
            return None
        known = self._ender.ends.of(half)
        if known.verdict is not None:
            self._settle(address, link, half)
            return None
        if len(self._looks) >= _MOST_LOOKED_UP:
            return self._ask_producer(half, known, message)
        look = self._look_first(address, link, half, known, message, may_wait=looks < _PUT_OFF_TO)
        task = asyncio.get_running_loop().create_task(look)
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)
        return None

    async def _look_first(
        self,
        address: str,
        link: int,
        half: Half,
        known: TransactionOutcome,
        message: StoredMessage,
        *,
        may_wait: bool,
    ) -> None:
        """Ask a producer, unless the message proves to be committed.

        Nor while the broker cannot say whether it is, as long as it `may_wait`: it will ask again.
        """
        try:
            async with self._room:
                committed = await self._ender.is_committed(half)
            if committed:
                known.verdict, known.ended_ms = Resolution.COMMIT, self._clock.now_ms()
            while known.under_way is not None:
                await asyncio.wait([known.under_way])
            if known.verdict is not None:
                self._settle(address, link, half)
            elif committed is None and may_wait:
                self._put_off_checks += 1
            else:
                await self._ask_producer(half, known, message)
        except Exception as error:
            _log.error("a check of broker %s could not be answered", address, exc_info=error)

    async def stop(self) -> None:
        self._stopped = True
        for task in self._looks:
            task.cancel()
        if self._looks:
            await asyncio.wait(list(self._looks))

    async def _ask_producer(self, half: Half, known: TransactionOutcome, message: StoredMessage) -> None:
        check = TransactionCheck(
            half.topic,
            half.producer_group,
            make_transaction_id(self._settings.transaction_keys[0], half),
            message,
            # The broker's own count has every look at the message, also those before it may ask.
            known.asked + 1,
            HalfPlace(half.broker, half.producer_group, half.commit_offset, half.queue_offset),
        )
        asked = self._check_handler is not None and self._check_handler(check)
        self._check_asked(half, known, asked if isinstance(asked, bool) else await asked)

    def _settle(self, address: str, link: int, half: Half) -> None:
        """It has ended: the copy that the broker made for the check must not become a second message.

        And it must not be asked about for hours.
        """
        self._settled_checks += 1
        fields = end_fields(half, Resolution.ROLLBACK)
        self._connections.tell(
            address, RequestCode.END_TRANSACTION, {**fields, "bname": half.broker}, link=link
        )

    def _check_asked(self, half: Half, known: TransactionOutcome, asked: bool) -> None:
        known.asked += asked
        if not asked:
            self._unasked_checks += 1
            self._registration.registry.nobody_asked(half.topic, half.producer_group)

    def _read_check(self, address: str, request: Command) -> tuple[Half, StoredMessage, int]:
        """The half message, and how often its broker has looked at it. Raises PeerWireError."""
        commit_offset = _offset(request, "commitLogOffset")
        queue_offset = _offset(request, "tranStateTableOffset")
        record = decode_record(request.body)
        properties = split_properties(record.properties)
        message_id = _text(properties.get(UNIQ_KEY.encode())) or request.fields.get("transactionId", "")
        broker = request.fields.get("bname") or self._routes.clusters.at(address)
        if not broker or not record.topic or not message_id or record.born_ms < 0:
            raise PeerWireError("it does not say which message of which broker it is about")
        group = _text(properties.get(PGROUP.encode())) or record.topic
        half = Half(
            broker, record.topic, group, message_id, commit_offset, queue_offset, record.born_ms, checked=True
        )
        message = stored(record, broker, record.queue_id, record.offset)
        message.properties = drop_properties(record.properties, _OF_THE_HALF)
        looks = properties.get(TRANSACTION_CHECK_TIMES.encode()) or b""
        return half, message, int(looks) if looks.isdigit() and len(looks) < 9 else _PUT_OFF_TO


def _offset(request: Command, name: str) -> int:
    text = request.fields.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _LARGEST):
        raise PeerWireError(f"{name} is {shown(text)}")
    return int(text)


def _text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""
