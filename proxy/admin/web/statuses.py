"""Faults as HTTP statuses, in one exhaustive table."""

from __future__ import annotations

from typing import assert_never

from popgate.errors import Fault


def status_of(fault: Fault) -> int:
    """The HTTP status; the fault's name goes into the answer beside it."""
    match fault:
        case (
            Fault.BAD_REQUEST
            | Fault.ILLEGAL_TOPIC
            | Fault.ILLEGAL_GROUP
            | Fault.ILLEGAL_TAG
            | Fault.ILLEGAL_KEY
            | Fault.ILLEGAL_MESSAGE_GROUP
            | Fault.ILLEGAL_PROPERTY_KEY
            | Fault.ILLEGAL_MESSAGE_ID
            | Fault.ILLEGAL_FILTER
            | Fault.ILLEGAL_INVISIBLE_TIME
            | Fault.ILLEGAL_DELIVERY_TIME
            | Fault.ILLEGAL_POLLING_TIME
            | Fault.ILLEGAL_OFFSET
            | Fault.ILLEGAL_RECEIPT
            | Fault.ILLEGAL_TRANSACTION_ID
            | Fault.ILLEGAL_LITE_TOPIC
            | Fault.ILLEGAL_ACCESS_POINT
            | Fault.MESSAGE_TYPE_MISMATCH
            | Fault.MESSAGE_CORRUPTED
            | Fault.BODY_EMPTY
            | Fault.CLIENT_ID_REQUIRED
            | Fault.CLIENT_TYPE_UNKNOWN
            | Fault.ILLEGAL_CLIENT_PROPERTIES
        ):
            return 400
        case Fault.UNAUTHENTICATED:
            return 401
        case Fault.FORBIDDEN:
            return 403
        case Fault.TOPIC_NOT_FOUND | Fault.GROUP_NOT_FOUND | Fault.MESSAGE_NOT_FOUND | Fault.OFFSET_NOT_FOUND:
            return 404
        case Fault.CLIENT_NOT_FOUND:
            return 404
        case Fault.ALREADY_EXISTS:
            return 409
        case Fault.PRECONDITION_FAILED:
            return 412
        case Fault.BODY_TOO_LARGE | Fault.PROPERTIES_TOO_LARGE:
            return 413
        case (
            Fault.TOO_MANY_REQUESTS | Fault.LITE_TOPIC_QUOTA_EXCEEDED | Fault.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        ):
            return 429
        case Fault.INTERNAL:
            return 500
        case Fault.UNSUPPORTED:
            return 501
        case Fault.BROKER_UNAVAILABLE | Fault.BROKER_BUSY:
            return 503
        case Fault.BROKER_TIMEOUT | Fault.CLIENT_TIMEOUT:
            return 504
        case _:
            assert_never(fault)
