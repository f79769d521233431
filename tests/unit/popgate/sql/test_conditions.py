import pytest

from popgate.sql import SqlFilter
from popgate.sql.conditions import number_in
from popgate.wire.messages.properties import encode_properties

Properties = dict[str, str]
CASES: list[tuple[str, Properties, bool | None]] = [
    # The examples of RocketMQ's documentation and tests.
    ("a=3 and b<>4 And c>5 AND d<=4", {"a": "3", "b": "5", "c": "6", "d": "1"}, True),
    ("a=3 and b<>4 And c>5 AND d<=4", {"a": "4", "b": "5", "c": "6", "d": "1"}, False),
    ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "3", "d": "2"}, True),
    ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "3", "d": "10"}, False),
    ("a in ('3', '4', '5')", {"a": "5"}, True),
    ("a in ('3', '4', '5')", {"a": "8"}, False),
    ("a not in ('3', '4', '5')", {"a": "8"}, True),
    ("a not in ('3', '4', '5')", {"a": "3"}, False),
    ("a between 2 and 10", {"a": "2"}, True),
    ("a between 2 and 10", {"a": "10"}, True),
    ("a between 2 and 10", {"a": "11"}, False),
    ("a not between 2 and 10", {"a": "11"}, True),
    ("a not between 2 and 10", {"a": "2"}, False),
    ("a=TRUE OR b=FALSE", {"a": "true", "b": "true"}, True),
    ("a=TRUE OR b=FALSE", {"a": "false", "b": "true"}, False),
    ("a is not null and a='hello'", {"a": "hello"}, True),
    ("a is not null and a='hello'", {}, False),
    ("a is null OR a='hello'", {}, True),
    ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}, True),
    ("a > 3.1E10", {"a": "3.1415E10"}, True),
    ("a > b", {"a": "20", "b": "10"}, True),
    ("a > b", {"a": "3", "b": "10"}, False),
    ("a = b", {"a": "3.14", "b": "3.14"}, True),
    ("a <> b", {"a": "3.14", "b": "3.141"}, True),
    # Numbers.
    ("a = 3", {"a": "3.0"}, True),
    ("a = 3.0", {"a": "3"}, True),
    ("a = -3", {"a": "-3"}, True),
    ("a = 3", {"a": "+3"}, True),
    ("a > 3", {"a": "3.5"}, True),
    ("3 < a", {"a": "3.5"}, True),
    ("a >= 9223372036854775807", {"a": "9223372036854775807"}, True),
    ("a > 9223372036854775807", {"a": "9223372036854775808"}, True),
    ("a = 9007199254740993", {"a": "9007199254740992"}, False),
    ("a = 3", {"a": "three"}, None),
    ("a <> 3", {"a": "three"}, None),
    ("a > 3", {"a": "three"}, None),
    ("a > 3", {"a": "3_0"}, None),
    ("a > 3", {"a": "٤"}, None),
    ("a > 3", {"a": "NaN"}, None),
    ("a > 3", {"a": "0x10"}, None),
    ("a > 3", {"a": "9" * 1000}, None),
    ("a > 3 OR b = 2", {"a": "three", "b": "2"}, True),
    ("-a = 5", {"a": "-5"}, True),
    ("-a = 5", {"a": "x"}, None),
    ("-'5' = 5", {}, False),
    ("-TRUE IS NULL", {}, True),
    ("a BETWEEN -5 AND b", {"a": "0", "b": "1"}, True),
    ("a BETWEEN b AND c", {"a": "0", "b": "1"}, False),
    ("a BETWEEN b AND c", {"a": "0", "b": "-1"}, None),
    # Texts.
    ("a = '3'", {"a": "3.0"}, False),
    ("a = 'it''s'", {"a": "it's"}, True),
    ("a = '中文'", {"a": "中文"}, True),
    ("'x' = a", {"a": "x"}, True),
    ("A = 'x'", {"a": "x"}, None),
    ("1 = '1'", {}, True),
    ("'a' = 'b'", {}, False),
    # Truth values.
    ("a = TRUE", {"a": "TRUE"}, True),
    ("a = FALSE", {"a": "no"}, True),
    ("TRUE = a", {"a": "true"}, True),
    ("a = TRUE", {}, None),
    ("1 = TRUE", {}, False),
    ("1 <> TRUE", {}, True),
    ("(a = 1) = (b = 1)", {"a": "2", "b": "2"}, True),
    ("vip", {"vip": "true"}, True),
    ("vip", {"vip": "1"}, False),
    ("NOT vip", {}, None),
    ("NULL", {}, None),
    ("a = NOT b", {"a": "true", "b": "false"}, True),
    # What is not there.
    ("a = 1", {}, None),
    ("1 = a", {}, None),
    ("a <> 1", {}, None),
    ("1 <> a", {}, None),
    ("a <> b", {"a": "1"}, None),
    ("a <> b", {"b": "1"}, None),
    ("a = b", {}, None),
    ("a > 1", {}, None),
    ("1 > a", {}, None),
    ("a in ('x')", {}, None),
    ("a not in ('x')", {}, None),
    ("a between 1 and 2", {}, None),
    ("a not between 1 and 2", {}, None),
    ("NOT a = 1", {}, None),
    ("NOT (a in ('x'))", {}, None),
    ("(a = 1) IS NULL", {}, True),
    ("(a = 1) IS NOT NULL", {"a": "2"}, True),
    ("5 IS NULL", {}, False),
    ("NULL IS NULL", {}, True),
    # NOT binds as in SQL.
    ("NOT a = 1", {"a": "2"}, True),
    ("NOT a IS NULL", {"a": "2"}, True),
    ("NOT a IS NULL", {}, False),
    ("NOT a = 1 AND b = 1", {"a": "2", "b": "2"}, False),
    ("NOT NOT a = 1", {"a": "1"}, True),
    ("a = 1 OR b = 1 AND c = 1", {"a": "1", "b": "2", "c": "2"}, True),
    ("(a = 1 OR b = 1) AND c = 1", {"a": "1", "b": "2", "c": "2"}, False),
    # Parts of texts: never unknown.
    ("a CONTAINS 'ell'", {"a": "hello"}, True),
    ("a CONTAINS 'hello there'", {"a": "hello"}, False),
    ("a NOT CONTAINS 'ell'", {"a": "hello"}, False),
    ("a NOT CONTAINS 'x'", {"a": "hello"}, True),
    ("a STARTSWITH 'he'", {"a": "hello"}, True),
    ("a STARTSWITH 'lo'", {"a": "hello"}, False),
    ("a NOT STARTSWITH 'lo'", {"a": "hello"}, True),
    ("a ENDSWITH 'lo'", {"a": "hello"}, True),
    ("a ENDSWITH 'he'", {"a": "hello"}, False),
    ("a NOT ENDSWITH 'he'", {"a": "hello"}, True),
    ("a CONTAINS '文'", {"a": "中文"}, True),
    ("a CONTAINS 'x'", {}, False),
    ("a NOT CONTAINS 'x'", {}, False),
    ("a STARTSWITH ''", {"a": "x"}, False),
    ("a NOT ENDSWITH ''", {"a": "x"}, False),
    ("5 CONTAINS '5'", {}, False),
    ("NOT a CONTAINS 'x'", {"a": "y"}, True),
]


