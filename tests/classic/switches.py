"""Why a message came again when its group changed between pop and true pull."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

VIRTUAL = 1 << 60
"""Messages that were popped have numbers from there on where their offset was."""
NEAR_MS = 10_000
"""A change is felt by what came so long before it or after: clients write positions down every 5 s, gateways
look every 5 s whether a group is mapped, and each takes a request more."""
SENT_TWICE = "its producer sent it again"
RETRIED = "a pop had it when its group changed, and it came back as a retry"
READ_ANEW = "it was popped, and its queue was read by offset from a position below it"
POPPED_ANEW = "it was read by offset, and popped from a position below it"
SET_BACK = "it was popped, true pull stored a position below it, and it was popped from there"
TAKEN_OVER = "its queue went to another member, which read it from a position below it"


def causes_of(facts: Any) -> tuple[Counter[str], list[tuple[Any, Any]]]:
    """How often each cause made a message come again; and the deliveries, in pairs, that nothing explains."""
    begins = [fact["at"] for kind in ("joins", "leaves") for fact in facts.of(kind)]
    ends = [fact["at"] for kind in ("pulled", "mapped") for fact in facts.of(kind)]
    changes = [(begin, min(end for end in ends if end >= begin)) for begin in begins]
    deliveries: dict[str, list[Any]] = defaultdict(list)
    for fact in sorted(facts.of("again"), key=lambda fact: fact["when"]):
        deliveries[fact["body"]].append(fact)
    pairs = [pair for each in deliveries.values() for pair in itertools.pairwise(each)]
    sent_again = bool(facts.of("sent again"))
    causes = Counter(cause for pair in pairs if (cause := why_again(*pair, changes, sent_again=sent_again)))
    return causes, [pair for pair in pairs if not why_again(*pair, changes, sent_again=sent_again)]


def lines_of(pairs: list[tuple[Any, Any]], facts: Any) -> list[str]:
    """What happened, in seconds, for who reads why a test failed."""
    events = [(one["at"], kind) for kind in ("joins", "pulled", "leaves", "mapped") for one in facts.of(kind)]
    begin = min(at for at, _ in events)
    lines = [f"{(at - begin) / 1000:.1f} s {kind}" for at, kind in sorted(events)]
    for pair in pairs[:40]:
        told = []
        for one in pair:
            place = "popped" if one["offset"] >= VIRTUAL else f"at {one['offset']}"
            place += " of retries" if one["retry"] else ""
            when = f"{(one['when'] - begin) / 1000:.1f} s"
            told.append(f"{one['by']}, {when}, {place} of {one['queue']}, {one['attempt']}, {one['id']}")
        lines.append(f"{pair[0]['body']}: {'; '.join(told)}")
    return lines


def why_again(earlier: Any, later: Any, changes: list[tuple[int, int]], *, sent_again: bool = False) -> str:
    """Empty: nothing explains it. `changes`: when each began and ended, in ms."""
    if earlier["id"] != later["id"]:
        return SENT_TWICE if sent_again else ""
    if not any(
        begin - NEAR_MS <= earlier["when"] <= end + NEAR_MS and begin <= later["when"]
        for begin, end in changes
    ):
        return ""
    if later["retry"] and (later["attempt"] > earlier["attempt"] or not earlier["retry"]):
        return RETRIED
    match earlier["offset"] >= VIRTUAL, later["offset"] >= VIRTUAL:
        case True, False:
            return READ_ANEW
        case False, True:
            return POPPED_ANEW
        case True, True if _changed_twice(earlier["when"], later["when"], changes):
            return SET_BACK
        case False, False if earlier["by"] != later["by"]:
            return TAKEN_OVER
    return ""


def _changed_twice(earlier_ms: int, later_ms: int, changes: list[tuple[int, int]]) -> bool:
    """Whether the group went to true pull and back: a change is felt from its beginning on."""
    return sum(earlier_ms - NEAR_MS <= end and begin <= later_ms for begin, end in changes) > 1
