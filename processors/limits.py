"""Limits of clients' requests, and what the gateway does by itself. Each value is a setting.

Defaults are those that official clients expect. Source: protocol facts 2.2, 2.3 and 4.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from popgate.model import GroupConfig

_NEW_GROUP = GroupConfig("")


@dataclass(slots=True)
class Limits:
    """Sizes in bytes, `_ms` in milliseconds, `_s` in seconds; a maximum is itself allowed.

    Sending: `max_properties_bytes` is the sum of the UTF-8 lengths of user property keys and
    values, tag and keys. `max_delay_ms` is lowered to what the broker can do.
    `max_lite_subscriptions_per_client` is for groups that do not say `lite.sub.client.quota`.

    Receiving: `min_invisible_ms` binds receive only; a change may ask for 0. `poll_margin_s` is
    how long before the request's deadline an empty answer is given (never more than a fifth of
    the time that is left). `default_wait_s` is waited when neither a time nor a deadline is given.

    Mapping: groups whose classic push consumers are popped for, and those that never are, by names
    with `*` (`processors.members.mapped_groups`).

    Broadcast: `broadcast_expiry_s` after its last receive a client's cursor is forgotten.

    Budgets: `process_bytes`, `group_bytes` and `connection_bytes` may be under way at a time, as
    requests and as answers that are not written yet (`processors.budgets`).

    Renewing: `max_hold_ms` is the longest that a consumer which leaves renewing to the gateway can
    hold a message; `renew_ahead_ms` is how long before its end an invisible time is renewed;
    `ack_retry_s` is how long an acknowledgement is tried again when the broker cannot do it;
    `release_grace_s` is how long a client whose connection broke may take to come back before
    what it held is freed; `max_held` bounds the deliveries remembered, `max_clients` the clients.

    The parts of a gateway share one object of these, so that new values (`become`) count for all of them at
    once; a part that keeps copies of some looks at `generation`.
    """

    max_body_bytes: int = 4 * 1024 * 1024
    refuse_empty_bodies: bool = True
    max_properties: int = 128
    max_properties_bytes: int = 16 * 1024
    max_message_group_bytes: int = 63
    max_message_id_bytes: int = 255
    max_delay_ms: int = 86_400_000
    max_recovery_ms: int = 3_600_000
    max_messages_per_send: int = 1024
    max_lite_topic_bytes: int = 64
    max_lite_subscriptions_per_client: int = 1200
    check_message_types: bool = True

    max_receive_messages: int = 32
    max_receive_bytes: int = 64 * 1024 * 1024
    min_invisible_ms: int = 10_000
    max_invisible_ms: int = 43_200_000
    default_wait_s: float = 20.0
    max_wait_s: float = 20.0
    poll_margin_s: float = 0.25
    max_receipts_per_ack: int = 4096
    max_pull_messages: int = 1024
    max_pull_bytes: int = 64 * 1024 * 1024
    max_found: int = 1024

    mapped_groups: tuple[str, ...] = ()
    pulled_groups: tuple[str, ...] = ()

    process_bytes: int = 256 * 1024 * 1024
    group_bytes: int = 128 * 1024 * 1024
    connection_bytes: int = 64 * 1024 * 1024

    auto_create_topics: bool = True
    auto_create_groups: bool = True
    max_waiting: int = 100_000

    max_queues: int = 1024
    max_attempts: int = 10_000
    max_auto_topics: int = 10_000
    max_auto_groups: int = 10_000
    new_topic_queues: int = 8
    new_group: GroupConfig = _NEW_GROUP

    broadcast_expiry_s: float = 86_400.0
    max_broadcast_members: int = 10_000

    max_hold_ms: int = 10_800_000
    renew_ahead_ms: int = 10_000
    release_grace_s: float = 5.0
    ack_retry_s: float = 2.0
    max_held: int = 1_000_000
    max_clients: int = 100_000
    max_topics_per_client: int = 1024
    client_expiry_s: float = 120.0

    generation: int = field(default=0, compare=False)
    """How often the values have changed."""

    def become(self, other: Limits) -> None:
        """Have the values of `other` from now on."""
        for limit in fields(self):
            if limit.name != "generation":
                setattr(self, limit.name, getattr(other, limit.name))
        self.generation += 1
