import pytest

from popgate.errors import IllegalFilter
from popgate.filters import EVERYTHING, compile_filter
from popgate.model import FilterKind
from popgate.sql import LONGEST
from popgate.wire.properties import encode_properties


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


@pytest.mark.parametrize("kind", FilterKind)
def test_an_expression_has_a_longest_length(kind: FilterKind) -> None:
    fitting = "a = '" + "x" * (LONGEST - 6) + "'"
    assert compile_filter(kind, fitting).expression == fitting
    with pytest.raises(IllegalFilter, match=f"{LONGEST + 1} characters, the limit is {LONGEST}"):
        compile_filter(kind, fitting + " ")


def test_what_is_kept_has_a_bound() -> None:
    for number in range(2000):
        compile_filter(FilterKind.TAG, f"T{number}")
    info = compile_filter.cache_info()
    assert info.maxsize is not None
    assert info.currsize <= info.maxsize
