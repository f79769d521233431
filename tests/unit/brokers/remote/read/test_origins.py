"""brokers.remote.read.origins: the topic that a retry was sent to."""

from __future__ import annotations

import pytest

from brokers.remote.read.origins import true_origin
from popgate.wire.messages.properties import decode_properties, encode_properties


@pytest.mark.parametrize(
    ("topic", "told", "shown"),
    [
        ("%RETRY%g", "%RETRY%g_T", "T"),
        ("%RETRY%g", "%RETRY%g+T", "T"),
        ("%RETRY%g", "%RETRY%g_g_T", "g_T"),
        ("%RETRY%g", "T", "T"),
        ("%RETRY%g", "%RETRY%g", "%RETRY%g"),
        ("%RETRY%g", "%RETRY%g_", "%RETRY%g_"),
        ("%RETRY%g", "%RETRY%other_T", "%RETRY%other_T"),
        ("T", "%RETRY%g_T", "%RETRY%g_T"),
        ("%DLQ%g", "%RETRY%g_T", "T"),
        ("%DLQ%g", "%RETRY%g+T", "T"),
        ("%DLQ%g", "T", "T"),
        ("%DLQ%other", "%RETRY%g+T", "%RETRY%g+T"),
    ],
)
def test_the_topic_behind_the_retries_of_a_pop_is_told(topic: str, told: str, shown: str) -> None:
    block = encode_properties({"a": "b", "RETRY_TOPIC": told, "c": "d"})
    found = decode_properties(true_origin(topic, block))
    assert found == {"a": "b", "RETRY_TOPIC": shown, "c": "d"}


def test_a_message_that_says_nothing_of_it_is_left_as_it_is() -> None:
    block = encode_properties({"a": "b"})
    assert true_origin("%RETRY%g", block) is block


def test_a_name_that_cannot_be_told_is_left_as_it_is() -> None:
    block = b"RETRY_TOPIC\x01%RETRY%g_a\x01b\x02"
    assert true_origin("%RETRY%g", block) == block
