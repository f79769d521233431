import pytest

from popgate.errors import IllegalFilter
from popgate.sql.tokens import KEYWORDS, Kind, split_tokens


def words(expression: str) -> list[tuple[Kind, str]]:
    tokens = split_tokens(expression)
    assert tokens[-1].kind is Kind.END
    return [(t.kind, t.word) for t in tokens[:-1]]


def test_keywords_have_no_case_and_names_do() -> None:
    for keyword in KEYWORDS:
        for image in (keyword, keyword.lower(), keyword.title(), keyword.swapcase()):
            assert words(image) == [(Kind.KEYWORD, keyword)]
    for name in ("Android", "ORDER", "notNull", "_x", "$y", "a1$_", "a_not"):
        assert words(name) == [(Kind.NAME, name)]


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("0", 0),
        ("12", 12),
        ("12l", 12),
        ("12L", 12),
        ("9223372036854775807", (1 << 63) - 1),
        ("5.5", 5.5),
        ("5.", 5.0),
        (".5", 0.5),
        ("5E10", 5e10),
        ("5.e-3", 0.005),
        (".5E+1", 5.0),
        ("007.5", 7.5),
        ("0.0", 0.0),
        ("1.7976931348623157E308", 1.7976931348623157e308),
    ],
)
def test_numbers(literal: str, value: float) -> None:
    token, end = split_tokens(literal)
    assert (token.kind, token.number, type(token.number)) == (Kind.NUMBER, value, type(value))
    assert end.position == len(literal)


@pytest.mark.parametrize("literal", ["9223372036854775808", "1" * 5000, "1e309", "1" * 400 + ".5", "1e-400"])
def test_numbers_out_of_range_are_refused(literal: str) -> None:
    with pytest.raises(IllegalFilter, match=r"the number is (above|below)") as caught:
        split_tokens("a = " + literal)
    assert caught.value.position == 4


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("''", ""),
        ("'a'", "a"),
        ("''''", "'"),
        ("'it''s'", "it's"),
        ("'a\nb'", "a\nb"),
        ("'中 \"文'", '中 "文'),
    ],
)
def test_texts(literal: str, text: str) -> None:
    assert words(literal) == [(Kind.TEXT, text)]


def test_signs_take_the_longest() -> None:
    assert [w for _, w in words("<>=<=>=<>(),+-=")] == [
        "<>",
        "=",
        "<=",
        ">=",
        "<>",
        "(",
        ")",
        ",",
        "+",
        "-",
        "=",
    ]


def test_comments_and_space_separate() -> None:
    assert [w for _, w in words("a/* x */b -- y\nc--\r\nd\t\f\r\ne/***/f/* * / */g")] == list("abcdefg")


def test_a_line_comment_needs_its_line_end() -> None:
    assert [w for _, w in words("--5")] == ["-", "-", "5"]


@pytest.mark.parametrize(
    ("expression", "position", "why"),
    [
        ("a = 'x", 4, "not closed"),
        ("a = 'x''", 7, "not closed"),
        ("a /* b", 2, "comment"),
        ("a # b", 2, "'#' has no meaning"),
        ("a == b", None, None),
        ("é", 0, "xe9"),
        ("a ! b", 2, "'!'"),
        ('a = "x"', 4, "'\"'"),
        ("a\u00a0", 1, "xa0"),
        ("a = ٣", 4, "u0663"),
        ("a = 007", 4, "digits stand right behind"),
        ("a = 12L3", 4, "digits stand right behind"),
        ("0" * 8000, 0, "digits stand right behind"),
    ],
)
def test_what_is_no_token_is_refused_with_its_place(
    expression: str, position: int | None, why: str | None
) -> None:
    if why is None:
        assert split_tokens(expression)
        return
    with pytest.raises(IllegalFilter, match=why) as caught:
        split_tokens(expression)
    assert caught.value.position == position
