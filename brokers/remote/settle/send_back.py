"""Sends back messages that a consumer pulled and could not process, to the broker that has them.

Source: protocol facts 5.5 (36) and 7.8.
"""

from __future__ import annotations

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.metadata.groups import Groups
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import GroupNotFound, NotFound, shown
from popgate.model import SendBack
from popgate.naming import could_be_a_name
from popgate.wire.frames.codes import RequestCode, ResponseCode

_GONE = "look message by offset failed"
"""What a broker says, in small letters, when it has no message there."""


class SendBacks:
    """The port's `send_back`."""

    def __init__(self, access: ClusterAccess, groups: Groups) -> None:
        self._client = access.client
        self._groups = groups

    async def send_back(self, context: Context, request: SendBack) -> None:
        """Sent once: a request without a response may have succeeded; a retry would store a second copy."""
        group, broker = request.group, request.broker
        if not could_be_a_name(group):
            raise GroupNotFound(shown(group))
        await self._groups.group(group)
        fields = {
            "group": group,
            "offset": str(request.commit_offset),
            "delayLevel": str(request.delay_level),
            "originMsgId": request.origin_message_id,
            "originTopic": request.origin_topic,
            "unitMode": "false",
        }
        if request.max_attempts is not None:
            fields["maxReconsumeTimes"] = str(request.max_attempts - 1)
        answer = await self._client.call(broker, RequestCode.CONSUMER_SEND_MSG_BACK, fields, context=context)
        if answer.code == ResponseCode.SYSTEM_ERROR and _GONE in answer.remark.lower():
            raise NotFound(f"broker {broker} has no message at {request.commit_offset}")
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker, group=group)
