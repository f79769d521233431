"""Reads the fields of a request's header, which are all texts. A BadRequest names the wrong field."""

from __future__ import annotations

from collections.abc import Mapping

from popgate.errors import BadRequest, shown

_INT32 = (1 << 31) - 1
_INT64 = (1 << 63) - 1
_SHORT = 10
"""Digits that may be too many for 32 bits."""


def text(fields: Mapping[str, str], name: str) -> str:
    """A field that must be there, and not be empty. Raises BadRequest."""
    value = fields.get(name)
    if not value:
        raise BadRequest(f"the request has no field {name}")
    return value


def number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A whole number of 32 bits. Raises BadRequest; also when it is missing, unless there is a default."""
    value = fields.get(name)
    if value and len(value) < _SHORT and value.isascii() and value.isdigit():  # as nearly all are
        return int(value)
    return _whole(fields, name, default, _INT32)


def long_number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A whole number of 64 bits. Raises as `number`."""
    return _whole(fields, name, default, _INT64)


def flag(fields: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """As Java reads it: only "true", in any case, is true."""
    value = fields.get(name)
    return default if value is None else value.lower() == "true"


def _whole(fields: Mapping[str, str], name: str, default: int | None, most: int) -> int:
    value = fields.get(name)
    if value is None:
        if default is None:
            raise BadRequest(f"the request has no field {name}")
        return default
    # Python alone would also take blanks and underscores, and be slow with long ones.
    digits = value[1:] if value[:1] in ("-", "+") else value
    if len(digits) > 19 or not (digits.isascii() and digits.isdigit()):
        raise BadRequest(f"the field {name} is no whole number: {shown(value)}")
    whole = int(value)
    if not -most - 1 <= whole <= most:
        raise BadRequest(f"the field {name} is out of range: {whole}")
    return whole
