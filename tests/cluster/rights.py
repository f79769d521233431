"""Accounts of a RocketMQ with access control, and a gateway that has one: why it is refused, or ""."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence

from popgate.pb import definition_pb2 as pb
from popgate.testing import GatewayProcess, running_gateway
from popgate.testing.rocketmq import RocketMQ
from popgate.testing.rocketmq.requests import addresses_known, ask
from popgate.wire.bodies.access import AccessEntry, AccessPolicy, AclInfo, UserInfo
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.signature import sign
from popgate.wire.json_syntax.fastjson import loads
from tests.cluster.brokers import ACCOUNT
from tests.cluster.load import PATIENT, Code

DOOR = ("grpc://127.0.0.1:0",)
SECRET = "a-secret"
"""Of every account that `add_user` makes."""


def signed(address: str, code: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    """What the administrator is answered, who must be."""
    response = ask(address, code, {**fields, **sign(fields, body, *ACCOUNT)}, body)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return response.body


def topics_of(cluster: RocketMQ) -> set[str]:
    """The names of all topics, those of retries as well."""
    known = addresses_known(cluster.addresses[0])
    bodies = [signed(addresses[0], RequestCode.GET_ALL_TOPIC_CONFIG, {}) for addresses in known.values()]
    return {name for body in bodies for name in loads(body)["topicConfigTable"]}


def add_user(cluster: RocketMQ, name: str, rights: Iterable[tuple[str, str]]) -> None:
    """An account with these rights: pairs of a resource and an action."""
    subject = f"User:{name}"
    actions: dict[str, list[str]] = {}
    for resource, action in rights:
        actions.setdefault(resource, []).append(action)
    entries = tuple(
        AccessEntry(resource, tuple(allowed), (), "Allow") for resource, allowed in actions.items()
    )
    user = UserInfo(name, SECRET, "Normal", "enable")
    acl = AclInfo(subject, (AccessPolicy("Custom", entries),))
    for known in addresses_known(cluster.addresses[0]).values():
        signed(known[0], RequestCode.AUTH_CREATE_USER, {"username": name}, user.encode())
        signed(known[0], RequestCode.AUTH_CREATE_ACL, {"subject": subject}, acl.encode())


def gateway_of(
    cluster: RocketMQ, name: str, secret: str, *options: str, listen: Sequence[str] = DOOR
) -> contextlib.AbstractAsyncContextManager[GatewayProcess]:
    """A gateway that has an account."""
    account = ("--set", f"remote.access_key={name}", "--set", f"remote.secret_key={secret}")
    words = ("--broker", cluster.url, *account, *options)
    return running_gateway(listen=listen, options=words, environment=PATIENT)


def refusal_of(status: pb.Status) -> str:
    return "" if status.code in (Code.OK, Code.MESSAGE_NOT_FOUND) else str(status.message)


async def asked_of(gateway: GatewayProcess, method: str, path: str, body: object = None) -> str:
    """Why the gateway's admin port refused a request."""
    try:
        await response_of(gateway, method, path, body)
    except urllib.error.HTTPError as error:
        with error:
            return str(json.loads(error.read())["message"])
    return ""


async def response_of(gateway: GatewayProcess, method: str, path: str, body: object = None) -> bytes:
    """Of the gateway's admin port. Raises HTTPError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{gateway.admin}/api/{path}", data, headers, method=method)

    def read() -> bytes:
        with urllib.request.urlopen(request, timeout=60) as response:
            content: bytes = response.read()
        return content

    return await asyncio.to_thread(read)
