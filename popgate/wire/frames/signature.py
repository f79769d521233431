"""The signature of remoting requests: HMAC-SHA1 over the ext fields and the body.

The fields are signed as they are sent: whoever adds or changes one must remove the old signature and sign
again. Source: protocol facts 5.12 and 9.5 (67).
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

from popgate.errors import LocalWireError

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a field
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
CREDENTIALS = (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)
"""The fields of a signature, which a gateway removes from requests that it signs itself."""
V4_9_3: Final = 399
"""Up to this version a client does not sign the field of UNIQUE_KEY_QUERY."""


def sign(
    fields: Mapping[str, str], body: bytes, access_key: str, secret_key: str, security_token: str = ""
) -> dict[str, str]:
    """The fields to add to those of a request. Raises LocalWireError for text that is no UTF-8."""
    added = {ACCESS_KEY: access_key}
    if security_token:
        added[SECURITY_TOKEN] = security_token
    try:
        added[SIGNATURE] = signature({**fields, **added}, body, secret_key)
    except UnicodeEncodeError as error:
        raise LocalWireError("a field that is to be signed is no text in UTF-8") from error
    return added


def verify(fields: Mapping[str, str], body: bytes, secret_key: str, version: int) -> bool:
    """Whether a request of a client of this version was signed with the secret key.

    The comparison takes the same time wherever the two differ. An unsigned request is not verified.
    Raises UnicodeEncodeError for text that is no UTF-8.
    """
    received = fields.get(SIGNATURE, "")
    expected = _signed_with(content(fields, body, version), secret_key)
    return hmac.compare_digest(expected.encode(), received.encode())


def signature(fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """Base64 of the HMAC-SHA1 over the content that a current client signs. Raises UnicodeEncodeError."""
    return _signed_with(content(fields, body, V4_9_3 + 1), secret_key)


def content(fields: Mapping[str, str], body: bytes, version: int) -> bytes:
    """The signed content for this client version: the values in the order of their names (no signature), the
    body.

    Raises UnicodeEncodeError for text that is no UTF-8.
    """
    left_out = (SIGNATURE, UNIQUE_KEY_QUERY) if version <= V4_9_3 else (SIGNATURE,)
    return "".join([fields[name] for name in sorted(fields) if name not in left_out]).encode() + body


def _signed_with(content: bytes, secret_key: str) -> str:
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()
