"""What no gateway does is refused with the reason."""

from __future__ import annotations

import pytest

from popgate.wire.codes import ResponseCode
from protocols.remoting.door import rooms_of
from protocols.remoting.refusing import REASONS, Refusing
from tests.unit.protocols.remoting.conftest import Caller, Stage


@pytest.mark.parametrize("code", sorted(REASONS))
async def test_a_reason_is_told(stage: Stage, code: int) -> None:
    answer = await Caller(Refusing(stage.house)).ask(code, {"anything": "x"})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == REASONS[code]


async def test_nothing_is_both_refused_and_served(stage: Stage) -> None:
    served = [code for room in rooms_of(stage.house) for code in room.handlers()]
    assert len(served) == len(set(served))
