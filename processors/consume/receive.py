"""Takes messages by pop, of a topic or of the lite topics of a client."""

from __future__ import annotations

from popgate.context import Context
from popgate.errors import Forbidden, GatewayError, GroupNotFound, IllegalFilter, NotFound
from popgate.kinds import Action
from popgate.lite import takes_lite_topics
from popgate.model import StoredMessage
from popgate.naming import check_group, check_topic
from processors.clients.client_registry import ClientRegistry
from processors.consume.lite import LiteSubscriptions
from processors.consume.receive_rules import pop_of, surely_held_until
from processors.core import ProcessorCore
from processors.deliveries.auto_renewal import AutoRenewal
from processors.members.broadcast import BroadcastGroups
from processors.requests import Receive


class Receiver:
    """The processor's `receive`."""

    def __init__(
        self,
        core: ProcessorCore,
        broadcast: BroadcastGroups,
        clients: ClientRegistry,
        renewing: AutoRenewal,
        lite: LiteSubscriptions,
    ) -> None:
        self._broker = core.broker
        self._clock = core.clock
        self._limits = core.limits
        self._observer = core.observer
        self._admit, self._admits_all = core.admit, core.admits_all
        self._routing = core.routing
        self._polls = core.polls
        self._broadcast = broadcast
        self._clients = clients
        self._renewing = renewing
        self._lite = lite

    async def receive(self, context: Context, request: Receive) -> list[StoredMessage]:
        """As `MessagingProcessor.receive`."""
        began = self._clock.monotonic()
        try:
            topic, group = check_topic(request.topic), check_group(request.group)
            if not self._admits_all:
                self._admit(context, Action.SUBSCRIBE, topic=topic, group=group)
            config = self._routing.kept_group(group, began) or await self._routing.group(group)
            context.group = config
            pop = pop_of(context, request, config, self._limits, began)
            readable = (self._routing.kept_route(topic, began) or await self._routing.route(topic)).readable
            if not readable:
                raise Forbidden(f"topic {topic} has no readable queue", "no readable queue")
            lite = takes_lite_topics(config, topic)
            if lite and not pop.filter.everything:
                raise IllegalFilter(pop.filter.expression, "lite topics are received whole")
            if config.broadcast:
                pop.group = await self._broadcast.join(context, config)
            if pop.broker and pop.queue_id < 0 and not any(q.broker == pop.broker for q in readable):
                # An older route of the client may name a broker that is gone (protocol facts 1.5, 7).
                pop.broker = ""
            if context.allowance is not None:
                context.allowance.for_group(group)
                pop.max_bytes = min(pop.max_bytes, context.allowance.room())
            self._polls.enter()
            if request.auto_renew:
                client_key = context.client_key
                self._clients.polling(client_key)
                self._renewing.releasing.came_back(client_key)
            try:
                if lite:
                    messages = await self._lite.topics.pop_lite(context, pop)
                else:
                    messages = await self._broker.pop(context, pop)
            except NotFound as error:
                # Deleted elsewhere: the next request finds out, or makes them anew.
                self._routing.forget_topic(topic)
                self._routing.forget_group(group)
                self._broadcast.left(pop.group)
                if isinstance(error, GroupNotFound) and pop.group != group:
                    raise GroupNotFound(group) from error
                raise
            finally:
                self._polls.leave()
                if request.auto_renew:
                    self._clients.polled(client_key)
        except GatewayError as error:  # as `Watch` does it, without its calls
            self._observer.failed("receive", error.fault)
            raise
        # From here on nothing waits: a receive that is cancelled is cancelled inside the pop.
        answered = self._clock.monotonic()
        if messages and request.auto_renew:
            self._renewing.delivered(
                context,
                topic,
                pop.group,
                messages,
                ordered=pop.ordered,
                hold_ms=pop.invisible_ms,
                until=surely_held_until(began, answered, pop.invisible_ms),
            )
        size = sum([len(message.body) for message in messages])
        self._observer.received(topic, group, len(messages), size, answered - began)
        return messages
