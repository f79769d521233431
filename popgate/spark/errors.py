"""Failures that are reported to Spark users. Spark passes on only the text of an exception."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import Enum, unique

from popgate.errors import GatewayError, shown


@unique
class Code(Enum):
    """Stable, and at the front of every sentence, because Spark wraps exceptions and keeps no class."""

    UNKNOWN_OPTION = "ROCKETMQ_UNKNOWN_OPTION"
    UNSUPPORTED_OPTION = "ROCKETMQ_UNSUPPORTED_OPTION"
    UNSUPPORTED = "ROCKETMQ_UNSUPPORTED"
    ILLEGAL_OPTION = "ROCKETMQ_ILLEGAL_OPTION"
    MISSING_OPTION = "ROCKETMQ_MISSING_OPTION"
    ILLEGAL_OFFSET = "ROCKETMQ_ILLEGAL_OFFSET"
    ILLEGAL_SCHEMA = "ROCKETMQ_ILLEGAL_SCHEMA"
    DATA_LOSS = "ROCKETMQ_DATA_LOSS"
    ILLEGAL_ROW = "ROCKETMQ_ILLEGAL_ROW"
    DAMAGED = "ROCKETMQ_DAMAGED_MESSAGE"
    GATEWAY = "ROCKETMQ_GATEWAY"
    LEDGER = "ROCKETMQ_LEDGER"
    REPLAY = "ROCKETMQ_REPLAY"


class SparkSourceError(Exception):
    """A failure with a stable code."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(f"[{code.value}] {sentence}")
        self.code = code

    @property
    def sentence(self) -> str:
        """The message without the code."""
        return str(self.args[0]).partition("] ")[2]

    def __reduce__(self) -> tuple[type[SparkSourceError], tuple[Code, str]]:
        return SparkSourceError, (self.code, self.sentence)


class PartlyStored(GatewayError):
    """Some messages of a send are stored, those with these ids; the fault is that of another one."""

    def __init__(self, error: GatewayError, message_ids: AbstractSet[str]) -> None:
        super().__init__(error.sentence, error.known_as)
        self.fault, self.retryable, self.message_ids = error.fault, error.retryable, message_ids


def illegal_option(name: str, value: str, why: str) -> SparkSourceError:
    """An invalid value of an option; `why` ends the sentence, and says what to do."""
    return SparkSourceError(Code.ILLEGAL_OPTION, f"option {name} = {shown(value)}: {why}")


def data_loss(sentence: str) -> SparkSourceError:
    """A data loss that failOnDataLoss can turn into a warning; others have the code alone."""
    return SparkSourceError(
        Code.DATA_LOSS,
        f"{sentence}; with failOnDataLoss=false what is gone is passed over, with a warning in the log",
    )
