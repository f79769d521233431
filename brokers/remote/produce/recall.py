"""Recalls delayed messages. Source: protocol facts 3.9.

A broker stores a mark for the message's time and does not check whether there is such a message: it
confirms the second recall like the first. This process remembers what it recalled.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.settle.recent_handles import RecentHandles
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import BadRequest, NotFound, shown
from popgate.ids.receipt import NO_RECALL_HANDLE
from popgate.wire.frames.codes import RequestCode, ResponseCode

_LONGEST = 4_096
_MOST = 4_096


class Recall(NamedTuple):
    """What a recall handle says."""

    topic: str
    broker: str
    time_ms: int
    message_id: str


def read_recall_handle(handle: str) -> Recall:
    """`v1 topic broker time id` in Base64 for URLs. Raises BadRequest for anything else."""
    parts: list[str] = []
    if len(handle) <= _LONGEST and handle.isascii():
        try:
            parts = base64.b64decode(handle, altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError):
            parts = []
    if len(parts) < 5 or parts[0] != "v1" or not (parts[3].isascii() and parts[3].isdigit()):
        raise BadRequest(f"the recall handle {shown(handle)} is malformed", known_as=NO_RECALL_HANDLE)
    if len(parts[3]) > 18:
        raise BadRequest(
            f"the recall handle {shown(handle)} is for no time that there is", known_as=NO_RECALL_HANDLE
        )
    return Recall(parts[1], parts[2], int(parts[3]), parts[4])


class Recaller:
    """The port's `recall`."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._client = access.client
        self._recalled = RecentHandles(_MOST)

    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        recall = read_recall_handle(recall_handle)
        route = await self._access.routes.of(topic)
        if recall.topic != topic:
            raise BadRequest(f"the recall handle is for topic {shown(recall.topic)}, not for {topic}")
        if recall_handle in self._recalled:
            raise NotFound(f"message {shown(recall.message_id)} was recalled before")
        if route.broker(recall.broker) is None:
            raise NotFound(f"topic {topic} has no broker {shown(recall.broker)} that could recall a message")
        fields = {"producerGroup": topic, "topic": topic, "recallHandle": recall_handle}
        answer = await self._client.call(recall.broker, RequestCode.RECALL_MESSAGE, fields, context=context)
        if answer.code == ResponseCode.ILLEGAL_OPERATION:
            raise NotFound(f"message {shown(recall.message_id)} cannot be recalled: {shown(answer.remark)}")
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=recall.broker, topic=topic)
        self._recalled.add(recall_handle)
        return answer.fields.get("msgId") or recall.message_id
