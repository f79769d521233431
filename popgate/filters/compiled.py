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
_LIMITS = {FilterKind.TAG: LONGEST_TAGS, FilterKind.SQL92: LONGEST_SQL}


def compile_filter(kind: FilterKind, expression: str) -> Filter:
    """The filter of an expression; compiled ones are kept, up to a bound.

    Raises IllegalFilter with the reason and the place.
    """
    length, limit = len(expression), _LIMITS[kind]
    if length > limit:
        raise IllegalFilter(expression, f"it has {length} characters, the limit is {limit}")
    return _short_filter(kind, expression) if length <= _SHORT else _long_filter(kind, expression)


def _made(kind: FilterKind, expression: str) -> Filter:
    return SqlFilter(expression) if kind is FilterKind.SQL92 else TagFilter(expression)


_short_filter = lru_cache(maxsize=1024)(_made)
_long_filter = lru_cache(maxsize=32)(_made)
