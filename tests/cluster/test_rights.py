"""Brokers that decide who may do what: the rights of docs/real-cluster.md suffice, and each is needed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.testing import GatewayProcess
from popgate.testing.rocketmq import RocketMQ
from tests.cluster.brokers import ACCOUNT
from tests.cluster.calls import made, receive
from tests.cluster.load import Client, until
from tests.cluster.rights import SECRET, add_user, asked_of, gateway_of, refusal_of, response_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAME = "ruled"
"""Of a topic and a group that clients use."""
MADE = "made-"
"""Names of topics and groups that operators create and delete begin so."""

TOPIC, GROUP, TOOLS = f"Topic:{NAME}", f"Group:{NAME}", "Group:TOOLS_CONSUMER"
MADE_TOPICS, MADE_GROUPS, LETTERS = f"Topic:{MADE}*", f"Group:{MADE}*", f"Topic:%DLQ%{NAME}"
SEND: set[tuple[str, ...]] = {(TOPIC, "Pub"), (TOPIC, "Get")}
RECEIVE: set[tuple[str, ...]] = {(TOPIC, "Sub"), (TOPIC, "Get"), (GROUP, "Sub"), (GROUP, "Get")}
NEEDED: dict[str, set[tuple[str, ...]]] = {
    "route": {(TOPIC, "Get")},
    "send": SEND,
    "transaction": SEND,
    "recall": SEND,
    "receive": RECEIVE,
    "dead-letter": RECEIVE,
    "pull": {(TOPIC, "Sub"), (TOPIC, "Get"), (GROUP, "Get"), (TOOLS, "Sub")},
    "positions": {(TOPIC, "Get"), (TOPIC, "Sub", "Update"), (GROUP, "Get"), (GROUP, "Sub", "Update")},
    "create a topic": {(MADE_TOPICS, "Get"), (MADE_TOPICS, "Create")},
    "create a group": set(),
    "show a group": {(TOPIC, "Get"), (GROUP, "Get")},
    "find": {(TOPIC, "Get")},
    "reset": {(TOPIC, "Get"), (TOPIC, "Update"), (GROUP, "Get"), (GROUP, "Update")},
    "count dead letters": {(GROUP, "Get"), (LETTERS, "Get"), (LETTERS, "Sub"), (TOOLS, "Sub")},
    "delete a topic": {(MADE_TOPICS, "Delete")},
    "delete a group": {(MADE_GROUPS, "Get"), (MADE_GROUPS, "Delete")},
    "read settings": set(),
}
"""The rights that each operation needs: a resource and an action on it, or several of which one is enough."""
ALTERNATIVES = sorted({need for needs in NEEDED.values() for need in needs})
RIGHTS = sorted({(resource, action) for resource, *actions in ALTERNATIVES for action in actions})


@contextlib.asynccontextmanager
async def site_of(cluster: RocketMQ, name: str, secret: str) -> AsyncIterator[Site]:
    async with gateway_of(cluster, name, secret) as gateway:
        site = Site(gateway)
        try:
            yield site
        finally:
            await site.client.close()


class Site:
    """A gateway, and the operations of its clients and operators. Each returns why it was refused, or ""."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.client = Client(gateway.endpoint, "somebody")

    async def outcomes(self, administrator: Site, number: int) -> dict[str, str]:
        """Why each operation was refused, by its name. `number` must be new in each call."""
        post = functools.partial(asked_of, self.gateway, "POST")
        get = functools.partial(asked_of, self.gateway, "GET")
        delete = functools.partial(asked_of, self.gateway, "DELETE")
        old, new = f"{MADE}{number}-old", f"{MADE}{number}-new"
        await made(administrator.gateway, old)
        operations: dict[str, Callable[[], Awaitable[str]]] = {
            "route": self._route,
            "send": self._send,
            "transaction": self._transaction,
            "recall": self._recall,
            "receive": functools.partial(self._receive, administrator, self._acknowledge),
            "dead-letter": functools.partial(self._receive, administrator, self._dead_letter),
            "pull": self._pull,
            "positions": self._positions,
            "create a topic": lambda: post("topics", {"name": new}),
            "create a group": lambda: post("groups", {"name": new}),
            "show a group": lambda: get(f"groups/{NAME}"),
            "find": lambda: get(f"topics/{NAME}/messages?key=k"),
            "reset": lambda: post(f"groups/{NAME}/reset", {"to": "first", "topics": [NAME]}),
            "count dead letters": lambda: get(f"groups/{NAME}/dead-letters"),
            "delete a topic": lambda: delete(f"topics/{old}"),
            "delete a group": lambda: delete(f"groups/{old}"),
            "read settings": self._settings,
        }
        return {name: await operation() for name, operation in operations.items()}

    async def _route(self) -> str:
        return refusal_of((await self.client.route(NAME)).status)

    async def _send(self, **system: Any) -> str:
        response = await self.client.send(NAME, "hello", **system)
        self.sent = response.entries[0] if response.entries else None
        return refusal_of(response.status)

    async def _transaction(self) -> str:
        refusal = await self._send(message_type=pb.TRANSACTION)
        if refusal or self.sent is None:
            return refusal
        request = rpc.EndTransactionRequest(
            topic=pb.Resource(name=NAME),
            message_id=self.sent.message_id,
            transaction_id=self.sent.transaction_id,
            resolution=pb.COMMIT,
        )
        return await self._call("EndTransaction", request)

    async def _recall(self) -> str:
        due = Timestamp(seconds=int(time.time()) + 3_600)
        refusal = await self._send(message_type=pb.DELAY, delivery_timestamp=due)
        if refusal or self.sent is None:
            return refusal
        topic, handle = pb.Resource(name=NAME), self.sent.recall_handle
        return await self._call("RecallMessage", rpc.RecallMessageRequest(topic=topic, recall_handle=handle))

    async def _receive(
        self, administrator: Site, settle: Callable[[pb.SystemProperties], Awaitable[str]]
    ) -> str:
        assert not await administrator._send()

        async def poll() -> list[pb.Message] | str:
            messages, status = await self.client.stream("ReceiveMessage", receive(NAME, wait_s=5))
            return messages or refusal_of(status)

        received = await until(poll)
        return received if isinstance(received, str) else await settle(received[0].system_properties)

    async def _acknowledge(self, message: pb.SystemProperties) -> str:
        """After its invisible time was changed."""
        topic = pb.Resource(name=NAME)
        change = rpc.ChangeInvisibleDurationRequest(
            topic=topic,
            group=topic,
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
            invisible_duration=Duration(seconds=100),
        )
        changed = await self.client.call("ChangeInvisibleDuration", change)
        if refusal := refusal_of(changed.status):
            return refusal
        entry = rpc.AckMessageEntry(message_id=message.message_id, receipt_handle=changed.receipt_handle)
        return await self._call(
            "AckMessage", rpc.AckMessageRequest(topic=topic, group=topic, entries=[entry])
        )

    async def _dead_letter(self, message: pb.SystemProperties) -> str:
        topic = pb.Resource(name=NAME)
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            topic=topic,
            group=topic,
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
            delivery_attempt=1,
            max_delivery_attempts=1,
        )
        return await self._call("ForwardMessageToDeadLetterQueue", request)

    async def _pull(self) -> str:
        request = rpc.PullMessageRequest(group=pb.Resource(name=NAME), message_queue=_QUEUE, batch_size=4)
        return refusal_of((await self.client.stream("PullMessage", request))[1])

    async def _positions(self) -> str:
        group = pb.Resource(name=NAME)
        requests = {
            "QueryOffset": rpc.QueryOffsetRequest(message_queue=_QUEUE, query_offset_policy=pb.END),
            "UpdateOffset": rpc.UpdateOffsetRequest(message_queue=_QUEUE, group=group, offset=0),
            "GetOffset": rpc.GetOffsetRequest(message_queue=_QUEUE, group=group),
        }
        refusals = [await self._call(name, request) for name, request in requests.items()]
        return next(filter(None, refusals), "")

    async def _call(self, name: str, request: Any) -> str:
        return refusal_of((await self.client.call(name, request)).status)

    async def _settings(self) -> str:
        """Of the brokers, for `popgate doctor`."""
        (broker,) = json.loads(await response_of(self.gateway, "GET", "cluster"))["brokers"]
        return str(broker["settings_trouble"])


