"""Durations, sizes and points in time in human-readable form, for settings and command lines.

A plain number has the unit of the setting's name; text may carry its own: `1h30m`, `4MiB`.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "k": 1024,
    "m": 1024**2,
    "g": 1024**3,
    "t": 1024**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+\Z", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?\Z", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\Z", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TEXT = 64
LONGEST_SECONDS = 100 * 366 * 86_400
_LARGEST_BYTES = 1 << 62


def parse_duration(text: str) -> float:
    """Seconds of `90`, `1.5s`, `500ms`, `1h30m`, `3d`. Raises ValueError with a sentence."""
    trimmed = text.strip().lower()
    if len(trimmed) <= _LONGEST_TEXT:
        if _NUMBER.match(trimmed):
            return _bounded_seconds(float(trimmed), text)
        if _DURATION.match(trimmed):
            return _bounded_seconds(
                sum(float(n) * _SECONDS[unit] for n, unit in _PART.findall(trimmed)), text
            )
    raise ValueError(f"{_quoted(text)} is no duration: write seconds, or like 500ms, 30s, 1h30m, 3d")


def _bounded_seconds(seconds: float, text: str) -> float:
    if not math.isfinite(seconds) or seconds > LONGEST_SECONDS:
        raise ValueError(f"the duration {_quoted(text)} is longer than a hundred years")
    return seconds


def parse_size(text: str) -> int:
    """Bytes of `65536`, `64KiB`, `4MiB`, `1.5GiB`, `10MB`. Raises ValueError with a sentence."""
    matched = _SIZE.match(text.strip()) if len(text) <= _LONGEST_TEXT else None
    factor = _BYTES.get(matched[2].lower()) if matched else None
    if matched is None or factor is None:
        raise ValueError(f"{_quoted(text)} is no size: write bytes, or like 64KiB, 4MiB, 10GiB")
    size = float(matched[1]) * factor
    if size > _LARGEST_BYTES:
        raise ValueError(f"the size {_quoted(text)} is larger than 4 EiB")
    return int(matched[1]) * factor if matched[1].isdigit() else int(size)


def parse_moment(text: str, now_ms: int) -> int:
    """Milliseconds since the epoch of an ISO 8601 time, of epoch milliseconds, `now`, or `2h ago`.

    An ISO time without a zone is local time. Raises ValueError with a sentence.
    """
    trimmed = text.strip()
    if len(trimmed) <= _LONGEST_TEXT:
        if trimmed.lower() == "now":
            return now_ms
        if trimmed.lower().endswith(" ago"):
            return max(now_ms - round(parse_duration(trimmed[:-4]) * 1000), 0)
        if trimmed.isascii() and trimmed.isdigit() and 10 <= len(trimmed) <= 16:
            return int(trimmed)
        try:
            return max(round(datetime.fromisoformat(trimmed).timestamp() * 1000), 0)
        except (ValueError, OverflowError, OSError):
            pass
    raise ValueError(
        f"{_quoted(text)} is no time: write 2025-01-31T12:00:00Z, epoch milliseconds, now, or like '2h ago'"
    )


def duration_text(seconds: float) -> str:
    """The shortest text that `parse_duration` reads back: 259200 → `3d`, 5400 → `1h30m`, 0.1 → `100ms`."""
    left = round(seconds * 1000)
    if left == 0:
        return "0s"
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def size_text(size: int) -> str:
    """The largest binary unit that divides evenly: 4194304 → `4MiB`, 1000 → `1000`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _BYTES[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def rough_size_text(size: int) -> str:
    """A size for people, in three digits or so: 900 → `900 B`, 137110 → `134 KiB`, 1610612736 → `1.5 GiB`."""
    number, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1000:
            break
        number, unit = number / 1024, larger
    return f"{number:.1f} {unit}" if unit != "B" and number < 10 else f"{number:.0f} {unit}"


def counted(count: int, thing: str) -> str:
    """`1 message`, `2 messages`, `0 messages`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def moment_text(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds, as `parse_moment` reads it back; a dash for none (0 or less)."""
    if ms <= 0:
        return "-"
    try:
        text = (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return text.replace("+00:00", "Z")


def span_text(ms: int) -> str:
    """How long something lasts, for people, in two units at most: `3 min 20 s`, `2 d 4 h`; none is `0 s`."""
    left = max(ms, 0)
    if left < 1000:
        return f"{left} ms" if left else "0 s"
    parts: list[str] = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def local_moment_text(ms: int) -> str:
    """A time of day here, with its date when that is another day: `14:03:59`, `2025-01-31 14:03:59`."""
    try:
        then = datetime.fromtimestamp(ms / 1000).astimezone()
        today = datetime.now().astimezone().date()
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return f"{then:%H:%M:%S}" if then.date() == today else f"{then:%Y-%m-%d %H:%M:%S}"


def _quoted(text: str) -> str:
    cut = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"
    return f"'{cut}'" if cut.isprintable() else ascii(cut)
