"""proxy.cli.domain.send: how bodies come to the gateway."""

from __future__ import annotations

import base64
import json

import pytest

from proxy.cli.domain.send import _encoded
from proxy.config.settings import Settings


@pytest.mark.parametrize("byte", [b"\0", b"\n", b'"', b"\\", b"x", b"\x80"])
def test_each_body_that_a_gateway_takes_fits_into_a_request(byte: bytes) -> None:
    settings = Settings.model_validate({})
    body = byte * settings.limits.max_body_bytes
    form = _encoded(body)
    assert len(json.dumps(form, ensure_ascii=False).encode()) < settings.api.max_request_bytes
    told = form["body"].encode() if "body" in form else base64.b64decode(form["body_base64"])
    assert told == body


def test_text_is_sent_as_text() -> None:
    assert _encoded("Grüße,\n\tund so".encode()) == {"body": "Grüße,\n\tund so"}
