"""What every part of the processor is given, and the checks that several of them share."""

from __future__ import annotations

from brokers.port import Broker
from popgate.clock import Clock
from popgate.errors import BadRequest, TooManyRequests
from popgate.naming import check_topic, is_system_topic
from processors.admission import Admission
from processors.limits import Limits
from processors.observer import Observer
from processors.policies.registry import Policies
from processors.routing import Routing


class WaitingPolls:
    """Receives and pulls that wait for messages, at most `limits.max_waiting` at once."""

    __slots__ = ("_limits", "count")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.count = 0

    def enter(self) -> None:
        """Raises TooManyRequests."""
        if self.count >= self._limits.max_waiting:
            raise TooManyRequests(
                f"the limit of {self._limits.max_waiting} waiting receives is reached",
                known_as="polling full",
            )
        self.count += 1

    def leave(self) -> None:
        self.count -= 1


class ProcessorCore:
    """The broker, the limits, and the way of a request to a topic. `admit` checks permission and rate."""

    def __init__(
        self, broker: Broker, clock: Clock, limits: Limits, policies: Policies, observer: Observer
    ) -> None:
        self.broker = broker
        self.clock = clock
        self.limits = limits
        self.policies = policies
        self.observer = observer
        self.admit = Admission(policies, clock).admit
        self.routing = Routing(broker, clock, limits, observer)
        self.polls = WaitingPolls(limits)


def readable(topic: str) -> str:
    """The topic. Those of the system cannot be used by clients, but can be read. Raises IllegalTopic."""
    return topic if is_system_topic(topic) else check_topic(topic)


def check_queue_id(queue_id: int) -> None:
    """Raises BadRequest for a number that no queue can have."""
    if not 0 <= queue_id < 1 << 31:
        raise BadRequest(f"the queue id {queue_id} is out of range")
