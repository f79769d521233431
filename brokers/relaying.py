"""Commands of RocketMQ's tools that a gateway passes on to the brokers behind it, in RocketMQ's own words.

They go with the gateway's own account, never with the caller's, and carry the fields of `RELAYED` alone:
what else a request has, credentials among it, stays here. A code that is not in it is passed on to nobody.
Sources: protocol facts 5.5 and 5.14; the headers of the same requests in RocketMQ 5.5.0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from popgate.context import Context
from popgate.errors import GatewayError
from popgate.wire.codes import RequestCode

MOST_BYTES: Final = 16 * 1024
"""Of the fields of one command."""
MOST_TOLD: Final = 32 * 1024 * 1024
"""Bytes of the bodies of all answers to one command, but that of the first, which a frame bounds."""
MOST_BROKERS: Final = 256
"""That are asked for one command; more are refused."""


@dataclass(slots=True, frozen=True)
class Relayable:
    """What is passed on of a command: `fields`, in the order of RocketMQ's header.

    `slow`: it may take a broker seconds. `changes`: it does more than look, and only a master is asked.
    """

    fields: tuple[str, ...] = ()
    slow: bool = False
    changes: bool = False


RELAYED: Final[Mapping[int, Relayable]] = {
    RequestCode.GET_BROKER_CONFIG: Relayable(),
    RequestCode.GET_BROKER_RUNTIME_INFO: Relayable(slow=True),
    RequestCode.VIEW_BROKER_STATS_DATA: Relayable(("statsName", "statsKey")),
    RequestCode.GET_ALL_PRODUCER_INFO: Relayable(),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Relayable(("producerGroup",)),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Relayable(("consumerGroup",)),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Relayable(
        ("consumerGroup", "clientId", "jstackEnable"), slow=True
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Relayable(
        ("consumerGroup", "clientId", "msgId", "brokerName", "topic"), slow=True, changes=True
    ),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Relayable(slow=True, changes=True),
    RequestCode.CLEAN_UNUSED_TOPIC: Relayable(slow=True, changes=True),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Relayable(slow=True, changes=True),
}
"""By request code. Not in it: whatever changes the settings, the rights or the files of a broker, or a
message's way, for a gateway's own promises stand on those."""


@dataclass(slots=True, frozen=True)
class BrokerAnswer:
    """What one broker answered; `code` is RocketMQ's, 0 is success."""

    code: int
    remark: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(slots=True, frozen=True)
class Relayed:
    """What came of a command, by the names of the brokers that were asked, each in one of the two."""

    answers: Mapping[str, BrokerAnswer]
    failures: Mapping[str, GatewayError]


class RelaysCommands(ABC):
    """A broker that is a cluster of others, which commands of tools can be passed on to."""

    @abstractmethod
    async def relay(
        self, context: Context, code: int, fields: Mapping[str, str], *, broker: str = "", topic: str = ""
    ) -> Relayed:
        """Ask one broker, or those that have a topic, or all, at once and each within one request's time.

        A broker whose answer is one too many for `MOST_TOLD` is among those that failed.

        Raises Unsupported (a code that is passed on to nobody), BadRequest (no such broker, more bytes
        than `MOST_BYTES`, more brokers than `MOST_BROKERS`), TopicNotFound, BrokerUnavailable (no broker).
        """
