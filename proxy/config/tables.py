"""The tables of the configuration file, one class each; `proxy.config.settings.Settings` has them all.

Names carry the unit of a plain number (`_s` seconds, `_bytes`, `_ms`); text may carry its own.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

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


class Group(BaseModel):
    """A table of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class Api(Group):
    """The admin port: health, metrics and the JSON interface that the command line uses."""

    max_request_bytes: Bytes = Field(default=16 << 20, ge=1024)
    """The largest request it reads."""
    max_wait_s: Seconds = Field(default=30.0, le=300)
    """The longest that a receive may wait for a message."""
    hosts: Texts = ()
    """Host names under which browsers and proxies may reach it while it listens on loopback only;
    addresses and `localhost` always may. Keeps web pages out that point their own name at loopback."""


class Advertised(Group):
    """What clients are told to connect to."""

    address: str = Field(default="", max_length=512)
    """`host:port` given to gRPC clients in routes; remoting clients are given the host, and the port of their
    door. Empty: the address that each client dialled itself."""


class Connections(Group):
    """Connections of clients."""

    max: Count = Field(default=50_000, ge=1, le=1_000_000)
    """At each address, for each process; those above are closed at once. Mind the system's limit of open
    files."""
    max_per_address: Count = Field(default=20_000, le=1_000_000)
    """Of these, from one IPv4 address or one IPv6 network of 64 bits; 0: as many as `max`. All clients behind
    one NAT, or behind one proxy (L7 proxies have few connections, L4 balancers mostly keep the address), come
    from one address: leave room for them. With `transport=grpcio` neither is bounded."""
    max_streams: Count = Field(default=1024, ge=1, le=100_000)
    """Calls that may be open on one connection at a time, waiting receives among them; those above are
    refused, and sent again by their client when there is room. With `transport=grpcio` not bounded. At a
    remoting door no more are read until some are done, and four times as many may wait for messages."""
    ping_s: Seconds = Field(default=20.0, ge=1, le=7200)
    """A connection that was silent for so long is pinged, and closed when half of this later (at least 1 s)
    nothing came back: its client is dead. Clients may ping as often as they like."""
    max_age_s: Seconds = Field(default=0.0, le=366 * 86_400)
    """A connection that is older (a tenth more or less) is told to go and make a new one, so that the
    clients behind a load balancer spread over gateways that were added; 0: it may stay. C# and Rust clients
    never open their telemetry stream again, Python clients after minutes: they are not asked about
    transactions until then. Rust clients notice only the end of a connection: their streams and polls end at
    once, and a call that they begin while another one is under way there may fail. With `transport=grpcio`
    the gateway cannot end these."""
    age_grace_s: Seconds = Field(default=30.0, gt=0, le=3600)
    """What such a connection has under way may take so long; make it longer than `limits.max_wait_s`."""


