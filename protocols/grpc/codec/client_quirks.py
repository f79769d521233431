"""Workarounds for limitations of individual official clients, by language. Source: protocol facts 1.8."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from popgate.context import Context
from popgate.model import MessageType
from popgate.pb.definition_pb2 import Code
from processors.consume.receive_rules import is_node, is_rust

_USUAL_LIMIT = 4 * 1024 * 1024
"""Bytes of an answer that gRPC libraries take when nobody tells them otherwise, as these clients do not."""
_OLDER_WORDS = {
    Code.ILLEGAL_OFFSET: Code.BAD_REQUEST,
    Code.ILLEGAL_LITE_TOPIC: Code.BAD_REQUEST,
    Code.INVALID_CLIENT_PROPERTIES: Code.BAD_REQUEST,
    Code.OFFSET_NOT_FOUND: Code.NOT_FOUND,
    Code.MESSAGE_BODY_EMPTY: Code.BAD_REQUEST,
    Code.LITE_TOPIC_QUOTA_EXCEEDED: Code.TOO_MANY_REQUESTS,
    Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.TOO_MANY_REQUESTS,
}
"""Codes that came after the first clients, and what they are in the words of before."""


_SINCE = {
    "JAVA": {MessageType.LITE: (5, 1, 0), MessageType.PRIORITY: (5, 2, 0)},
    "DOTNET": {MessageType.LITE: (5, 2, 1), MessageType.PRIORITY: (5, 2, 1)},
    "PYTHON": {MessageType.LITE: (5, 0, 1), MessageType.PRIORITY: (5, 0, 1)},
}
"""The first versions that read routes with these message types: the releases before fail on the whole route.

Clients of Node.js, Go, Rust and C++ of every version take them as numbers (their sources, by release).
"""
_number = re.compile(r"[0-9]{1,9}\Z").match


def types_known(context: Context, types: Iterable[MessageType]) -> list[MessageType]:
    """Those of the message types that the client can read in a route; of a topic of others, none.

    A producer that looks at the types refuses to send then, as it should; a consumer reads the topic.
    """
    since = _SINCE.get(context.language.upper().replace("_", ""))
    if since is None:
        return list(types)
    version = context.client_version
    return [kind for kind in types if kind not in since or is_at_least(version, since[kind])]


@lru_cache(maxsize=256)
def is_at_least(version: str, least: tuple[int, ...]) -> bool:
    """Whether a client's version is `least` or newer; False for one that cannot be parsed."""
    numbers = []
    for part in re.split("[-+]", version, maxsplit=1)[0].split("."):
        if not _number(part):
            break
        numbers.append(int(part))
    return tuple(numbers) >= least


def can_receive(context: Context, size: int) -> bool:
    """Whether the client's gRPC accepts a response of this size in bytes.

    It aborts the call for a larger one, and loses everything in the response. The limit is fixed in
    the clients of Node.js, Rust and .NET, and no user can change it.
    """
    if size <= _USUAL_LIMIT:
        return True
    return not (is_node(context) or is_rust(context) or context.language.upper() == "DOTNET")


def may_be_new_id(context: Context, message_id: str) -> bool:
    """Whether the client may have replaced the id of a message that it received with this one.

    Python's client has one class for messages that are received and sent. Sending a received one gives it a
    new id of 34 characters that begins with 01 (`Producer.__wrap_sending_message`, `MessageIdCodec`), and its
    acknowledgement names that one.
    """
    return len(message_id) == 34 and message_id.startswith("01") and context.language.upper() == "PYTHON"


def code_for(context: Context, code: Code) -> Code:
    """The code for this client: Rust's panics on codes that it does not know (seen of 5.0.0)."""
    return _OLDER_WORDS.get(code, code) if is_rust(context) else code


def notices_only_an_end(context: Context) -> bool:
    """Whether the client's streams have to end when its connections are told to go, lest a call of it fails.

    Rust's looks whether a connection takes calls no longer when it makes the next one, which then fails with
    "transport error"; one that has ended it knows of before, and with an open stream it does not end (seen of
    5.0.0 on tonic and hyper: exactly one call of each client).
    """
    return is_rust(context)
