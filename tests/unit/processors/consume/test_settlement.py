"""processors.consume.settlement: what is refused before a broker is asked, and what is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    IllegalReceipt,
    ReceiptExpired,
    TopicNotFound,
)
from popgate.testing.clock import MovableClock
from processors.consume.settlement import check_receipts
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from tests.support.waiting import until

Outcome = GatewayError | None
AWAY, SILENT = BrokerUnavailable("away"), BrokerTimeout("silent")


def test_an_acknowledgement_has_at_least_one_handle_and_not_too_many() -> None:
    with pytest.raises(IllegalReceipt):
        check_receipts([], Limits())
    with pytest.raises(BadRequest, match="5 handles, the limit is 4"):
        check_receipts(["h"] * 5, Limits(max_receipts_per_ack=4))


async def acked(
    processor: MessagingProcessor, context: Context, clock: MovableClock, handles: Sequence[str]
) -> list[Outcome]:
    acking = asyncio.ensure_future(processor.ack(context, "orders", "readers", handles))
    await until(acking.done, turn=lambda: clock.advance(0.05), pause_s=0.0)
    return await acking


@pytest.fixture
def asked(broker: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the broker answer with these outcomes, one list after the other; the handles of each request."""

    def script(*answers: Sequence[Outcome] | GatewayError) -> list[Sequence[str]]:
        seen: list[Sequence[str]] = []
        left = list(answers)

        async def ack(_context: Context, _topic: str, _group: str, receipts: Sequence[str]) -> list[Outcome]:
            seen.append(receipts)
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, GatewayError):
                raise answer
            return list(answer)

        monkeypatch.setattr(broker, "ack", ack)
        return seen

    return script


async def test_what_one_of_several_brokers_cannot_finish_now_is_tried_again(
    processor: MessagingProcessor, context: Context, clock: MovableClock, asked: Any
) -> None:
    expired = ReceiptExpired("late")
    seen = asked([None, AWAY, expired, SILENT], [SILENT, None], [None])
    assert await acked(processor, context, clock, ["a", "b", "late", "d"]) == [None, None, expired, None]
    assert seen == [["a", "b", "late", "d"], ["b", "d"], ["b"]]


async def test_what_stays_undone_is_told_of_that_alone(
    processor: MessagingProcessor, context: Context, clock: MovableClock, asked: Any
) -> None:
    seen = asked([None, AWAY], [SILENT])
    done, undone = await acked(processor, context, clock, ["a", "b"])
    assert (done, type(undone)) == (None, BrokerTimeout)
    assert len(seen) > 2


async def test_what_was_done_in_part_the_second_time_is_not_taken_for_undone(
    processor: MessagingProcessor, context: Context, clock: MovableClock, asked: Any
) -> None:
    seen = asked(AWAY, [None, AWAY], AWAY)
    done, undone = await acked(processor, context, clock, ["a", "b"])
    assert (done, type(undone)) == (None, BrokerUnavailable)
    assert seen[:3] == [["a", "b"], ["a", "b"], ["b"]]


async def test_what_keeps_all_from_being_done_is_raised(
    processor: MessagingProcessor, context: Context, clock: MovableClock, asked: Any
) -> None:
    asked([AWAY, AWAY])
    with pytest.raises(BrokerUnavailable):
        await acked(processor, context, clock, ["a", "b"])


@pytest.mark.parametrize("error", [BrokerBusy("not now"), TopicNotFound("orders")])
async def test_what_was_done_is_told_whatever_the_rest_fails_with_then(
    processor: MessagingProcessor, context: Context, clock: MovableClock, asked: Any, error: GatewayError
) -> None:
    expired = ReceiptExpired("late")
    seen = asked([None, AWAY, expired], error)
    done, undone, late = await acked(processor, context, clock, ["a", "b", "late"])
    assert (done, type(undone), late) == (None, type(error), expired)
    assert seen == [["a", "b", "late"], ["b"]]


async def test_what_all_of_them_fail_with_then_is_raised(
    processor: MessagingProcessor, context: Context, clock: MovableClock, asked: Any
) -> None:
    asked([AWAY, SILENT], BrokerBusy("not now"))
    with pytest.raises(BrokerBusy):
        await acked(processor, context, clock, ["a", "b"])
