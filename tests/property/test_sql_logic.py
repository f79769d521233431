"""SQL92 filters against a model of three-valued logic, and against nonsense."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from popgate.errors import IllegalFilter
from popgate.sql import SqlFilter
from popgate.wire.messages.properties import encode_properties

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["1", "2", "3", "x", "xy", "it's", "中"])
PROPERTIES = st.dictionaries(NAMES, TEXTS, max_size=3)
NUMBERS = st.sampled_from(["1", "2", "2.5", "-1"])

COMPARED = st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), NAMES, NUMBERS, st.booleans())
TEXT_EQUAL = st.tuples(st.sampled_from(["text=", "text<>"]), NAMES, TEXTS)
LISTED = st.tuples(st.sampled_from(["IN", "NOT IN"]), NAMES, st.lists(TEXTS, min_size=1, max_size=3))
BETWEEN = st.tuples(
    st.sampled_from(["BETWEEN", "NOT BETWEEN"]), NAMES, st.just("1"), NUMBERS.filter(lambda n: n >= "1")
)
NULL = st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL"]), NAMES)
LEAVES = COMPARED | TEXT_EQUAL | LISTED | BETWEEN | NULL
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3))
        | st.tuples(st.just("NOT"), inner)
    ),
    max_leaves=12,
)
Tree = tuple[Any, ...]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def written(tree: Tree) -> str:
    match tree:
        case "AND" | "OR" as word, list(parts):
            return "(" + f" {word.lower()} ".join(map(written, parts)) + ")"
        case "NOT", inner:
            return f"NOT {written(inner)}"
        case "IN" | "NOT IN" as word, name, texts:
            return f"{name} {word} ({', '.join(map(quoted, texts))})"
        case "BETWEEN" | "NOT BETWEEN" as word, name, low, high:
            return f"{name} {word} {low} AND {high}"
        case "IS NULL" | "IS NOT NULL" as word, name:
            return f"{name}/**/{word}"
        case "text=" | "text<>" as word, name, text:
            return f"{name}{word[4:]}{quoted(text)}"
        case sign, name, number, turned:
            mirror = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
            return f"{number} {mirror.get(sign, sign)} {name}" if turned else f"{name} {sign} {number}"
    raise AssertionError(tree)


def number(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.replace(".", "").isdigit() else None


def both(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def truth(tree: Tree, properties: dict[str, str]) -> bool | None:
    match tree:
        case "AND", parts:
            return both([truth(part, properties) for part in parts])
        case "OR", parts:
            return opposite(both([opposite(truth(part, properties)) for part in parts]))
        case "NOT", inner:
            return opposite(truth(inner, properties))
        case "IS NULL", name:
            return name not in properties
        case "IS NOT NULL", name:
            return name in properties
        case ("IN" | "NOT IN" | "text=" | "text<>") as word, name, texts:
            if name not in properties:
                return None
            found = properties[name] in (texts if "IN" in word else [texts])
            return found is (word in ("IN", "text="))
        case "BETWEEN", name, low, high:
            return both(
                [truth((">=", name, low, False), properties), truth(("<=", name, high, False), properties)]
            )
        case "NOT BETWEEN", name, low, high:
            return opposite(truth(("BETWEEN", name, low, high), properties))
        case sign, name, literal, _:
            left, right = number(properties.get(name)), float(literal)
            if left is None:
                return None
            return {
                "=": left == right,
                "<>": left != right,
                "<": left < right,
                "<=": left <= right,
                ">": left > right,
                ">=": left >= right,
            }[sign]
    raise AssertionError(tree)


@given(TREES, PROPERTIES)
def test_a_filter_agrees_with_the_model(tree: Tree, properties: dict[str, str]) -> None:
    block = encode_properties(properties)
    found = SqlFilter(written(tree))
    assert found.truth(block) is truth(tree, properties)
    assert found.matches(block) is (truth(tree, properties) is True)


WORDS = (
    *("a", "b", "NOT", "AND", "OR", "=", "<>", "<", ">=", "(", ")", ",", "+", "-", "IS", "NULL", "TRUE"),
    *("FALSE", "IN", "BETWEEN", "CONTAINS", "STARTSWITH", "1", "2.5", "'x'", "''", "1e5", "9L"),
)
SOUP = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


@given(SOUP | st.text(max_size=30), st.binary(max_size=30) | PROPERTIES.map(encode_properties))
def test_any_expression_is_refused_or_evaluated(expression: str, block: bytes) -> None:
    try:
        found = SqlFilter(expression)
    except IllegalFilter as error:
        assert -1 <= error.position <= len(expression)  # noqa: PT017 - the place is what is tested
    else:
        assert found.truth(block) in (True, False, None)
        assert found.matches(block) is (found.truth(block) is True)
