"""How faults are told to clients."""

from __future__ import annotations

import pytest

from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BodyTooLarge,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    DelayTooLong,
    Fault,
    Forbidden,
    GatewayError,
    GroupNotFound,
    IllegalFilter,
    IllegalGroup,
    IllegalTopic,
    IllegalTransactionId,
    Internal,
    MessageTypeMismatch,
    NotFound,
    PropertiesTooLarge,
    ReceiptExpired,
    TooManyRequests,
    TopicNotFound,
    Unauthenticated,
    Unsupported,
)
from popgate.pb.definition_pb2 import Code
from protocols.grpc.codec.errors import code_of, is_clients_fault, knows_polling_time, status_of

JAVA_KNOWS = {
    *(Code.BAD_REQUEST, Code.ILLEGAL_ACCESS_POINT, Code.ILLEGAL_TOPIC, Code.ILLEGAL_CONSUMER_GROUP),
    *(Code.ILLEGAL_MESSAGE_TAG, Code.ILLEGAL_MESSAGE_KEY, Code.ILLEGAL_MESSAGE_GROUP),
    *(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, Code.INVALID_TRANSACTION_ID, Code.ILLEGAL_MESSAGE_ID),
    *(Code.ILLEGAL_FILTER_EXPRESSION, Code.ILLEGAL_INVISIBLE_TIME, Code.ILLEGAL_DELIVERY_TIME),
    *(Code.INVALID_RECEIPT_HANDLE, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    *(Code.UNRECOGNIZED_CLIENT_TYPE, Code.MESSAGE_CORRUPTED, Code.CLIENT_ID_REQUIRED),
    *(Code.ILLEGAL_POLLING_TIME, Code.UNAUTHORIZED, Code.PAYMENT_REQUIRED, Code.FORBIDDEN, Code.NOT_FOUND),
    *(Code.TOPIC_NOT_FOUND, Code.CONSUMER_GROUP_NOT_FOUND, Code.PAYLOAD_TOO_LARGE),
    *(Code.MESSAGE_BODY_TOO_LARGE, Code.MESSAGE_BODY_EMPTY, Code.TOO_MANY_REQUESTS),
    *(Code.REQUEST_HEADER_FIELDS_TOO_LARGE, Code.MESSAGE_PROPERTIES_TOO_LARGE, Code.INTERNAL_ERROR),
    *(Code.INTERNAL_SERVER_ERROR, Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT),
    *(Code.MASTER_PERSISTENCE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT, Code.UNSUPPORTED),
    *(Code.ILLEGAL_OFFSET, Code.ILLEGAL_LITE_TOPIC, Code.LITE_TOPIC_QUOTA_EXCEEDED),
    Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}
"""What the official Java client turns into an error of its own (protocol facts 1.8)."""

JAVA_CANNOT_MEET = {Fault.OFFSET_NOT_FOUND, Fault.ILLEGAL_CLIENT_PROPERTIES}
"""Faults of reading by offset, and of settings that this client does not have."""


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_has_a_code_that_the_java_client_knows(fault: Fault) -> None:
    code = code_of(fault)
    assert Code.Name(code)
    assert code in JAVA_KNOWS or fault in JAVA_CANNOT_MEET


def test_no_fault_of_a_client_is_told_as_internal() -> None:
    internal = {f for f in Fault if code_of(f) in (Code.INTERNAL_SERVER_ERROR, Code.INTERNAL_ERROR)}
    assert internal == {Fault.INTERNAL}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IllegalTopic("a b", "no"), 40002),
        (IllegalGroup("", "no"), 40003),
        (BadRequest("x", Fault.ILLEGAL_TAG), 40004),
        (BadRequest("x", Fault.ILLEGAL_KEY), 40005),
        (BadRequest("x", Fault.ILLEGAL_MESSAGE_GROUP), 40006),
        (BadRequest("x", Fault.ILLEGAL_PROPERTY_KEY), 40007),
        (IllegalTransactionId("x"), 40008),
        (BadRequest("x", Fault.ILLEGAL_MESSAGE_ID), 40009),
        (IllegalFilter("a ==", "no"), 40010),
        (BadRequest("x", Fault.ILLEGAL_INVISIBLE_TIME), 40011),
        (DelayTooLong(2, 1), 40012),
        (ReceiptExpired("1"), 40013),
        (MessageTypeMismatch("t", "NORMAL", "FIFO"), 40014),
        (BadRequest("x", Fault.CLIENT_TYPE_UNKNOWN), 40015),
        (BadRequest("x", Fault.MESSAGE_CORRUPTED), 40016),
        (BadRequest("x", Fault.CLIENT_ID_REQUIRED), 40017),
        (BadRequest("x", Fault.ILLEGAL_OFFSET), 40019),
        (BadRequest("x"), 40000),
        (BadRequest("x", Fault.ILLEGAL_ACCESS_POINT), 40001),
        (Unauthenticated("x"), 40100),
        (Forbidden("x"), 40300),
        (NotFound("x"), 40400),
        (TopicNotFound("t"), 40402),
        (GroupNotFound("g"), 40403),
        (BodyTooLarge(2, 1), 41301),
        (BadRequest("x", Fault.BODY_EMPTY), 41302),
        (PropertiesTooLarge(2, 1, "x"), 43101),
        (TooManyRequests("x"), 42900),
        (BrokerBusy("x"), 42900),
        (BrokerUnavailable("x"), 50002),
        (BrokerTimeout("x"), 50400),
        (Unsupported("x"), 50500),
        (Internal("x"), 50001),
    ],
)
def test_an_error_becomes_its_code_and_its_sentence(error: GatewayError, code: int) -> None:
    status = status_of(error, Context(client_version="5.2.0"))
    known_as = f"{error.known_as}: " if error.known_as else ""
    assert (status.code, status.message) == (code, known_as + error.sentence)


@pytest.mark.parametrize(
    ("version", "knows"),
    [
        ("5.0.3", True),
        ("5.0.10", True),
        ("5.1.4-SNAPSHOT", True),
        ("6", True),
        ("5.0.2", False),
        ("5.0.0-rc1", False),
        ("1.0.8", False),
        ("", False),
        ("5", False),
        ("x.y", False),
        ("5.0.³", False),
    ],
)
def test_a_polling_time_that_cannot_be_is_told_old_clients_as_bad_request(version: str, knows: bool) -> None:
    assert knows_polling_time(version) is knows
    error = BadRequest("too short", Fault.ILLEGAL_POLLING_TIME)
    assert status_of(error, Context(client_version=version)).code == (40018 if knows else 40000)


def test_what_a_client_did_is_told_from_what_happened_to_it() -> None:
    assert is_clients_fault(Fault.ILLEGAL_TOPIC)
    assert is_clients_fault(Fault.TOO_MANY_REQUESTS)
    assert not is_clients_fault(Fault.BROKER_UNAVAILABLE)
    assert not is_clients_fault(Fault.INTERNAL)


@pytest.mark.parametrize("fault", list(Fault))
def test_rust_is_told_no_code_that_came_after_it(fault: Fault) -> None:
    """Its client panics on a number that it does not know; 5.0.0 knows the codes of RocketMQ 5.0."""
    later = {40019, 40020, 40021, 40404, 41302, 42901, 42902}
    error = BadRequest("why", fault)
    told = status_of(error, Context(language="RUST", client_version="5.0.0")).code
    assert told not in later
    plain = code_of(fault)
    assert told == plain or (plain in later and told // 100 * 100 == plain // 100 * 100) or told == 40000
