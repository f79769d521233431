"""What no gateway does is refused with the reason."""

from __future__ import annotations

import pytest

from popgate.wire.frames.codes import RequestCode, ResponseCode
from protocols.remoting.door import rooms_of
from protocols.remoting.tools.refused import REASONS, RefusedCodes, refused
from tests.unit.protocols.remoting.conftest import Caller, Stage


@pytest.mark.parametrize("code", sorted(REASONS))
async def test_a_reason_is_told(stage: Stage, code: int) -> None:
    answer = await Caller(RefusedCodes(stage.door_context)).ask(code, {"anything": "x"})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == REASONS[code]


def test_a_half_message_that_was_given_up_is_asked_about_at_its_broker() -> None:
    """Tools ask by the address in the id of a message, which is that of the door."""
    request = Caller().request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "orders", "msgId": "AA"})
    assert "send the message anew" in refused(request).remark
    assert "ask the broker itself" in refused(request, cluster=True).remark


async def test_nothing_is_both_refused_and_served(stage: Stage) -> None:
    served = [code for room in rooms_of(stage.door_context) for code in room.handlers()]
    assert len(served) == len(set(served))
