"""Where the clients of two gateways before a RocketMQ stand, as a tool at either of them is told."""

from __future__ import annotations

import uuid

from popgate.testing import CREATE_ON_USE, running_gateway
from popgate.testing.rocketmq import PATIENT
from popgate.wire.bodies.consumer_info import decode_positions
from popgate.wire.frames.codes import RequestCode
from tests.e2e.test_shared_clients import DOORS, QUEUE, join
from tests.support.needed import needed_rocketmq
from tests.support.waiting import until


async def test_scenario_14_positions_of_the_clients_of_all_gateways() -> None:
    name = f"positions-{uuid.uuid4().hex[:8]}"
    with needed_rocketmq() as cluster:
        options = ("--broker", cluster.url, *CREATE_ON_USE, *PATIENT)
        async with (
            running_gateway(listen=DOORS, options=options) as one,
            running_gateway(listen=DOORS, options=options) as other,
        ):
            members = [
                await join(one, f"{name}-first", name, name),
                await join(one, f"{name}-second", name, name),
                await join(other, f"{name}-the-third", name, name),
            ]
            everybody = {member.name: {QUEUE: len(member.name)} for member in members}
            where = {"topic": name, "group": name, "clientAddr": ""}
            code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
            for tool in members:

                async def told(tool=tool) -> bool:  # type: ignore[no-untyped-def]
                    answer = await tool.call(code, where)
                    return answer.code == 0 and decode_positions(answer.body) == everybody

                await until(told, what=f"the tool of {tool.name} is told of all")
                for member in members:
                    body = await tool.ok(code, **{**where, "clientAddr": member.name})
                    assert decode_positions(body) == {member.name: everybody[member.name]}
            for member in members:
                await member.close()