class Embedded(Group):
    """The broker inside this process (`broker = "embedded:"`)."""

    name: str = Field(default="popgate", pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    """The broker's name in routes and handles; never change it while handles are out."""
    sync_interval_s: Seconds = Field(default=0.1, gt=0, le=60)
    """With `durability = "interval"`: a written message is on the disk at most this much later."""
    write_buffer_bytes: Bytes = Field(default=16 << 20, ge=1 << 20)
    """Memory for fresh writes, per keyspace; four times this in all."""
    cache_bytes: Bytes = Field(default=16 << 20, ge=1 << 20)
    """Memory for blocks read from the disk."""
    min_free_disk_bytes: Bytes = 64 << 20
    """Room on the disk that producers do not get: with less (or less than a twentieth of a small disk) sends
    are refused, and consumers go on. 0: sends go on until a write fails."""
    backup_folder: str = Field(default="", max_length=4096)
    """Where `popgate backup` puts backups; empty: `backups` in the data folder. A folder on another disk
    is worth more, and costs a copy where one on the same disk takes links."""
    max_in_flight: Count = Field(default=65_536, ge=32)
    """Messages that one group may hold or have resting on one queue; then only redeliveries are given."""
    max_ordered_window: Count = Field(default=65_536, ge=32)
    """Ordered groups: how many messages behind held message groups are looked past, per queue."""
    dedup_window_s: Seconds = Field(default=600.0, le=86_400)
    """A second send of a message id within this time is answered as the first, and not stored; 0: it is."""
    dedup_max_ids: Count = Field(default=1_048_576, ge=2, le=1 << 26)
    """Message ids known for that, 80 bytes of memory each. When more are sent in that time the window is
    shorter (the latest half at least): the log and popgate_broker_repeat_window_seconds say so."""


class Lite(Group):
    """Lite topics: light queues within a topic, each client with those it subscribes to."""

    max_name_bytes: Count = Field(default=64, ge=1, le=255)
    """Characters of a lite topic's name; also told to clients."""
    max_per_client: Count = Field(default=1200, ge=0, le=1_000_000)
    """Lite topics that one client may subscribe to, where the group's attribute `lite.sub.client.quota`
    says nothing; also told to clients."""
    max_subscriptions: Count = Field(default=100_000, ge=0)
    """Of all clients together; each costs about half a KiB of memory."""
    max_topics: Count = Field(default=1_000_000, ge=1)
    """Lite topics of one topic. Idle ones go after its attribute `lite.topic.expiration`, in minutes."""


class Limits(Group):
    """What a request may be; each limit is named in the sentence of its error."""

    max_body_bytes: Bytes = Field(default=4 << 20, ge=1, le=1 << 30)
    """The largest body of a message."""
    refuse_empty_bodies: bool = True
    """Whether a message must have a body."""
    max_properties: Count = Field(default=128, ge=0, le=4096)
    """User properties of a message."""
    max_properties_bytes: Bytes = Field(default=16 << 10, le=30_000)
    """UTF-8 bytes of all user property names and values, tag and keys of a message together."""
    max_message_group_bytes: Count = Field(default=63, ge=1, le=1024)
    """UTF-8 bytes of a message group's name."""
    max_message_id_bytes: Count = Field(default=255, ge=34, le=1024)
    """UTF-8 bytes of a message id that a client gives."""
    max_delay_s: Seconds = Field(default=86_400.0, le=366 * 86_400)
    """How far ahead a delayed message's time may be."""
    max_recovery_s: Seconds = 3_600.0
    """The longest time until the first check that a producer may ask for a transaction."""
    max_messages_per_send: Count = Field(default=1024, ge=1, le=65_536)
    """Messages in one send request."""
    check_message_types: bool = True
    """Whether a message must be of a type that its topic accepts."""
    max_receive_messages: Count = Field(default=32, ge=1, le=1024)
    """Messages in one receive answer."""
    max_receive_bytes: Bytes = Field(default=64 << 20, ge=1 << 16)
    """Bytes of messages in one receive answer; one message is always given."""
    min_invisible_s: Seconds = 10.0
    """The shortest invisible time that a receive may ask for; a change may ask for 0."""
    max_invisible_s: Seconds = Field(default=43_200.0, ge=1)
    """The longest invisible time, on a receive and on a change, and the longest consume timeout."""
    default_wait_s: Seconds = Field(default=20.0, le=300)
    """How long a receive waits for a message when it sets neither a time nor a deadline."""
    max_wait_s: Seconds = Field(default=20.0, le=300)
    """The longest that a receive waits for a message; also told to clients."""
    poll_margin_s: Seconds = Field(default=0.25, le=5)
    """An empty receive is answered this much before the client's own deadline."""
    max_receipts_per_ack: Count = Field(default=4096, ge=1)
    """Handles in one acknowledgement."""
    max_pull_messages: Count = Field(default=1024, ge=1)
    """Messages in one answer when reading by offset."""
    max_pull_bytes: Bytes = Field(default=64 << 20, ge=1 << 16)
    """Bytes of messages in one answer when reading by offset."""
    max_found: Count = Field(default=1024, ge=1)
    """Messages in one answer to a search by key."""
    max_waiting: Count = Field(default=100_000, ge=1)
    """Receives and pulls that wait for a message at a time."""


class Budgets(Group):
    """How many bytes of requests and of answers that are not written yet may be under way. What is above
    is answered TOO_MANY_REQUESTS; one message passes always when nothing else is under way."""

    process_bytes: Bytes = Field(default=256 << 20, ge=1 << 16)
    """In the whole process. No group, and no connection that sends, holds more of it than is left free."""
    group_bytes: Bytes = Field(default=128 << 20, ge=1 << 16)
    """Of one consumer group: messages that it was given and that are not written to its connections yet."""
    connection_bytes: Bytes = Field(default=64 << 20, ge=1 << 16)
    """Of one connection, in both directions."""


class Topics(Group):
    """Topics that are created on first use, and defaults of those that are created by hand."""

    auto_create: bool = True
    """Whether a topic comes into being when a client first names it; it accepts every message type. The
    default before a RocketMQ cluster is `false`."""
    max_auto_created: Count = Field(default=10_000, ge=0)
    """No topic is created on first use while there are so many."""
    queues: Count = Field(default=8, ge=1, le=1024)
    """Queues of a new topic."""


class Groups(Group):
    """Consumer groups that are created on first use, and defaults of those that are created by hand."""

    auto_create: bool = True
    """Whether a group comes into being when a client first names it. The default before a RocketMQ cluster
    is `false`; its brokers may still make one (`autoCreateSubscriptionGroup`)."""
    max_auto_created: Count = Field(default=10_000, ge=0)
    """No group is created on first use while there are so many."""
    max_attempts: Count = Field(default=17, ge=1, le=10_000)
    """Deliveries of a message, the first included, before it goes to the dead-letter topic."""
    start_from: StartFrom = StartFrom.FIRST
    """Where a new group starts on a topic: `first` message or `last`, that is, only new ones; before
    a RocketMQ cluster its brokers decide from which message on these are new."""
    retry: RetryKind = RetryKind.CUSTOMIZED
    """How long a message rests after a failed delivery: `customized` (RocketMQ's ladder: 10 s, 30 s,
    1 min and so on to 2 h) or `exponential` (5 s, 10 s, 20 s and so on to 2 h)."""
    consume_timeout_s: Seconds = Field(default=900.0, ge=1, le=43_200)
    """How long a push consumer may work on a message; at most `max_invisible_s` counts."""


class Broadcast(Group):
    """Broadcast groups, of which every client gets every message."""

    expiry_s: Seconds = Field(default=86_400.0, ge=60)
    """A client that has not received for so long is forgotten, with its place in the topics; a quarter of it
    later, for the wall clock may have jumped, or the gateway was away itself."""
    max_members: Count = Field(default=10_000, ge=1, le=100_000)
    """Clients of one broadcast group that have a place of their own."""


class Remoting(Group):
    """Classic clients. The messages of a group that is mapped are shared out among its push consumers one by
    one, as over gRPC, and not queue by queue: one that hangs holds up no queue. That is done while all its
    clients come through gateways that map it, and none needs true pull (orderly, broadcasting or pulling by
    itself); `popgate group show` tells what is done, and why."""

    mapped_groups: Patterns = Field(default=(), max_length=10_000)
    """Groups that may be mapped, by their names, in which `*` stands for anything. Give all gateways of a
    cluster the same: a group that one of them does not map none does."""
    pulled_groups: Patterns = Field(default=(), max_length=10_000)
    """Of these, groups that are not mapped all the same."""


class Holding(Group):
    """Messages that push consumers hold, and clients that come and go."""

    max_hold_s: Seconds = Field(default=10_800.0, gt=0)
    """The longest that a consumer which leaves renewing to the gateway can hold a message."""
    renew_ahead_s: Seconds = 10.0
    """How long before its end an invisible time is renewed."""
    release_grace_s: Seconds = 5.0
    """How long a client whose connection broke may take to come back before what it held is freed."""
    ack_retry_s: Seconds = Field(default=2.0, le=60)
    """How long an acknowledgement is tried again when the store cannot be written; then it fails aloud."""
    max_held: Count = Field(default=1_000_000, ge=1)
    """Deliveries remembered for renewing."""
    max_clients: Count = Field(default=100_000, ge=1)
    """Clients known at a time."""
    max_topics_per_client: Count = Field(default=1024, ge=1)
    """Topics that one client may name."""
    client_expiry_s: Seconds = Field(default=120.0, gt=0)
    """A client without a heartbeat for so long, and without an open stream, is forgotten."""


class Policies(Group):
    """Matters of opinion, each by name, with options after a question mark: `per-client?rate=100`.
    Installed packages may offer more, as entry points `popgate.policies.<kind>`."""

    identity: str = "anyone"
    """Who a caller is: `anyone` lets everybody in, without a name."""
    permission: str = "everything"
    """What a caller may do: `everything`."""
    rate: str = "unlimited"
    """How much a caller may do: `unlimited`, or `per-client?rate=100&burst=200` messages a second."""
    backoff: str = "exponential"
    """How long the gateway rests before it tries something again: `exponential?initial=0.1&longest=5`."""
    picking: str = "groups-then-turns"
    """Which queue takes a message: `groups-then-turns`, one queue for a message group, else in turn."""


class Retention(Group):
    """When messages are removed, read or not; topics may set their own."""

    age_s: Seconds = Field(default=259_200.0, ge=60)
    """Messages older than this are removed."""
    max_bytes: Bytes = 0
    """The oldest messages of a topic that has more bytes than this are removed; 0: no limit."""
    interval_s: Seconds = Field(default=10.0, gt=0, le=3600)
    """How often it is looked whether something is to be removed."""
    tombstone_s: Seconds = Field(default=86_400.0, ge=0)
    """In a compacted topic a message without a body stays so long after what it deletes was removed."""


class Transactions(Group):
    """Half messages whose producer has not said commit or rollback."""

    first_check_s: Seconds = Field(default=6.0, gt=0)
    """The producer is first asked this long after the message was sent, unless the message says otherwise."""
    check_interval_s: Seconds = Field(default=30.0, gt=0)
    """Then it is asked again after this time."""
    max_checks: Count = Field(default=15, ge=1)
    """After so many answers of 'unknown' the message is set aside in TRANS_CHECK_MAX_TIME_TOPIC."""
    max_age_s: Seconds = Field(default=259_200.0, gt=0)
    """A half message older than this is set aside too, asked or not."""


class Log(Group):
    """The log, on standard error. It has ids and sizes, never bodies, and no line per message."""

    level: LogLevel = LogLevel.INFO
    """The least important lines that are written."""
    format: LogFormat = LogFormat.AUTO
    """`json`, `console`, or `auto`: console on a terminal, else json."""
    burst: Count = Field(default=10, ge=1)
    """Lines of one kind (same place, same error) in a window, before the rest is only counted."""
    window_s: Seconds = Field(default=60.0, gt=0)
    """The window of `burst`."""


class Metrics(Group):
    """What `/metrics` tells. Figures per operation are always there; figures per topic are bounded."""

    max_topics: Count = Field(default=200, ge=0)
    """Topics with figures of their own; later ones are counted together as `_other`."""
    max_groups: Count = Field(default=500, ge=0)
    """Pairs of topic and consumer group with figures of their own, likewise."""
    forget_s: Seconds = Field(default=3_600.0, ge=1)
    """Figures of a topic or group that showed no activity for so long are forgotten, and make room."""


class Tracing(Group):
    """Spans for OpenTelemetry; needs the packages of `popgate[tracing]`. Off, it costs nothing."""

    enabled: bool = False
    """Whether spans are made of sends, receives, acknowledgements and the rest of a message's way."""
    endpoint: str = Field(default="http://127.0.0.1:4318", pattern=r"^https?://[^\s]{1,1024}$")
    """A collector that takes OTLP over HTTP; spans go to `/v1/traces` there."""
    timeout_s: Seconds = Field(default=5.0, ge=0.1, le=300)
    """How long it may take for a batch of spans; those of a batch that it has not taken then are dropped."""
    share: float = Field(default=1.0, ge=0, le=1)
    """The part of traces that is kept, of those that begin here; a caller's decision is followed."""
    max_remembered: Count = Field(default=100_000, ge=1)
    """Deliveries whose trace is remembered, to link their acknowledgement to it; others are looked up."""


class Stopping(Group):
    """What happens on SIGTERM or SIGINT; a second signal skips the drain."""

    lame_duck_s: Seconds = Field(default=5.0, le=3600)
    """How long it first serves on, new connections too, while `/ready` and gRPC's health check say that it
    leaves: so long balancers have to send clients elsewhere. Part of `drain_s`, half at most; 0: none."""
    drain_s: Seconds = Field(default=10.0, le=3600)
    """How long the gateway may take to end, whatever hangs; requests are cut off when a tenth of it is left,
    1 s at most. Before a RocketMQ cluster or a shared broker `Telemetry` streams may last as long."""
