"""W3C trace context as text, as producers send it and messages keep it."""

from __future__ import annotations

import re

from opentelemetry.trace import SpanContext, TraceFlags

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
LONGEST = 512
"""Characters of a context."""


def parse_traceparent(text: str) -> SpanContext | None:
    """The span that this names; None for anything that is no traceparent.

    Source: W3C Trace Context, 3.2: version ff is invalid, newer versions may say more behind, ids of
    nothing but zeros are invalid.
    """
    if not text or len(text) > LONGEST:
        return None
    matched = _FORM.fullmatch(text.strip())
    if matched is None:
        return None
    version, trace_id, span_id, flags, more = matched.groups()
    if version == "ff" or (version == "00" and more):
        return None
    made = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16) & 1)
    )
    return made if made.is_valid else None


def encode_traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"
