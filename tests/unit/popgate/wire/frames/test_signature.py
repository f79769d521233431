"""Vector: protocol facts 10; rules: 5.12."""

import pytest

from popgate.errors import LocalWireError
from popgate.wire.frames.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    UNIQUE_KEY_QUERY,
    sign,
    verify,
)

FIELDS = {"topic": "T", "queueId": "0"}
VECTOR = "qSsWxUbylmF/qK5mslhlpsg25EI="
SIGNED = FIELDS | {ACCESS_KEY: "AK", SIGNATURE: VECTOR}


def test_the_vector() -> None:
    assert sign(FIELDS, b"body", "AK", "SECRET") == {ACCESS_KEY: "AK", SIGNATURE: VECTOR}
    assert verify(SIGNED, b"body", "SECRET", 479)


def test_the_order_of_the_fields_does_not_matter_and_an_old_signature_is_replaced() -> None:
    assert (
        sign({"queueId": "0", SIGNATURE: "old", "topic": "T"}, b"body", "AK", "SECRET")[SIGNATURE] == VECTOR
    )


def test_a_token_is_signed_too() -> None:
    added = sign(FIELDS, b"", "AK", "SECRET", "token")
    assert added[SECURITY_TOKEN] == "token"
    assert verify(FIELDS | added, b"", "SECRET", 479)
    assert not verify(FIELDS | added | {SECURITY_TOKEN: "other"}, b"", "SECRET", 479)


@pytest.mark.parametrize(
    ("fields", "body", "secret"),
    [
        (SIGNED | {"topic": "U"}, b"body", "SECRET"),
        (SIGNED | {"more": "x"}, b"body", "SECRET"),
        (SIGNED, b"bodY", "SECRET"),
        (SIGNED, b"body", "other"),
        (SIGNED | {SIGNATURE: ""}, b"body", "SECRET"),
        (SIGNED | {SIGNATURE: VECTOR.lower()}, b"body", "SECRET"),
        (SIGNED | {SIGNATURE: "ä🦊"}, b"body", "SECRET"),
        (FIELDS, b"body", "SECRET"),
        ({}, b"", ""),
    ],
)
def test_what_was_not_signed_so_is_not_verified(fields: dict[str, str], body: bytes, secret: str) -> None:
    assert not verify(fields, body, secret, 479)


def test_old_clients_do_not_sign_one_field() -> None:
    fields = SIGNED | {UNIQUE_KEY_QUERY: "true"}
    assert verify(fields, b"body", "SECRET", 399)
    assert not verify(fields, b"body", "SECRET", 400)


def test_what_is_no_text_cannot_be_signed() -> None:
    with pytest.raises(LocalWireError):
        sign({"topic": "\ud800"}, b"", "AK", "SECRET")
