"""Ends transactions: sends the end to the broker that has the half message, once, and reports the outcome.

A check may have been sent twice, and be answered through two replicas: so the gateway looks the message up in
the broker's index before it ends it for a check. Sources: any-replica section 2; protocol facts 3.9, 5.5 (37)
and 7.8; the responses as 5.5.0 gives them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.read.lookup import UNIQUE_KEY_QUERY
from brokers.remote.transactions.ids import Half, half_at, read_transaction_id
from brokers.remote.transactions.outcomes import TransactionOutcome, TransactionOutcomes
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    IllegalTransactionId,
    PeerWireError,
    PreconditionFailed,
    shown,
)
from popgate.model import EndTransaction, Resolution
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import UNIQ_KEY, find_property
from popgate.wire.messages.records import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    Record,
    decode_records,
)

_log = logging.getLogger(__name__)

_UNIQ_KEY = UNIQ_KEY.encode()
_FOREVER_MS = str((1 << 63) - 1)
_CLOCKS_OFF_MS = 3_600_000
"""By how much the clocks of a gateway and a broker may differ; a look through all of an index is slow."""
_MOST_COPIES = "8"
_FLAGS = {Resolution.COMMIT: TRANSACTION_COMMIT, Resolution.ROLLBACK: TRANSACTION_ROLLBACK}
_ENDED = {Resolution.COMMIT: "committed", Resolution.ROLLBACK: "rolled back"}
_NOT_ITS_HALF = ("find prepared transaction", "producer group wrong", "offset wrong")
"""What a broker says, in small letters, when there is no such half message where the id names it."""


class TransactionEnder:
    """`Transactions.end_transaction` of the port."""

    def __init__(self, access: ClusterAccess) -> None:
        self._settings = access.settings
        self._clock = access.clock
        self._client = access.client
        self.ends = TransactionOutcomes(access.settings.max_known_ends)

    def figures(self) -> dict[str, float]:
        return {"known_ends": len(self.ends)}

    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        """Never sent twice to a broker. A transaction that ended through this replica gets the same response.

        Besides the port's errors, raises PreconditionFailed for an end that is too late (the broker
        checks the producer), and BrokerTimeout also for one after an end with an unknown outcome.
        """
        half = half_at(end) or read_transaction_id(self._settings.transaction_keys, end)
        known = self.ends.of(half)
        while known.under_way is not None:
            await asyncio.wait([known.under_way])
        if known.verdict is not None:
            _check_same(known, end.resolution, known.verdict)
            return
        place = known.newest
        if place.born_ms and not place.checked and self._clock.now_ms() > place.open_until_ms:
            raise _late(place)
        if place.commit_offset == known.doubted:
            raise BrokerTimeout(
                f"broker {place.broker} was told before how the transaction ends, and did not answer: if it"
                " did not take it, it will ask"
            )
        known.under_way = asyncio.get_running_loop().create_future()
        try:
            if place.checked and await self.is_committed(place, context):
                known.verdict, known.ended_ms = Resolution.COMMIT, self._clock.now_ms()
                await self._drop(place, context)
                _check_same(known, end.resolution, known.verdict)
            else:
                await self._end(context, known, place, end.resolution)
        finally:
            known.under_way.set_result(None)
            known.under_way = None

    async def is_committed(self, half: Half, context: Context | None = None) -> bool | None:
        """Whether its broker has the message in its topic, by its index; None: it does not answer now.

        Never raises. False also where it answers and that cannot be known.
        """
        if not half.born_ms:
            return False
        fields = {
            "topic": half.topic,
            "key": half.message_id,
            "maxNum": _MOST_COPIES,
            "beginTimestamp": str(max(half.born_ms - _CLOCKS_OFF_MS, 0)),
            "endTimestamp": _FOREVER_MS,
            UNIQUE_KEY_QUERY: "true",
        }
        try:
            answer = await self._client.call(half.broker, RequestCode.QUERY_MESSAGE, fields, context=context)
            if answer.code != ResponseCode.SUCCESS:
                return False
            return any(_came_of(record, half) for record in decode_records(answer.body))
        except (GatewayError, PeerWireError) as error:
            _log.debug("whether %s is committed cannot be looked up: %s", shown(half.message_id), error)
            return None if isinstance(error, GatewayError) else False

    async def _drop(self, place: Half, context: Context) -> None:
        """Roll back a copy of a committed message. If that fails, the next check drops it."""
        fields = end_fields(place, Resolution.ROLLBACK)
        with contextlib.suppress(GatewayError):
            await self._client.call(place.broker, RequestCode.END_TRANSACTION, fields, context=context)

    async def _end(
        self, context: Context, known: TransactionOutcome, place: Half, resolution: Resolution
    ) -> None:
        fields = end_fields(place, resolution)
        try:
            answer = await self._client.call(
                place.broker, RequestCode.END_TRANSACTION, fields, context=context
            )
        except (BrokerTimeout, asyncio.CancelledError):
            known.doubted = place.commit_offset
            raise
        error = _error_of(answer, place)
        if error is None:
            known.verdict, known.ended_ms = resolution, self._clock.now_ms()
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


def _came_of(record: Record, half: Half) -> bool:
    """Whether this is the half message, committed: it has the same id and time of birth."""
    return (
        record.topic == half.topic
        and record.born_ms == half.born_ms
        and record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        and find_property(record.properties, _UNIQ_KEY) == half.message_id.encode("utf-8", "replace")
    )


def _check_same(known: TransactionOutcome, resolution: Resolution, verdict: Resolution) -> None:
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
