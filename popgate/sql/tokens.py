"""The words of an SQL92 filter expression.

Source: the token definitions of RocketMQ's selector grammar. A line comment needs its line end,
because `--5` is a number negated twice.
"""

from __future__ import annotations

import re
from enum import Enum, unique
from typing import NamedTuple

from popgate.errors import IllegalFilter


@unique
class Kind(Enum):
    KEYWORD = "keyword"
    NAME = "name"
    TEXT = "text"
    NUMBER = "number"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """`word` is the keyword in upper case, the sign, the name, or the decoded text.

    `number` has the value of a number. `position` is the character at which it begins.
    """

    kind: Kind
    word: str
    position: int
    number: int | float = 0


KEYWORDS = frozenset(
    {
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    }
)

_LARGEST_LONG = (1 << 63) - 1
_TOKEN = re.compile(
    r"""
      (?P<skip>  [ \t\n\r\f]+ | /\*(?s:.*?)\*/ )
    | (?P<text>  '[^']*(?:''[^']*)*' )
    | (?P<float> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<long>  (?:0|[1-9][0-9]*[lL]?) )
    | (?P<word>  [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<sign>  <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE,
)
_LINE_END = re.compile(r"[\n\r]")


def split_tokens(expression: str) -> list[Token]:
    """The tokens, followed by END. Raises IllegalFilter for an invalid token."""
    tokens: list[Token] = []
    at, end = 0, len(expression)
    # Looked up once: a search from each of many signs would take quadratic time.
    last_line_end = max(expression.rfind("\n"), expression.rfind("\r"))
    while at < end:
        if at < last_line_end and expression.startswith("--", at):
            line_end = _LINE_END.search(expression, at)
            at = end if line_end is None else line_end.end()
            continue
        match = _TOKEN.match(expression, at)
        if match is None:
            raise IllegalFilter(expression, _no_token(expression, at), at)
        kind, image = match.lastgroup, match.group()
        if kind == "word":
            word = image.upper()
            if word in KEYWORDS:
                tokens.append(Token(Kind.KEYWORD, word, at))
            else:
                tokens.append(Token(Kind.NAME, image, at))
        elif kind == "sign":
            tokens.append(Token(Kind.SIGN, image, at))
        elif kind == "text":
            tokens.append(Token(Kind.TEXT, image[1:-1].replace("''", "'"), at))
        elif kind == "long":
            if expression[match.end() : match.end() + 1].isdigit():
                raise IllegalFilter(expression, "digits stand right behind the number", at)
            tokens.append(Token(Kind.NUMBER, image, at, _long(expression, image, at)))
        elif kind == "float":
            tokens.append(Token(Kind.NUMBER, image, at, _float(expression, image, at)))
        at = match.end()
    tokens.append(Token(Kind.END, "the end", end))
    return tokens


def _no_token(expression: str, at: int) -> str:
    if expression[at] == "'":
        return "the text that begins here is not closed"
    if expression.startswith("/*", at):
        return "the comment that begins here is not closed"
    return f"the character {expression[at]!a} has no meaning"


def _long(expression: str, image: str, at: int) -> int:
    # 19 digits hold every 64 bit number; more are not worth reading.
    digits = image.rstrip("lL")
    if len(digits) > 19 or int(digits) > _LARGEST_LONG:
        raise IllegalFilter(expression, f"the number is above {_LARGEST_LONG}", at)
    return int(digits)


def _float(expression: str, image: str, at: int) -> float:
    value = float(image)
    if value == float("inf"):
        raise IllegalFilter(expression, "the number is above 1.7976931348623157E308", at)
    if value == 0.0 and image.lower().partition("e")[0].strip("0."):
        raise IllegalFilter(expression, "the number is below 4.9E-324", at)
    return value
