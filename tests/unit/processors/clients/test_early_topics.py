"""Topics that unknown clients send to, kept within bounds."""

from __future__ import annotations

from processors.clients.early_topics import EarlyTopics


def test_topics_are_taken_once() -> None:
    early = EarlyTopics()
    for topic in ("orders", "bills", "orders"):
        early.add("p1", topic)
    assert early.take("p1") == {"orders", "bills"}
    assert early.take("p1") == set()


def test_the_oldest_clients_make_room() -> None:
    early = EarlyTopics()
    for number in range(2_000):
        early.add(f"p{number}", "orders")
    assert len(early) == 1_024
    assert early.take("p0") == set()
    assert early.take("p1999") == {"orders"}


def test_a_client_has_no_more_than_sixteen() -> None:
    early = EarlyTopics()
    for number in range(40):
        early.add("p1", f"topic{number}")
    assert len(early.take("p1")) == 16
