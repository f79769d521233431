"""Decodes clients' subscriptions to lite topics. Source: protocol facts 1.10 and 4.10."""

from __future__ import annotations

from popgate.errors import BadRequest
from popgate.lite import LiteAction, LiteOrigin, LiteSync
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc

_ACTIONS = {
    pb.LiteSubscriptionAction.PARTIAL_ADD: LiteAction.ADD,
    pb.LiteSubscriptionAction.PARTIAL_REMOVE: LiteAction.REMOVE,
    pb.LiteSubscriptionAction.COMPLETE_ADD: LiteAction.REPLACE,
    pb.LiteSubscriptionAction.COMPLETE_REMOVE: LiteAction.CLEAR,
}
_POLICIES = {
    pb.OffsetOption.LAST: LiteOrigin.LAST,
    pb.OffsetOption.MIN: LiteOrigin.FIRST,
    pb.OffsetOption.MAX: LiteOrigin.END,
}
_LONGEST = 1 << 62
_MOST_NAMES = 65_536
"""Lite topics in one request."""


def lite_sync_in(request: rpc.SyncLiteSubscriptionRequest) -> LiteSync:
    """A change of what a client subscribes to. Raises BadRequest (no such action or policy; too many names).

    Where to begin counts when lite topics are added one by one.
    """
    action = _ACTIONS.get(request.action)
    if action is None:
        raise BadRequest(f"the action {request.action} on lite subscriptions is not known")
    count = len(request.lite_topic_set)
    if count > _MOST_NAMES:
        raise BadRequest(f"the request names {count} lite topics, the limit is {_MOST_NAMES}")
    origin, value = _origin_in(request.offset_option) if action is LiteAction.ADD else (LiteOrigin.LAST, 0)
    return LiteSync(
        request.topic.name, request.group.name, action, tuple(request.lite_topic_set), origin, value
    )


def _origin_in(option: pb.OffsetOption) -> tuple[LiteOrigin, int]:
    match option.WhichOneof("offset_type"):
        case "policy":
            origin = _POLICIES.get(option.policy)
            if origin is None:
                raise BadRequest(f"the policy {option.policy} for where to begin is not known")
            return origin, 0
        case "offset":
            return LiteOrigin.OFFSET, _bounded(option.offset)
        case "tail_n":
            return LiteOrigin.TAIL, _bounded(option.tail_n)
        case "timestamp":
            return LiteOrigin.TIME, _bounded(option.timestamp)
        case _:
            return LiteOrigin.LAST, 0


def _bounded(value: int) -> int:
    if not 0 <= value < _LONGEST:
        raise BadRequest(f"the place {value} to begin at is out of range, it must not be negative")
    return value
