"""Lite topics in the domain: light queues within a topic, and what clients subscribe to of them.

Source: protocol facts 4.10; the names of attributes are RocketMQ's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

from popgate.model import GroupConfig

LITE_BIND_TOPIC = "lite.bind.topic"
"""Attribute of a group: the topic whose lite topics its clients subscribe to."""
LITE_SUB_MODEL = "lite.sub.model"
"""Attribute of a group: `Shared` (so without it), or `Exclusive`: one client for each lite topic."""
LITE_CLIENT_QUOTA = "lite.sub.client.quota"
"""Attribute of a group: to how many lite topics a client may subscribe."""
LITE_EXPIRATION = "lite.topic.expiration"
"""Attribute of a topic: minutes without a message after which a lite topic goes; -1, or without it: never."""


@unique
class LiteAction(Enum):
    """A change of the set of lite topics that a client subscribes to.

    REPLACE: subscribe to these and no others. CLEAR: to none.
    """

    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"
    CLEAR = "clear"


@unique
class LiteOrigin(Enum):
    """Where a group goes on in a lite topic that one of its clients adds.

    LAST: where it was. FIRST, END: at the first message, behind the last. OFFSET: at an offset, or
    the nearest that there is. TAIL: at so many messages before the end. TIME: at the first message
    stored at or after a wall time in ms.
    """

    LAST = "last"
    FIRST = "first"
    END = "end"
    OFFSET = "offset"
    TAIL = "tail"
    TIME = "time"


@dataclass(slots=True, frozen=True)
class LiteSync:
    """A client's word on the lite topics of `topic` that it subscribes to, for its group.

    `origin` with its `value` counts for ADD only. `most`: to how many lite topics the client may
    subscribe in all, so that more are not added.
    """

    topic: str
    group: str
    action: LiteAction
    lite_topics: tuple[str, ...] = ()
    origin: LiteOrigin = LiteOrigin.LAST
    value: int = 0
    most: int = 1200


@dataclass(slots=True, frozen=True)
class LiteTopicState:
    """The state of a lite topic: its offsets, the time of its last message, and its subscribers."""

    name: str
    minimum: int
    maximum: int
    last_ms: int
    subscribers: int


def takes_lite_topics(group: GroupConfig, topic: str) -> bool:
    """Whether the group's clients receive only the lite topics of this topic that they subscribe to."""
    return bool(group.attributes) and group.attributes.get(LITE_BIND_TOPIC) == topic
