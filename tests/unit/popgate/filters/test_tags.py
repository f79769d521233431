import pytest

from popgate.errors import Fault, IllegalFilter
from popgate.filters.tags import TagFilter, tag_code
from popgate.wire.messages.properties import encode_properties


def passes(expression: str, tag: str | None) -> bool:
    properties = {"KEYS": "k", "UNIQ_KEY": "1"} | ({} if tag is None else {"TAGS": tag})
    return TagFilter(expression).matches(encode_properties(properties))


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_a_star_or_nothing_passes_everything(expression: str) -> None:
    assert TagFilter(expression).everything
    assert passes(expression, "A")
    assert passes(expression, None)
    assert TagFilter(expression).matches(b"")


@pytest.mark.parametrize(
    ("expression", "tag", "expected"),
    [
        ("A", "A", True),
        ("A", "B", False),
        ("A", "a", False),
        ("A", "AA", False),
        ("A", None, False),
        ("A || B", "B", True),
        ("A||B", "A", True),
        (" A  ||  B ", "B", True),
        ("A || B", "C", False),
        ("A || || B ||", "B", True),
        ("蓝 || 红", "红", True),
        ("蓝 || 红", "绿", False),
        ("A || *", "B", False),
        ("A || *", "*", True),
    ],
)
def test_a_list_passes_its_tags_only(expression: str, tag: str | None, expected: bool) -> None:
    assert passes(expression, tag) is expected
    assert not TagFilter(expression).everything


def test_tags_with_the_same_code_are_told_apart() -> None:
    assert tag_code("Aa") == tag_code("BB")
    assert not passes("Aa", "BB")


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_a_list_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(IllegalFilter, match="names no tag") as caught:
        TagFilter(expression)
    assert caught.value.fault is Fault.ILLEGAL_FILTER
