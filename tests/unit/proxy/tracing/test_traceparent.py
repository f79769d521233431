"""proxy.tracing.traceparent: W3C trace context, from anybody."""

from __future__ import annotations

import pytest

from proxy.tracing.traceparent import encode_traceparent, parse_traceparent

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_what_is_written_is_read_again() -> None:
    found = parse_traceparent(GOOD)
    assert found is not None
    assert (found.is_remote, found.trace_flags.sampled) == (True, True)
    assert encode_traceparent(found) == GOOD


def test_a_newer_version_may_say_more() -> None:
    assert parse_traceparent(GOOD.replace("00-", "42-", 1) + "-more") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        GOOD.upper(),
        GOOD + "-more",
        GOOD.replace("00-", "ff-", 1),
        GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        GOOD.replace("00f067aa0ba902b7", "0" * 16),
        GOOD[:-1],
        GOOD.replace("-", "_"),
        "a" * 100_000,
        GOOD.replace("0", "\N{FULLWIDTH DIGIT ZERO}"),
    ],
)
def test_anything_else_is_no_context(text: str) -> None:
    assert parse_traceparent(text) is None
