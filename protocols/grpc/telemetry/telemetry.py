"""The Telemetry stream: a client's settings in both directions, questions to it, and commands.

Source: protocol facts 1.7, 1.8 and pitfalls 5 to 11.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import BadRequest, Fault, GatewayError, Unsupported, shown
from popgate.model import FilterKind, Reading, TransactionCheck
from popgate.pb.definition_pb2 import Settings
from popgate.pb.service_pb2 import (
    NotifyUnsubscribeLiteCommand,
    ReconnectEndpointsCommand,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)
from processors.clients.client_registry import ClientKind, connection_of
from processors.clients.query import ClientQuery, RunningInfoQuestion
from processors.consume.receive_rules import is_node, is_rust
from processors.messaging import MessagingProcessor
from protocols.drain import LongPolls
from protocols.grpc.codec.client_quirks import can_receive
from protocols.grpc.codec.convert import message_out
from protocols.grpc.codec.errors import OK, is_clients_fault, status_of
from protocols.grpc.telemetry import settings as client_settings
from protocols.grpc.telemetry.kept_settings import SMALL, KeptSettings
from protocols.grpc.telemetry.outbox import GONE, Outbox
from protocols.grpc.telemetry.pending_queries import PendingQueries, next_nonce
from protocols.grpc.transport import BrokenStream, CallFailed, CallStatus, TelemetryChannel

_FLUSH_S = 1.0
"""How long a draining gateway waits for a client to read what it is told last."""
_AGAIN_S = (0.25, 1.0, 4.0, 16.0)
"""When the client of Node.js is told its settings again, each after the one before: its start waits for them
only once it has asked for the routes of all its topics, one by one, and knows nothing of those that came
before (seen: it hangs with three topics or more)."""
_LARGEST_SETTINGS = 1024 * 1024
"""Bytes of a client's settings; they are kept while its stream is open, to be told anew."""