@pytest.mark.parametrize(("expression", "properties", "expected"), CASES)
def test_an_expression_has_its_truth_value(
    expression: str, properties: Properties, expected: bool | None
) -> None:
    filter_ = SqlFilter(expression)
    block = encode_properties(properties)
    assert filter_.truth(block) is expected
    assert filter_.matches(block) is (expected is True)


@pytest.mark.parametrize(("expression", "properties", "expected"), CASES)
def test_an_expression_that_reads_many_properties_has_the_same_truth_value(
    expression: str, properties: Properties, expected: bool | None
) -> None:
    many = " OR ".join(["absent"] * 8)
    filter_ = SqlFilter(
        f"({expression}) IS NULL AND ({many}) IS NULL OR (({expression}) AND NOT (({many}) = TRUE))"
    )
    assert filter_.truth(encode_properties(properties)) is {None: True, True: None, False: False}[expected]


# Kleene's tables, with x TRUE, y FALSE and z unknown.
VALUES = {"x = 1": True, "y = 1": False, "z = 1": None}


@pytest.mark.parametrize("left", VALUES)
@pytest.mark.parametrize("right", VALUES)
def test_and_or_and_not_have_three_values(left: str, right: str) -> None:
    block = encode_properties({"x": "1", "y": "2"})
    pair = {VALUES[left], VALUES[right]}
    both = False if False in pair else None if None in pair else True
    either = True if True in pair else None if None in pair else False
    assert SqlFilter(f"{left} AND {right}").truth(block) is both
    assert SqlFilter(f"{left} OR {right}").truth(block) is either
    assert SqlFilter(f"NOT ({left})").truth(block) is {True: False, False: True, None: None}[VALUES[left]]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b"007", 7),
        (b"-12", -12),
        (b"9" * 64, 10**64 - 1),
        (b"9" * 65, None),
        (b"1.5", 1.5),
        (b".5", 0.5),
        (b"5.", 5.0),
        (b"-1e3", -1000.0),
        (b"1E-2", 0.01),
        (b"1e999", float("inf")),
        (b"", None),
        (b".", None),
        (b"-", None),
        (b"1e", None),
        (b" 1", None),
        (b"1\n", None),
        (b"1L", None),
        (b"inf", None),
        ("²".encode(), None),
        (b"\xff", None),
    ],
)
def test_a_text_reads_as_a_number_or_not(text: bytes, number: float | None) -> None:
    read = number_in(text)
    assert (read, type(read)) == (number, type(number))
