"""Why a message came again when its group changed: what explains it, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.classic.switches import (
    NEAR_MS,
    POPPED_ANEW,
    READ_ANEW,
    RETRIED,
    SENT_TWICE,
    SET_BACK,
    TAKEN_OVER,
    VIRTUAL,
    causes_of,
    why_again,
)

JOINS, PULLED = 100_000, 104_000


class Facts:
    """Of a run in which one member joined directly."""

    def __init__(self, *again: dict[str, Any]) -> None:
        self.kinds = {"joins": [{"at": JOINS}], "pulled": [{"at": PULLED}], "again": list(again)}

    def of(self, kind: str) -> list[dict[str, Any]]:
        return self.kinds.get(kind, [])


def came(
    when: int, *, popped: bool, by: str = "member 0", attempt: int = 1, retry: bool = False, **more: Any
) -> dict[str, Any]:
    whose = {"body": "b", "id": "1", "by": by, "attempt": attempt, "retry": retry}
    return {**whose, "offset": VIRTUAL + 7 if popped else 7, "when": when, **more}


@pytest.mark.parametrize(
    ("earlier", "later", "cause"),
    [
        (came(JOINS - 50, popped=True), came(PULLED, popped=False), READ_ANEW),
        (came(JOINS - 50, popped=False), came(PULLED, popped=True), POPPED_ANEW),
        (came(JOINS - 50, popped=False), came(PULLED, popped=False, by="direct 0"), TAKEN_OVER),
        (
            came(JOINS - 50, popped=True),
            came(PULLED + 60_000, popped=False, attempt=2, retry=True),
            RETRIED,
        ),
        (came(JOINS - 50, popped=False), came(PULLED, popped=False, retry=True), RETRIED),
        (came(JOINS - 50, popped=False, retry=True), came(PULLED, popped=False, retry=True), ""),
        (came(PULLED + NEAR_MS, popped=False), came(PULLED + NEAR_MS + 1, popped=True), POPPED_ANEW),
        (came(JOINS - NEAR_MS - 1, popped=True), came(PULLED, popped=False), ""),
        (came(PULLED + NEAR_MS + 1, popped=True), came(PULLED + NEAR_MS + 2, popped=False), ""),
        (came(JOINS - 50, popped=True), came(JOINS - 1, popped=False), ""),
        (came(JOINS - 50, popped=False), came(PULLED, popped=False), ""),
        (came(JOINS - 50, popped=True), came(PULLED, popped=True), ""),
        (came(JOINS - 50, popped=True), came(PULLED, popped=False, id="2"), ""),
    ],
)
def test_a_cause_is_near_a_change(earlier: Any, later: Any, cause: str) -> None:
    assert why_again(earlier, later, [(JOINS, PULLED)]) == cause
    causes, unexplained = causes_of(Facts(later, earlier))
    assert (dict(causes), len(unexplained)) == ({cause: 1} if cause else {}, 0 if cause else 1)


def test_a_message_that_was_sent_again_is_another_one() -> None:
    pair = came(1, popped=True), came(2, popped=True, id="2")
    assert why_again(*pair, [], sent_again=True) == SENT_TWICE


@pytest.mark.parametrize(("leaves", "cause"), [(PULLED + 500, SET_BACK), (PULLED + 2_500, "")])
def test_a_position_is_set_back_only_by_a_change_and_back(leaves: int, cause: str) -> None:
    changes = [(JOINS, PULLED), (leaves, leaves + 3_000)]
    later = came(PULLED + 2_000, popped=True)
    assert why_again(came(JOINS - 50, popped=True), later, changes) == cause
