"""The tables of the configuration file, one class each; `proxy.config.settings.Settings` has them all."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_serializer

from popgate.errors import IllegalGroup, shown
from popgate.naming import check_group
from proxy.config.enums import LogFormat, LogLevel, RetryKind, StartFrom
from proxy.config.units import LONGEST_SECONDS, parse_duration, parse_size


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is needed")
    return value


def _seconds(value: Any) -> Any:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(_number(value), int | float) and value > LONGEST_SECONDS:
        raise ValueError("the duration is longer than a hundred years")
    return value


def _bytes(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else _number(value)


def _listed(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, allow_inf_nan=False)]
"""A duration; a plain number is seconds, text may be `500ms`, `30s`, `1h30m`, `3d`."""
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]
"""A size; a plain number is bytes, text may be `64KiB`, `4MiB`, `10GiB`."""
Count = Annotated[int, BeforeValidator(_number)]
"""A plain number."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""A list of texts; one text with commas is a list too."""


def _pattern(name: str) -> str:
    """Raises ValueError for what no group's name can be like."""
    if not name.strip("*"):
        return name
    try:
        check_group(name.replace("*", ""))
    except IllegalGroup as error:
        raise ValueError(f"{shown(name)} names no group: {error.sentence}") from error
    return name


Patterns = Annotated[tuple[Annotated[str, AfterValidator(_pattern)], ...], BeforeValidator(_listed)]
"""Names of groups, in which `*` stands for anything; one text with commas is a list too."""


def shown_urls(text: str) -> str:
    """A text without the names and passwords of the URLs in it."""
    return re.sub(r"(?<=://)[^\s]+(?=@)", "********", text)


