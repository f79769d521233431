"""Parses tokens into closures: recursive descent with one token of lookahead, in linear time.

Depth is bounded where a hostile expression could increase it: parentheses, and chained comparisons
(`a = b = c …`). Lists of AND and OR are flat, and signs before an operand are parsed in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from popgate.errors import IllegalFilter
from popgate.sql import conditions
from popgate.sql.conditions import Evaluate, Read, Test, Value
from popgate.sql.tokens import Kind, Token

DEEPEST = 32
"""Parentheses within each other, and comparisons chained on each other."""
MOST_OPERANDS = 1024
"""Properties and literals of an expression; an IN list counts as one."""

_INFIX = frozenset({"BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH"})
_TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}


@dataclass(slots=True)
class _Operand:
    """A part of an expression. Exactly one of `name`, `literal` and `test` is set, or none.

    `name`: a property. `literal`: a constant as written, kept in `value`. `test`: a condition.
    None of them: a negated operand. `depth` counts the closures below this one.
    """

    evaluate: Evaluate
    position: int
    name: bytes | None = None
    literal: bool = False
    value: Value = None
    test: Test | None = None
    depth: int = 0


def parse(tokens: list[Token], expression: str, read: Read) -> Test:
    """Compile the tokens of an expression. Raises IllegalFilter with the reason and the place."""
    return _Parser(tokens, expression, read).whole()


class _Parser:
    def __init__(self, tokens: list[Token], expression: str, read: Read) -> None:
        self._tokens = tokens
        self._expression = expression
        self._read = read
        self._at = 0
        self._nested = 0
        self._operands = 0

    def whole(self) -> Test:
        if len(self._tokens) == 1:
            raise IllegalFilter(self._expression, "it is empty")
        condition = self._condition(self._any())
        if self._peek().kind is not Kind.END:
            self._unexpected("AND, OR or the end")
        return condition

    # -- the levels of the grammar, from the weakest binding on --------------------------------

    def _any(self) -> _Operand:
        first = self._all()
        if not self._is("OR"):
            return first
        operands = [first]
        while self._take("OR"):
            operands.append(self._all())
        test = conditions.disjunction([self._condition(o) for o in operands])
        return self._made(test, first.position, *operands)

    def _all(self) -> _Operand:
        first = self._negatable()
        if not self._is("AND"):
            return first
        operands = [first]
        while self._take("AND"):
            operands.append(self._negatable())
        test = conditions.conjunction([self._condition(o) for o in operands])
        return self._made(test, first.position, *operands)

    def _negatable(self) -> _Operand:
        negations = 0
        while self._take("NOT"):
            negations += 1
        operand = self._equality()
        return self._negated(operand, negations) if negations else operand

    def _equality(self) -> _Operand:
        left = self._comparison()
        while True:
            if self._take("="):
                left = self._equal(left, self._comparison())
            elif self._take("<>"):
                left = self._negated(self._equal(left, self._comparison()))
            elif self._take("IS"):
                negative = self._take("NOT")
                self._expect("NULL")
                left = self._made(conditions.is_null(left.evaluate), left.position, left)
                left = self._negated(left) if negative else left
            else:
                return left

    def _comparison(self) -> _Operand:
        left = self._signed()
        while True:
            token = self._peek()
            if token.kind is Kind.SIGN and token.word in conditions.ORDERINGS:
                self._at += 1
                left = self._ordered(left, token.word, self._signed())
                continue
            negative = self._is("NOT")
            kind, word, *_ = self._tokens[self._at + 1] if negative else token
            if kind is not Kind.KEYWORD or word not in _INFIX:
                return left
            self._at += 2 if negative else 1
            if word == "BETWEEN":
                left = self._between(left, negative=negative)
            elif word == "IN":
                left = self._in(left, negative=negative)
            else:
                test = conditions.part_test(word, left.evaluate, self._text(), wanted=not negative)
                left = self._made(test, left.position, left)

    def _signed(self) -> _Operand:
        signs: list[Token] = []
        while self._is("+") or self._is("-") or self._is("NOT"):
            signs.append(self._peek())
            self._at += 1
        operand = self._primary()
        minus = negation = 0
        for sign in reversed(signs):
            if sign.word == "-":
                if negation:
                    operand, negation = self._negated(operand, negation), 0
                minus += 1
            elif sign.word == "NOT":
                if minus:
                    self._refuse("a number is no condition", sign.position)
                negation += 1
        if negation:
            return self._negated(operand, negation)
        if minus:
            return self._minus(operand, minus)
        return operand

    def _primary(self) -> _Operand:
        token = self._peek()
        if self._take("("):
            self._nested += 1
            if self._nested > DEEPEST:
                self._refuse(f"it has more than {DEEPEST} parentheses within each other", token.position)
            operand = self._any()
            self._expect(")")
            self._nested -= 1
            return operand
        self._operands += 1
        if self._operands > MOST_OPERANDS:
            self._refuse(f"it has more than {MOST_OPERANDS} operands", token.position)
        if token.kind is Kind.NAME:
            self._at += 1
            name = token.word.encode()
            return _Operand(conditions.text_of(self._read, name), token.position, name=name)
        if token.kind is Kind.TEXT:
            return self._literal(token, token.word.encode("utf-8", "replace"))
        if token.kind is Kind.NUMBER:
            return self._literal(token, token.number)
        if token.kind is not Kind.KEYWORD or token.word not in _TRUTHS:
            self._unexpected("a property, a literal or a parenthesis")
        truth = _TRUTHS[token.word]
        operand = self._literal(token, truth)
        operand.test = lambda row: truth
        return operand

    # -- operators --------------------------------------------------------------------------

    def _equal(self, left: _Operand, right: _Operand) -> _Operand:
        for operand in (left, right):
            if operand.literal and operand.value is None:
                self._refuse("NULL cannot be compared, IS NULL asks for it", operand.position)
        if left.literal and right.literal and isinstance(left.value, bool) > isinstance(right.value, bool):
            self._refuse("a truth value cannot be compared with something else", right.position)
        if left.name is not None and right.literal and isinstance(right.value, bytes):
            return self._made(
                conditions.text_equals(self._read, left.name, right.value), left.position, left, right
            )
        return self._made(conditions.equals(left.evaluate, right.evaluate), left.position, left, right)

    def _ordered(self, left: _Operand, sign: str, right: _Operand) -> _Operand:
        self._check_orderable(left, right)
        return self._made(self._order(left, sign, right), left.position, left, right)

    def _order(self, left: _Operand, sign: str, right: _Operand) -> Test:
        if left.name is not None and right.literal and isinstance(right.value, int | float):
            return conditions.number_ordered(self._read, left.name, sign, right.value)
        return conditions.ordered(left.evaluate, sign, right.evaluate)

    def _between(self, value: _Operand, *, negative: bool) -> _Operand:
        low = self._signed()
        self._expect("AND")
        high = self._signed()
        self._check_orderable(value, low, high)
        if low.literal and high.literal and low.value > high.value:  # type: ignore[operator]
            self._refuse("the lower bound of BETWEEN is above the upper one", low.position)
        if negative:
            test = conditions.disjunction((self._order(value, "<", low), self._order(value, ">", high)))
        else:
            test = conditions.conjunction((self._order(value, ">=", low), self._order(value, "<=", high)))
        return self._made(test, value.position, value, low, high)

    def _in(self, left: _Operand, *, negative: bool) -> _Operand:
        if left.name is None:
            self._refuse("IN needs a property on its left", left.position)
        self._expect("(")
        wanted = {self._text()}
        while self._take(","):
            wanted.add(self._text())
        self._expect(")")
        test = conditions.one_of(self._read, left.name, frozenset(wanted))
        return self._made(conditions.negation(test) if negative else test, left.position, left)

    def _negated(self, operand: _Operand, count: int = 1) -> _Operand:
        """NOT, `count` times. Also an even number of them demands a condition."""
        test = self._condition(operand)
        return self._made(conditions.negation(test) if count % 2 else test, operand.position, operand)

    def _minus(self, operand: _Operand, count: int) -> _Operand:
        evaluate = conditions.negated(operand.evaluate)
        if count % 2 == 0:
            evaluate = conditions.negated(evaluate)
        return _Operand(evaluate, operand.position, depth=self._depth(operand))

    def _condition(self, operand: _Operand) -> Test:
        if operand.name is not None:
            return conditions.truth_of(self._read, operand.name)
        if operand.test is None:
            self._refuse("this is a value where a condition is needed", operand.position)
        return operand.test

    def _check_orderable(self, *operands: _Operand) -> None:
        for operand in operands:
            if operand.test is not None or (operand.literal and isinstance(operand.value, bytes)):
                self._refuse("only numbers and properties can be ordered", operand.position)

    # -- making -----------------------------------------------------------------------------

    def _literal(self, token: Token, value: Value) -> _Operand:
        self._at += 1
        return _Operand(conditions.constant(value), token.position, literal=True, value=value)

    def _made(self, test: Test, position: int, *parts: _Operand) -> _Operand:
        return _Operand(test, position, test=test, depth=self._depth(*parts))

    def _depth(self, *parts: _Operand) -> int:
        depth = 1 + max(part.depth for part in parts)
        # Every pair of parentheses may hold an OR of ANDs of negations of one comparison.
        if depth > 5 * DEEPEST:
            self._refuse("its comparisons are chained too deep", parts[0].position)
        return depth

    # -- tokens -----------------------------------------------------------------------------

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _is(self, word: str) -> bool:
        token = self._tokens[self._at]
        return token.word == word and (token.kind is Kind.KEYWORD or token.kind is Kind.SIGN)

    def _take(self, word: str) -> bool:
        if self._is(word):
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._unexpected(word)

    def _text(self) -> bytes:
        token = self._peek()
        if token.kind is not Kind.TEXT:
            self._unexpected("a text in single quotes")
        self._at += 1
        return token.word.encode("utf-8", "replace")

    def _unexpected(self, wanted: str) -> NoReturn:
        token = self._peek()
        got = "the expression ends" if token.kind is Kind.END else f"{token.word[:40]!r} stands there"
        self._refuse(f"{wanted} is expected, but {got}", token.position)

    def _refuse(self, why: str, position: int) -> NoReturn:
        raise IllegalFilter(self._expression, why, position)
