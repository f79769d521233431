"""Standard JSON, with the fastest library that is installed.

The package `orjson` (`popgate[fast]`) is used if it is installed, and imported only here. Both
libraries read and write the same bytes: no spaces, unescaped UTF-8, keys in the order of the dict.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from popgate.errors import LocalWireError, PeerWireError

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]


def refuse_constant(name: str) -> Any:
    """NaN and infinities. Raises ValueError."""
    raise ValueError(f"{name} is no JSON")


def finite(digits: str) -> float:
    """A number with a fraction or an exponent. Raises ValueError for one that is larger than any double."""
    number = float(digits)
    if math.isinf(number):
        raise ValueError("a number is larger than any double")
    return number


_decode = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite).decode
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def loads_plain(data: bytes) -> Any:
    """Parse standard JSON. Raises PeerWireError for anything else than standard JSON in UTF-8."""
    try:
        text = data.decode()
        value = _decode(text)
        if "\\u" in text:
            _encode(value).encode()  # a half of a surrogate pair is no text, and could be sent to nobody
    except (ValueError, RecursionError) as error:
        raise no_json(error) from error
    return value


def dumps_plain(value: Any) -> bytes:
    """JSON text for dicts with text keys, lists, text, numbers, truth values and None.

    Raises LocalWireError for values that cannot be written.
    """
    try:
        return _encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise not_written(error) from error


def _loads_fast(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except ValueError as error:
        raise no_json(error) from error


def _dumps_fast(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise not_written(error) from error


def no_json(error: Exception) -> PeerWireError:
    return PeerWireError(f"this is no JSON: {error}")


def not_written(error: Exception) -> LocalWireError:
    return LocalWireError(f"this cannot be written as JSON: {error}")


loads: Callable[[bytes], Any] = loads_plain if orjson is None else _loads_fast
dumps: Callable[[Any], bytes] = dumps_plain if orjson is None else _dumps_fast
parse: Callable[[bytes], Any] = loads_plain if orjson is None else orjson.loads
"""As `loads`, without a call of its own; may raise ValueError, which is for `no_json`."""
write: Callable[[Any], bytes] = dumps_plain if orjson is None else orjson.dumps
"""As `dumps`, without a call of its own; may raise TypeError, which is for `not_written`."""