class TelemetryStream:
    """One stream of one client. It ends with the client's half-close, its loss, or a drain."""

    def __init__(
        self,
        context: Context,
        commands: TelemetryChannel,
        processor: MessagingProcessor,
        clock: Clock,
        kept: KeptSettings | None = None,
    ) -> None:
        """`kept`: what the settings of all streams count in."""
        self._clock = clock
        self._timer: Timer | None = None
        self._context = context
        self._commands = commands
        self._processor = processor
        self._client: TelemetryClient | None = None
        self._settings: bytes | None = None
        """Encoded: as protobuf reads them they may take 24 times that, with the command that they came in."""
        self._kept = kept if kept is not None else KeptSettings()
        self._counted = 0
        """What those of this stream count there."""
        self._outbox = Outbox(commands, context)
        self._asked = PendingQueries(context.client_id)
        self.alive = True
        self.is_sent_away = False
        """Whether it ends since its connection is to go: the client lives, and may be at another replica."""

    def __repr__(self) -> str:
        state = "alive" if self.alive else "ended"
        return f"<TelemetryStream {self._context.client_id} {state} {self._outbox!r} {self._asked!r}>"

    async def run(self, waits: LongPolls) -> None:
        """Answer commands until the stream ends. Raises CallFailed for settings that cannot be."""
        bad: BadRequest | None = None
        try:
            try:
                await self._serve(waits)
            except BadRequest as error:
                bad = error
            if bad is not None:  # of the commands: names that cannot be
                await self._refuse(bad)
        except BrokenStream:
            pass
        finally:
            bad = None  # its traceback has this frame
            self._over()

    async def _serve(self, waits: LongPolls) -> None:
        # As an argument a command is let go before the next one is waited for: it may be large.
        while await self._heed(await waits.wait(self._commands.read())):
            pass
        if waits.ended:
            await self._outbox.flush(_FLUSH_S)

    async def _heed(self, command: TelemetryCommand | None) -> bool:
        """Whether the stream goes on."""
        if command is None:
            return False
        match command.WhichOneof("command"):
            case "settings":
                return await self._take(command)
            case "thread_stack_trace":
                self._asked.stack_told(command.status, command.thread_stack_trace)
            case "verify_message_result":
                self._asked.verified(command.status, command.verify_message_result.nonce)
            case "verify_message_command":
                # Node.js sends the question back, with its status.
                self._asked.verified(command.status, command.verify_message_command.nonce)
            case _:
                # What is unknown is dropped.
                pass
        return True

    def _over(self) -> None:
        self.alive = False
        if self._timer is not None:
            self._timer.cancel()
        self._outbox.close()
        self._asked.left()
        self._counted = self._kept.replace(self._counted, 0)
        client = self._client
        # The register knows the client, and by it this stream, for minutes: the connection goes now. And
        # when the register lets go, nothing is to be left to the collector.
        self._commands, self._client, self._settings = GONE, None, None
        if client is not None and not (self.is_sent_away and client.kind is not ClientKind.PRODUCER):
            # A consumer that was sent away keeps what it holds, and opens no other stream that would show
            # that it is there: it is lost when it falls silent. A producer can be asked nothing any more.
            self._processor.clients.disconnected(client)

    async def _take(self, command: TelemetryCommand) -> bool:
        """Take in settings and answer them; whether the stream goes on. Raises CallFailed for bad ones."""
        context, size = self._context, command.ByteSize()
        first = self._settings is None
        counted = 0
        refusal: GatewayError | None = None
        try:
            counted = self._count(size)
            answer = await self._answer(command.settings, size)
        except GatewayError as error:
            if error.retryable and not first:
                # Clients repeat their settings every 5 minutes: until then those before hold. To end the
                # stream would cost it for good where a client opens no other.
                self._uncount(counted)
                return True
            refusal = error
        if refusal is not None:
            try:
                await self._refuse(refusal)
            finally:
                refusal = None  # its traceback has this frame
            return False
        if first and is_node(context):
            self._tell_again(_AGAIN_S)
        await self._outbox.write(TelemetryCommand(status=OK, settings=answer))
        self._uncount(counted)
        return True

    def _count(self, size: int) -> int:
        """Count settings towards the budgets; how many bytes. Small ones pass them, as small requests do.

        Raises TooManyRequests.
        """
        allowance = self._context.allowance
        if allowance is None:
            return 0
        if size > SMALL:
            allowance.take(size)
        else:
            allowance.add(size)
        return size

    def _uncount(self, size: int) -> None:
        if self._context.allowance is not None:
            self._context.allowance.add(-size)

    async def _refuse(self, error: GatewayError) -> None:
        """Settings cannot be: the stream ends. Raises CallFailed where its client is to see a failure."""
        # Node.js reads the command, Go and Java read how the stream ends.
        status = status_of(error, self._context)
        await self._outbox.write(TelemetryCommand(status=status))
        if is_rust(self._context):
            # It reads on after a failure, for ever, and writes each to its log: 5 GB in 14 minutes.
            # A stream that ended well it leaves alone, and its receives and sends are told the reason.
            return
        theirs = is_clients_fault(error.fault)
        raise CallFailed(
            CallStatus.INVALID_ARGUMENT if theirs else CallStatus.UNAVAILABLE, status.message
        ) from error

    def _tell_again(self, rests: tuple[float, ...]) -> None:
        def tell() -> None:
            self.refresh()
            self._tell_again(rests[1:])

        self._timer = self._clock.call_later(rests[0], tell) if rests else None

    async def _answer(self, settings: Settings, size: int) -> Settings:
        context, processor = self._context, self._processor
        if size > _LARGEST_SETTINGS:
            raise BadRequest(f"the settings have {size} bytes, the limit is {_LARGEST_SETTINGS}")
        kind = client_settings.kind_in(settings)
        client_settings.check_settings(settings, processor.limits)
        group = ""
        config = None
        if kind is not ClientKind.PRODUCER:
            group = settings.subscription.group.name
            bound = client_settings.lite_topic_in(settings)
            if bound:
                await processor.lite.bind(context, bound, group)
            config = await processor.settings(context, group)
        self._counted = self._kept.replace(self._counted, size)
        client = TelemetryClient(
            client_id=context.client_id,
            key=context.client_key,
            language=context.language,
            version=context.client_version,
            kind=kind,
            group=group,
            topics=client_settings.topics_in(settings),
            subscriptions=client_settings.subscriptions_in(settings),
            connection=connection_of(context),
            stream=self,
            polling_wait_s=client_settings.polling_wait(settings),
        )
        processor.clients.register(client)
        self._client = client
        self._settings = settings.SerializeToString()
        return client_settings.merged(settings, context, processor.limits, config)

    def may_answer(self, topic: str) -> bool:
        """Whether the client may be asked about half messages of a topic that it says it publishes to."""
        return self._processor.check_router.may_answer(self._context, topic)

    def ask(self, check: TransactionCheck) -> bool:
        """Ask the client what became of a half message; False when it cannot be asked now."""
        question = RecoverOrphanedTransactionCommand(
            message=message_out(check.message), transaction_id=check.transaction_id
        )
        # A producer is asked for an answer, not for an acknowledgement.
        question.message.system_properties.ClearField("receipt_handle")
        size = len(question.message.body)
        return self._outbox.put(TelemetryCommand(recover_orphaned_transaction_command=question), size)

    def question(self, question: ClientQuery) -> bool:
        """Put a question of an operator to the client; False when it cannot be asked now."""
        if isinstance(question, RunningInfoQuestion):
            question.failed(Unsupported("to ask a client of this protocol what it runs"))
            return True
        made = None if self._outbox.closed else self._asked.command_for(question)
        if made is None:
            return False
        nonce, command = made
        if not can_receive(self._context, size := command.ByteSize()):
            sentence = f"client {shown(self._context.client_id)} cannot receive {size} bytes, as this is"
            question.failed(BadRequest(sentence, Fault.PRECONDITION_FAILED))
            return True
        if not self._outbox.put(command, len(command.verify_message_command.message.body)):
            self._asked.forget(nonce)
            return False
        return True

    def reconnect(self) -> bool:
        """Tell the client to reconnect; False when that is not possible now."""
        command = ReconnectEndpointsCommand(nonce=next_nonce())
        return self._outbox.put(TelemetryCommand(reconnect_endpoints_command=command))

    def refresh(self) -> None:
        """Send the client its settings again: those that it sent last, merged with the current ones."""
        if self._settings is not None:
            self._outbox.put_last(self._settings_now)

    def leave_lite(self, lite_topic: str) -> bool:
        """Tell the client that a lite subscription of it ended; False when that is not possible now."""
        command = NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
        return self._outbox.put(TelemetryCommand(notify_unsubscribe_lite_command=command))

    async def _settings_now(self) -> TelemetryCommand:
        """Nothing is made by it: the group may just have been deleted."""
        context, processor, client, settings = self._context, self._processor, self._client, self._settings
        assert settings is not None  # noqa: S101 - there is nothing to refresh before
        config = None
        if client is not None and client.kind is not ClientKind.PRODUCER:
            config = await processor.settings(context, client.group, make=False)
        latest = Settings.FromString(settings)
        answer = client_settings.merged(latest, context, processor.limits, config)
        return TelemetryCommand(status=OK, settings=answer)


@dataclass(slots=True, frozen=True, eq=False)
class TelemetryClient:
    """What a client said of itself in one settings command.

    A `processors.clients.client_registry.ClientHandle`.
    """

    client_id: str
    key: str
    language: str
    version: str
    kind: ClientKind
    group: str
    topics: frozenset[str]
    subscriptions: Mapping[str, tuple[FilterKind, str]]
    connection: Hashable
    stream: TelemetryStream
    polling_wait_s: float | None = None
    """How long its receives wait that do not say it themselves; None: to their deadline."""

    @property
    def producer_group(self) -> str:
        return ""

    @property
    def broadcast(self) -> bool:
        return False

    @property
    def reading(self) -> Reading:
        return Reading.NEUTRAL

    @property
    def alive(self) -> bool:
        return self.stream.alive

    def check_transaction(self, check: TransactionCheck) -> bool:
        return self.stream.may_answer(check.topic) and self.stream.ask(check)

    def ask(self, question: ClientQuery) -> bool:
        return self.stream.question(question)

    def reconnect(self) -> bool:
        return self.stream.reconnect()

    def leave_lite(self, lite_topic: str) -> bool:
        return self.stream.leave_lite(lite_topic)

    def refresh(self) -> None:
        self.stream.refresh()
