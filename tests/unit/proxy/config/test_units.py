"""proxy.config.units: what people write, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.units import (
    counted,
    duration_text,
    moment_text,
    parse_duration,
    parse_moment,
    parse_size,
    rough_size_text,
    size_text,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("1h30m", 5400),
        ("3d", 259_200),
        (" 2W ", 1_209_600),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "h", "-1", "1x", "1h 30m", "1e9", "inf", "nan", "9" * 100, "101000d", "١٢"]
)
def test_what_is_no_duration_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**11))
def test_a_duration_survives_being_written(ms: int) -> None:
    assert round(parse_duration(duration_text(ms / 1000)) * 1000) == ms


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64KiB", 65536),
        ("4 MiB", 4 << 20),
        ("1.5GiB", 3 << 29),
        ("10MB", 10**7),
        ("4m", 4 << 20),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "4 pots", "1e9", "9" * 100, "5000000TiB"])
def test_what_is_no_size_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 61))
def test_a_size_survives_being_written(size: int) -> None:
    assert parse_size(size_text(size)) == size


NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", NOW),
        ("2h ago", NOW - 7_200_000),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
        ("1960-01-01T00:00:00Z", 0),
    ],
)
def test_moments_are_read_as_people_write_them(text: str, ms: int) -> None:
    assert parse_moment(text, NOW) == ms


@pytest.mark.parametrize(
    "text", ["", "yesterday", "12", "2023-13-01", "h ago", "9" * 17, "x" * 100, "\x1b[2J"]
)
def test_what_is_no_moment_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is no") as caught:
        parse_moment(text, NOW)
    assert str(caught.value).isprintable()


@given(st.integers(min_value=1, max_value=253_402_300_799_999))
def test_a_moment_survives_being_written(ms: int) -> None:
    assert parse_moment(moment_text(ms), NOW) == ms


def test_no_moment_is_a_dash_and_an_absurd_one_a_number() -> None:
    assert moment_text(0) == "-"
    assert moment_text(1 << 62) == str(1 << 62)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.0 KiB"),
        (137_110, "134 KiB"),
        (1_610_612_736, "1.5 GiB"),
        (264_212_084 << 10, "252 GiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_sizes_for_people_have_a_unit_and_few_digits(size: int, text: str) -> None:
    assert rough_size_text(size) == text


def test_one_thing_is_no_plural() -> None:
    assert [counted(number, "problem") for number in range(3)] == ["0 problems", "1 problem", "2 problems"]
