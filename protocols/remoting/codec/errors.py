"""The response code of each fault. Source: protocol facts 2.5, 5.10 and 7.8."""

from __future__ import annotations

from typing import assert_never

from popgate.errors import BadRequest, Fault, GatewayError
from popgate.wire.frames.codes import ResponseCode


class Refused(BadRequest):
    """A request that cannot be served, where RocketMQ has a code of its own for why."""

    def __init__(self, code: ResponseCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def code_of(error: GatewayError) -> ResponseCode:
    """What a failure is called here."""
    return error.code if isinstance(error, Refused) else code_of_fault(error.fault)


def code_of_fault(fault: Fault) -> ResponseCode:
    match fault:
        case (
            Fault.ILLEGAL_TOPIC
            | Fault.ILLEGAL_GROUP
            | Fault.ILLEGAL_TAG
            | Fault.ILLEGAL_KEY
            | Fault.ILLEGAL_MESSAGE_GROUP
            | Fault.ILLEGAL_PROPERTY_KEY
            | Fault.ILLEGAL_MESSAGE_ID
            | Fault.ILLEGAL_DELIVERY_TIME
            | Fault.ILLEGAL_RECEIPT
            | Fault.ILLEGAL_LITE_TOPIC
            | Fault.MESSAGE_TYPE_MISMATCH
            | Fault.MESSAGE_CORRUPTED
            | Fault.BODY_TOO_LARGE
            | Fault.BODY_EMPTY
            | Fault.PROPERTIES_TOO_LARGE
        ):
            return ResponseCode.MESSAGE_ILLEGAL
        case (
            Fault.BAD_REQUEST
            | Fault.ILLEGAL_INVISIBLE_TIME
            | Fault.ILLEGAL_POLLING_TIME
            | Fault.ILLEGAL_ACCESS_POINT
            | Fault.ILLEGAL_CLIENT_PROPERTIES
            | Fault.CLIENT_ID_REQUIRED
            | Fault.CLIENT_TYPE_UNKNOWN
            | Fault.PRECONDITION_FAILED
            | Fault.ILLEGAL_TRANSACTION_ID
            | Fault.ALREADY_EXISTS
            | Fault.BROKER_UNAVAILABLE
            | Fault.BROKER_TIMEOUT
            | Fault.INTERNAL
        ):
            return ResponseCode.SYSTEM_ERROR
        case Fault.ILLEGAL_FILTER:
            return ResponseCode.SUBSCRIPTION_PARSE_FAILED
        case Fault.ILLEGAL_OFFSET:
            return ResponseCode.PULL_OFFSET_MOVED
        case Fault.TOPIC_NOT_FOUND:
            return ResponseCode.TOPIC_NOT_EXIST
        case Fault.GROUP_NOT_FOUND:
            return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        case Fault.MESSAGE_NOT_FOUND | Fault.OFFSET_NOT_FOUND:
            return ResponseCode.QUERY_NOT_FOUND
        case Fault.CLIENT_NOT_FOUND:
            return ResponseCode.CONSUMER_NOT_ONLINE
        case Fault.CLIENT_TIMEOUT:
            return ResponseCode.CONSUME_MSG_TIMEOUT
        case Fault.UNAUTHENTICATED | Fault.FORBIDDEN:
            return ResponseCode.NO_PERMISSION
        case Fault.TOO_MANY_REQUESTS | Fault.BROKER_BUSY:
            return ResponseCode.SYSTEM_BUSY
        case Fault.LITE_TOPIC_QUOTA_EXCEEDED:
            return ResponseCode.LMQ_QUOTA_EXCEEDED
        case Fault.LITE_SUBSCRIPTION_QUOTA_EXCEEDED:
            return ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        case Fault.UNSUPPORTED:
            return ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        case _ as never:
            assert_never(never)
