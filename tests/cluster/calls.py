"""What a client of a test asks of a gateway before a cluster, one request at a time."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

from popgate.ids.receipt import parse_receipt
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing import GatewayProcess
from tests.cluster.load import Client, Code, until


def retry_kind(message: pb.Message) -> int:
    """Which kind of topic a delivery came from, as its handle tells."""
    return parse_receipt(message.system_properties.receipt_handle).topic_type


async def made(gateway: GatewayProcess, name: str) -> None:
    """Make a topic, and a group of the same name. Raises HTTPError."""
    for path in ("/api/topics", "/api/groups"):
        request = urllib.request.Request(
            gateway.admin + path, json.dumps({"name": name}).encode(), {"content-type": "application/json"}
        )
        await asyncio.to_thread(lambda one=request: urllib.request.urlopen(one, timeout=60).close())


def receive(name: str, invisible_s: int = 60, wait_s: int = 20) -> Any:
    return rpc.ReceiveMessageRequest(
        group=pb.Resource(name=name),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=name), id=-1),
        filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
        batch_size=1,
        invisible_duration=Duration(seconds=invisible_s),
        long_polling_timeout=Duration(seconds=wait_s),
    )


async def one_of(client: Client, name: str, invisible_s: int = 60) -> pb.Message:
    async def ask() -> list[pb.Message]:
        messages, status = await client.stream("ReceiveMessage", receive(name, invisible_s))
        assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
        return messages

    (message,) = await until(ask)
    return message


async def acknowledge(client: Client, name: str, message: pb.Message) -> None:
    assert await settled(client, name, message) == Code.OK


async def settled(client: Client, name: str, message: pb.Message) -> int:
    """The code of the answer to an acknowledgement."""
    entry = rpc.AckMessageEntry(
        message_id=message.system_properties.message_id,
        receipt_handle=message.system_properties.receipt_handle,
    )
    resource = pb.Resource(name=name)
    request = rpc.AckMessageRequest(topic=resource, group=resource, entries=[entry])
    answer = await client.call("AckMessage", request)
    (told,) = answer.entries
    return int(told.status.code)


async def redelivered(client: Client, name: str, body: str = "hello", invisible_s: int = 60) -> pb.Message:
    """A message that was sent, given back, and came again."""
    assert (await client.send(name, body)).status.code == Code.OK
    await give_back(client, name, await one_of(client, name))
    again = await one_of(client, name, invisible_s)
    assert (again.body.decode(), again.system_properties.delivery_attempt) == (body, 2)
    return again


async def give_back(client: Client, name: str, message: pb.Message) -> None:
    """It comes again in a second."""
    resource = pb.Resource(name=name)
    request = rpc.ChangeInvisibleDurationRequest(
        topic=resource,
        group=resource,
        receipt_handle=message.system_properties.receipt_handle,
        invisible_duration=Duration(seconds=1),
    )
    changed = await client.call("ChangeInvisibleDuration", request)
    assert changed.status.code == Code.OK, changed
