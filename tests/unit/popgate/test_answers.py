"""popgate.answers: answers without success, as what was asked sees them."""

from __future__ import annotations

import pytest

from popgate.answers import BrokerFailed, error_of
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    Fault,
    Forbidden,
    GatewayError,
    GroupNotFound,
    NotFound,
    TopicNotFound,
    Unsupported,
)
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command


@pytest.mark.parametrize(
    ("code", "kind", "fault"),
    [
        (ResponseCode.SYSTEM_BUSY, BrokerBusy, Fault.BROKER_BUSY),
        (ResponseCode.FLOW_CONTROL, BrokerBusy, Fault.BROKER_BUSY),
        (ResponseCode.SERVICE_NOT_AVAILABLE, BrokerUnavailable, Fault.BROKER_UNAVAILABLE),
        (ResponseCode.GO_AWAY, BrokerUnavailable, Fault.BROKER_UNAVAILABLE),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, BrokerTimeout, Fault.BROKER_TIMEOUT),
        (ResponseCode.NO_PERMISSION, Forbidden, Fault.FORBIDDEN),
        (ResponseCode.MESSAGE_ILLEGAL, BadRequest, Fault.BAD_REQUEST),
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, BadRequest, Fault.ILLEGAL_FILTER),
        (ResponseCode.QUERY_NOT_FOUND, NotFound, Fault.OFFSET_NOT_FOUND),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, Unsupported, Fault.UNSUPPORTED),
        (ResponseCode.SYSTEM_ERROR, BrokerFailed, Fault.INTERNAL),
        (4711, BrokerFailed, Fault.INTERNAL),
    ],
)
def test_a_code_is_a_fault(code: int, kind: type[GatewayError], fault: Fault) -> None:
    error = error_of(Command(int(code), remark="because"), broker="a")
    assert type(error) is kind
    assert error.fault is fault
    assert "broker a answered" in error.sentence
    assert "'because'" in error.sentence


def test_what_is_missing_has_its_name() -> None:
    assert isinstance(error_of(Command(17), topic="t"), TopicNotFound)
    assert isinstance(error_of(Command(26), group="g"), GroupNotFound)
    assert error_of(Command(17)).fault is Fault.TOPIC_NOT_FOUND
    assert error_of(Command(26)).fault is Fault.GROUP_NOT_FOUND


def test_a_remark_is_shown_cut_and_harmless() -> None:
    told = error_of(Command(1, remark="\x1b[2J" + "x" * 5000)).sentence
    assert told.isprintable()
    assert len(told) < 400
    assert "no reason given" in error_of(Command(1)).sentence
