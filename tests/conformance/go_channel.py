"""Calls over grpc-go, connected as RocketMQ's Go client connects unless it is told otherwise.

That client is in no registry. What a gateway sees of it before the first message is grpc-go's TLS, with a
certificate that nobody verifies; `tests/outside/gogrpc` does the same.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from popgate.testing.variables import variables
from tests.outside.go_programs import go_program


class GoChannel:
    """A connection of a process of its own; has what `Raw` asks of a `grpc.Channel`."""

    def __init__(self, endpoint: str) -> None:
        """Raises Missing."""
        program = go_program("gogrpc", ".")
        self._process = subprocess.Popen(
            [program, endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables(),
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[..., Any],
    ) -> Callable[..., Any]:
        stream = self.unary_stream(method, request_serializer, response_deserializer)

        def call(request: Any, **options: Any) -> Any:
            (found,) = stream(request, **options)
            return found

        return call

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[..., Any],
    ) -> Callable[..., Iterator[Any]]:
        def call(request: Any, metadata: Sequence[tuple[str, str]], timeout: float) -> Iterator[Any]:
            told = {
                "method": method,
                "metadata": dict(metadata),
                "request": base64.b64encode(request_serializer(request)).decode(),
                "timeoutS": timeout,
            }
            ended = self._carry(json.dumps(told))
            assert not ended["Code"], ended["Text"]
            for response in ended["Responses"] or ():
                yield response_deserializer(base64.b64decode(response))

        return call

    def _carry(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
