"""The end of a delivery: acknowledged, hidden for longer, a dead letter, or given back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from popgate.context import Context
from popgate.errors import BadRequest, BrokerTimeout, BrokerUnavailable, GatewayError, IllegalReceipt
from popgate.kinds import Action
from popgate.model import StoredMessage
from popgate.naming import check_group, check_topic, told_group
from processors.clients.client_registry import ClientKind, ClientRegistry
from processors.consume.ack_retry import insist
from processors.consume.receive_rules import check_change, is_node
from processors.core import ProcessorCore
from processors.deliveries.auto_renewal import AutoRenewal
from processors.deliveries.release import OURS
from processors.limits import Limits
from processors.members.broadcast import BroadcastGroups
from processors.observer import Watch
from processors.requests import NOTHING_SAID, LastSettled, Said

_TROUBLES: Final = BrokerUnavailable, BrokerTimeout
"""After these an acknowledgement is tried again."""


class Settlement:
    """Settles deliveries, and keeps soft state of them and of the clients that hold them."""

    def __init__(
        self, core: ProcessorCore, broadcast: BroadcastGroups, clients: ClientRegistry, renewing: AutoRenewal
    ) -> None:
        self._broker = core.broker
        self._clock = core.clock
        self._limits = core.limits
        self._policies = core.policies
        self._observer = core.observer
        self._admit, self._admits_all = core.admit, core.admits_all
        self._permit = core.permit
        self._routing = core.routing
        self._broadcast = broadcast
        self._clients = clients
        self._renewing = renewing
        self._returns: dict[asyncio.Task[int], int] = {}
        """Those that are under way, with the number of their messages."""
        self._not_returned = 0
        self._finishing: set[asyncio.Task[None]] = set()
        self.given_back = 0
        """Messages that did not reach their client and are there again, since the start."""
        self._watch_change = Watch(core.observer, "change_invisible")
        self._watch_dead_letter = Watch(core.observer, "dead_letter")

    async def stop(self) -> None:
        """What is under way is finished."""
        while under_way := {*self._returns, *self._finishing}:
            await asyncio.wait(under_way)

    async def give_back(
        self,
        context: Context,
        topic: str,
        group: str,
        messages: Sequence[StoredMessage],
        written: Sequence[StoredMessage] = (),
    ) -> None:
        """Free messages of a `receive` that did not reach their client: they are available again at once.

        `written`: those of the same answer that were written before it was cut off; its client may drop them.
        Continues when its caller is cancelled, as callers of this often are. Failures are not reported:
        then the messages are redelivered when their invisible time expires.
        """
        first = next(iter((*written, *messages)), None)
        await self.free_held(context, topic, group, _receipts_of(messages), _receipts_of(written), id(first))

    async def free_held(
        self,
        context: Context,
        topic: str,
        group: str,
        receipts: Sequence[str],
        written: Sequence[str] = (),
        answer: int = 0,
    ) -> None:
        """`give_back` of messages of which the newest handles are all that is known."""
        if not receipts and not written:
            return
        task = asyncio.get_running_loop().create_task(
            self._give_back(context, topic, group, receipts, written, answer)
        )
        self._returns[task] = len(receipts)
        task.add_done_callback(self._came_back)
        try:
            freed = await asyncio.shield(task)
        except GatewayError as error:
            self._observer.failed("give_back", error.fault)
        else:
            self._observer.returned(topic, group, freed)

    def finishes(self, task: asyncio.Task[None]) -> None:
        """The processor does not stop before this is done."""
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _give_back(
        self,
        context: Context,
        topic: str,
        group: str,
        receipts: Sequence[str],
        written: Sequence[str],
        answer: int,
    ) -> int:
        reader = await self._broadcast.of(context, group)
        self._renewing.returned(topic, reader, receipts, written, answer)
        return await self._broker.give_back(context, topic, reader, receipts) if receipts else 0

    def _came_back(self, task: asyncio.Task[int]) -> None:
        count = self._returns.pop(task)
        freed = task.result() if not task.cancelled() and task.exception() is None else 0
        self.given_back += freed
        self._not_returned += max(count - freed, 0)

    @property
    def not_returned(self) -> int:
        """Messages since the start that did not reach their client and were not returned, or not yet.

        Includes those that were finished or became visible meanwhile: brokers do not distinguish them from
        those that they refuse. Unfinished ones are redelivered when their invisible time expires.
        """
        return self._not_returned + sum(self._returns.values())

    async def ack(
        self,
        context: Context,
        topic: str,
        group: str,
        receipts: Sequence[str],
        *,
        said: Said = NOTHING_SAID,
    ) -> list[GatewayError | None]:
        """Finish deliveries; returns None or the error per handle. Finishing a finished one is no error.

        `said`: what the client says of the last of them in addition to its handle, for operators.
        Retried for a while when the broker cannot do it now. Raises IllegalTopic, IllegalGroup,
        TopicNotFound, GroupNotFound, Forbidden.
        """
        began = self._clock.monotonic()
        try:
            check_topic(topic)
            check_group(group)
            if not self._admits_all:
                self._admit(context, Action.SUBSCRIBE, topic=topic, group=group)
            check_receipts(receipts, self._limits)
            reader = group
            config = context.group = self._routing.kept_group(group, began)
            if config is None or config.broadcast:
                reader = await self._broadcast.of(context, group)
            if self._renewing.under_way:
                await self._renewing.renewed(topic, reader, receipts)
            claim = self._renewing.newest(context, topic, reader, receipts)
            results: list[GatewayError | None] | None = None
            trouble: BrokerUnavailable | BrokerTimeout | None = None
            try:
                try:
                    results = await self._broker.ack(context, topic, reader, claim.handles)
                    if results.count(None) < len(results):
                        trouble = _first_trouble(results)
                except _TROUBLES as error:
                    trouble = error
                if trouble is not None:
                    results = await self._insist_on_ack(
                        trouble, context, topic, reader, claim.handles, results
                    )
            finally:
                trouble = None  # its traceback has this frame
                self._renewing.settled(topic, reader, claim, results)
        except GatewayError as error:  # as `Watch` does it, without its calls
            self._observer.failed("ack", error.fault)
            raise
        assert results is not None  # noqa: S101 - else something was raised
        refused = len(results) - results.count(None)
        if refused:
            for result in results:
                if result is not None:
                    self._observer.failed("ack", result.fault)
        self._observer.acked(topic, group, len(results) - refused, refused, self._clock.monotonic() - began)
        if said is not NOTHING_SAID:
            self._settled(context, "ack", topic, group, said, results[-1])
        return results

    async def _insist_on_ack(
        self,
        error: BrokerUnavailable | BrokerTimeout,
        context: Context,
        topic: str,
        reader: str,
        handles: Sequence[str],
        results: Sequence[GatewayError | None] | None,
    ) -> list[GatewayError | None]:
        """What was consumed should not come again because the store was in trouble for a moment.

        `results`: of the first try, None if it failed as a whole. What is done, or refused for good, is not
        asked again. Raises the last error if it is that of all.
        """
        outcomes: list[GatewayError | None] = [*results] if results is not None else [error] * len(handles)

        async def again() -> list[GatewayError | None]:
            left = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, _TROUBLES)]
            answers: Sequence[GatewayError | None]
            try:
                answers = await self._broker.ack(context, topic, reader, [handles[at] for at in left])
            except _TROUBLES:
                raise
            except GatewayError as error:
                if len(left) == len(outcomes):
                    raise
                # Raised, it would say that the others are not done, either. Without the frames that hold it.
                answers = [error.with_traceback(None)] * len(left)
            for at, answer in zip(left, answers, strict=True):
                outcomes[at] = answer
            trouble = _first_trouble(answers)
            if trouble is not None:
                raise trouble
            return outcomes

        try:
            return await insist(
                again,
                error,
                context,
                clock=self._clock,
                backoff=self._policies.backoff,
                budget_s=self._limits.ack_retry_s,
                failed=lambda fault: self._observer.failed("ack_try", fault),
            )
        except _TROUBLES:
            if len({type(outcome) for outcome in outcomes}) == 1:
                raise
            return outcomes

    async def change_invisible(
        self,
        context: Context,
        topic: str,
        group: str,
        receipt: str,
        invisible_ms: int,
        *,
        said: Said = NOTHING_SAID,
        suspend: bool = False,
    ) -> str:
        """Hide a held message for so long from now; the handle to use from here on.

        With `suspend` the delivery is given up and does not count as an attempt. `said` as in `ack`.
        Raises BadRequest (ILLEGAL_INVISIBLE_TIME), IllegalReceipt, ReceiptExpired.
        """
        began = self._clock.monotonic()
        with self._watch_change:
            check_topic(topic)
            check_group(group)
            self._admit(context, Action.SUBSCRIBE, topic=topic, group=group)
            check_change(invisible_ms, self._limits)
            if not receipt:
                raise said.contradiction or IllegalReceipt(receipt, "it must not be blank")
            reader = await self._broadcast.of(context, group)
            if is_node(context):
                invisible_ms = await self._rest_of(context, topic, reader, receipt, invisible_ms)
            if self._renewing.under_way:
                await self._renewing.renewed(topic, reader, (receipt,))
            claim = self._renewing.newest(context, topic, reader, (receipt,))
            results: list[GatewayError | None] | None = None
            try:
                handle = await self._broker.change_invisible(
                    context, topic, reader, claim.handles[0], invisible_ms, suspend=suspend
                )
                results = [None]
            except GatewayError as error:
                results = [error]
                raise
            finally:
                self._renewing.settled(topic, reader, claim, results)
                if said is not NOTHING_SAID and results is not None:
                    self._settled(context, "change_invisible", topic, group, said, results[0])
        self._observer.changed(topic, group, self._clock.monotonic() - began)
        return handle

    async def renew(self, context: Context, topic: str, group: str, receipt: str, hold_ms: int) -> str:
        """Hide a message that a client holds for so long from now, unasked: no rate of the client is taken.

        The handle to use from here on. Raises Forbidden, IllegalReceipt, ReceiptExpired.
        """
        self._permit(context, Action.SUBSCRIBE, topic=topic, group=group)
        reader = await self._broadcast.of(context, group)
        try:
            handle = await self._broker.change_invisible(OURS, topic, reader, receipt, hold_ms)
        except GatewayError as error:
            self._observer.failed("renew", error.fault)
            raise
        self._observer.renewed(topic, group, 1)
        return handle

    async def dead_letter(
        self, context: Context, topic: str, group: str, receipt: str, *, said: Said = NOTHING_SAID
    ) -> None:
        """Move a held message to the group's dead letters, now.

        Raises BadRequest (negative attempts), IllegalReceipt, ReceiptExpired.

        `said` as in `ack`: a client decides itself that it gives up, and may count more attempts than are
        counted here, where it tries again without asking.
        """
        with self._watch_dead_letter:
            check_topic(topic)
            check_group(group)
            self._admit(context, Action.SUBSCRIBE, topic=topic, group=group)
            check_attempts(said)
            if not receipt:
                raise said.contradiction or IllegalReceipt(receipt, "it must not be blank")
            reader = await self._broadcast.of(context, group)
            if self._renewing.under_way:
                await self._renewing.renewed(topic, reader, (receipt,))
            claim = self._renewing.newest(context, topic, reader, (receipt,))
            results: list[GatewayError | None] | None = None
            try:
                await self._broker.dead_letter(context, topic, reader, claim.handles[0])
                results = [None]
            except GatewayError as error:
                results = [error]
                raise
            finally:
                self._renewing.settled(topic, reader, claim, results)
                if said is not NOTHING_SAID and results is not None:
                    self._settled(context, "dead_letter", topic, group, said, results[0])
        self._observer.dead_lettered(topic, group)

    def _settled(
        self, context: Context, outcome: str, topic: str, group: str, said: Said, error: GatewayError | None
    ) -> None:
        """Keep what the client says of the delivery that it settled, with the outcome."""
        answer = "OK" if error is None else error.fault.name
        settled = LastSettled(outcome, topic, group, said.bounded(), answer, self._clock.now_ms())
        self._clients.settled(context.client_key, settled)

    async def _rest_of(self, context: Context, topic: str, group: str, receipt: str, asked_ms: int) -> int:
        """The delay of a message that a push consumer of Node.js gives up.

        It requests 0, or as many milliseconds as the policy has seconds, and never a time that a user
        chose: so the group's policy applies. For an unknown client 0 is taken for such a request.
        """
        client = self._clients.get(context.client_key)
        pushed = not asked_ms if client is None else client.kind is ClientKind.PUSH_CONSUMER
        if not pushed:
            return asked_ms
        attempt = self._renewing.attempt_of(topic, group, receipt)
        config = await self._routing.settings(told_group(group))
        return min(config.retry.delay_ms(attempt or 1), self._limits.max_invisible_ms)


def _first_trouble(results: Sequence[GatewayError | None]) -> BrokerUnavailable | BrokerTimeout | None:
    """Why one of these may be tried again; None: there is none.

    Not the result itself: what is raised keeps frames, and those would keep all results.
    """
    for result in results:
        if isinstance(result, _TROUBLES):
            return type(result)(result.sentence)
    return None


def check_receipts(receipts: Sequence[str], limits: Limits) -> None:
    """Raises IllegalReceipt for none at all, BadRequest for too many."""
    if not receipts:
        raise IllegalReceipt("", "an acknowledgement needs at least one handle")
    if len(receipts) > limits.max_receipts_per_ack:
        raise BadRequest(
            f"the acknowledgement has {len(receipts)} handles, the limit is {limits.max_receipts_per_ack}"
        )


def check_attempts(said: Said) -> None:
    """Raises BadRequest if a client that gives up a delivery reports negative attempts; 0: unknown to it."""
    if min(said.attempt, said.max_attempts) < 0:
        raise BadRequest(
            f"the delivery attempt is {said.attempt} of at most {said.max_attempts}, both must be at least 0"
        )


def _receipts_of(messages: Sequence[StoredMessage]) -> list[str]:
    return [message.receipt for message in messages if message.receipt]
