"""A client's settings merged with its group's configuration and the gateway's limits.

Sources: protocol facts 1.7 (merged settings), pitfalls 7 and 8, docs/clients.md ("Good to know").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from popgate.context import Context
from popgate.errors import BadRequest, Fault, shown
from popgate.filters.compiled import compile_filter
from popgate.model import CustomizedRetry, FilterKind, GroupConfig
from popgate.naming import check_group, check_topic
from popgate.pb import definition_pb2 as pb
from popgate.pb.duration_pb2 import Duration
from processors.clients.client_registry import ClientKind
from processors.consume.lite import lite_quota
from processors.consume.receive_rules import is_node
from processors.limits import Limits
from protocols.grpc.codec.convert import check_endpoints, filter_kind, millis_of

_SEND_ATTEMPTS = 3
_SEND_INITIAL_MS = 10
_SEND_MAX_MS = 1_000
_SEND_MULTIPLIER = 2.0
_LONGEST_LADDER = 64
"""Steps of a customized backoff; the last one is repeated by the client."""

_MOST_PROPERTIES = 32
_PROPERTIES_BYTES = 4096
_LONGEST_PROPERTY = 256
_PROPERTY_KEY = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}\Z")
_RESERVED = "rocketmq."

_KINDS = {
    pb.ClientType.PRODUCER: ClientKind.PRODUCER,
    pb.ClientType.PUSH_CONSUMER: ClientKind.PUSH_CONSUMER,
    pb.ClientType.SIMPLE_CONSUMER: ClientKind.SIMPLE_CONSUMER,
    pb.ClientType.PULL_CONSUMER: ClientKind.PULL_CONSUMER,
    pb.ClientType.LITE_PUSH_CONSUMER: ClientKind.PUSH_CONSUMER,
    pb.ClientType.LITE_SIMPLE_CONSUMER: ClientKind.SIMPLE_CONSUMER,
}

_LITE_TYPES = frozenset((pb.ClientType.LITE_PUSH_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER))


def kind_in(settings: pb.Settings) -> ClientKind:
    """Client type; if unspecified, inferred from the settings.

    Raises BadRequest if the settings have neither publishing nor subscription, or do not match the type.
    """
    side = settings.WhichOneof("pub_sub")
    if side is None:
        raise BadRequest(
            "the settings are neither those of a producer nor of a consumer",
            known_as="there is no publishing or subscription data in settings",
        )
    kind = _KINDS.get(settings.client_type)
    if kind is None:
        if settings.client_type != pb.ClientType.CLIENT_TYPE_UNSPECIFIED:
            raise BadRequest(
                f"the client type {settings.client_type} is not known", Fault.CLIENT_TYPE_UNKNOWN
            )
        return ClientKind.PRODUCER if side == "publishing" else ClientKind.SIMPLE_CONSUMER
    if (kind is ClientKind.PRODUCER) != (side == "publishing"):
        raise BadRequest(f"the settings of a {kind.value} cannot be those of {side}")
    return kind


def check_settings(settings: pb.Settings, limits: Limits) -> None:
    """Raises IllegalTopic, IllegalGroup, IllegalFilter.

    Raises BadRequest for too many topics or addresses, and for client properties that cannot be.

    The filters of a simple consumer are left to its receives: their refusal shows the user the
    code and the reason, while Java's client that fails to start hides both.
    """
    _check_properties(settings.client_properties)
    check_endpoints(settings.access_point)
    count = len(settings.publishing.topics) + len(settings.subscription.subscriptions)
    if count > limits.max_topics_per_client:
        raise BadRequest(f"the settings name {count} topics, the limit is {limits.max_topics_per_client}")
    for topic in settings.publishing.topics:
        check_topic(topic.name)
    if settings.HasField("subscription"):
        check_group(settings.subscription.group.name)
        for entry in settings.subscription.subscriptions:
            check_topic(entry.topic.name)
            if settings.client_type == pb.ClientType.SIMPLE_CONSUMER:
                continue
            compile_filter(filter_kind(entry.expression), entry.expression.expression)


def _check_properties(properties: Mapping[str, str]) -> None:
    """What a client says of itself in pairs; echoed, and so bounded. Source: protocol facts 1.7.

    Raises BadRequest (INVALID_CLIENT_PROPERTIES).
    """
    if not properties:
        return
    why = ""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
    if len(properties) > _MOST_PROPERTIES:
        why = f"there are {len(properties)}, the limit is {_MOST_PROPERTIES}"
    elif size > _PROPERTIES_BYTES:
        why = f"they have {size} bytes, the limit is {_PROPERTIES_BYTES}"
    for key, value in properties.items() if not why else ():
        if not _PROPERTY_KEY.match(key):
            why = f"the key {shown(key)} must be 1 to 64 letters, digits and _ . -, a letter first"
        elif key.startswith(_RESERVED):
            why = f"the key {shown(key)} begins with {_RESERVED}, which is reserved"
        elif len(value) > _LONGEST_PROPERTY:
            why = f"the value of {shown(key)} has {len(value)} characters, the limit is {_LONGEST_PROPERTY}"
    if why:
        raise BadRequest(f"the client properties cannot be: {why}", Fault.ILLEGAL_CLIENT_PROPERTIES)


def lite_topic_in(settings: pb.Settings) -> str:
    """The topic whose lite topics the client takes; empty when it is no such client."""
    entries = settings.subscription.subscriptions
    return entries[0].topic.name if settings.client_type in _LITE_TYPES and len(entries) == 1 else ""


def topics_in(settings: pb.Settings) -> frozenset[str]:
    """The topics that the client publishes or subscribes to."""
    if settings.HasField("publishing"):
        return frozenset(topic.name for topic in settings.publishing.topics)
    return frozenset(entry.topic.name for entry in settings.subscription.subscriptions)


def subscriptions_in(settings: pb.Settings) -> dict[str, tuple[FilterKind, str]]:
    """The filters of a consumer by topic, as it sent them; an unknown type counts as a tag filter."""
    subscriptions = {}
    for entry in settings.subscription.subscriptions:
        kind = FilterKind.SQL92 if entry.expression.type == pb.SQL else FilterKind.TAG
        subscriptions[entry.topic.name] = (kind, entry.expression.expression)
    return subscriptions


def polling_wait(settings: pb.Settings) -> float | None:
    """How long a receive of this consumer waits for a first message if its request does not say, in seconds.

    Clients of Go and Python have the time of their simple consumers in the settings only, and give a receive
    that time plus the one of a request as its deadline. None: the settings have no time above 0, which is
    what Go sends of a user who chose none; the deadline decides then. Source: protocol facts 1.5 and 1.8.
    """
    if not settings.subscription.HasField("long_polling_timeout"):
        return None
    wait_ms = millis_of(settings.subscription.long_polling_timeout)
    return wait_ms / 1000 if wait_ms > 0 else None


def merged(settings: pb.Settings, context: Context, limits: Limits, group: GroupConfig | None) -> pb.Settings:
    """The response to a client's settings; fields that the gateway does not decide are echoed.

    `group` is the consumer group's configuration, None for a producer.
    """
    answer = pb.Settings()
    answer.CopyFrom(settings)
    # Always there: one client reads it without looking whether it is.
    answer.metric.on = False
    if group is None:
        answer.publishing.max_body_size = limits.max_body_bytes
        answer.publishing.validate_message_type = limits.check_message_types
        answer.backoff_policy.CopyFrom(
            _exponential(_SEND_ATTEMPTS, _SEND_INITIAL_MS, _SEND_MAX_MS, _SEND_MULTIPLIER)
        )
    else:
        answer.subscription.fifo = group.ordered
        if settings.client_type in _LITE_TYPES:
            # Messages of a lite topic are ordered; and clients read a missing quota as 0.
            answer.subscription.fifo = True
            answer.subscription.lite_subscription_quota = lite_quota(group, limits)
            answer.subscription.max_lite_topic_size = limits.max_lite_topic_bytes
        answer.subscription.receive_batch_size = limits.max_receive_messages
        answer.subscription.long_polling_timeout.CopyFrom(_duration(int(limits.max_wait_s * 1000)))
        answer.backoff_policy.CopyFrom(retry_out(group, exponential=is_node(context)))
    return answer


def retry_out(group: GroupConfig, *, exponential: bool) -> pb.RetryPolicy:
    """The group's retry policy in the one form that the client understands.

    The Python client reads customized backoffs only, and whole seconds of them; the Node.js client
    reads exponential ones only; what it asks for is replaced by the group's
    (`processors.consume.settlement`).
    """
    retry = group.retry
    attempts = max(group.max_attempts, 1)
    if isinstance(retry, CustomizedRetry):
        # Clients begin with the first of the list, RocketMQ with the third of its own.
        ladder: Iterable[int] = retry.steps_ms()
        initial, highest, multiplier = retry.delay_ms(1), max(retry.steps_ms()), 2.0
    else:
        ladder = (retry.delay_ms(attempt) for attempt in range(1, min(attempts, _LONGEST_LADDER) + 1))
        initial, highest, multiplier = retry.initial_ms, retry.max_ms, retry.multiplier
    if exponential:
        return _exponential(attempts, initial, highest, multiplier)
    steps = [Duration(seconds=max(-(-ms // 1000), 1)) for ms in ladder][:_LONGEST_LADDER]
    return pb.RetryPolicy(
        max_attempts=attempts,
        customized_backoff=pb.CustomizedBackoff(next=steps or [Duration(seconds=1)]),
    )


def _exponential(attempts: int, initial_ms: int, max_ms: int, multiplier: float) -> pb.RetryPolicy:
    return pb.RetryPolicy(
        max_attempts=attempts,
        exponential_backoff=pb.ExponentialBackoff(
            initial=_duration(initial_ms), max=_duration(max_ms), multiplier=multiplier
        ),
    )


def _duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
