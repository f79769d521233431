"""Filters by SQL92, as far as RocketMQ has it: parsed once into closures, evaluated per message.

`AND OR NOT`, `= <> > >= < <=`, `BETWEEN`, `IN` (of texts), `IS NULL`, `CONTAINS`, `STARTSWITH`,
`ENDSWITH`, each with `NOT` where SQL has it; `TRUE FALSE NULL`, numbers, texts in single quotes,
parentheses, comments. Keywords have no case, names of properties do. A property is text; beside
a number it is read as a number, beside a truth value as one. A property that is not there is
unknown, and so is a text that should be a number and is none; only TRUE passes.

What RocketMQ's filter accepts is accepted. Four things mean what SQL means by them instead:
`NOT a = 1` is `NOT (a = 1)`; a comparison with an unknown is unknown on either side; a text that
is no number makes its own comparison unknown, not the whole expression, and 3.0 equals 3; text
behind the end of an expression is an error. A property where a condition belongs is TRUE when it
reads "true" (there: never).
"""

from __future__ import annotations

from popgate.errors import IllegalFilter
from popgate.model import FilterKind
from popgate.sql.parsing import parse

LONGEST = 8192
"""Characters of an expression."""


class SqlFilter:
    """Passes messages for whose properties the expression is TRUE."""

    __slots__ = ("_evaluate", "everything", "expression", "kind")

    def __init__(self, expression: str) -> None:
        """Raises IllegalFilter with the reason and the place."""
        self.kind = FilterKind.SQL92
        self.expression = expression
        self.everything = False
        if len(expression) > LONGEST:
            raise IllegalFilter(expression, f"it has {len(expression)} characters, the limit is {LONGEST}")
        self._evaluate = parse(expression)

    def matches(self, properties: bytes) -> bool:
        return self._evaluate(properties) is True

    def truth(self, properties: bytes) -> bool | None:
        """TRUE, FALSE, or None for unknown."""
        value = self._evaluate(properties)
        return value if isinstance(value, bool) else None

    def __repr__(self) -> str:
        return f"<SqlFilter {self.expression!r}>"
