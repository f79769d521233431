"""The Telemetry stream: a client's settings up and down, and questions about its transactions.

Source: protocol facts 1.7, 1.8 and pitfalls 5 to 11.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from popgate.context import Context
from popgate.errors import GatewayError, TooManyRequests
from popgate.model import TransactionCheck
from processors.clients import ClientKind, connection_of
from processors.messaging import MessagingProcessor
from protocols.draining import Waits
from protocols.grpc import settings as client_settings
from protocols.grpc.convert import message_out
from protocols.grpc.errors import OK, is_clients_fault, status_of
from protocols.grpc.pb.definition_pb2 import Settings
from protocols.grpc.pb.service_pb2 import RecoverOrphanedTransactionCommand, TelemetryCommand
from protocols.grpc.transport import BrokenStream, CallFailed, CallStatus, Commands

_MOST_QUESTIONS = 64
_MOST_QUESTION_BYTES = 8 * 1024 * 1024
"""Questions, and bytes of their messages, that wait for one client to read them; the broker asks again."""


class TelemetryStream:
    """One stream of one client. It ends with the client's half-close, its loss, or a drain."""

    def __init__(self, context: Context, commands: Commands, processor: MessagingProcessor) -> None:
        self._context = context
        self._commands = commands
        self._processor = processor
        self._client: TelemetryClient | None = None
        self._questions: deque[TelemetryCommand] = deque()
        self._question_bytes = 0
        self._asking: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self.alive = True

    def __repr__(self) -> str:
        state = "alive" if self.alive else "ended"
        return f"<TelemetryStream {self._context.client_id} {state} questions {len(self._questions)}>"

    async def run(self, waits: Waits) -> None:
        """Answer commands until the stream ends. Raises CallFailed for settings that cannot be."""
        try:
            while (command := await waits.wait(self._commands.read())) is not None:
                if command.WhichOneof("command") == "settings":
                    size = command.ByteSize()
                    if self._context.allowance is not None:
                        self._context.allowance.take(size)
                    await self._take(command.settings)
                    self._let_go(size)
                # Answers to questions that nobody asked are dropped, and so is what is unknown.
        except BrokenStream:
            pass
        finally:
            self.alive = False
            self._forget_questions()
            if self._asking is not None:
                self._asking.cancel()
            if self._client is not None:
                self._processor.clients.disconnected(self._client)

    async def _take(self, settings: Settings) -> None:
        context = self._context
        try:
            answer = await self._answer(settings)
        except GatewayError as error:
            # Node.js reads the command, Go and Java read how the stream ends.
            await self._write(TelemetryCommand(status=status_of(error, context)))
            theirs = is_clients_fault(error.fault)
            raise CallFailed(
                CallStatus.INVALID_ARGUMENT if theirs else CallStatus.UNAVAILABLE, error.sentence
            ) from error
        await self._write(TelemetryCommand(status=OK, settings=answer))

    async def _answer(self, settings: Settings) -> Settings:
        context, processor = self._context, self._processor
        kind = client_settings.kind_in(settings)
        client_settings.check_settings(settings, processor.limits)
        group = ""
        config = None
        if kind is not ClientKind.PRODUCER:
            group = settings.subscription.group.name
            config = await processor.settings(context, group)
        client = TelemetryClient(
            client_id=context.client_id,
            language=context.language,
            kind=kind,
            group=group,
            topics=client_settings.topics_in(settings),
            connection=connection_of(context),
            stream=self,
        )
        processor.clients.register(client)
        self._client = client
        return client_settings.merged(settings, context, processor.limits, config)

    def ask(self, check: TransactionCheck) -> bool:
        """Ask the client what became of a half message; False when it cannot be asked now."""
        if not self.alive or len(self._questions) >= _MOST_QUESTIONS:
            return False
        question = RecoverOrphanedTransactionCommand(
            message=message_out(check.message), transaction_id=check.transaction_id
        )
        size = len(question.message.body)
        if self._questions and self._question_bytes + size > _MOST_QUESTION_BYTES:
            return False
        if not self._may_hold(size):
            return False
        # A producer is asked for an answer, not for an acknowledgement.
        question.message.system_properties.ClearField("receipt_handle")
        self._questions.append(TelemetryCommand(recover_orphaned_transaction_command=question))
        self._question_bytes += size
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask_all())
        return True

    async def _ask_all(self) -> None:
        try:
            while self._questions:
                question = self._questions.popleft()
                size = len(question.recover_orphaned_transaction_command.message.body)
                self._question_bytes -= size
                try:
                    await self._write(question)
                finally:
                    self._let_go(size)
        except BrokenStream:
            # The reading side notices too, and ends the stream.
            self._forget_questions()
        finally:
            self._asking = None

    def _forget_questions(self) -> None:
        self._let_go(self._question_bytes)
        self._questions.clear()
        self._question_bytes = 0

    def _may_hold(self, size: int) -> bool:
        """Count bytes that wait for the client to read them, if its budget has room."""
        if self._context.allowance is not None:
            try:
                self._context.allowance.take(size)
            except TooManyRequests:
                return False
        return True

    def _let_go(self, size: int) -> None:
        # Of a stream that ended the door has released everything.
        if self.alive and self._context.allowance is not None:
            self._context.allowance.add(-size)

    async def _write(self, command: TelemetryCommand) -> None:
        async with self._writing:
            await self._commands.write(command)


@dataclass(slots=True, frozen=True, eq=False)
class TelemetryClient:
    """What a client said of itself in one settings command; a `processors.clients.ClientHandle`."""

    client_id: str
    language: str
    kind: ClientKind
    group: str
    topics: frozenset[str]
    connection: object
    stream: TelemetryStream

    @property
    def alive(self) -> bool:
        return self.stream.alive

    def check_transaction(self, check: TransactionCheck) -> bool:
        return self.stream.ask(check)
