"""The errors for failed calls, and for the statuses in answers. Source: protocol facts 2.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import grpc

from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    Fault,
    Forbidden,
    GatewayError,
    GroupNotFound,
    Internal,
    NotFound,
    TooManyRequests,
    TopicNotFound,
    Unauthenticated,
    Unsupported,
    shown,
)
from popgate.pb import definition_pb2 as pb

_LONGEST_WHY: Final = 240
_Make = Callable[[str], GatewayError]


def error_of(status: pb.Status, *, endpoint: str, topic: str = "", group: str = "") -> GatewayError:
    """The error for a status that is not OK; the names are used in its sentence."""
    code = status.code
    if code == pb.TOPIC_NOT_FOUND and topic:
        return TopicNotFound(topic)
    if code == pb.CONSUMER_GROUP_NOT_FOUND and group:
        return GroupNotFound(group)
    name = pb.Code.Name(code) if code in pb.Code.values() else f"code {code}"
    sentence = (
        f"{endpoint} answered {name}: {shown(status.message.strip() or 'no reason given', _LONGEST_WHY)}"
    )
    make = _ANSWERED.get(code)
    if make is not None:
        return make(sentence)
    return BadRequest(sentence) if 40_000 <= code < 50_000 else Internal(sentence)


def error_of_call(error: grpc.RpcError, *, endpoint: str, method: str) -> GatewayError:
    """The error for a call that has no answer: the connection's, or of something on the way.

    After BrokerUnavailable and BrokerTimeout it is unknown whether it was carried out.
    """
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    why = (
        shown(str(error.details() or "no reason given"), _LONGEST_WHY) if isinstance(error, grpc.Call) else ""
    )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unsupported(
            f"{method} at {endpoint}", f"{why}; it needs a gateway of popgate, or transport = remoting"
        )
    make = _FAILED.get(code, Internal)
    return make(f"{method} at {endpoint} failed with {code.name}: {why}")


def _wrong(fault: Fault) -> _Make:
    return lambda sentence: BadRequest(sentence, fault)


def _missing(fault: Fault) -> _Make:
    return lambda sentence: NotFound(sentence, fault)


_ANSWERED: Final[dict[int, _Make]] = {
    pb.ILLEGAL_TOPIC: _wrong(Fault.ILLEGAL_TOPIC),
    pb.ILLEGAL_CONSUMER_GROUP: _wrong(Fault.ILLEGAL_GROUP),
    pb.ILLEGAL_FILTER_EXPRESSION: _wrong(Fault.ILLEGAL_FILTER),
    pb.ILLEGAL_OFFSET: _wrong(Fault.ILLEGAL_OFFSET),
    pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: _wrong(Fault.MESSAGE_TYPE_MISMATCH),
    pb.MESSAGE_BODY_TOO_LARGE: _wrong(Fault.BODY_TOO_LARGE),
    pb.MESSAGE_BODY_EMPTY: _wrong(Fault.BODY_EMPTY),
    pb.MESSAGE_PROPERTIES_TOO_LARGE: _wrong(Fault.PROPERTIES_TOO_LARGE),
    pb.UNAUTHORIZED: Unauthenticated,
    pb.FORBIDDEN: Forbidden,
    pb.NOT_FOUND: _missing(Fault.MESSAGE_NOT_FOUND),
    pb.MESSAGE_NOT_FOUND: _missing(Fault.MESSAGE_NOT_FOUND),
    pb.TOPIC_NOT_FOUND: _missing(Fault.TOPIC_NOT_FOUND),
    pb.CONSUMER_GROUP_NOT_FOUND: _missing(Fault.GROUP_NOT_FOUND),
    pb.OFFSET_NOT_FOUND: _missing(Fault.OFFSET_NOT_FOUND),
    pb.REQUEST_TIMEOUT: BrokerTimeout,
    pb.TOO_MANY_REQUESTS: BrokerBusy,
    pb.HA_NOT_AVAILABLE: BrokerUnavailable,
    pb.PROXY_TIMEOUT: BrokerTimeout,
    pb.MASTER_PERSISTENCE_TIMEOUT: BrokerTimeout,
    pb.SLAVE_PERSISTENCE_TIMEOUT: BrokerTimeout,
    pb.NOT_IMPLEMENTED: Unsupported,
    pb.UNSUPPORTED: Unsupported,
    pb.VERSION_UNSUPPORTED: Unsupported,
}
_FAILED: Final[dict[grpc.StatusCode, _Make]] = {
    grpc.StatusCode.UNAVAILABLE: BrokerUnavailable,
    # Cancelled by nobody but the end of the connection.
    grpc.StatusCode.CANCELLED: BrokerUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: BrokerTimeout,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooManyRequests,
    grpc.StatusCode.INVALID_ARGUMENT: BadRequest,
}
