"""The rights of the retry topics of pops, which brokers take for groups of their own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from popgate.ids.receipt import OF_RETRY_V1, OF_RETRY_V2
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing import GatewayProcess
from popgate.testing.rocketmq import RocketMQ
from popgate.testing.rocketmq.requests import addresses_known, ask
from popgate.wire.frames.codes import RequestCode, ResponseCode
from tests.cluster.brokers import ACCOUNT
from tests.cluster.calls import give_back, made, one_of, receive, retry_kind
from tests.cluster.load import Client, Code, until
from tests.cluster.rights import SECRET, add_user, asked_of, gateway_of, refusal_of, signed, topics_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NEEDED: dict[str, set[str]] = {
    "acknowledge": {"Sub"},
    "renew": {"Sub"},
    "dead-letter": set(),
    "show the group": {"Get"},
    "show what is stuck": {"Get"},
    "reset the group": {"Get", "Update"},
    "delete the group": {"Delete"},
}
"""The actions on its retry topic that each operation needs, when the group has one."""
ACTIONS = sorted(set().union(*NEEDED.values()))
SHORTEST = ("--set", "limits.min_invisible_s=1")
NAMES = (f"again{number}" for number in itertools.count())


def second_kind(cluster: RocketMQ, on: bool) -> None:
    for known in addresses_known(cluster.addresses[0]).values():
        setting = f"enableRetryTopicV2={str(on).lower()}\n"
        signed(known[0], RequestCode.UPDATE_BROKER_CONFIG, {}, setting.encode())


def is_named(cluster: RocketMQ, topic: str) -> bool:
    """Whether a name server knows a topic: a broker tells it of its retry topics every 10 s, not at once."""
    response = ask(cluster.addresses[0], RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return response.code == ResponseCode.SUCCESS


class Account:
    """A gateway with an account, before a topic and a group of one name."""

    def __init__(self, gateway: GatewayProcess, client: Client, name: str) -> None:
        self.gateway = gateway
        self.client = client
        self.name = name
        self.resource = pb.Resource(name=name)

    async def outcomes(self, again: list[pb.SystemProperties]) -> dict[str, str]:
        """Why each operation was refused. `again`: three messages of the retry topic that are held."""
        reset = {"to": "first", "topics": [self.name]}
        operations: dict[str, Callable[[], Awaitable[str]]] = {
            "acknowledge": lambda: self._acknowledge(again[0]),
            "renew": lambda: self._renew(again[1]),
            "dead-letter": lambda: self._dead_letter(again[2]),
            "show the group": lambda: asked_of(self.gateway, "GET", f"groups/{self.name}"),
            "show what is stuck": lambda: asked_of(
                self.gateway, "GET", f"groups/{self.name}/stuck?topic={self.name}"
            ),
            "reset the group": lambda: asked_of(self.gateway, "POST", f"groups/{self.name}/reset", reset),
            "delete the group": lambda: asked_of(self.gateway, "DELETE", f"groups/{self.name}"),
        }
        return {name: await operation() for name, operation in operations.items()}

    async def _acknowledge(self, message: pb.SystemProperties) -> str:
        entry = rpc.AckMessageEntry(message_id=message.message_id, receipt_handle=message.receipt_handle)
        request = rpc.AckMessageRequest(topic=self.resource, group=self.resource, entries=[entry])
        return refusal_of((await self.client.call("AckMessage", request)).status)

    async def _renew(self, message: pb.SystemProperties) -> str:
        request = rpc.ChangeInvisibleDurationRequest(
            topic=self.resource,
            group=self.resource,
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
            invisible_duration=Duration(seconds=100),
        )
        return refusal_of((await self.client.call("ChangeInvisibleDuration", request)).status)

    async def _dead_letter(self, message: pb.SystemProperties) -> str:
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            topic=self.resource,
            group=self.resource,
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
            delivery_attempt=message.delivery_attempt,
            max_delivery_attempts=message.delivery_attempt,
        )
        return refusal_of((await self.client.call("ForwardMessageToDeadLetterQueue", request)).status)


async def held_again(client: Client, name: str, kind: int) -> list[pb.SystemProperties]:
    """Three messages that came back through the retry topic, and are held."""
    for number in range(3):
        assert (await client.send(name, str(number))).status.code == Code.OK
        await give_back(client, name, await one_of(client, name))
    again: list[pb.Message] = []

    async def came() -> bool:
        messages, status = await client.stream("ReceiveMessage", receive(name, invisible_s=300, wait_s=5))
        assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
        again.extend(messages)
        return len(again) == 3

    await until(came)
    assert {retry_kind(message) for message in again} == {kind}
    return [message.system_properties for message in again]


@pytest.mark.parametrize("kind", [OF_RETRY_V1, OF_RETRY_V2], ids=["first", "second"])
async def test_a_new_retry_topic_goes_with_its_group(ruled_cluster: RocketMQ, kind: int) -> None:
    """Also before name servers know of it, which is up to 10 s later here, and 30 s as shipped."""
    await asyncio.to_thread(second_kind, ruled_cluster, kind == OF_RETRY_V2)
    name = next(NAMES)
    async with gateway_of(ruled_cluster, *ACCOUNT, *SHORTEST) as gateway:
        client = Client(gateway.endpoint, "administrator")
        await made(gateway, name)
        await held_again(client, name, kind)
        await client.close()
        assert not await asked_of(gateway, "DELETE", f"groups/{name}")
    topics = await asyncio.to_thread(topics_of, ruled_cluster)
    assert not [topic for topic in topics if topic.startswith(f"%RETRY%{name}")]


@pytest.mark.parametrize("kind", [OF_RETRY_V1, OF_RETRY_V2], ids=["first", "second"])
async def test_retry_topics_need_rights_as_groups_of_their_own(ruled_cluster: RocketMQ, kind: int) -> None:
    """With all of them, also by the prefix, everything may be done; without one what needs it is refused."""
    await asyncio.to_thread(second_kind, ruled_cluster, kind == OF_RETRY_V2)
    wrong = []
    for missing in ("", "prefix", *ACTIONS):
        name = next(NAMES)
        retries = f"{name}{'+' if kind == OF_RETRY_V2 else '_'}{name}"
        group = f"Group:{name}*" if missing == "prefix" else f"Group:{name}"
        rights = {(f"Topic:{name}", action) for action in ("Get", "Pub", "Sub", "Update")}
        rights |= {(group, action) for action in ("Get", "Sub", "Update", "Delete")}
        if missing != "prefix":
            rights |= {(f"Group:{retries}", action) for action in ACTIONS if action != missing}
        await asyncio.to_thread(add_user, ruled_cluster, name, sorted(rights))
        async with gateway_of(ruled_cluster, *ACCOUNT, *SHORTEST) as administrator:
            client = Client(administrator.endpoint, "administrator")
            await made(administrator, name)
            again = await held_again(client, name, kind)
            await client.close()
        await until(lambda retries=retries: asyncio.to_thread(is_named, ruled_cluster, f"%RETRY%{retries}"))
        async with gateway_of(ruled_cluster, name, SECRET) as gateway:
            client = Client(gateway.endpoint, "somebody")
            outcomes = await Account(gateway, client, name).outcomes(again)
            await client.close()
        topics = await asyncio.to_thread(topics_of, ruled_cluster)
        if not outcomes["delete the group"] and f"%RETRY%{retries}" in topics:
            wrong.append(f"without {missing} the group was deleted, and its retry topic was not")
        print("without", missing or "nothing", {one: refusal for one, refusal in outcomes.items() if refusal})
        for operation, refusal in outcomes.items():
            if missing not in NEEDED[operation]:
                wrong += [f"{operation} was refused: {refusal}"] if refusal else []
            elif "NO_PERMISSION" not in refusal or f"Group:{retries}" not in refusal:
                wrong.append(f"{operation} without {missing} returned {refusal!r}")
    assert not wrong, "\n".join(wrong)
