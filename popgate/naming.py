"""Which names are valid, and which are reserved. Source: protocol facts 2.1 and 4.2."""

from __future__ import annotations

import re
from functools import lru_cache

from popgate.errors import IllegalGroup, IllegalLiteTopic, IllegalTopic, shown

TOPIC_LONGEST = 127
GROUP_LONGEST = 120
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
TOOLS_GROUP = "TOOLS_CONSUMER"
"""The consumer group that every broker has from the start, for readers without a group of their own.
Source: RocketMQ's SubscriptionGroupManager.init.
"""
MEMBER_PREFIX = "%MEMBER%"
"""Of the groups that the gateway makes for the clients of a broadcast group."""
PERCENT_REFUSED = "% is not allowed: a namespace has a field of its own"
"""The rule for names of gRPC clients of a gateway with `namespaces = "prefixed"`."""
TRANSACTION_CHECKS_EXHAUSTED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"

_LEGAL_LITE = re.compile(r"[a-zA-Z0-9_-]+\Z")
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_COULD_BE_A_NAME = re.compile(r"[!-~]{1,512}\Z")
_ALLOWED = "only letters, digits and % | - _ are allowed"
_ALLOWING = "allowing only ^[%|a-zA-Z0-9_-]+$"
_SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        TRANSACTION_CHECKS_EXHAUSTED_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
_SYSTEM_TOPIC_PREFIX = "rmq_sys_"
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


@lru_cache(maxsize=4096)
def check_topic(name: str) -> str:
    """Return `name` if a client may use it as a topic; else raise IllegalTopic with the rule."""
    if not name.strip():
        raise IllegalTopic(name, "it must not be blank", "The specified topic is blank")
    if len(name) > TOPIC_LONGEST:
        raise IllegalTopic(
            name,
            f"it has {len(name)} characters, the limit is {TOPIC_LONGEST}",
            f"The specified topic is longer than topic max length {TOPIC_LONGEST}.",
        )
    if not _LEGAL.match(name):
        raise IllegalTopic(
            name, _ALLOWED, f"The specified topic[{_bare(name)}] contains illegal characters, {_ALLOWING}"
        )
    if is_system_topic(name):
        raise IllegalTopic(name, "it belongs to the system", "cannot access system topic")
    return name


@lru_cache(maxsize=4096)
def check_group(name: str) -> str:
    """Return `name` if a client may use it as a consumer group; else raise IllegalGroup with the rule."""
    if not name.strip():
        raise IllegalGroup(name, "it must not be blank", "the specified group is blank")
    if len(name) > GROUP_LONGEST:
        raise IllegalGroup(
            name,
            f"it has {len(name)} characters, the limit is {GROUP_LONGEST}",
            f"the specified group[{_bare(name)}] is longer than group max length: {GROUP_LONGEST}.",
        )
    if not _LEGAL.match(name):
        raise IllegalGroup(
            name, _ALLOWED, f"the specified group[{_bare(name)}] contains illegal characters, {_ALLOWING}"
        )
    if name.startswith((_SYSTEM_GROUP_PREFIX, MEMBER_PREFIX)):
        raise IllegalGroup(name, "it belongs to the system", "cannot use system consumer group")
    return name


def _bare(name: str) -> str:
    """A name from outside as `shown` makes it harmless, without the quotes."""
    return shown(name)[1:-1]


def check_lite_topic(name: str, longest: int) -> str:
    """Return `name` if it can be a lite topic of at most `longest` bytes; else raise IllegalLiteTopic.

    Source: protocol facts 4.10.
    """
    if not name.strip():
        raise IllegalLiteTopic(name, "it must not be blank")
    if len(name) > longest:
        raise IllegalLiteTopic(name, f"it has {len(name)} characters, the limit is {longest}")
    if not _LEGAL_LITE.match(name):
        raise IllegalLiteTopic(name, "only letters, digits and - _ are allowed")
    return name


def could_be_a_name(text: str) -> bool:
    """Whether a topic or group of a cluster may be called so; brokers are not asked about anything else."""
    return _COULD_BE_A_NAME.match(text) is not None


def is_system_topic(name: str) -> bool:
    return name in _SYSTEM_TOPICS or name.startswith(_SYSTEM_TOPIC_PREFIX)


def is_derived_topic(name: str) -> bool:
    """Whether the topic was made for a group: its retries or its dead letters."""
    return name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def retry_topic(group: str) -> str:
    """The retry topic of classic (pull) consumers."""
    return RETRY_PREFIX + group


def pop_retry_topic_v1(group: str, topic: str) -> str:
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(group: str, topic: str) -> str:
    return f"{RETRY_PREFIX}{group}+{topic}"


def pop_retry_origin(group: str, topic: str) -> str | None:
    """The topic whose pops by the group a retry topic is of, as its name goes; None for another name."""
    for prefix in (pop_retry_topic_v1(group, ""), pop_retry_topic_v2(group, "")):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None


def member_group(group: str, client: str) -> str:
    """The group of one client of a broadcast group; `client` is a digest of its id."""
    return f"{MEMBER_PREFIX}{group}%{client}"


def told_group(group: str) -> str:
    """The group as people know it: that of a member group, or itself."""
    if not group.startswith(MEMBER_PREFIX):
        return group
    return group[len(MEMBER_PREFIX) :].rpartition("%")[0]


def split_namespace(name: str) -> tuple[str, str]:
    """Split `ns%name` into both; derived topics and plain names have no namespace."""
    if is_derived_topic(name):
        return "", name
    namespace, sep, rest = name.partition("%")
    return (namespace, rest) if sep and namespace and rest else ("", name)


def with_namespace(namespace: str, name: str) -> str:
    """A topic or group as classic clients of a namespace call it; unchanged if it has that already.

    Source: RocketMQ's NamespaceUtil.wrapNamespace.
    """
    if not (namespace and name) or is_system_topic(name) or name.startswith(_SYSTEM_GROUP_PREFIX):
        return name
    prefix, rest = _derived(name)
    return name if rest.startswith(f"{namespace}%") else f"{prefix}{namespace}%{rest}"


def without_namespace(namespace: str, name: str) -> str:
    """The reverse of `with_namespace`; unchanged if the name is of no namespace, or of another one."""
    prefix, rest = _derived(name)
    bare = prefix + rest.removeprefix(f"{namespace}%")
    return bare if with_namespace(namespace, bare) == name else name


def _derived(name: str) -> tuple[str, str]:
    """The prefix of a derived topic, and the rest of its name."""
    prefix = next((each for each in (RETRY_PREFIX, DEAD_LETTER_PREFIX) if name.startswith(each)), "")
    return prefix, name.removeprefix(prefix)
