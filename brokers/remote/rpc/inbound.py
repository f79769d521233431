"""Requests that brokers send to the gateway: checks, notices, questions of operators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from popgate.errors import BrokerBusy, GatewayError, LocalWireError
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command

Handler = Callable[[str, int, Command], Command | Awaitable[Command | None] | None]
"""(address, link, request) -> the answer, or None."""
Answer = Callable[[Command], object]

_log = logging.getLogger(__name__)


class InboundRequests:
    """Finds the handler of a request by its code; at most `most` of them are answered at a time."""

    def __init__(self, most: int) -> None:
        self.handlers: dict[int, Handler] = {}
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, address: str, link: int, request: Command, answer: Answer) -> None:
        """Have a request answered, now or later."""
        handler = self.handlers.get(request.code)
        if handler is None:
            _say(answer, request, _refusal(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported"))
            return
        if len(self._tasks) >= self._most:
            _say(answer, request, _refusal(request, ResponseCode.SYSTEM_BUSY, "too many are under way"))
            return
        try:
            result = handler(address, link, request)
        except Exception as error:
            _say(answer, request, _failure(request, address, error))
            return
        if result is None or isinstance(result, Command):
            _say(answer, request, result)
            return
        task = asyncio.get_running_loop().create_task(_later(result, address, request, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _later(result: Awaitable[Command | None], address: str, request: Command, answer: Answer) -> None:
    try:
        command = await result
    except Exception as error:
        command = _failure(request, address, error)
    _say(answer, request, command)


def _say(answer: Answer, request: Command, command: Command | None) -> None:
    if command is None or request.is_oneway:
        return
    try:
        answer(command)
    except LocalWireError:
        answer(_refusal(request, ResponseCode.SYSTEM_ERROR, "the answer fits into no frame"))
    except BrokerBusy as error:
        _log.warning("an answer is dropped: %s", error.sentence)


def _failure(request: Command, address: str, error: Exception) -> Command:
    if isinstance(error, GatewayError):
        return _refusal(request, ResponseCode.SYSTEM_ERROR, error.sentence)
    _log.error("request %d of %s could not be answered", request.code, address, exc_info=error)
    return _refusal(request, ResponseCode.SYSTEM_ERROR, "it could not be answered")


def _refusal(request: Command, code: ResponseCode, why: str) -> Command:
    return request.answer(code, f"request {request.code}: {why}")
