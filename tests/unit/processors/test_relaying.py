"""Who may have commands passed on, and where there is nobody to pass them on to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from brokers.relaying import Relayed, RelaysCommands
from popgate.context import Context
from popgate.errors import Forbidden, Unsupported
from popgate.kinds import Action
from popgate.wire.codes import RequestCode
from processors.relaying import Relaying


class Alone:
    name = "embedded"


class Cluster(RelaysCommands):
    name = "rocketmq"
    asked = 0

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
    relaying = Relaying(cluster, only_look)  # type: ignore[arg-type]
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
    relaying = Relaying(Alone(), only_look)  # type: ignore[arg-type]
    assert not relaying.available
    with pytest.raises(Unsupported, match="embedded"):
        await relaying.relay(Context(), RequestCode.GET_BROKER_RUNTIME_INFO, {})