class Group(BaseModel):
    """A table of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class Api(Group):
    """The admin port: health checks, metrics, and the JSON interface used by the command line."""

    max_request_bytes: Bytes = Field(default=16 << 20, ge=1024)
    """Largest accepted request."""
    max_wait_s: Seconds = Field(default=30.0, le=300)
    """Longest time that a receive may wait for a message."""
    hosts: Texts = ()
    """Host names accepted by the admin port while it listens on loopback only, beside addresses and
    `localhost`: no others, because a web page can point its own name at loopback."""


class Advertised(Group):
    """The address that clients are told to connect to."""

    address: str = Field(default="", max_length=512)
    """`host:port` returned to gRPC clients in routes; remoting clients get this host with the port of their
    listener. Empty: the address that each client connected to."""


class Connections(Group):
    """Client connections."""

    max: Count = Field(default=50_000, ge=1, le=1_000_000)
    """Open connections per listening address and process; further ones are closed at once. The system's limit
    of open files must be higher."""
    max_per_address: Count = Field(default=20_000, le=1_000_000)
    """Open connections from one IPv4 address or one IPv6 /64 network; 0: only `max` counts. Clients behind a
    NAT or proxy share one address (most L4 balancers keep the client's). Connections are not limited with
    `transport=grpcio`."""
    max_streams: Count = Field(default=1024, ge=1, le=100_000)
    """Open calls per gRPC connection, including waiting receives; further ones are refused, and clients retry
    them when others have ended. Not limited with `transport=grpcio`. On a remoting connection, reading stops
    at this number of requests, and four times as many long polls may wait."""
    ping_s: Seconds = Field(default=20.0, ge=1, le=7200)
    """A connection that was idle for this time is pinged, and closed if nothing arrives within half of it (at
    least 1 s). Clients may send pings at any rate."""
    max_age_s: Seconds = Field(default=0.0, le=366 * 86_400)
    """Clients are asked to reconnect when their connection is older (plus or minus a tenth), so that they
    spread over gateways that were added behind a load balancer; 0: never. C# and Rust clients do not reopen
    their telemetry stream, and Python and Go clients only after minutes: until then they receive no
    transaction checks. Rust clients only notice that the connection was closed: their streams and polls end
    at once, and a call that starts while another one is in progress may fail. With `transport=grpcio` streams
    and polls of Rust clients are not ended."""
    age_grace_s: Seconds = Field(default=30.0, gt=0, le=3600)
    """Time that calls in progress on such a connection get to finish; set it higher than
    `limits.max_wait_s`."""


class Embedded(Group):
    """The broker in the gateway's own process (`broker = "embedded:"`)."""

    name: str = Field(default="popgate", pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    """Name of the broker in routes and receipt handles. Do not change it while clients hold messages."""
    sync_interval_s: Seconds = Field(default=0.1, gt=0, le=60)
    """With `durability = "interval"`: the longest time until a written message is synced to disk."""
    write_buffer_bytes: Bytes = Field(default=16 << 20, ge=1 << 20)
    """Memory for recent writes per keyspace, of which there are four."""
    cache_bytes: Bytes = Field(default=16 << 20, ge=1 << 20)
    """Memory for blocks read from disk."""
    min_free_disk_bytes: Bytes = 64 << 20
    """Sends are refused while less than this is free (on a small disk a twentieth of it); consumers continue.
    0: sends continue until a write fails."""
    backup_folder: str = Field(default="", max_length=4096)
    """Folder for `popgate backup`; empty: `backups` in the data folder. On another disk it is safer, but
    takes a full copy instead of hard links."""
    max_in_flight: Count = Field(default=65_536, ge=32)
    """Messages of one queue that are invisible to a group or wait for redelivery; at this number the group
    gets only redeliveries from the queue."""
    max_ordered_window: Count = Field(default=65_536, ge=32)
    """Ordered groups: messages of a queue that are searched behind blocked message groups."""
    dedup_window_s: Seconds = Field(default=600.0, le=86_400)
    """A send that repeats a message id within this time gets the result of the first one and is not stored
    again; 0: it is stored again."""
    dedup_max_ids: Count = Field(default=1_048_576, ge=2, le=1 << 26)
    """Message ids remembered for `dedup_window_s`, at 80 bytes of memory each. If more are sent in that time,
    the window becomes shorter, but covers at least half of this number; the log and
    `popgate_broker_repeat_window_seconds` report it."""


class Lite(Group):
    """Lite topics: lightweight queues within a topic; each client subscribes to its own."""

    max_name_bytes: Count = Field(default=64, ge=1, le=255)
    """Longest name of a lite topic, in characters; also sent to clients."""
    max_per_client: Count = Field(default=1200, ge=0, le=1_000_000)
    """Lite topics that one client may subscribe to, unless the group's attribute `lite.sub.client.quota` sets
    another number; also sent to clients."""
    max_subscriptions: Count = Field(default=100_000, ge=0)
    """Subscriptions of all clients together; each takes about half a KiB of memory."""
    max_topics: Count = Field(default=1_000_000, ge=1)
    """Lite topics within one topic. Idle ones are removed after the topic's attribute
    `lite.topic.expiration`, in minutes."""


class Limits(Group):
    """Limits of requests. An error names the limit that was exceeded."""

    max_body_bytes: Bytes = Field(default=4 << 20, ge=1, le=1 << 30)
    """Largest message body."""
    refuse_empty_bodies: bool = True
    """Whether messages without a body are refused."""
    max_properties: Count = Field(default=128, ge=0, le=4096)
    """User properties of a message."""
    max_properties_bytes: Bytes = Field(default=16 << 10, le=30_000)
    """Total UTF-8 bytes of a message's user property names and values, tag and keys."""
    max_message_group_bytes: Count = Field(default=63, ge=1, le=1024)
    """UTF-8 bytes of a message group name."""
    max_message_id_bytes: Count = Field(default=255, ge=34, le=1024)
    """UTF-8 bytes of a message id set by a client."""
    max_delay_s: Seconds = Field(default=86_400.0, le=366 * 86_400)
    """Longest delay of a delayed message."""
    max_recovery_s: Seconds = 3_600.0
    """Longest time that a producer may set until the first check of a transaction."""
    max_messages_per_send: Count = Field(default=1024, ge=1, le=65_536)
    """Messages in one send request."""
    check_message_types: bool = True
    """Whether a message must be of a type that its topic accepts."""
    max_receive_messages: Count = Field(default=32, ge=1, le=1024)
    """Messages in one response to a receive."""
    max_receive_bytes: Bytes = Field(default=64 << 20, ge=1 << 16)
    """Bytes of messages in one response to a receive; one message is always returned."""
    min_invisible_s: Seconds = 10.0
    """Shortest invisible time of a receive; a change of invisible time may set 0."""
    max_invisible_s: Seconds = Field(default=43_200.0, ge=1)
    """Longest invisible time of a receive or a change, and longest consume timeout."""
    default_wait_s: Seconds = Field(default=20.0, le=300)
    """How long a receive waits for messages if it sets neither a polling time nor a deadline."""
    max_wait_s: Seconds = Field(default=20.0, le=300)
    """Longest time that a receive waits for messages; also sent to clients."""
    poll_margin_s: Seconds = Field(default=0.25, le=5)
    """A receive without messages is answered this long before the client's deadline."""
    max_receipts_per_ack: Count = Field(default=4096, ge=1)
    """Receipt handles in one acknowledgement."""
    max_pull_messages: Count = Field(default=1024, ge=1)
    """Messages in one response to a pull by offset."""
    max_pull_bytes: Bytes = Field(default=64 << 20, ge=1 << 16)
    """Bytes of messages in one response to a pull by offset."""
    max_found: Count = Field(default=1024, ge=1)
    """Messages in one response to a search by key."""
    max_waiting: Count = Field(default=100_000, ge=1)
    """Receives and pulls that wait for messages at the same time."""


class Budgets(Group):
    """Bytes of requests and unwritten responses in progress. Requests above a budget fail with
    TOO_MANY_REQUESTS; a single message always passes if nothing else is in progress."""

    process_bytes: Bytes = Field(default=256 << 20, ge=1 << 16)
    """For the whole process. A group, or a connection that sends, never holds more of it than is still
    free."""
    group_bytes: Bytes = Field(default=128 << 20, ge=1 << 16)
    """For one consumer group: messages delivered to it that are not written to its connections yet."""
    connection_bytes: Bytes = Field(default=64 << 20, ge=1 << 16)
    """For one connection, both directions together."""


class Topics(Group):
    """Topics created on first use, and defaults for topics created by operators."""

    auto_create: bool = True
    """Whether a topic is created, for all message types, when a client first uses it. In front of a RocketMQ
    cluster the default is `false`."""
    max_auto_created: Count = Field(default=10_000, ge=0)
    """No topic is created on first use while this many exist."""
    queues: Count = Field(default=8, ge=1, le=1024)
    """Queues of a new topic."""


class Groups(Group):
    """Consumer groups created on first use, and defaults for groups created by operators."""

    auto_create: bool = True
    """Whether a group is created when a client first uses it, as `TOOLS_CONSUMER`, that of readers without a
    group, always is. The default in front of a RocketMQ cluster is `false`; its brokers may still create groups
    (`autoCreateSubscriptionGroup`)."""
    max_auto_created: Count = Field(default=10_000, ge=0)
    """No group is created on first use while this many exist."""
    max_attempts: Count = Field(default=17, ge=1, le=10_000)
    """Deliveries of a message, including the first, before it is moved to the dead-letter topic."""
    start_from: StartFrom = StartFrom.FIRST
    """Where a new group starts to read a topic: at the `first` message, or after the `last`, so that it gets
    new messages only. In front of a RocketMQ cluster, its brokers decide which messages are new."""
    retry: RetryKind = RetryKind.CUSTOMIZED
    """Delay before a message is delivered again: `customized` (RocketMQ's levels: 10 s, 30 s, 1 min and so on
    to 2 h) or `exponential` (5 s, 10 s, 20 s and so on to 2 h)."""
    consume_timeout_s: Seconds = Field(default=900.0, ge=1, le=43_200)
    """How long a push consumer may process a message, up to `limits.max_invisible_s`."""


class Broadcast(Group):
    """Broadcast groups: every client receives every message."""

    expiry_s: Seconds = Field(default=86_400.0, ge=60)
    """A client that has not received for this time is removed together with its position, at least a quarter
    of the time later, because the wall clock may have jumped or the gateway may have been down."""
    max_members: Count = Field(default=10_000, ge=1, le=100_000)
    """Clients of one broadcast group with a position of their own."""


class Remoting(Group):
    """Classic clients. Messages of a mapped group are distributed among its push consumers one by one, as
    over gRPC, instead of queue by queue, so that a consumer that hangs blocks no queue. A group is mapped
    while all its clients use gateways that map it and none needs true pull (orderly or broadcasting
    consumers, or consumers that pull explicitly); `popgate group show` shows the current choice and its
    reason."""

    mapped_groups: Patterns = Field(default=(), max_length=10_000)
    """Names of groups that may be mapped; `*` matches any text. Set the same on all gateways of a cluster: a
    group is mapped only if every gateway that serves it maps it."""
    pulled_groups: Patterns = Field(default=(), max_length=10_000)
    """Groups excluded from `mapped_groups`."""


class Holding(Group):
    """Messages held by push consumers, and clients that connect and leave."""

    max_hold_s: Seconds = Field(default=10_800.0, gt=0)
    """Longest time for which the gateway renews a message that a push consumer holds."""
    renew_ahead_s: Seconds = 10.0
    """How long before it ends an invisible time is renewed."""
    release_grace_s: Seconds = 5.0
    """How long a client whose connection broke may take to reconnect before its messages are released."""
    ack_retry_s: Seconds = Field(default=2.0, le=60)
    """How long an acknowledgement is retried while the store cannot be written, before it fails."""
    max_held: Count = Field(default=1_000_000, ge=1)
    """Deliveries tracked for renewal."""
    max_clients: Count = Field(default=100_000, ge=1)
    """Clients known at the same time."""
    max_topics_per_client: Count = Field(default=1024, ge=1)
    """Topics that one client may use."""
    client_expiry_s: Seconds = Field(default=120.0, gt=0)
    """A client without an open stream is removed this long after its last heartbeat."""


class Retention(Group):
    """Removal of old messages, consumed or not; topics may set their own values."""

    age_s: Seconds = Field(default=259_200.0, ge=60)
    """Messages older than this are removed."""
    max_bytes: Bytes = 0
    """The oldest messages of a topic are removed when it exceeds this size; 0: no limit."""
    interval_s: Seconds = Field(default=10.0, gt=0, le=3600)
    """Interval between two checks."""
    tombstone_s: Seconds = Field(default=86_400.0, ge=0)
    """In a compacted topic, how long a message without a body (a tombstone) is kept after the messages that
    it deletes were removed."""


class Transactions(Group):
    """Half messages whose producer has neither committed nor rolled back."""

    first_check_s: Seconds = Field(default=6.0, gt=0)
    """Time until the producer is first asked for the outcome, unless the message sets another one."""
    check_interval_s: Seconds = Field(default=30.0, gt=0)
    """Interval between further checks."""
    max_checks: Count = Field(default=15, ge=1)
    """After a producer was asked this many times without an outcome, the message is moved to
    TRANS_CHECK_MAX_TIME_TOPIC."""
    max_age_s: Seconds = Field(default=259_200.0, gt=0)
    """A half message older than this is moved there too, whether it was checked or not."""


class Log(Group):
    """The log, on standard error: ids and sizes, but no message bodies, and no line per message."""

    level: LogLevel = LogLevel.INFO
    """Lowest level that is written."""
    format: LogFormat = LogFormat.AUTO
    """`json`, `console`, or `auto`: console on a terminal, otherwise JSON."""
    burst: Count = Field(default=10, ge=1)
    """Log lines of one kind (same place, same error) per `window_s`; further ones are only counted."""
    window_s: Seconds = Field(default=60.0, gt=0)
    """Time span for `burst`."""


class Metrics(Group):
    """What `/metrics` returns. Metrics per operation are always present, those per topic and group
    limited."""

    max_topics: Count = Field(default=200, ge=0)
    """Topics with labels of their own; further ones are counted together as `_other`."""
    max_groups: Count = Field(default=500, ge=0)
    """Pairs of topic and consumer group with labels of their own, likewise."""
    forget_s: Seconds = Field(default=3_600.0, ge=1)
    """Topics and groups without activity for this time lose their labels to others."""


class Tracing(Group):
    """Spans for OpenTelemetry; requires the packages of `popgate[tracing]`. When disabled, it has no cost."""

    enabled: bool = False
    """Whether spans are created for operations on messages."""
    endpoint: str = Field(default="http://127.0.0.1:4318", pattern=r"^https?://[^\s]{1,1024}$")
    """Collector that accepts OTLP over HTTP; spans are posted to its path `/v1/traces`."""
    timeout_s: Seconds = Field(default=5.0, ge=0.1, le=300)
    """Timeout for exporting a batch of spans; the batch is dropped when it expires."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Fraction of traces to sample, for traces that start at the gateway; for others the caller's decision is
    used."""
    max_remembered: Count = Field(default=100_000, ge=1)
    """Deliveries whose trace context is kept in memory to link their acknowledgement; others are looked
    up."""

    @field_serializer("endpoint", when_used="json")
    def _as_shown(self, url: str) -> str:
        return shown_urls(url)


class Stopping(Group):
    """Shutdown on SIGTERM or SIGINT; a second signal skips the drain."""

    lame_duck_s: Seconds = Field(default=5.0, le=3600)
    """How long the gateway first continues to serve, new connections too, while `/ready` and gRPC's health
    check report that it is shutting down, so that balancers can direct clients elsewhere. Part of `drain_s`,
    at most half of it; 0: none."""
    drain_s: Seconds = Field(default=10.0, le=3600)
    """Time limit of the whole shutdown; requests still in progress are aborted when a tenth of it, at most 1
    s, is left. In front of a RocketMQ cluster or a shared broker `Telemetry` streams may stay open until
    then."""
