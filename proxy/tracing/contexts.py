"""Trace contexts in the properties of messages."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.trace import SpanContext

from popgate.model import Message, StoredMessage
from popgate.wire.messages.properties import LONGEST_BLOCK, TRACE_CONTEXT, UNIQ_KEY, find_property
from proxy.tracing.traceparent import parse_traceparent

_TRACE_CONTEXT = TRACE_CONTEXT.encode()
_TRACEPARENT = "traceparent"
"""The user property in which OpenTelemetry's propagators carry a context. Source: W3C Trace Context, 3.2."""
_UNIQ_KEY = UNIQ_KEY.encode()
_SYSTEM_BYTES = 2048
"""Room in a block of properties for system properties, including the context itself."""


def context_of(properties: bytes) -> str:
    """The context that a stored message carries, as text; empty where it has none."""
    text = find_property(properties, _TRACE_CONTEXT)
    if text is None:
        text = find_property(properties, _TRACEPARENT.encode())
    return text.decode("ascii", "replace") if text is not None else ""


def parsed(texts: Iterable[str]) -> list[SpanContext]:
    """Those of them that are contexts."""
    return [parent for text in texts if (parent := parse_traceparent(text)) is not None]


def carried(message: Message) -> str:
    """The context that a message brings, or got from its send; empty where it has none."""
    if message.trace_context:
        return message.trace_context
    if message.user_properties:
        own = message.user_properties.get(_TRACEPARENT, "")
        if parse_traceparent(own) is not None:
            return own
    return context_of(message.properties) if message.properties else ""


def has_room(message: Message) -> bool:
    """Whether a context fits beside the client's properties: tracing must not make a message too large."""
    texts = [*message.user_properties, *message.user_properties.values(), message.message_id, message.tag]
    texts += [message.message_group, message.born_host, message.producer_group, message.topic, *message.keys]
    size = sum(len(text.encode("utf-8", "replace")) + 1 for text in texts)
    return size + _SYSTEM_BYTES <= LONGEST_BLOCK


def id_of(message: StoredMessage) -> str:
    """The id that its producer gave a message; empty where it has none."""
    return id_in(message.properties)


def id_in(properties: bytes) -> str:
    """`id_of` the message with this block of properties."""
    text = find_property(properties, _UNIQ_KEY)
    return text.decode("utf-8", "replace") if text is not None else ""
