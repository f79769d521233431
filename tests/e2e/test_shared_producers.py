"""Gateways that share an embedded broker: what one has for producers that are connected to another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from popgate.ids.message_id import make_message_id
from popgate.testing.gateway import GatewayProcess
from popgate.testing.remoting import RemotingClient
from popgate.wire.bodies.heartbeats import HeartbeatData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import decode_properties, encode_properties
from popgate.wire.messages.records import decode_record
from tests.e2e.test_remoting_door import bodies, pulled
from tests.e2e.test_shared_clients import LONGEST_S, two_gateways
from tests.support.waiting import until

COMMIT, ROLLBACK = 8, 12
TRANSACTION_PREPARED = 4
"""The bit of sysFlag of a half message."""
REPLIES = "DefaultCluster_REPLY_TOPIC"


class Maker:
    """A classic producer of the group `makers`; `asked` is what its gateway asked it and waited for."""

    def __init__(self, connection: RemotingClient) -> None:
        self.connection = connection
        self.asked: list[Command] = []
        connection.replies = self.reply

    def reply(self, command: Command) -> Command:
        self.asked.append(command)
        return command.answer(ResponseCode.SUCCESS)

    async def ok(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Command:
        answer = await self.connection.call(code, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def send(self, body: bytes, properties: Mapping[str, str], flags: int = 0) -> None:
        fields = sent_to("orders", properties, flags)
        await self.ok(RequestCode.SEND_MESSAGE_V2, fields, body)


def sent_to(topic: str, properties: Mapping[str, str], flags: int = 0) -> dict[str, str]:
    fields = {"a": "makers", "b": topic, "c": "TBW102", "d": "1", "e": "0", "g": "1", "h": "0", "m": "false"}
    return {**fields, "f": str(flags), "i": encode_properties(properties).decode()}


@asynccontextmanager
async def maker(gateway: GatewayProcess, name: str) -> AsyncIterator[Maker]:
    address = next(one for one in gateway.addresses if one.startswith("remoting://"))
    connection = await RemotingClient.connect("127.0.0.1", int(address.rpartition(":")[2]))
    made = Maker(connection)
    await made.ok(RequestCode.HEART_BEAT, {}, HeartbeatData(name, ("makers",)).encode())
    try:
        yield made
    finally:
        await connection.close()


async def test_a_reply_goes_to_who_waits_at_another_gateway(socket_folder: Path) -> None:
    async with (
        two_gateways(socket_folder) as (host, guest),
        maker(host, "at-host") as first,
        maker(guest, "at-guest") as second,
    ):
        for asker, name, replier in ((first, "at-host", second), (second, "at-guest", first)):
            body = f"for {name}".encode()
            properties = {"CORRELATION_ID": name, "REPLY_TO_CLIENT": name, "MSG_TYPE": "reply"}
            fields = sent_to(REPLIES, properties)

            async def arrived(
                replier: Maker = replier, fields: Mapping[str, str] = fields, body: bytes = body
            ) -> bool:
                """Gateways learn of each other's clients as they come: until then the reply is refused."""
                answer = await replier.connection.call(RequestCode.SEND_REPLY_MESSAGE_V2, fields, body)
                return answer.code == ResponseCode.SUCCESS

            await until(arrived, LONGEST_S)
            [pushed] = asker.asked
            assert (pushed.code, pushed.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, body)
            told = decode_properties(pushed.fields["properties"].encode())
            assert told["CORRELATION_ID"] == name
            assert not [one for one in replier.asked if one.body == body]
            nobody = sent_to(REPLIES, {**properties, "REPLY_TO_CLIENT": "nobody"})
            refused = await replier.connection.call(RequestCode.SEND_REPLY_MESSAGE_V2, nobody, body)
            assert (refused.code, "nobody" in refused.remark) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_producer_at_another_gateway_ends_what_its_group_left(socket_folder: Path) -> None:
    async with two_gateways(socket_folder) as (host, guest):
        async with maker(host, "left") as first:
            for body in (b"yes", b"no"):
                told = {"UNIQ_KEY": make_message_id(), "TRAN_MSG": "true", "PGROUP": "makers"}
                await first.send(body, told, TRANSACTION_PREPARED)
        async with maker(guest, "stayed") as second:
            second.connection.replies = None  # nobody waits for an answer to a check

            def checks() -> dict[bytes, Command]:
                asked = second.connection.asked
                return {
                    bytes(decode_record(one.body).body): one
                    for one in asked
                    if one.code == RequestCode.CHECK_TRANSACTION_STATE
                }

            await until(lambda: checks().keys() == {b"yes", b"no"}, LONGEST_S)
            for body, check in checks().items():
                end = {
                    name: check.fields[name]
                    for name in ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId", "bname")
                    if name in check.fields
                }
                word = COMMIT if body == b"yes" else ROLLBACK
                end |= {"topic": "orders", "producerGroup": "makers", "fromTransactionCheck": "true"}
                await second.ok(RequestCode.END_TRANSACTION, {**end, "commitOrRollback": str(word)})
        async with maker(host, "reader") as reader:
            code, fields = pulled()
            answer = await reader.ok(code, fields)
            assert bodies(answer) == [b"yes"]
