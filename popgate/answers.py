"""Maps the response code of a broker to a fault, in one table. Source: protocol facts 5.10."""

from __future__ import annotations

from collections.abc import Callable

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
    shown,
)
from popgate.wire.frames.codes import ResponseCode, request_name
from popgate.wire.frames.remoting import Command

_LONGEST_REMARK = 240


class BrokerFailed(GatewayError):
    """The broker could not do it and does not say in a way we know why; the outcome of a write is unknown."""

    fault = Fault.INTERNAL

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class AnswerTooLarge(GatewayError):
    """An answer of which only the header was read, `answer`: what was asked for is done."""

    fault = Fault.INTERNAL

    def __init__(self, name: str, code: int, answer: Command) -> None:
        super().__init__(
            f"{name} answered {request_name(code)} with {answer.skipped} bytes, which are too many to be read"
        )
        self.answer = answer


def error_of(command: Command, *, broker: str = "", topic: str = "", group: str = "") -> GatewayError:
    """The error for an unsuccessful response; the names are used in its sentence."""
    code = command.code
    if code == ResponseCode.TOPIC_NOT_EXIST and topic:
        return TopicNotFound(topic)
    if code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and group:
        return GroupNotFound(group)
    remark = shown(command.remark.strip() or "no reason given", _LONGEST_REMARK)
    sentence = f"{f'broker {broker}' if broker else 'the broker'} answered {_named(code)}: {remark}"
    make = _TABLE.get(code)
    return BrokerFailed(sentence, code) if make is None else make(sentence)


def _named(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"code {code}"


def _wrong(fault: Fault) -> Callable[[str], GatewayError]:
    return lambda sentence: BadRequest(sentence, fault)


def _missing(fault: Fault) -> Callable[[str], GatewayError]:
    return lambda sentence: NotFound(sentence, fault)


_TABLE: dict[int, Callable[[str], GatewayError]] = {
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.FLOW_CONTROL: BrokerBusy,
    ResponseCode.POLLING_FULL: BrokerBusy,
    ResponseCode.BROKER_DISPATCH_NOT_COMPLETE: BrokerBusy,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Unsupported,
    ResponseCode.VERSION_NOT_SUPPORTED: Unsupported,
    # Stored by the master, and not yet where it should be as well: nobody knows whether it stays.
    ResponseCode.FLUSH_DISK_TIMEOUT: BrokerTimeout,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: BrokerTimeout,
    ResponseCode.SLAVE_NOT_AVAILABLE: BrokerTimeout,
    ResponseCode.POLLING_TIMEOUT: BrokerTimeout,
    ResponseCode.MESSAGE_ILLEGAL: BadRequest,
    ResponseCode.INVALID_PARAMETER: BadRequest,
    ResponseCode.ILLEGAL_OPERATION: BadRequest,
    ResponseCode.SERVICE_NOT_AVAILABLE: BrokerUnavailable,
    ResponseCode.NOT_LEADER_FOR_QUEUE: BrokerUnavailable,
    ResponseCode.BROKER_NOT_EXIST: BrokerUnavailable,
    ResponseCode.GO_AWAY: BrokerUnavailable,
    ResponseCode.NO_PERMISSION: Forbidden,
    ResponseCode.TOPIC_NOT_EXIST: _missing(Fault.TOPIC_NOT_FOUND),
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: _missing(Fault.GROUP_NOT_FOUND),
    ResponseCode.PULL_OFFSET_MOVED: _wrong(Fault.ILLEGAL_OFFSET),
    ResponseCode.QUERY_NOT_FOUND: _missing(Fault.OFFSET_NOT_FOUND),
    ResponseCode.NO_MESSAGE: _missing(Fault.MESSAGE_NOT_FOUND),
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: _wrong(Fault.ILLEGAL_FILTER),
    ResponseCode.SUBSCRIPTION_NOT_EXIST: _wrong(Fault.ILLEGAL_FILTER),
    ResponseCode.SUBSCRIPTION_NOT_LATEST: _wrong(Fault.ILLEGAL_FILTER),
    ResponseCode.FILTER_DATA_NOT_EXIST: _wrong(Fault.ILLEGAL_FILTER),
    ResponseCode.FILTER_DATA_NOT_LATEST: _wrong(Fault.ILLEGAL_FILTER),
    ResponseCode.CONSUMER_NOT_ONLINE: _missing(Fault.CLIENT_NOT_FOUND),
    ResponseCode.USER_NOT_EXIST: Forbidden,
    ResponseCode.POLICY_NOT_EXIST: Forbidden,
}
