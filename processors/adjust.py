"""New limits for a running processor: every part applies them from the next request on."""

from __future__ import annotations

from processors.limits import Limits
from processors.messaging import MessagingProcessor


def adjust(processor: MessagingProcessor, limits: Limits) -> None:
    """Give a processor and its parts new limits.

    What is there already stays, also where it is more than would be let in now: clients, deliveries that are
    held, bytes under way. Which groups are mapped is decided when the processor is made.
    """
    processor.limits.become(limits)
    budgets = processor.budgets
    budgets.process_bytes = limits.process_bytes
    budgets.group_bytes = limits.group_bytes
    budgets.connection_bytes = limits.connection_bytes
    processor.broadcast_groups.expiry_s = limits.broadcast_expiry_s
    processor.broadcast_groups.max_members = limits.max_broadcast_members
    clients = processor.clients
    clients.max_clients, clients.max_topics = limits.max_clients, limits.max_topics_per_client
    clients.expiry_s = limits.client_expiry_s
    holdings = processor.auto_renewal.holdings
    holdings.max_held, holdings.max_clients = limits.max_held, limits.max_clients
    processor.auto_renewal.releasing.grace_s = limits.release_grace_s
