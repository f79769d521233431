"""Groups that are set to pop: nothing that their clients hold is moved to where others pull."""

from __future__ import annotations

from dataclasses import replace

import pytest

from popgate.context import Context
from popgate.ids.message_id import make_message_id
from popgate.model import Message
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from popgate.wire.frames.codes import RequestCode
from processors.members.queue_assignment import POPPED
from processors.requests import Receive
from protocols.remoting.door import rooms_of
from tests.unit.protocols.remoting.conftest import Caller, FakePeer, Stage

GROUP, TOPIC = "readers", "orders"


@pytest.mark.parametrize("popped", [True, False])
async def test_what_they_hold_stays_theirs_when_the_first_of_them_comes_back(
    stage: Stage, popped: bool
) -> None:
    await stage.topic(TOPIC, queues=1)
    await stage.group(GROUP)
    if popped:
        config = await stage.broker.group(GROUP)
        await stage.broker.update_group(replace(config, attributes={POPPED + TOPIC: "0"}))
    message = Message(TOPIC, b"one", make_message_id(), born_host="10.1.1.1:5", queue_id=0)
    await stage.processor.send(Context(), [message])
    held = await stage.processor.receive(Context(), Receive(TOPIC, GROUP, invisible_ms=60_000, wait_s=0))
    assert len(held) == 1
    # Its heartbeat does not tell how it reads, and it has asked nothing yet.
    caller = Caller(*rooms_of(stage.door_context), peer=FakePeer("10.1.1.9:5"), client_id="client@9")
    told = ConsumerData(GROUP, (SubscriptionData(TOPIC),))
    await caller.ok(RequestCode.HEART_BEAT, body=HeartbeatData("client@9", (), (told,)).encode())
    for _ in range(10):
        await stage.pass_s(0.5)
    assert stage.processor.retry_reclaimer.moved == (0 if popped else 1)
