import pytest

from popgate.errors import IllegalFilter
from popgate.filters.compiled import EVERYTHING, _long_filter, _short_filter, compile_filter
from popgate.filters.tags import TagFilter
from popgate.model import FilterKind
from popgate.wire.messages.properties import LONGEST_BLOCK, encode_properties


def test_everything_passes_everything() -> None:
    assert EVERYTHING.everything
    assert EVERYTHING.matches(b"")
    assert EVERYTHING.kind is FilterKind.TAG


def test_the_kind_decides_what_an_expression_means() -> None:
    block = encode_properties({"TAGS": "a IS NULL"})
    assert compile_filter(FilterKind.TAG, "a IS NULL").matches(block)
    assert compile_filter(FilterKind.SQL92, "a IS NULL").matches(block)
    assert not compile_filter(FilterKind.TAG, "a IS NULL").matches(b"")
    assert compile_filter(FilterKind.SQL92, "a IS NULL").matches(b"")


def test_an_expression_is_compiled_once() -> None:
    first = compile_filter(FilterKind.SQL92, "a = 'compiled once'")
    assert compile_filter(FilterKind.SQL92, "a = 'compiled once'") is first


def test_a_filter_tells_its_kind_and_expression() -> None:
    for kind in FilterKind:
        made = compile_filter(kind, "a = 1")
        assert (made.kind, made.expression, made.everything) == (kind, "a = 1", False)


@pytest.mark.parametrize(("kind", "limit"), [(FilterKind.TAG, 32_768), (FilterKind.SQL92, 8192)])
def test_an_expression_has_a_longest_length(kind: FilterKind, limit: int) -> None:
    fitting = "a = '" + "x" * (limit - 6) + "'"
    assert compile_filter(kind, fitting).expression == fitting
    with pytest.raises(IllegalFilter, match=f"{limit + 1} characters, the limit is {limit}"):
        compile_filter(kind, fitting + " ")


def test_the_longest_tag_that_can_be_stored_can_be_subscribed_to() -> None:
    tag = "t" * (LONGEST_BLOCK - len("TAGS") - 2)
    block = encode_properties({"TAGS": tag})
    assert len(block) == LONGEST_BLOCK
    assert compile_filter(FilterKind.TAG, tag).matches(block)
    assert not compile_filter(FilterKind.TAG, f"{tag[:-1]}u").matches(block)


def test_what_is_kept_has_a_bound_and_few_long_ones_are() -> None:
    for number in range(2000):
        compile_filter(FilterKind.TAG, f"T{number}")
    for number in range(200):
        compile_filter(FilterKind.TAG, f"T{number}".ljust(2000, "x"))
    short, long = _short_filter.cache_info(), _long_filter.cache_info()
    assert (short.maxsize, long.maxsize) == (1024, 32)
    assert (short.currsize, long.currsize) == (1024, 32)


@pytest.mark.parametrize("part", ["||", "a||", "|", " ||", "\u00e9||", "*||"])
def test_hostile_tag_expressions_are_one_look_each(part: str) -> None:
    """Each is split once: as many parts as it has, and no more than its length."""
    expression = (part * 32_768)[:32_768]
    try:
        tags = TagFilter(expression).tags
    except IllegalFilter:
        return
    assert len(tags) <= 3
