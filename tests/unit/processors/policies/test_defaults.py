"""The policies without an opinion: identity, permission."""

from __future__ import annotations

from popgate.context import ANONYMOUS, Context
from popgate.kinds import NO_CREDENTIALS, Action, Resource, ResourceKind
from processors.policies.identity import Anyone
from processors.policies.permission import Everything


def test_everybody_is_anonymous_and_may_do_everything() -> None:
    assert Anyone().authenticate(Context(), NO_CREDENTIALS, 0.0) is ANONYMOUS
    assert Everything().allows(Context(), Action.DELETE, Resource(ResourceKind.TOPIC, "orders"), 0.0)
