import pytest

from popgate.errors import Fault, IllegalFilter
from popgate.sql import SqlFilter
from popgate.sql.parsing import DEEPEST, MOST_OPERANDS
from popgate.wire.messages.properties import encode_properties


@pytest.mark.parametrize(
    "expression",
    [
        "a=3 and b<>4 And c>5 AND d<=4",
        "a=3  and    b<>4 And c>5 AND d<=4",
        "a=3 or b<>4 Or c>5 OR d<=4",
        "a in ('3', '4', '5')",
        "(a not in ('6', '4', '5')) or (b in ('3', '4', '5'))",
        "(a between 2 and 10) AND (b not between 6 and 9)",
        "a is null",
        "a is not null",
        "a <= now",
        "a = 5 = TRUE",
        "NULL IS NULL",
        "TRUE",
        "vip",
        "NOT vip",
        "(((a = 1)))",
        "- - + -5 < a",
        "-a > 5",
        "a = NOT b",
        "a CONTAINS 'x' AND b NOT CONTAINS 'y' AND c STARTSWITH 'z' AND NOT d ENDSWITH 'w'",
        "1 = 1",
        "a BETWEEN -5 AND b",
        "a /* block */ = 1 -- line\n AND b = 2",
    ],
)
def test_what_rocketmq_accepts_is_accepted(expression: str) -> None:
    assert SqlFilter(expression).expression == expression


@pytest.mark.parametrize(
    ("expression", "why", "position"),
    [
        ("", "empty", None),
        (" \n ", "empty", None),
        ("/* only a comment */", "empty", None),
        ("a and between 2 and 10", "'BETWEEN' stands there", 6),
        (" a between 10 and 0", "lower bound of BETWEEN is above", 11),
        ("a between 'a' and 'b'", "ordered", 10),
        ("a > 100000000000000000000000", "the number is above", 4),
        ("a > 'x'", "ordered", 4),
        ("TRUE > a", "ordered", 0),
        ("a < NULL", "ordered", 4),
        ("(a = 1) > 2", "ordered", 1),
        ("a > 1 > 2", "ordered", 0),
        ("a = NULL", "IS NULL", 4),
        ("NULL <> a", "IS NULL", 0),
        ("TRUE = 1", "truth value", 7),
        ("5", "a condition is needed", 0),
        ("'x'", "a condition is needed", 0),
        ("a = 1 AND 5", "a condition is needed", 10),
        ("NOT 5", "a condition is needed", 4),
        ("NOT NOT 5", "a condition is needed", 8),
        ("-a", "a condition is needed", 1),
        ("a = NOT -b", "no condition", 4),
        ("a", None, None),
        ("a =", "the expression ends", 3),
        ("= 1", "'=' stands there", 0),
        ("(a = 1", "\\) is expected", 6),
        ("a = 1)", "'\\)' stands there", 5),
        ("a = 1 b = 2", "'b' stands there", 6),
        ("a in ()", "text in single quotes", 6),
        ("a in (1)", "text in single quotes", 6),
        ("a in ('x' 'y')", "\\) is expected", 10),
        ("a in 'x'", "\\( is expected", 5),
        ("'a' in ('x')", "property on its left", 0),
        ("(a) = 1 in ('x')", "property on its left", 6),
        ("a contains b", "text in single quotes", 11),
        ("a is 5", "NULL is expected", 5),
        ("a is not 5", "NULL is expected", 9),
        ("a between 1 or 2", "AND is expected", 12),
        ("a not = 1", "'NOT' stands there", 2),
        ("a like 'x%'", "'like' stands there", 2),
        ("a + 1 = 2", r"'\+' stands there", 2),
    ],
)
def test_nonsense_is_refused_with_reason_and_place(
    expression: str, why: str | None, position: int | None
) -> None:
    if why is None:
        assert SqlFilter(expression)
        return
    with pytest.raises(IllegalFilter, match=why) as caught:
        SqlFilter(expression)
    assert caught.value.fault is Fault.ILLEGAL_FILTER
    assert caught.value.position == (-1 if position is None else position)


def test_parentheses_have_a_greatest_depth() -> None:
    deep = "(" * DEEPEST + "a = 1" + ")" * DEEPEST
    assert SqlFilter(deep).matches(encode_properties({"a": "1"}))
    with pytest.raises(IllegalFilter, match=f"more than {DEEPEST} parentheses"):
        SqlFilter(f"({deep})")


def test_parentheses_beside_each_other_are_not_deep() -> None:
    assert SqlFilter(" AND ".join(["((a = 1))"] * 300)).matches(encode_properties({"a": "1"}))


def test_chained_comparisons_have_a_greatest_depth() -> None:
    with pytest.raises(IllegalFilter, match="chained too deep"):
        SqlFilter("a" + " = b" * 900)
    with pytest.raises(IllegalFilter, match="chained too deep"):
        SqlFilter("a" + " IS NULL" * 900)


def test_the_deepest_expression_can_be_evaluated() -> None:
    expression = "a = 1"
    for _ in range(DEEPEST):
        expression = f"NOT ({expression} AND TRUE OR b = 2) = TRUE"
    assert SqlFilter(expression).truth(encode_properties({"a": "1", "b": "1"})) is True


def test_operands_have_a_greatest_number() -> None:
    assert SqlFilter(" OR ".join(["a"] * MOST_OPERANDS)).matches(encode_properties({"a": "true"}))
    with pytest.raises(IllegalFilter, match=f"more than {MOST_OPERANDS} operands"):
        SqlFilter(" OR ".join(["a"] * (MOST_OPERANDS + 1)))


@pytest.mark.parametrize("run", ["NOT ", "-", "+", "- ", "+-"])
def test_signs_before_an_operand_may_be_many(run: str) -> None:
    count = 7000 // len(run) // 2 * 2
    text = run * count + ("b" if run == "NOT " else "5 = a")
    even_minus = (run * count).count("-") % 2 == 0
    block = encode_properties({"a": "5" if even_minus else "-5", "b": "true"})
    assert SqlFilter(text).truth(block) is True


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 8000,
        ")" * 8000,
        "NOT " * 2000,
        "a=" * 4000,
        "a in (" * 1300,
        "'" * 8191,
        "/*" * 4000,
        "-" * 8000,
    ],
)
def test_hostile_expressions_are_refused(expression: str) -> None:
    with pytest.raises(IllegalFilter):
        SqlFilter(expression)
