"""The table of differences between brokers in docs/real-cluster.md, generated from their declarations.

`python -m proxy.config.differences` writes it. Differences that only developers need are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokers.embedded.broker import EmbeddedBroker
from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings
from brokers.traits import Traits
from popgate.clock import SystemClock
from proxy.config.units import duration_text

PAGE = Path(__file__).parents[2] / "docs" / "real-cluster.md"
BEGIN = (
    "<!-- Made of brokers/traits.py by `python -m proxy.config.differences`; a test proves it current. -->"
)
END = "<!-- The end of what is made. -->"
NOT_TOLD = frozenset({"chooses_queues", "stands_apart", "stores_packed"})
"""Traits with no effect that clients or operators could see."""


def _span(milliseconds: int) -> str:
    return duration_text(milliseconds / 1000)


def _text(words: str) -> Callable[[Any], str]:
    return lambda _: words


_WORDS: dict[str, tuple[str, Callable[[Any], str], Callable[[Any], str]]] = {
    "order_scope": (
        "what one held message of an ordered group keeps back",
        _text("its message group"),
        _text("its whole queue: all message groups that lie there"),
    ),
    "timer_precision_ms": ("a delayed message comes at most so late", _span, _span),
    "max_delay_ms": (
        "the longest delay",
        _span,
        lambda value: f"{_span(value)}, or what `timerMaxDelaySec` of its brokers says",
    ),
    "redelivery_lag_ms": ("a message whose invisible time is over comes at most so late", _span, _span),
    "renewal_keeps_receipt": (
        "after a change of the invisible time",
        _text("the old handle works on"),
        _text("only the new handle works"),
    ),
    "returns_are_free": (
        "giving back what was not delivered",
        _text("is no attempt"),
        _text("may be an attempt: always before RocketMQ 5.5.0, and for ordered groups"),
    ),
    "ends_are_idempotent": (
        "ending a transaction again, the same way",
        _text("is answered alike, and done once"),
        _text("can store the message twice: the causes are under Transactions"),
    ),
    "acks_are_checked": (
        "an acknowledgement that comes too late",
        _text("is refused"),
        _text(
            "is refused, and not sent, where the gateway can know it; else its broker takes it for some"
            " seconds, and then drops it without a word"
        ),
    ),
    "exact_message_groups": (
        "one message of each message group in an answer",
        _text("exactly"),
        _text("by taking one message at a time"),
    ),
    "dead_letters_name_origin": (
        "a dead letter says where it came from",
        _text("always"),
        _text("not always"),
    ),
    "repeats_known_ms": (
        "a message sent again with its id",
        lambda value: f"is stored once, within {_span(value)}",
        _text("is stored again"),
    ),
    "keeps_all_settings": (
        "settings of topics and groups",
        _text("are kept as they are given"),
        _text("are kept where RocketMQ has them, else refused; consume timeouts are rounded up to minutes"),
    ),
    "tells_deliveries": (
        "what is held, by whom, and what rests",
        _text("`popgate stuck` tells and frees it"),
        _text("nobody knows: those figures are blank, and metrics of them are left out"),
    ),
    "resets_forget_deliveries": (
        "after a reset of a group, what was held before",
        _text("is forgotten"),
        _text("comes when its time is over"),
    ),
    "repeats_keep_receipts": (
        "a receive repeated with its attempt id",
        _text("gets the same handles"),
        _text("gets the same messages with new handles"),
    ),
    "keeps_filtered_redeliveries": (
        "a redelivery that does not pass the filter of who asks",
        _text("is kept for one that it passes"),
        _text("is done, as a new message is"),
    ),
    "keeps_gaps": (
        "what an ordered group finished behind an unfinished message",
        _text("stays finished"),
        _text("may come again behind that one"),
    ),
    "redeliveries_keep_place": (
        "a redelivery has queue, offset and times",
        _text("of the first delivery"),
        _text("of a copy, which the broker makes of it"),
    ),
    "deletes_everything": (
        "a topic or group made again under its name",
        _text("has nothing of the old one"),
        _text("can be reached by old handles, recalls and look-ups"),
    ),
    "ordered_groups_get_retries": (
        "a group that is made ordered",
        _text("gets what waits for another attempt"),
        _text("gets it when it is unordered again"),
    ),
    "buries_unasked": (
        "a message without attempts left becomes a dead letter",
        _text("at once"),
        _text("when its group pops next"),
    ),
    "pops_group_retries": (
        "`%RETRY%group`, which classic consumers pull,",
        _text("can be popped like any topic"),
        _text("cannot be popped: a broker that is to give back such a message gives back nothing any more"),
    ),
    "begins_at_the_end": (
        "a new group that starts from the last message begins",
        _text("behind the last message, on all queues at once"),
        _text(
            "where RocketMQ decides, for each queue at its first pop: with the first message as long as that"
            " is still in the memory of the broker (a young topic), else with the last one that is there"
        ),
    ),
    "reading_lag_ms": (
        "who looks up, or reads by position, sees what is stored",
        _text("at once"),
        lambda value: f"at most {_span(value)} later",
    ),
}
"""By trait: its subject, and its description for the embedded broker and for a cluster."""


def differing() -> tuple[Traits, Traits, list[str]]:
    """Both sets of traits, and the names of those that differ and matter to users."""
    # Neither is started: a broker says what it is before it does anything.
    embedded = EmbeddedBroker(Path("none"), clock=SystemClock()).traits
    remote = RemoteBroker(RemoteSettings(name_servers=("127.0.0.1:9876",)), clock=SystemClock()).traits
    names = [
        name
        for name in Traits.__slots__
        if name not in NOT_TOLD and getattr(embedded, name) != getattr(remote, name)
    ]
    return embedded, remote, names


def table() -> str:
    """Raises KeyError for a trait without a description."""
    embedded, remote, names = differing()
    lines = ["| | embedded broker | RocketMQ cluster |", "| --- | --- | --- |"]
    for name in names:
        about, ours, theirs = _WORDS[name]
        lines.append(f"| {about} | {ours(getattr(embedded, name))} | {theirs(getattr(remote, name))} |")
    return "\n".join(lines)


def page() -> str:
    """The page with its table regenerated. Raises ValueError if its place is not marked."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no place for the table")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
