"""Commands of RocketMQ's tools that a gateway passes on, in RocketMQ's own words: to the brokers behind it,
or to the other gateways that share its broker.

They go with the gateway's own account, never with the caller's, and carry the fields of `RELAYED` alone:
what else a request has, credentials among it, stays here. A code that is not in it is passed on to nobody.
Sources: protocol facts 5.5 and 5.14; the headers of the same requests in RocketMQ 5.5.0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from popgate.context import Context
from popgate.errors import BadRequest, GatewayError
from popgate.wire.frames.codes import RequestCode

MOST_BYTES: Final = 16 * 1024
"""Of the fields of one command."""
MOST_TOLD: Final = 32 * 1024 * 1024
"""Bytes of the bodies of all answers to one command, but that of the first, which a frame bounds."""
MOST_BROKERS: Final = 256
"""That are asked for one command; more are refused."""
MOST_COMMANDS: Final = 64
"""Of gateways for each other that are under way at a time."""
MOST_OF_GATEWAY: Final = 4 * 1024 * 1024
"""Bytes of what one gateway answers another one."""
MOST_OF_GATEWAYS: Final = 8 * 1024 * 1024
"""Bytes of what all gateways answer to one command: they reach the one that asked in one frame."""


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
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Relayable(("topic", "group", "clientAddr"), slow=True),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Relayable(slow=True, changes=True),
    RequestCode.CLEAN_UNUSED_TOPIC: Relayable(slow=True, changes=True),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Relayable(slow=True, changes=True),
}
"""By request code. Not in it: whatever changes the settings, the rights or the files of a broker, or a
message's way, for a gateway's own promises stand on those."""

ABOUT_CLIENTS: Final = frozenset(
    {
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    }
)
"""Those of them that a gateway answers to others that share its broker."""


def relayed_fields(code: int, fields: Mapping[str, str]) -> dict[str, str]:
    """What is passed on of a command in `RELAYED`. Raises BadRequest: more bytes than `MOST_BYTES`."""
    relayed = {name: fields[name] for name in RELAYED[code].fields if name in fields}
    size = sum(map(len, relayed.values()))
    if size > MOST_BYTES:
        raise BadRequest(f"the fields of request code {code} have {size} bytes, the limit is {MOST_BYTES}")
    return relayed


@dataclass(slots=True, frozen=True)
class BrokerAnswer:
    """What one broker, or gateway, answered; `code` is RocketMQ's, 0 is success."""

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


CommandHandler = Callable[[int, Mapping[str, str]], Awaitable[BrokerAnswer]]
"""Answers a command with this code and these fields for the clients of this gateway; never raises."""


class HearsBrokers(ABC):
    """A broker that is a cluster of others, which ask for the positions of the clients of a gateway."""

    @abstractmethod
    def on_command(self, handler: CommandHandler) -> None:
        """Who answers INVOKE_BROKER_TO_GET_CONSUMER_STATUS of one client here; the last one set counts."""


class AsksGateways(ABC):
    """A broker that several gateways share: each knows its own clients, and asks the others about theirs.

    Codes are those of `ABOUT_CLIENTS`. CONSUMER_NOT_ONLINE is the answer where there is no such client.
    """

    @abstractmethod
    async def ask_gateways(self, context: Context, code: int, fields: Mapping[str, str]) -> Relayed:
        """Ask all gateways at once, the one that asks as well, each within seconds; their names are made up.

        With the field clientId those alone that have the client, one after the other: until it answered, or
        where the command changes something until it may have been asked.
        One whose answer is too long for `MOST_OF_GATEWAY`, or that is one too many for `MOST_OF_GATEWAYS`, is
        among those that failed.

        Raises Unsupported (another code), BadRequest (more bytes than `MOST_BYTES`), TooManyRequests,
        BrokerUnavailable, BrokerTimeout.
        """

    @abstractmethod
    def on_command(self, handler: CommandHandler) -> None:
        """Who answers for this gateway; the last one set counts."""
