"""The remote broker: all facets of the port on a RocketMQ cluster."""

from __future__ import annotations

from brokers.port import Broker
from brokers.remote.base.component import Facet
from brokers.remote.clients.cluster_report import Surveying
from brokers.remote.clients.group_members import Members
from brokers.remote.clients.queue_assignment import Assigning
from brokers.remote.consume.pop import Popping
from brokers.remote.consume.retry_reclaim import Reclaiming
from brokers.remote.metadata.deletion import Deleting
from brokers.remote.metadata.relay import Relaying
from brokers.remote.produce.recall import Recalling
from brokers.remote.produce.reply import Replying
from brokers.remote.produce.send import Sending
from brokers.remote.read.group_progress import Looking
from brokers.remote.read.lookup import Finding
from brokers.remote.read.pull import Pulling
from brokers.remote.read.queue_numbers import Numbering
from brokers.remote.settings import RemoteSettings
from brokers.remote.settle.send_back import SendingBack
from brokers.remote.transactions.checks import Checking
from brokers.traits import OrderScope, Traits
from popgate.clock import Clock

_DAY_MS = 24 * 3_600_000


class RemoteBroker(
    Sending,
    Checking,
    Replying,
    Members,
    Recalling,
    SendingBack,
    Reclaiming,
    Popping,
    Deleting,
    Looking,
    Numbering,
    Assigning,
    Finding,
    Pulling,
    Relaying,
    Surveying,
    Facet,
    Broker,
):
    """A RocketMQ cluster. Everything is done in the loop that starts it."""

    name = "rocketmq"

    def __init__(self, settings: RemoteSettings, *, clock: Clock) -> None:
        super().__init__(settings, clock=clock)
        self.traits = Traits(
            order_scope=OrderScope.QUEUE,
            timer_precision_ms=1_000,
            redelivery_lag_ms=10_000,
            renewal_keeps_receipt=False,
            returns_are_free=False,
            ends_are_idempotent=False,
            acks_are_checked=False,
            exact_message_groups=False,
            max_delay_ms=3 * _DAY_MS,
            dead_letters_name_origin=False,
            repeats_known_ms=0,
            keeps_all_settings=False,
            tells_deliveries=False,
            resets_forget_deliveries=False,
            deletes_everything=False,
            repeats_keep_receipts=False,
            redeliveries_keep_place=False,
            keeps_gaps=False,
            keeps_filtered_redeliveries=False,
            chooses_queues=True,
            buries_unasked=False,
            pops_group_retries=False,
            reading_lag_ms=300,
            ordered_groups_get_retries=False,
            begins_at_the_end=False,
            stands_apart=True,
        )
