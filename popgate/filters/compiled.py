"""Filter expressions of consumers, compiled once and kept."""

from __future__ import annotations

from functools import lru_cache

from popgate.errors import IllegalFilter
from popgate.filters.tags import LONGEST as LONGEST_TAGS
from popgate.filters.tags import TagFilter
from popgate.model import Filter, FilterKind
from popgate.sql import LONGEST as LONGEST_SQL
from popgate.sql import SqlFilter

EVERYTHING: Filter = TagFilter("*")

_SHORT = 512
"""Characters. A compiled expression may take 100 times its length (a tag every three characters, as text and
as bytes), so that few long ones are kept: hostile clients cannot fill more than about 130 MB with them."""


def compile_filter(kind: FilterKind, expression: str) -> Filter:
    """The filter of an expression; compiled ones are kept, up to a bound.

    Raises IllegalFilter with the reason and the place.
    """
    is_sql = kind is FilterKind.SQL92  # the kind itself would cost two hashes of an enum
    length, limit = len(expression), LONGEST_SQL if is_sql else LONGEST_TAGS
    if length > limit:
        raise IllegalFilter(expression, f"it has {length} characters, the limit is {limit}")
    return _short_filter(is_sql, expression) if length <= _SHORT else _long_filter(is_sql, expression)


def _made(is_sql: bool, expression: str) -> Filter:
    return SqlFilter(expression) if is_sql else TagFilter(expression)


_short_filter = lru_cache(maxsize=1024)(_made)
_long_filter = lru_cache(maxsize=32)(_made)
