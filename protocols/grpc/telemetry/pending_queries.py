"""Questions that were sent to one client and wait for its answer, by the nonce in the answer.

Source: protocol facts 1.7.
"""

from __future__ import annotations

import itertools

from popgate.errors import ClientNotFound, Forbidden, GatewayError, Unsupported, shown
from popgate.groups.verdict import Verdict
from popgate.pb import definition_pb2 as pb
from popgate.pb.service_pb2 import (
    PrintThreadStackTraceCommand,
    TelemetryCommand,
    ThreadStackTrace,
    VerifyMessageCommand,
)
from processors.clients.query import ClientQuery, StackQuestion, VerifyQuestion
from protocols.grpc.codec.convert import message_out

_MOST = 16
"""Questions that one client has not answered."""
_LONGEST_STACK = 1024 * 1024
"""Characters of a client's stack; the rest is cut off."""

_nonces = itertools.count()

_VERDICTS: dict[int, Verdict] = {
    pb.Code.OK: Verdict.CONSUMED,
    pb.Code.FAILED_TO_CONSUME_MESSAGE: Verdict.FAILED,
    pb.Code.MESSAGE_CORRUPTED: Verdict.CORRUPTED,
}


def next_nonce() -> str:
    """A decimal number that was not used before by this gateway."""
    return str(next(_nonces))


class PendingQueries:
    """The open questions of one stream; `left` ends them all."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._open: dict[str, ClientQuery] = {}

    def __repr__(self) -> str:
        return f"<PendingQueries {self._client_id} open {len(self._open)}>"

    def command_for(self, question: ClientQuery) -> tuple[str, TelemetryCommand] | None:
        """The nonce and the command to write; None when too many wait, or it is no question for a client."""
        if len(self._open) >= _MOST:
            return None
        nonce = next_nonce()
        if isinstance(question, StackQuestion):
            command = TelemetryCommand(
                print_thread_stack_trace_command=PrintThreadStackTraceCommand(nonce=nonce)
            )
        elif isinstance(question, VerifyQuestion):
            message = message_out(question.message)
            # It was not taken, so there is nothing to acknowledge.
            message.system_properties.ClearField("receipt_handle")
            command = TelemetryCommand(
                verify_message_command=VerifyMessageCommand(nonce=nonce, message=message)
            )
        else:
            return None
        self._open[nonce] = question
        # Also when its asker left, or it is too late for an answer: it may hold a large message.
        question.answer.add_done_callback(lambda _: self.forget(nonce))
        return nonce, command

    def forget(self, nonce: str) -> None:
        """The command was not written, or its question was withdrawn."""
        self._open.pop(nonce, None)

    def stack_told(self, status: pb.Status, trace: ThreadStackTrace) -> None:
        """An answer; one to a question that is not open, or another kind of question, is dropped."""
        question = self._open.get(trace.nonce)
        if isinstance(question, StackQuestion):
            del self._open[trace.nonce]
            if status.code == pb.Code.OK:
                question.answered(trace.thread_stack_trace[:_LONGEST_STACK])
            else:
                question.failed(self._refusal(status))

    def verified(self, status: pb.Status, nonce: str) -> None:
        """As `stack_told`."""
        question = self._open.get(nonce)
        if isinstance(question, VerifyQuestion):
            del self._open[nonce]
            verdict = _VERDICTS.get(status.code)
            if verdict is not None:
                question.answered(verdict)
            else:
                question.failed(self._refusal(status))

    def left(self) -> None:
        """The stream ended: all open questions fail at once."""
        for question in list(self._open.values()):
            question.failed(ClientNotFound(self._client_id, "left before it answered"))
        self._open.clear()

    def _refusal(self, status: pb.Status) -> GatewayError:
        sentence = f"client {shown(self._client_id)} answered {code_name(status.code)}"
        if status.message:
            sentence += f": {shown(status.message, 200)}"
        if status.code == pb.Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
            return Forbidden(sentence)
        if status.code in (pb.Code.NOT_IMPLEMENTED, pb.Code.UNSUPPORTED):
            return Unsupported(f"what client {shown(self._client_id)} was asked for")
        return GatewayError(sentence)


def code_name(code: int) -> str:
    """The name of a status code, or its number when it has none."""
    known = pb.Code.values()
    return pb.Code.Name(code) if code in known else str(code)
