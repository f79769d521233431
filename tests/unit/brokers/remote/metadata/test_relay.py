"""Commands passed on to brokers: which, to whom, and what of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokers.relay import MOST_BYTES, RELAYED
from brokers.remote.settings import Credentials
from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, TopicNotFound, Unsupported
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command

Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]

RATES, RUNTIME, CLEAN = (
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.CLEAN_UNUSED_TOPIC,
)


def tell(peer: ScriptedPeer, code: int, body: bytes = b"told", answer: int = ResponseCode.SUCCESS) -> None:
    peer.on(code, lambda request: request.answer(answer, "why", {"a": "b"}, body))


def asked(peer: ScriptedPeer, code: int) -> list[Command]:
    return [one for one in peer.requests if one.code == code]


@pytest.fixture
async def relaying(make_broker: Callable[..., Any]) -> Any:
    made: Any = await make_broker(quiet=True)
    return made


async def test_all_brokers_are_asked_and_each_answer_is_told_as_it_came(
    relaying: Any, asking_cluster: Cluster
) -> None:
    _, peers = asking_cluster
    tell(peers["broker-a"], RUNTIME, b"one")
    tell(peers["broker-b"], RUNTIME, b"two", ResponseCode.SYSTEM_ERROR)
    told = await relaying.relay(Context(), RUNTIME, {})
    assert {name: (one.code, one.remark, one.body) for name, one in told.answers.items()} == {
        "broker-a": (0, "why", b"one"),
        "broker-b": (1, "why", b"two"),
    }
    assert told.answers["broker-a"].fields["a"] == "b"
    assert not told.failures


async def test_only_the_fields_that_the_command_has_are_passed_on(
    make_broker: Callable[..., Any], asking_cluster: Cluster
) -> None:
    _, peers = asking_cluster
    relaying = await make_broker(quiet=True, credentials=Credentials("gateway", "secret"))
    tell(peers["broker-a"], RATES)
    fields = {
        "statsName": "TOPIC_PUT_NUMS",
        "statsKey": "T",
        "AccessKey": "user",
        "Signature": "his",
        "SecurityToken": "his",
        "anything": "else",
    }
    await relaying.relay(Context(), RATES, fields, broker="broker-a")
    (request,) = asked(peers["broker-a"], RATES)
    assert request.fields["AccessKey"] == "gateway"
    assert request.fields["Signature"] not in ("", "his")
    assert set(request.fields) == {"statsName", "statsKey", "bname", "AccessKey", "Signature"}
    assert (request.fields["bname"], request.body) == ("broker-a", b"")


async def test_one_broker_or_those_of_a_topic(relaying: Any, asking_cluster: Cluster) -> None:
    _, peers = asking_cluster
    for peer in peers.values():
        tell(peer, RATES)
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    assert set((await relaying.relay(Context(), RATES, fields, broker="broker-b")).answers) == {"broker-b"}
    assert not asked(peers["broker-a"], RATES)
    assert set((await relaying.relay(Context(), RATES, fields, topic="T")).answers) == set(peers)
    with pytest.raises(BadRequest, match="no broker 'broker-c'"):
        await relaying.relay(Context(), RATES, fields, broker="broker-c")
    with pytest.raises(TopicNotFound):
        await relaying.relay(Context(), RATES, fields, topic="nowhere")


async def test_a_broker_that_is_gone_spoils_nothing_for_the_others(
    relaying: Any, asking_cluster: Cluster
) -> None:
    _, peers = asking_cluster
    tell(peers["broker-a"], RUNTIME)
    tell(peers["broker-a"], CLEAN)
    await peers["broker-b"].stop()
    for code in (RUNTIME, CLEAN):
        told = await relaying.relay(Context(), code, {})
        assert set(told.answers) == {"broker-a"}
        assert isinstance(told.failures["broker-b"], BrokerUnavailable)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.SEND_MESSAGE,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        123_456,
    ],
)
async def test_what_is_not_in_the_list_goes_to_nobody(
    relaying: Any, asking_cluster: Cluster, code: int
) -> None:
    assert code not in RELAYED
    with pytest.raises(Unsupported, match=f"request code {int(code)}"):
        await relaying.relay(Context(), code, {})
    assert not any(asked(peer, code) for peer in asking_cluster[1].values())


async def test_answers_are_bounded_together(
    relaying: Any, asking_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokers.remote.metadata.relay.MOST_TOLD", 7)
    for peer in asking_cluster[1].values():
        tell(peer, RUNTIME, b"1234")
    told = await relaying.relay(Context(), RUNTIME, {})
    assert (len(told.answers), len(told.failures)) == (1, 1)
    (failure,) = told.failures.values()
    assert "the limit is 7 bytes" in failure.sentence


async def test_more_bytes_than_a_command_has_are_refused(relaying: Any) -> None:
    with pytest.raises(BadRequest, match=f"the limit is {MOST_BYTES}"):
        await relaying.relay(Context(), RATES, {"statsName": "x" * MOST_BYTES, "statsKey": "y"})
