"""The result of compiling an expression: closures from the properties of a message to a value.

A value is a text (bytes, as stored in the block), a number, a truth value, or None, which is
SQL's NULL and the third truth value. No closure raises: hostile properties only evaluate to unknown.
Properties are read by a `Read`: from the block itself, or from a dict of it if an expression
reads enough properties to make that worthwhile.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Value: TypeAlias = "bytes | int | float | bool | None"
Row: TypeAlias = Any
"""The properties of a message, in the form that the `Read` of its expression wants."""
Read: TypeAlias = "Callable[[Row, bytes], bytes | None]"
Evaluate: TypeAlias = "Callable[[Row], Value]"
Test: TypeAlias = "Callable[[Row], bool | None]"

_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_INTEGER = re.compile(rb"[+-]?[0-9]+\Z")
_LONGEST_NUMBER = 64
"""Bytes; real numbers are shorter, and parsing more would let a hostile sender slow down receivers."""
_LOOKS: dict[str, Callable[[bytes, bytes], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": lambda text, part: text.startswith(part),
    "ENDSWITH": lambda text, part: text.endswith(part),
}

ORDERINGS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def number_in(text: bytes) -> int | float | None:
    """The number that a text reads as; None when it is none."""
    if text.isdigit() and len(text) < 19:
        return int(text)
    if len(text) > _LONGEST_NUMBER:
        return None
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _NUMBER.match(text) else None


def truth_in(text: bytes) -> bool:
    """The truth value that a text reads as, the way Java reads one."""
    return text.lower() == b"true"


def equal(left: Value, right: Value) -> bool | None:
    """SQL's equality: unknown beside an unknown, and where a text should be a number and is none."""
    if left is None or right is None:
        return None
    if isinstance(right, bytes):
        if isinstance(left, bytes):
            return left == right
        left, right = right, left
    if isinstance(left, bytes):
        if isinstance(right, bool):
            return truth_in(left) is right
        number = number_in(left)
        return None if number is None else number == right
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    return left == right


def _as_number(value: Value) -> int | float | None:
    if isinstance(value, bytes):
        return number_in(value)
    return None if isinstance(value, bool) else value


def constant(value: Value) -> Evaluate:
    return lambda row: value


def text_of(read: Read, name: bytes) -> Evaluate:
    return lambda row: read(row, name)


def truth_of(read: Read, name: bytes) -> Test:
    """A property in the place of a condition."""

    def test(row: Row) -> bool | None:
        text = read(row, name)
        return None if text is None else truth_in(text)

    return test


def negated(operand: Evaluate) -> Evaluate:
    def evaluate(row: Row) -> Value:
        number = _as_number(operand(row))
        return None if number is None else -number

    return evaluate


def equals(left: Evaluate, right: Evaluate) -> Test:
    return lambda row: equal(left(row), right(row))


def text_equals(read: Read, name: bytes, wanted: bytes) -> Test:
    """`equals` for the most frequent case: a property and a text."""

    def test(row: Row) -> bool | None:
        text = read(row, name)
        return None if text is None else text == wanted

    return test


def ordered(left: Evaluate, sign: str, right: Evaluate) -> Test:
    compare = ORDERINGS[sign]

    def test(row: Row) -> bool | None:
        first = _as_number(left(row))
        if first is None:
            return None
        second = _as_number(right(row))
        return None if second is None else compare(first, second)

    return test


def number_ordered(read: Read, name: bytes, sign: str, second: float) -> Test:
    """`ordered` for the most frequent case: a property and a number."""
    compare = ORDERINGS[sign]

    def test(row: Row) -> bool | None:
        text = read(row, name)
        if text is None:
            return None
        first = number_in(text)
        return None if first is None else compare(first, second)

    return test


def one_of(read: Read, name: bytes, wanted: frozenset[bytes]) -> Test:
    def test(row: Row) -> bool | None:
        text = read(row, name)
        return None if text is None else text in wanted

    return test


def is_null(operand: Evaluate) -> Test:
    return lambda row: operand(row) is None


def part_test(word: str, operand: Evaluate, part: bytes, *, wanted: bool) -> Test:
    """CONTAINS, STARTSWITH and ENDSWITH, with `wanted` False their NOT forms.

    They are never unknown: without a text to look into, or without a part to look for, both forms
    are FALSE, as in RocketMQ. UTF-8 lets bytes be compared instead of characters.
    """
    if not part:
        return lambda row: False
    look = _LOOKS[word]

    def test(row: Row) -> bool:
        text = operand(row)
        return isinstance(text, bytes) and look(text, part) is wanted

    return test


def negation(condition: Test) -> Test:
    def test(row: Row) -> bool | None:
        value = condition(row)
        return None if value is None else not value

    return test


def conjunction(conditions: Sequence[Test]) -> Test:
    """AND over any number: FALSE wins over unknown, unknown over TRUE."""
    conditions = tuple(conditions)

    def test(row: Row) -> bool | None:
        known = True
        for condition in conditions:
            value = condition(row)
            if value is False:
                return False
            if value is None:
                known = False
        return True if known else None

    return test


def disjunction(conditions: Sequence[Test]) -> Test:
    """OR over any number: TRUE wins over unknown, unknown over FALSE."""
    conditions = tuple(conditions)

    def test(row: Row) -> bool | None:
        known = True
        for condition in conditions:
            value = condition(row)
            if value is True:
                return True
            if value is None:
                known = False
        return False if known else None

    return test
