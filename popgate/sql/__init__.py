"""SQL92 filters, as RocketMQ supports them: compiled once into closures, evaluated per message.

`AND OR NOT`, `= <> > >= < <=`, `BETWEEN`, `IN` (of texts), `IS NULL`, `CONTAINS`, `STARTSWITH`,
`ENDSWITH`, each with `NOT` where SQL has it; `TRUE FALSE NULL`, numbers, texts in single quotes,
parentheses, comments. Keywords are case-insensitive, property names are not. A property is text; next to
a number it is converted to a number, next to a truth value to one. A missing property is unknown, and so is a
text that should be a number but is none; only TRUE passes.

Every expression that RocketMQ's filter accepts is accepted, except for text after the end of an expression
and digits right after a number, which are errors here. Three things follow SQL instead of RocketMQ:
`NOT a = 1` is `NOT (a = 1)`; a comparison with an unknown is unknown on either side; a text that
is no number makes its own comparison unknown, not the whole expression, and 3.0 equals 3. A property
in the place of a condition is TRUE if its value is "true" (in RocketMQ: never).
"""

from __future__ import annotations

from popgate.errors import IllegalFilter
from popgate.model import FilterKind
from popgate.sql.parsing import parse
from popgate.sql.tokens import Kind, split_tokens
from popgate.wire.messages.properties import find_property, split_properties

LONGEST = 8192
"""Characters of an expression."""

_MOST_SEARCHES = 5
"""Reads of properties by searching the block; an expression with more gets a dict of them."""


class SqlFilter:
    """Passes messages for whose properties the expression is TRUE."""

    __slots__ = ("_evaluate", "_searches", "everything", "expression", "kind")

    def __init__(self, expression: str) -> None:
        """Raises IllegalFilter with the reason and the place."""
        self.kind = FilterKind.SQL92
        self.expression = expression
        self.everything = False
        if len(expression) > LONGEST:
            raise IllegalFilter(expression, f"it has {len(expression)} characters, the limit is {LONGEST}")
        tokens = split_tokens(expression)
        self._searches = sum(token.kind is Kind.NAME for token in tokens) <= _MOST_SEARCHES
        self._evaluate = parse(tokens, expression, find_property if self._searches else dict.get)

    def matches(self, properties: bytes) -> bool:
        return self._evaluate(properties if self._searches else split_properties(properties)) is True

    def truth(self, properties: bytes) -> bool | None:
        """TRUE, FALSE, or None for unknown."""
        return self._evaluate(properties if self._searches else split_properties(properties))

    def __repr__(self) -> str:
        return f"<SqlFilter {self.expression!r}>"
