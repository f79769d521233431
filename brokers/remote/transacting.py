"""Ends of transactions: told to the broker that has the half message, once, and told truly.

Sources: any-replica section 2; protocol facts 3.9, 5.5 (37) and 7.8; the answers as 5.5.0 gives them.
"""

from __future__ import annotations

import asyncio

from brokers.remote.ends import Ending, Ends
from brokers.remote.errors import error_of
from brokers.remote.registering import Registering
from brokers.remote.settings import RemoteSettings
from brokers.remote.transaction_ids import Half, read_transaction_id
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    IllegalTransactionId,
    PreconditionFailed,
    shown,
)
from popgate.model import EndTransaction, Resolution
from popgate.wire.codes import RequestCode, ResponseCode
from popgate.wire.records import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from popgate.wire.remoting import Command

_FLAGS = {Resolution.COMMIT: TRANSACTION_COMMIT, Resolution.ROLLBACK: TRANSACTION_ROLLBACK}
_ENDED = {Resolution.COMMIT: "committed", Resolution.ROLLBACK: "rolled back"}
_NOT_ITS_HALF = ("find prepared transaction", "producer group wrong", "offset wrong")
"""What a broker says, in small letters, when there is no such half message where the id names it."""


class Transacting(Registering):
    """`Transactions.end_transaction` of the port."""

    def __init__(self, settings: RemoteSettings, *, clock: Clock) -> None:
        super().__init__(settings, clock=clock)
        self.ends = Ends(settings.max_known_ends)

    def figures(self) -> dict[str, float]:
        return {**super().figures(), "known_ends": len(self.ends)}

    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        """Never asked twice of a broker. What was ended through this replica is answered as it was.

        Besides what the port says, raises PreconditionFailed for an end that comes too late (the broker
        asks the producer), and BrokerTimeout also for one after another whose outcome nobody knows.
        """
        half = read_transaction_id(self.settings.transaction_keys, end)
        known = self.ends.of(half)
        while known.under_way is not None:
            await asyncio.wait([known.under_way])
        if known.verdict is not None:
            _check_same(known, end.resolution, known.verdict)
            return
        place = known.newest
        if not place.checked and self.clock.now_ms() > place.open_until_ms:
            raise _late(place)
        if place.commit_offset == known.doubted:
            raise BrokerTimeout(
                f"broker {place.broker} was told before how the transaction ends, and did not answer: if it"
                " did not take it, it will ask"
            )
        known.under_way = asyncio.get_running_loop().create_future()
        try:
            await self._end(context, known, place, end.resolution)
        finally:
            known.under_way.set_result(None)
            known.under_way = None

    async def _end(self, context: Context, known: Ending, place: Half, resolution: Resolution) -> None:
        fields = end_fields(place, resolution)
        try:
            answer = await self.callings.call(
                place.broker, RequestCode.END_TRANSACTION, fields, context=context
            )
        except (BrokerTimeout, asyncio.CancelledError):
            known.doubted = place.commit_offset
            raise
        error = _error_of(answer, place)
        if error is None:
            known.verdict = resolution
        elif isinstance(error, BrokerTimeout):
            known.doubted = place.commit_offset
        if error is not None:
            raise error


def end_fields(place: Half, resolution: Resolution) -> dict[str, str]:
    """The header of END_TRANSACTION, but for the broker's name."""
    return {
        "topic": place.topic,
        "producerGroup": place.producer_group,
        "tranStateTableOffset": str(place.queue_offset),
        "commitLogOffset": str(place.commit_offset),
        "commitOrRollback": str(_FLAGS[resolution]),
        "fromTransactionCheck": "true" if place.checked else "false",
        "msgId": place.message_id,
        "transactionId": place.message_id,
    }


def _check_same(known: Ending, resolution: Resolution, verdict: Resolution) -> None:
    if verdict is not resolution:
        raise IllegalTransactionId(
            f"the transaction of message {shown(known.newest.message_id)} was {_ENDED[verdict]} already"
        )


def _late(place: Half) -> PreconditionFailed:
    return PreconditionFailed(
        f"the transaction of message {shown(place.message_id)} could be ended for {place.open_s} s: the"
        " broker asks its producer now"
    )


def _error_of(answer: Command, place: Half) -> GatewayError | None:
    """What the answer says; None: it is done."""
    code = answer.code
    if code == ResponseCode.SUCCESS:
        return None
    if code == ResponseCode.ILLEGAL_OPERATION:
        return _late(place)
    if code == ResponseCode.SLAVE_NOT_AVAILABLE:
        return BrokerUnavailable(
            f"broker {place.broker} has no master now, and a slave ends no transactions: this one stays open,"
            " and is asked about when the master is back"
        )
    if code == ResponseCode.SYSTEM_ERROR and any(why in answer.remark.lower() for why in _NOT_ITS_HALF):
        message, why = shown(place.message_id), shown(answer.remark)
        return IllegalTransactionId(f"broker {place.broker} has no half message {message} there: {why}")
    return error_of(answer, broker=place.broker, topic=place.topic)