_QUEUE = pb.MessageQueue(topic=pb.Resource(name=NAME), id=0, broker=pb.Broker(name="broker-a"))


def complaints(outcomes: Mapping[str, str], user: str, missing: tuple[str, ...]) -> list[str]:
    """What differs from NEEDED: a refusal without a reason, none, or one that does not name the account and
    the resource, of which `missing` has the actions."""
    resource = missing[0].removesuffix("*") if missing else ""
    sentence = f"User:{user} has no permission to access {resource}"
    found = []
    for operation, needs in NEEDED.items():
        refusal = outcomes[operation]
        if not any(need[0] in missing and set(need[1:]) <= set(missing) for need in needs):
            if refusal:
                found.append(f"{operation} was refused: {refusal}")
        elif "NO_PERMISSION" not in refusal or sentence not in refusal:
            found.append(f"{operation} without {missing} returned {refusal!r}")
    return found


async def test_the_listed_rights_suffice_and_each_is_needed(ruled_cluster: RocketMQ) -> None:
    """An account with all of them may do everything; without one exactly what needs it is refused."""
    numbers = itertools.count()
    wrong = []
    async with site_of(ruled_cluster, *ACCOUNT) as administrator:
        await made(administrator.gateway, NAME)
        for missing in ((), *sorted({*RIGHTS, *ALTERNATIVES})):
            number = next(numbers)
            user = f"user-{number}"
            rights = [(name, action) for name, action in RIGHTS if not {name, action} <= set(missing)]
            await asyncio.to_thread(add_user, ruled_cluster, user, rights)
            async with site_of(ruled_cluster, user, SECRET) as site:
                outcomes = await site.outcomes(administrator, number)
            print("without", missing, {name: refusal for name, refusal in outcomes.items() if refusal})
            wrong += complaints(outcomes, user, missing)
    assert not wrong, "\n".join(wrong)
