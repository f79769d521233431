"""The status with which each fault is reported to a RocketMQ client. Source: protocol facts 2.4, 1.8 and 9.1.

The official Java client reports codes that it does not list as "unsupported", so faults
with such a code of their own are reported with the nearest one that it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from popgate.context import Context
from popgate.errors import Fault, GatewayError
from popgate.pb.definition_pb2 import Code, Status
from protocols.grpc.codec.client_quirks import code_for, is_at_least

OK: Final = Status(code=Code.OK, message="OK")
"""Shared: never changed, only copied into answers."""


def code_of(fault: Fault) -> Code:
    """The code for a fault, whatever the client's version."""
    match fault:
        case Fault.BAD_REQUEST:
            return Code.BAD_REQUEST
        case Fault.ILLEGAL_TOPIC:
            return Code.ILLEGAL_TOPIC
        case Fault.ILLEGAL_GROUP:
            return Code.ILLEGAL_CONSUMER_GROUP
        case Fault.ILLEGAL_TAG:
            return Code.ILLEGAL_MESSAGE_TAG
        case Fault.ILLEGAL_KEY:
            return Code.ILLEGAL_MESSAGE_KEY
        case Fault.ILLEGAL_MESSAGE_GROUP:
            return Code.ILLEGAL_MESSAGE_GROUP
        case Fault.ILLEGAL_PROPERTY_KEY:
            return Code.ILLEGAL_MESSAGE_PROPERTY_KEY
        case Fault.ILLEGAL_MESSAGE_ID:
            return Code.ILLEGAL_MESSAGE_ID
        case Fault.ILLEGAL_FILTER:
            return Code.ILLEGAL_FILTER_EXPRESSION
        case Fault.ILLEGAL_INVISIBLE_TIME:
            return Code.ILLEGAL_INVISIBLE_TIME
        case Fault.ILLEGAL_DELIVERY_TIME:
            return Code.ILLEGAL_DELIVERY_TIME
        case Fault.ILLEGAL_POLLING_TIME:
            return Code.ILLEGAL_POLLING_TIME
        case Fault.ILLEGAL_OFFSET:
            return Code.ILLEGAL_OFFSET
        case Fault.ILLEGAL_RECEIPT:
            return Code.INVALID_RECEIPT_HANDLE
        case Fault.ILLEGAL_TRANSACTION_ID:
            return Code.INVALID_TRANSACTION_ID
        case Fault.ILLEGAL_LITE_TOPIC:
            return Code.ILLEGAL_LITE_TOPIC
        case Fault.LITE_TOPIC_QUOTA_EXCEEDED:
            return Code.LITE_TOPIC_QUOTA_EXCEEDED
        case Fault.LITE_SUBSCRIPTION_QUOTA_EXCEEDED:
            return Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        case Fault.ILLEGAL_ACCESS_POINT:
            return Code.ILLEGAL_ACCESS_POINT
        case Fault.MESSAGE_TYPE_MISMATCH:
            return Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        case Fault.MESSAGE_CORRUPTED:
            return Code.MESSAGE_CORRUPTED
        case Fault.BODY_TOO_LARGE:
            return Code.MESSAGE_BODY_TOO_LARGE
        case Fault.BODY_EMPTY:
            return Code.MESSAGE_BODY_EMPTY
        case Fault.PROPERTIES_TOO_LARGE:
            return Code.MESSAGE_PROPERTIES_TOO_LARGE
        case Fault.CLIENT_ID_REQUIRED:
            return Code.CLIENT_ID_REQUIRED
        case Fault.CLIENT_TYPE_UNKNOWN:
            return Code.UNRECOGNIZED_CLIENT_TYPE
        case Fault.ILLEGAL_CLIENT_PROPERTIES:
            return Code.INVALID_CLIENT_PROPERTIES
        case Fault.CLIENT_NOT_FOUND:
            return Code.NOT_FOUND
        case Fault.CLIENT_TIMEOUT:
            return Code.PROXY_TIMEOUT
        case Fault.TOPIC_NOT_FOUND:
            return Code.TOPIC_NOT_FOUND
        case Fault.GROUP_NOT_FOUND:
            return Code.CONSUMER_GROUP_NOT_FOUND
        case Fault.MESSAGE_NOT_FOUND:
            # MESSAGE_NOT_FOUND is the normal answer of an empty receive and of nothing else.
            return Code.NOT_FOUND
        case Fault.OFFSET_NOT_FOUND:
            return Code.OFFSET_NOT_FOUND
        case Fault.ALREADY_EXISTS | Fault.PRECONDITION_FAILED:
            return Code.BAD_REQUEST
        case Fault.UNAUTHENTICATED:
            return Code.UNAUTHORIZED
        case Fault.FORBIDDEN:
            return Code.FORBIDDEN
        case Fault.TOO_MANY_REQUESTS | Fault.BROKER_BUSY:
            return Code.TOO_MANY_REQUESTS
        case Fault.BROKER_UNAVAILABLE:
            return Code.HA_NOT_AVAILABLE
        case Fault.BROKER_TIMEOUT:
            return Code.PROXY_TIMEOUT
        case Fault.UNSUPPORTED:
            return Code.UNSUPPORTED
        case Fault.INTERNAL:
            return Code.INTERNAL_SERVER_ERROR
    assert_never(fault)


_CODES: Final = {fault: code_of(fault) for fault in Fault}


def status_of(error: GatewayError, context: Context) -> Status:
    """The status to answer this client with: RocketMQ's words for the failure, then cause and limit."""
    code = _CODES[error.fault]
    if error.fault is Fault.ILLEGAL_POLLING_TIME and not knows_polling_time(context.client_version):
        code = Code.BAD_REQUEST
    known_as = error.known_as
    message = f"{known_as}: {error.sentence}" if known_as else error.sentence
    return Status(code=code_for(context, code), message=message)


def joint_status(statuses: Iterable[Status]) -> Status:
    """The status of an answer with entries: theirs when they agree, else MULTIPLE_RESULTS (pitfall 17)."""
    distinct = {status.code: status for status in statuses}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    return Status(code=Code.MULTIPLE_RESULTS, message="the entries have different results")


def knows_polling_time(version: str) -> bool:
    """Whether a client of this version knows ILLEGAL_POLLING_TIME: from 5.0.3 on (protocol facts 2.3)."""
    return is_at_least(version, (5, 0, 3))


def is_clients_fault(fault: Fault) -> bool:
    """Whether the client caused the fault, not the gateway or a broker."""
    return 40000 <= _CODES[fault] < 50000
