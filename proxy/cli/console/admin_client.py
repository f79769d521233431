"""The client of the admin port of a running gateway; errors become a `Failure`.

It uses `http.client`: a command starts several times faster than with an asyncio client.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from proxy.cli.console.failure import Ended, Failure

_CONNECT_S = 10.0
_ANSWER_S = 30.0
_LARGEST_ANSWER = 512 << 20
_CUT_OFF = "its answer ended in the middle"


class Gateway:
    """One kept connection to the admin address `url` (http or https, a path in front is allowed).

    `patience_s`: how long it may take to connect, or to answer; by default 10 s and 30 s.
    """

    def __init__(self, url: str, patience_s: float | None = None) -> None:
        self._url = url
        self._answer_s = _ANSWER_S if patience_s is None else patience_s
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise Failure(Ended.USAGE, f"{url!r} is no admin address: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failure(Ended.USAGE, f"{url!r} is no admin address: write it like http://127.0.0.1:8083")
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        try:
            self._connection = kind(parts.hostname, port, timeout=min(_CONNECT_S, self._answer_s))
        except HTTPException:
            raise Failure(
                Ended.USAGE, f"{url!r} is no admin address: {parts.hostname!r} is no host"
            ) from None
        self._prefix = parts.path.rstrip("/")

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._connection.close()

    def get(self, *path: str, query: Mapping[str, str | int | None] | None = None) -> Any:
        return self._call("GET", path, None, query or {}, 0.0)

    def post(self, *path: str, body: object, wait_s: float = 0.0) -> Any:
        return self._call("POST", path, body, {}, wait_s)

    def delete(self, *path: str) -> Any:
        return self._call("DELETE", path, None, {}, 0.0)

    def _call(
        self,
        method: str,
        path: tuple[str, ...],
        body: object,
        query: Mapping[str, str | int | None],
        wait_s: float,
    ) -> Any:
        target = f"{self._prefix}/api/" + "/".join(_quoted(part) for part in path)
        given = {name: value for name, value in query.items() if value is not None}
        if given:
            target += f"?{urlencode(given, errors='surrogateescape')}"
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
            headers["Content-Type"] = "application/json"
        status, answer = self._exchange(method, target, data, headers, self._answer_s + wait_s)
        try:
            value = json.loads(answer) if answer else None
        except ValueError:
            raise self._stranger() from None
        if status < 400:
            return value
        if not isinstance(value, dict) or not isinstance(value.get("message"), str):
            raise self._stranger()
        code = Ended.NOTHING if status == 404 else Ended.FAILED
        raise Failure(code, value["message"], str(value.get("fault", "")))

    def _exchange(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str], patience_s: float
    ) -> tuple[int, bytes]:
        try:
            if self._connection.sock is not None and _is_over(self._connection.sock):
                self._connection.close()
            if self._connection.sock is None:
                self._connection.connect()
            self._connection.sock.settimeout(patience_s)
            self._connection.request(method, target, data, headers)
            response = self._connection.getresponse()
            answer = response.read(_LARGEST_ANSWER + 1)
        except socket.gaierror as error:
            raise self._unreachable(error.strerror or str(error)) from None
        except UnicodeError:
            # A label of the host's name is empty or too long.
            raise self._unreachable("its host has no possible name") from None
        except TimeoutError:
            self._connection.close()
            raise self._unreachable("no answer in time") from None
        except OSError as error:  # one that ends without an answer is an HTTPException, too
            self._connection.close()
            raise self._unreachable(error.strerror or str(error)) from None
        except IncompleteRead:
            self._connection.close()
            raise self._unreachable(_CUT_OFF) from None
        except HTTPException:
            self._connection.close()
            raise self._stranger() from None
        if len(answer) > _LARGEST_ANSWER:
            raise Failure(Ended.FAILED, f"the answer of {self._url} is larger than {_LARGEST_ANSWER} bytes")
        if response.length:  # http.client tells only who reads without a limit
            self._connection.close()
            raise self._unreachable(_CUT_OFF)
        return response.status, answer

    def _unreachable(self, why: str) -> Failure:
        return Failure(
            Ended.UNREACHABLE,
            f"no gateway answers at {self._url}: {why[:1].lower()}{why[1:]}"
            " (is `popgate serve` running? for another address: --admin, POPGATE_ADMIN)",
        )

    def _stranger(self) -> Failure:
        return Failure(Ended.UNREACHABLE, f"what answers at {self._url} is not the admin port of a popgate")


def _is_over(link: socket.socket) -> bool:
    """Whether the gateway has closed a connection over which nothing is asked now.

    It does so with those that are idle for long, and with all when the process that has them ends. Found out
    only after a request was sent, it would not be known whether that was served.
    """
    return bool(select.select([link], [], [], 0)[0])


def _quoted(part: str) -> str:
    """Bytes of the command line that are no text are sent as they are; the gateway reports the error."""
    return quote(part, safe="", errors="surrogateescape")
