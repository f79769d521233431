"""What single official clients cannot take, found by their language. Source: protocol facts 1.8."""

from __future__ import annotations

from popgate.context import Context
from processors.consuming import is_node, is_rust
from protocols.grpc.pb.definition_pb2 import Code

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


def can_receive(context: Context, size: int) -> bool:
    """Whether the client's gRPC takes an answer of so many bytes.

    What it does not take it breaks off, with whatever else the answer holds. The limit stands in
    the clients of Node.js, Rust and .NET, and no user can change it.
    """
    if size <= _USUAL_LIMIT:
        return True
    return not (is_node(context) or is_rust(context) or context.language.upper() == "DOTNET")


def code_for(context: Context, code: Code) -> Code:
    """The code to tell this client: Rust's panics on those that it does not know (seen of 5.0.0)."""
    return _OLDER_WORDS.get(code, code) if is_rust(context) else code
