"""Who may have commands passed on, and where there is nobody to pass them on to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from brokers.port import Broker
from brokers.relay import (
    AsksGateways,
    BrokerAnswer,
    CommandHandler,
    HearsBrokers,
    Relayed,
    RelaysCommands,
)
from popgate.context import Context
from popgate.errors import Forbidden, Unsupported
from popgate.kinds import Action
from popgate.wire.frames.codes import RequestCode
from processors.classic.relay import CommandRelay


class Alone:
    name = "embedded"
    capability = Broker.capability


class Cluster(RelaysCommands):
    name = "rocketmq"
    asked = 0
    capability = Broker.capability

    async def relay(
        self, context: Context, code: int, fields: Mapping[str, str], *, broker: str = "", topic: str = ""
    ) -> Relayed:
        self.asked += 1
        return Relayed({}, {})


def only_look(_context: Context, action: Action, *, topic: str = "", group: str = "") -> None:
    if action is not Action.GET or group == "hidden":
        raise Forbidden("no")


async def test_looking_and_changing_are_two_permissions() -> None:
    cluster = Cluster()
    relaying = CommandRelay(cluster, only_look)  # type: ignore[arg-type]
    assert relaying.available
    await relaying.relay(Context(), RequestCode.GET_BROKER_RUNTIME_INFO, {})
    for code, group in (
        (RequestCode.CLEAN_UNUSED_TOPIC, ""),
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, "hidden"),
    ):
        with pytest.raises(Forbidden):
            await relaying.relay(Context(), code, {}, group=group)
    assert cluster.asked == 1


async def test_where_there_is_no_cluster() -> None:
    relaying = CommandRelay(Alone(), only_look)  # type: ignore[arg-type]
    assert not relaying.available
    with pytest.raises(Unsupported, match="embedded"):
        await relaying.relay(Context(), RequestCode.GET_BROKER_RUNTIME_INFO, {})


class Gateways(AsksGateways):
    """What is shared with others; `handler` answers them."""

    name = "embedded"
    capability = Broker.capability
    handler: CommandHandler | None = None
    asked = 0

    async def ask_gateways(self, context: Context, code: int, fields: Mapping[str, str]) -> Relayed:
        self.asked += 1
        return Relayed({"gateway-0": BrokerAnswer(0)}, {})

    def on_command(self, handler: CommandHandler) -> None:
        self.handler = handler


async def answer(_code: int, _fields: Mapping[str, str]) -> BrokerAnswer:
    return BrokerAnswer(0)


async def test_other_gateways_are_asked_by_who_may_look_or_change() -> None:
    gateways = Gateways()
    relaying = CommandRelay(gateways, only_look)  # type: ignore[arg-type]
    assert (relaying.available, relaying.shared) == (False, True)
    told = await relaying.relay(Context(), RequestCode.GET_PRODUCER_CONNECTION_LIST, {})
    assert set(told.answers) == {"gateway-0"}
    for code, group in (
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, "readers"),
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, "hidden"),
    ):
        with pytest.raises(Forbidden):
            await relaying.relay(Context(), code, {}, group=group)
    with pytest.raises(Unsupported, match="which has none"):
        await relaying.relay(Context(), RequestCode.GET_BROKER_RUNTIME_INFO, {})
    assert gateways.asked == 1


async def test_others_are_answered_where_the_broker_is_shared() -> None:
    guest, host = Gateways(), Gateways()
    CommandRelay(guest, only_look).serve(answer)  # type: ignore[arg-type]
    assert guest.handler is answer
    hosting = CommandRelay(Alone(), only_look)  # type: ignore[arg-type]
    hosting.serve(answer, host)
    assert (hosting.shared, host.handler) == (True, answer)


class Asking(Cluster, HearsBrokers):
    """Its brokers ask gateways about clients; `handler` answers them."""

    handler: CommandHandler | None = None

    def on_command(self, handler: CommandHandler) -> None:
        self.handler = handler


async def test_brokers_of_a_cluster_are_answered() -> None:
    cluster = Asking()
    relaying = CommandRelay(cluster, only_look)  # type: ignore[arg-type]
    relaying.serve(answer)
    assert (cluster.handler, relaying.shared) == (answer, False)


async def test_where_nobody_shares_the_broker() -> None:
    relaying = CommandRelay(Alone(), only_look)  # type: ignore[arg-type]
    relaying.serve(answer)
    assert not relaying.shared
    with pytest.raises(Unsupported, match="which has none"):
        await relaying.relay(Context(), RequestCode.GET_PRODUCER_CONNECTION_LIST, {})
