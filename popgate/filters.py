"""Filter expressions of consumers, compiled once and kept."""

from __future__ import annotations

from functools import lru_cache

from popgate.errors import IllegalFilter
from popgate.model import Filter, FilterKind
from popgate.sql import LONGEST, SqlFilter
from popgate.tags import TagFilter

EVERYTHING: Filter = TagFilter("*")


@lru_cache(maxsize=1024)
def compile_filter(kind: FilterKind, expression: str) -> Filter:
    """The filter of an expression; compiled ones are kept, up to a bound.

    Raises IllegalFilter with the reason and the place.
    """
    if len(expression) > LONGEST:
        raise IllegalFilter(expression, f"it has {len(expression)} characters, the limit is {LONGEST}")
    return SqlFilter(expression) if kind is FilterKind.SQL92 else TagFilter(expression)
