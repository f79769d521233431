"""proxy.admin.web.fields: whatever JSON comes, the only thing that is raised is BadRequest."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popgate.errors import BadRequest
from popgate.testing import MovableClock
from processors.limits import Limits
from protocols.drain import LongPolls
from proxy.admin.domain.groups import Groups, _target
from proxy.admin.domain.messages import Messages
from proxy.admin.domain.topics import Topics
from proxy.admin.web.fields import Fields

PROCESSOR: Any = SimpleNamespace(limits=Limits())
NAMES = re.findall(
    r"\w+",
    """name types queues permission retention_ms retention_bytes attributes ordered max_attempts
    consume_timeout_ms start_from retry kind delays_ms first_step initial_ms max_ms multiplier to topics body
    body_base64 tag keys message_group delay_ms deliver_at_ms properties group receipts sql max_messages
    wait_ms invisible_ms""",
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(alphabet=st.characters(codec=None))
    | st.sampled_from(["FIFO", "first", "last", "exponential", "customized", "read", "/w=="])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES) | VALUES


@given(OBJECTS)
def test_hostile_json_raises_bad_request_only(value: Any) -> None:
    topics = Topics(PROCESSOR)
    groups = Groups(PROCESSOR)
    messages = Messages(PROCESSOR, MovableClock(), max_wait_s=30, waits=LongPolls())
    readers = (
        topics._config,
        groups._config,
        _target,
        lambda fields: messages._message_in("t", "", fields),
        lambda fields: messages._receive_in("t", fields),
    )
    for read in readers:
        with contextlib.suppress(BadRequest):
            read(Fields(value, "the request"))


def test_a_field_that_nobody_asked_for_is_refused_with_the_nearest() -> None:
    fields = Fields({"queus": 3}, "the request")
    fields.number("queues")
    with pytest.raises(BadRequest, match=r"'queus' is no field of the request; did you mean queues\?"):
        fields.end()


def test_null_is_like_absent() -> None:
    fields = Fields({"a": None, "b": None, "c": None}, "the request")
    assert (fields.text("a", "x"), fields.number("b"), fields.texts("c")) == ("x", None, ())
    fields.end()


def test_too_many_items_are_refused() -> None:
    with pytest.raises(BadRequest, match="the limit is 65536"):
        Fields({"receipts": [""] * 65_537}, "the request").texts("receipts")
