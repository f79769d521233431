"""The first step of every request: whether the caller has permission, and is within its rate limit."""

from __future__ import annotations

from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import Forbidden, TooManyRequests, shown
from popgate.kinds import Action, Resource, ResourceKind
from processors.policies.permission import Everything
from processors.policies.rate import Unlimited
from processors.policies.registry import Policies


class Admission:
    """Asks the permission and the rate policy about the topic and the group of a request."""

    def __init__(self, policies: Policies, clock: Clock) -> None:
        self._authorizer = policies.authorizer
        self._rate = policies.rate
        self._clock = clock
        # The default policies have no opinion: then a request does not even name its resources.
        self._open = isinstance(policies.authorizer, Everything) and isinstance(policies.rate, Unlimited)

    def admit(
        self, context: Context, action: Action, *, topic: str = "", group: str = "", amount: int = 1
    ) -> None:
        """Raises Forbidden or TooManyRequests. Without topic and group: the cluster itself.

        The rate is taken from the group, where there is one.
        """
        if self._open:
            return
        now = self._clock.monotonic()
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
        wait = self._rate.take(context, action, resources[0], amount, now)
        if wait > 0:
            raise TooManyRequests(f"the rate limit is reached, try again in {wait:.3f} s", wait)
