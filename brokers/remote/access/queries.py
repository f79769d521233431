"""Sends a request to several brokers at once, and reads their responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from popgate.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    PeerWireError,
)
from popgate.wire.frames.remoting import Command
from popgate.wire.json_syntax.parts import load_object

Read = TypeVar("Read")
Answer = TypeVar("Answer")

NO_SUCCESS: tuple[int, ...] = ()


async def of_each(
    names: Iterable[str], ask: Callable[[str], Awaitable[Answer]]
) -> tuple[dict[str, Answer], dict[str, GatewayError]]:
    """Ask all at once: the answers and the failures, by name. What is no GatewayError is raised."""
    names = list(names)
    results = await asyncio.gather(*(ask(name) for name in names), return_exceptions=True)
    answers: dict[str, Answer] = {}
    failures: dict[str, GatewayError] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, GatewayError):
            failures[name] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            answers[name] = result
    return answers, failures


def worst(failures: Mapping[str, GatewayError]) -> GatewayError:
    """The failure to report out of several: one about the request itself before 'not reached'."""
    errors = list(failures.values())
    return next(
        (error for error in errors if not isinstance(error, (BrokerUnavailable, BrokerTimeout))), errors[0]
    )


def object_in(answer: Command, broker: str, subject: str, read: Callable[[Mapping[str, Any]], Read]) -> Read:
    """What a JSON body says. Raises BrokerUnavailable when it makes no sense."""
    try:
        return read(load_object(answer.body, subject))
    except PeerWireError as error:
        raise BrokerUnavailable(f"{subject} as broker {broker} tells it makes no sense: {error}") from None


def number_in(answer: Command, broker: str, name: str) -> int:
    """A whole number of the answer's fields. Raises BrokerUnavailable when there is none."""
    text = answer.fields.get(name, "")
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise BrokerUnavailable(f"broker {broker} answered without {name}")
    return int(text)
