"""The table of what a cluster does otherwise is made of what the brokers declare."""

from __future__ import annotations

from brokers.traits import Traits
from proxy.config.differences import _WORDS, NOT_TOLD, PAGE, differing, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m proxy.config.differences"


def test_every_trait_is_put_into_words_or_left_out_on_purpose() -> None:
    assert {*_WORDS, *NOT_TOLD} == set(Traits.__slots__)
    assert NOT_TOLD.isdisjoint(_WORDS)


def test_what_differs_is_told() -> None:
    names = differing()[2]
    assert "order_scope" in names
    for name in names:
        assert _WORDS[name][0] in page()
