"""Faults as codes."""

from __future__ import annotations

import pytest

from popgate.errors import Fault, Forbidden, TopicNotFound
from popgate.wire.frames.codes import ResponseCode
from protocols.remoting.codec.errors import Refused, code_of, code_of_fault


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_has_a_code_and_none_is_success(fault: Fault) -> None:
    assert code_of_fault(fault) != ResponseCode.SUCCESS


def test_what_clients_look_at() -> None:
    assert code_of(TopicNotFound("orders")) == ResponseCode.TOPIC_NOT_EXIST
    assert code_of(Forbidden("no")) == ResponseCode.NO_PERMISSION


def test_a_refusal_has_its_own_code() -> None:
    error = Refused(ResponseCode.INVALID_PARAMETER, "no such queue")
    assert code_of(error) == ResponseCode.INVALID_PARAMETER
    assert error.sentence == "no such queue"
