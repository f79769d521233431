"""What every part of the processor is given, and the checks that several of them share."""

from __future__ import annotations

from brokers.port import Broker
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import BadRequest, Forbidden, TooManyRequests, shown
from popgate.kinds import Action, Resource, ResourceKind
from popgate.naming import check_topic, is_system_topic
from processors.limits import Limits
from processors.observer import Observer
from processors.policies.permission import Everything
from processors.policies.rate import Unlimited
from processors.policies.registry import Policies
from processors.routing import Routing


class Admission:
    """The first step of every request: whether the caller has permission, and is within its rate limit.

    Asks the permission and the rate policy about the topic and the group of a request.
    """

    def __init__(self, policies: Policies, clock: Clock) -> None:
        self._authorizer = policies.authorizer
        self._rate = policies.rate
        self._clock = clock
        # The default policies have no opinion: then a request does not even name its resources.
        self.permits_all = isinstance(policies.authorizer, Everything)
        """Whether everybody may do everything."""
        self.open = self.permits_all and isinstance(policies.rate, Unlimited)
        """Whether `admit` lets everything pass, so that who has much to do need not call it."""

    def admit(
        self, context: Context, action: Action, *, topic: str = "", group: str = "", amount: int = 1
    ) -> None:
        """Raises Forbidden or TooManyRequests. Without topic and group: the cluster itself.

        The rate is taken from the group, where there is one.
        """
        if self.open:
            return
        now = self._clock.monotonic()
        resources = self._permitted(context, action, topic, group, now)
        wait = self._rate.take(context, action, resources[0], amount, now)
        if wait > 0:
            raise TooManyRequests(f"the rate limit is reached, try again in {wait:.3f} s", wait)

    def permit(self, context: Context, action: Action, *, topic: str = "", group: str = "") -> None:
        """As `admit`, for what is done before the request is admitted: no rate is taken. Raises Forbidden."""
        if not self.permits_all:
            self._permitted(context, action, topic, group, self._clock.monotonic())

    def _permitted(
        self, context: Context, action: Action, topic: str, group: str, now: float
    ) -> list[Resource]:
        resources = [
            Resource(kind, name)
            for kind, name in ((ResourceKind.GROUP, group), (ResourceKind.TOPIC, topic))
            if name
        ] or [Resource(ResourceKind.CLUSTER, "")]
        for resource in resources:
            if not self._authorizer.allows(context, action, resource, now):
                who = shown(context.principal.name) if context.principal.name else "an anonymous caller"
                subject = f"{resource.kind.value.lower()} {shown(resource.name)}" if resource.name else "this"
                raise Forbidden(f"{who} has no permission {action.value!r} on {subject}")
        return resources


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
    """The broker, the limits, and the way of a request to a topic.

    `admit` checks permission and rate, `permit` permission alone; `admits_all` and `permits_all`: no
    policy asks for that.
    """

    def __init__(
        self, broker: Broker, clock: Clock, limits: Limits, policies: Policies, observer: Observer
    ) -> None:
        self.broker = broker
        self.clock = clock
        self.limits = limits
        self.policies = policies
        self.observer = observer
        admission = Admission(policies, clock)
        self.admit, self.admits_all = admission.admit, admission.open
        self.permit, self.permits_all = admission.permit, admission.permits_all
        self.routing = Routing(broker, clock, limits, observer)
        self.polls = WaitingPolls(limits)


def readable(topic: str) -> str:
    """The topic. Those of the system cannot be used by clients, but can be read. Raises IllegalTopic."""
    return topic if is_system_topic(topic) else check_topic(topic)


def check_queue_id(queue_id: int) -> None:
    """Raises BadRequest for a number that no queue can have."""
    if not 0 <= queue_id < 1 << 31:
        raise BadRequest(f"the queue id {queue_id} is out of range")
