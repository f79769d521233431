import pytest

from popgate import errors
from popgate.errors import (
    BodyTooLarge,
    DelayTooLong,
    Fault,
    GatewayError,
    IllegalFilter,
    IllegalOffset,
    TooManyRequests,
    shown,
)


def test_an_error_makes_its_own_sentence_from_its_data() -> None:
    assert BodyTooLarge(5, 4).sentence == "the message body has 5 bytes, the limit is 4"
    assert "90000 ms ahead" in DelayTooLong(90_000, 60_000).sentence
    assert "(60 s)" in DelayTooLong(90_000, 60_000).sentence
    assert (
        IllegalFilter("a =", "it ends", 3).sentence
        == "illegal filter expression 'a =': it ends at character 3"
    )
    assert str(IllegalFilter("", "it is empty")) == "illegal filter expression '': it is empty"
    assert TooManyRequests("slowly", 2.5).retry_after == 2.5


@pytest.mark.parametrize(("offset", "nearest"), [(-1, 3), (2, 3), (10, 9), (1 << 62, 9)])
def test_an_illegal_offset_tells_the_bounds_and_where_reading_can_go_on(offset: int, nearest: int) -> None:
    error = IllegalOffset(offset, 3, 9)
    assert error.sentence == f"offset {offset} is outside of 3 to 9"
    assert error.fault is Fault.ILLEGAL_OFFSET
    assert error.nearest == nearest


def test_only_what_may_succeed_later_is_retryable() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, GatewayError)]
    assert {k.__name__ for k in kinds if k.retryable} == {
        *("TooManyRequests", "BrokerUnavailable", "BrokerBusy", "BrokerTimeout", "ClientTimeout"),
    }
    assert all(isinstance(k.fault, Fault) for k in kinds)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "'plain'"),
        ("中文", "'中文'"),
        ("a\nb", r"'a\nb'"),
        ("\x1b[31m", r"'\x1b[31m'"),
        ("x" * 81, "'" + "x" * 80 + "…'"),
        ("\u202eabc", r"'\u202eabc'"),
    ],
)
def test_text_from_outside_is_shown_harmlessly(text: str, expected: str) -> None:
    assert shown(text) == expected
