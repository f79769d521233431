"""Builds the Context of a request from its headers. Source: protocol facts 1.2 and 1.3.

Only the headers named here are read. What a client claims about its own address
(`rpc-remote-address` and the like) or its access key is not among them.
"""

from __future__ import annotations

from typing import Final

from popgate.context import Context
from popgate.errors import BadRequest, Fault, Unauthenticated
from popgate.kinds import NO_CREDENTIALS, Authenticator, Credentials
from protocols.grpc.transport import Call

_LONGEST_ID: Final = 1024
_LONGEST: Final = 256


def open_context(call: Call, now: float) -> Context:
    """The Context of an RPC that begins at the loop time `now`.

    Its caller is not authenticated yet and its client id not checked.
    """
    context = Context(
        door="grpc", peer=call.peer, local=call.local, certificate=call.names, connection=call.peer
    )
    header = call.header
    context.client_id = _text(header("x-mq-client-id"), _LONGEST_ID)
    context.language = _text(header("x-mq-language"), _LONGEST).upper()
    context.client_version = _text(header("x-mq-client-version"), _LONGEST)
    if namespace := header("x-mq-namespace"):
        context.namespace = _text(namespace, _LONGEST)
    if traceparent := header("traceparent"):
        context.traceparent = _text(traceparent, _LONGEST)
    remaining = call.time_remaining()
    if remaining is not None:
        context.deadline = now + remaining
    return context


def check_client_id(context: Context) -> None:
    """Raises BadRequest CLIENT_ID_REQUIRED."""
    if not context.client_id or context.client_id.isspace():
        raise BadRequest(
            "the header x-mq-client-id is missing or blank: every request must carry the client's id",
            Fault.CLIENT_ID_REQUIRED,
            "client id cannot be empty",
        )
    if "\n" in context.client_id:
        # Clients are kept by their ids, and classic ones by those with their groups behind a line's end.
        raise BadRequest("the header x-mq-client-id has a line's end in it", Fault.CLIENT_ID_REQUIRED)


def authenticate(context: Context, call: Call, authenticator: Authenticator, now: float) -> None:
    """Find out who calls. Raises Unauthenticated."""
    headers = {
        name: _text(call.header(name), 4096)
        for name in ("authorization", "x-mq-date-time", "x-mq-session-token")
    }
    context.principal = authenticator.authenticate(context, credentials_in(headers), now)


def credentials_in(headers: dict[str, str]) -> Credentials:
    """The credentials in the `authorization` header; None without the header.

    The form is `MQv2-HMAC-SHA1 Credential=<key>[/…], SignedHeaders=x-mq-date-time, Signature=<hex>`;
    the signature covers the text of `x-mq-date-time` only. Raises Unauthenticated.
    """
    header = headers.get("authorization", "").strip()
    if not header:
        return NO_CREDENTIALS
    fields: dict[str, str] = {}
    for item in header.partition(" ")[2].split(","):
        name, _, value = item.partition("=")
        fields[name.strip()] = value.strip()
    signed = headers.get("x-mq-date-time", "")
    try:
        signature = bytes.fromhex(fields["Signature"])
        access_key = fields["Credential"].partition("/")[0]
    except (KeyError, ValueError):
        raise Unauthenticated("the authorization header is malformed") from None
    if not access_key or not signed:
        raise Unauthenticated("the authorization header names no access key, or x-mq-date-time is missing")
    return Credentials(
        access_key=access_key,
        signature=signature,
        signed=signed.encode(),
        token=headers.get("x-mq-session-token", ""),
    )


def _text(value: str | bytes, longest: int) -> str:
    """A header's value as text of a bounded length; ids are kept by the gateway, so they are cut too."""
    return (value if isinstance(value, str) else value.decode("utf-8", "replace"))[:longest]
