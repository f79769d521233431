"""brokers.shared.codec.errors: a failure arrives as what it was."""

from __future__ import annotations

import inspect

import pytest

from brokers.shared.codec.calls import decode, encode
from brokers.shared.codec.errors import ERROR
from popgate import errors
from popgate.errors import (
    BadRequest,
    BrokerUnavailable,
    Fault,
    GatewayError,
    IllegalOffset,
    PeerWireError,
    ReceiptExpired,
    TooManyRequests,
)

CLASSES = [
    found
    for _, found in sorted(vars(errors).items())
    if inspect.isclass(found) and issubclass(found, GatewayError)
]
VALUES = {
    int: 1 << 70,
    "int": 1 << 70,
    "float": 2.5,
    "str": "a\udcff\n",
    "bool": True,
    "Fault": Fault.ILLEGAL_TAG,
}


def made(kind: type[GatewayError]) -> GatewayError:
    """One with a value for each argument that its class takes."""
    given = {
        name: VALUES[str(one.annotation)]
        for name, one in list(inspect.signature(kind.__init__).parameters.items())[1:]
    }
    return kind(**given)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_failure_keeps_its_class_its_sentence_and_its_data(kind: type[GatewayError]) -> None:
    error = made(kind)
    read = decode(ERROR, encode(ERROR, error))
    assert type(read) is kind
    assert vars(read) == vars(error)
    assert (read.args, str(read)) == (error.args, str(error))
    assert (read.fault, read.retryable, read.sentence) == (error.fault, error.retryable, error.sentence)


def test_data_that_decides_something_arrives() -> None:
    read = decode(ERROR, encode(ERROR, IllegalOffset(7, 10, 20)))
    assert isinstance(read, IllegalOffset)
    assert read.nearest == 10
    busy = decode(ERROR, encode(ERROR, TooManyRequests("full", 3.0, alone=True)))
    assert isinstance(busy, TooManyRequests)
    assert (busy.retry_after, busy.alone) == (3.0, True)
    assert isinstance(decode(ERROR, encode(ERROR, ReceiptExpired("h"))), ReceiptExpired)


def test_a_class_that_is_not_ours_arrives_as_the_nearest_that_is() -> None:
    class Peculiar(BadRequest):
        pass

    read = decode(ERROR, encode(ERROR, Peculiar("so", Fault.ILLEGAL_KEY)))
    assert type(read) is BadRequest
    assert (read.sentence, read.fault) == ("so", Fault.ILLEGAL_KEY)


def test_what_an_error_carries_beside_plain_values_stays_behind() -> None:
    error = BrokerUnavailable("gone")
    error.whole = object()  # type: ignore[attr-defined]
    error.why = "why"  # type: ignore[attr-defined]
    assert vars(decode(ERROR, encode(ERROR, error))) == {"sentence": "gone", "why": "why"}


@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_nonsense_is_refused(at: int) -> None:
    data = bytearray(encode(ERROR, IllegalOffset(7, 10, 20)))
    data[at] = 0xFF
    with pytest.raises(PeerWireError):
        decode(ERROR, bytes(data))


def test_data_cannot_take_the_place_of_what_python_needs() -> None:
    data = encode(ERROR, IllegalOffset(7, 10, 20)).replace(b"offset", b"__dict")
    with pytest.raises(PeerWireError, match="no name"):
        decode(ERROR, data)
