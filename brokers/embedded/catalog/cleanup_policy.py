"""The cleanup policy of a topic: DELETE by age and size, or COMPACTION.

Source: RocketMQ 5.3.3 (`TopicAttributes`: the values, and that they cannot be changed).
"""

from __future__ import annotations

from popgate.errors import BadRequest, shown
from popgate.model import CLEANUP_POLICY, COMPACTION, MessageType, TopicConfig
from popgate.naming import is_derived_topic

_DELETE = "DELETE"


def check_policy(config: TopicConfig) -> None:
    """Of a new topic. Raises BadRequest: no such policy, or one that does not go with the other settings."""
    policy = config.attributes.get(CLEANUP_POLICY, _DELETE)
    if policy not in (_DELETE, COMPACTION):
        raise BadRequest(f"there is no {CLEANUP_POLICY} {shown(policy)}: it is {_DELETE} or {COMPACTION}")
    if not config.compacted:
        return
    if is_derived_topic(config.name):
        raise BadRequest(f"topic {config.name} belongs to a group: its {CLEANUP_POLICY} is {_DELETE}")
    if MessageType.LITE in config.message_types:
        raise BadRequest(f"topic {config.name} has lite topics: its {CLEANUP_POLICY} is {_DELETE}")
    if config.retention_ms is not None or config.retention_bytes is not None:
        raise BadRequest(
            f"topic {config.name} keeps the newest message of each key ({CLEANUP_POLICY}={COMPACTION}):"
            " it has no retention by age or size"
        )


def check_same_policy(there: TopicConfig, wanted: TopicConfig) -> None:
    """Of a topic that is changed. Raises BadRequest."""
    if there.compacted != wanted.compacted:
        policy = COMPACTION if there.compacted else _DELETE
        raise BadRequest(
            f"the {CLEANUP_POLICY} of topic {there.name} is {policy}: it is set when a topic is created, and"
            " stays"
        )
    check_policy(wanted)
