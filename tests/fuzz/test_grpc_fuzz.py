"""Odd requests through a raw client, from fixed seeds: whatever a client does, the fault is told as its own.

Every RPC gets requests that were right before some of their fields were changed (empty, negative,
huge, odd Unicode, absent, many), and bytes that are no request at all. None may be answered INTERNAL
or with a gRPC error that is not documented, and the gateway must work afterwards. The seeds say how
requests are changed; which handles there are to be changed is a matter of timing.
`TEST_FUZZ_ROUNDS` asks for more.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing.gateway import GatewayProcess, running_gateway
from protocols.grpc.rpcs.dispatcher import STREAMED, UNARY, Streamed

ROUNDS = int(os.environ.get("TEST_FUZZ_ROUNDS", "30"))
STREAMS = {what.name: what for what in STREAMED}
SERVICE = "/apache.rocketmq.v2.MessagingService/"
DEADLINE_S = 60.0
"""Of all requests: what waits is answered long before it, after `limits.max_wait_s` at the latest."""

INTS = (0, 1, -1, 5, 16, 17, 127, 999_999_999, 2**31 - 1, -(2**31), 2**53, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    *("", " ", "\t", "\x00", "\x01\x02", "a", "*", "a || b", "||", "|", "a = 1", "(" * 200, "NOT " * 5000),
    *("%DLQ%g", "%RETRY%g", "TBW102", "rmq_sys_x", "CID_RMQ_SYS_x", "名字", "\ufeff", "\u202e", "\uffff"),
    *("\U0010ffff", "e\u0301" * 99, "ﷺ" * 300, "k" * 127, "k" * 128, "k" * 5_000, "k" * 70_000, "%s%n{}"),
    *(
        "'; --",
        "NaN",
        "-0",
        "1e999",
        "../../x",
        "null",
        "1 2 3 4 5 6 7 8",
        "0 " * 8,
        "9" * 30,
        "MQ==",
        "djE=",
    ),
    *("0 1795032000000 60000 0 0 popgate 0 0", "-1 -1 -1 -1 -1 popgate -1 -1 -1", "٣ ٣ ٣ ٣ ٣ ٣ ٣ ٣"),
)
BYTES = (b"", b"\x00", b"\x1f\x8b", b"\x1f\x8b\x08" + b"x" * 50, b"\x28\xb5\x2f\xfd", bytes(70_000))

_MOST_BYTES = 16 * 1024 * 1024
"""One change makes a list longer by so much at most: four are less than the largest request that is taken."""

Code = pb.Code


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayProcess]:
    async with running_gateway(
        options=("--set", "limits.max_body_bytes=64KiB", "--set", "limits.max_wait_s=1")
    ) as running:
        yield running


class Odd:
    """Makes requests wrong. `seen`: handles and ids that were right once; `held`: receipt handles."""

    longest = 2_000
    """The most elements that a list is given."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seen: list[str] = []
        self.held: list[str] = []

    def text(self) -> str:
        pick = self.random.random()
        if pick < 0.25 and self.seen:
            return self.random.choice(self.seen)
        if pick < 0.45 and self.seen:
            letters = list(self.random.choice(self.seen))
            for _ in range(self.random.randint(1, 3)):
                letters[self.random.randrange(len(letters))] = self.random.choice("0129 -+=%aZ名\x00")
            return "".join(letters)
        return self.random.choice(TEXTS)

    def number(self, field: Any) -> int:
        bits = 32 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM) else 64
        number: int = self.random.choice(INTS)
        return int(max(-(2 ** (bits - 1)), min(number, 2 ** (bits - 1) - 1)))

    def value(self, field: Any) -> Any:
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return self.random.choice(BYTES) if field.type == FieldDescriptor.TYPE_BYTES else self.text()
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return self.random.random() < 0.5
        if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return self.random.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), float("-inf")))
        return self.number(field)

    def change(self, message: Message, times: int) -> None:
        """Change fields of a message, or of those inside it."""
        for _ in range(times):
            self.change_one(message)

    def change_one(self, message: Message, depth: int = 0) -> None:
        field: Any = self.random.choice(message.DESCRIPTOR.fields)
        if self.random.random() < 0.1:
            message.ClearField(field.name)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            pairs = getattr(message, field.name)
            for n in range(self.random.choice((1, 1, 2, 129))):
                pairs[f"{self.text()}{n or ''}"] = self.text()
        elif field.is_repeated:
            self.change_list(getattr(message, field.name), field, depth)
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            if depth < 6 and inner.DESCRIPTOR.fields:
                self.change_one(inner, depth + 1)
        else:
            setattr(message, field.name, self.value(field))

    def change_list(self, items: Any, field: Any, depth: int) -> None:
        many = self.random.choice((0, 1, 1, 2, 3, 50, self.longest if depth < 2 else 100))
        if field.message_type is None:
            items.extend(self.value(field) for _ in range(many))
        elif items and self.random.random() < 0.6:
            self.change_one(self.random.choice(items), depth + 1)
        elif items:
            items.extend([items[0]] * min(many, _MOST_BYTES // max(items[0].ByteSize(), 1)))
        else:
            for _ in range(min(many, 3)):
                self.change_one(items.add(), depth + 1)

    def data(self, request: Message) -> bytes:
        """The bytes of a request, rarely with some of them changed: no request at all, maybe."""
        data = request.SerializeToString()
        if self.random.random() < 0.15:
            broken = bytearray(data or b"\x0a")
            for _ in range(self.random.randint(1, 4)):
                broken[self.random.randrange(len(broken))] = self.random.randrange(256)
            return bytes(broken[: self.random.choice((len(broken), self.random.randint(1, len(broken))))])
        return data

    def metadata(self) -> list[tuple[str, str]]:
        told = {"x-mq-client-id": "odd-1", "x-mq-language": "JAVA", "x-mq-client-version": "5.2.0"}
        if self.random.random() < 0.2:
            name = self.random.choice([*told, "x-mq-namespace", "authorization", "x-mq-date-time"])
            told[name] = self.random.choice(
                ("", " ", "x" * 3000, "9.9.9.9.9", "5..3", "GO", "NODE_JS", "MQv2 a=b", "%00")
            )
        if self.random.random() < 0.05:
            del told["x-mq-client-id"]
        return list(told.items())


class Raw:
    """A client that sends bytes."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.codes: Counter[str] = Counter()

    async def unary(self, name: str, answer: Any, data: bytes, metadata: Any = None) -> Any:
        method = self.channel.unary_unary(SERVICE + name, response_deserializer=answer.FromString)
        told = await method(data, metadata=metadata, timeout=DEADLINE_S)
        self.note(name, told.status)
        for entry in getattr(told, "entries", ()):
            self.note(name, entry.status)
        return told

    async def streamed(self, what: Streamed, data: bytes, metadata: Any = None) -> list[Any]:
        method = self.channel.unary_stream(SERVICE + what.name, response_deserializer=what.answer.FromString)
        parts = [part async for part in method(data, metadata=metadata, timeout=DEADLINE_S)]
        assert sum(part.HasField("status") for part in parts) == 1, parts
        for part in parts:
            if part.HasField("status"):
                self.note(what.name, part.status)
        return parts

    async def telemetry(self, data: list[bytes], metadata: Any = None) -> None:
        method = self.channel.stream_stream(
            SERVICE + "Telemetry", response_deserializer=rpc.TelemetryCommand.FromString
        )
        try:
            async for part in method(iter(data), metadata=metadata, timeout=DEADLINE_S):
                self.note("Telemetry", part.status)
        except grpc.aio.AioRpcError as error:
            if error.details() == "Internal error from Core":
                # This client's own: it was still writing when the gateway had ended the stream.
                return
            # Documented: the way in which Java and Go learn that their settings cannot be.
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            self.codes["Telemetry INVALID_ARGUMENT"] += 1

    def note(self, name: str, status: Any) -> None:
        assert status.code not in (Code.INTERNAL_ERROR, Code.INTERNAL_SERVER_ERROR), (name, status)
        assert status.code in Code.values(), (name, status)
        if status.code != Code.OK:
            assert 0 < len(status.message) < 2_000, (name, status)
        self.codes[f"{name} {Code.Name(status.code)}"] += 1


def right(name: str, odd: Odd) -> Message:
    """A request as clients make it."""
    topic, group = pb.Resource(name="odd"), pb.Resource(name="odd-readers")
    handle = odd.random.choice(odd.seen or ["x"])
    held = odd.random.choice(odd.held or [handle])
    ends = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=8081)])
    match name:
        case "QueryRoute":
            return rpc.QueryRouteRequest(topic=topic, endpoints=ends)
        case "SyncLiteSubscription":
            # Apart from the others: the first call makes its group one of lite topics only.
            lite = rpc.SyncLiteSubscriptionRequest(
                topic=pb.Resource(name="odd-lite"),
                group=pb.Resource(name="odd-lite-readers"),
                lite_topic_set=["a", "b"],
            )
            lite.action = odd.random.choice(pb.LiteSubscriptionAction.values())
            return lite
        case "QueryAssignment":
            return rpc.QueryAssignmentRequest(topic=topic, group=group, endpoints=ends)
        case "Heartbeat":
            return rpc.HeartbeatRequest(group=group, client_type=pb.PUSH_CONSUMER)
        case "SendMessage":
            request = rpc.SendMessageRequest()
            for _ in range(odd.random.choice((1, 1, 2, 5))):
                one = request.messages.add(topic=topic, body=b"odd", user_properties={"a": "b"})
                one.system_properties.message_id = make_message_id()
                one.system_properties.message_type = odd.random.choice((pb.NORMAL, pb.TRANSACTION))
            return request
        case "AckMessage":
            entries = [rpc.AckMessageEntry(receipt_handle=held)]
            return rpc.AckMessageRequest(topic=topic, group=group, entries=entries)
        case "ForwardMessageToDeadLetterQueue":
            return rpc.ForwardMessageToDeadLetterQueueRequest(topic=topic, group=group, receipt_handle=held)
        case "EndTransaction":
            return rpc.EndTransactionRequest(topic=topic, transaction_id=handle, resolution=pb.COMMIT)
        case "ChangeInvisibleDuration":
            return rpc.ChangeInvisibleDurationRequest(topic=topic, group=group, receipt_handle=held)
        case "RecallMessage":
            return rpc.RecallMessageRequest(topic=topic, recall_handle=handle)
        case "ReceiveMessage":
            wanted = rpc.ReceiveMessageRequest(group=group, batch_size=4, auto_renew=True)
            wanted.message_queue.topic.CopyFrom(topic)
            wanted.message_queue.id = odd.random.choice((-1, -1, 0))
            wanted.long_polling_timeout.FromMilliseconds(odd.random.choice((0, 0, 0, 50)))
            return wanted
        case "PullMessage":
            pull = rpc.PullMessageRequest(group=group, message_queue=pb.MessageQueue(topic=topic))
            pull.long_polling_timeout.FromMilliseconds(odd.random.choice((0, 0, 0, 50)))
            return pull
        case "UpdateOffset":
            return rpc.UpdateOffsetRequest(group=group, message_queue=pb.MessageQueue(topic=topic))
        case "GetOffset":
            return rpc.GetOffsetRequest(group=group, message_queue=pb.MessageQueue(topic=topic))
        case "QueryOffset":
            query = rpc.QueryOffsetRequest(message_queue=pb.MessageQueue(topic=topic))
            query.query_offset_policy = odd.random.choice((pb.BEGINNING, pb.END, pb.TIMESTAMP))
            query.timestamp.GetCurrentTime()
            return query
        case "Telemetry":
            command = rpc.TelemetryCommand()
            command.settings.client_type = odd.random.choice((pb.PRODUCER, pb.PUSH_CONSUMER))
            if command.settings.client_type == pb.PRODUCER:
                command.settings.publishing.topics.append(topic)
            else:
                command.settings.subscription.group.CopyFrom(group)
                command.settings.subscription.subscriptions.add(topic=topic)
            return command
        case _:
            return rpc.NotifyClientTerminationRequest(group=group)


async def ask(raw: Raw, odd: Odd, name: str) -> None:
    """One odd request; what its answer gives out is used by later ones."""
    request = right(name, odd)
    odd.change(request, odd.random.choice((0, 1, 1, 2, 4)))
    data, metadata = odd.data(request), odd.metadata()
    if (what := STREAMS.get(name)) is not None:
        for part in await raw.streamed(what, data, metadata):
            if part.HasField("message") and part.message.system_properties.receipt_handle:
                odd.seen.append(part.message.system_properties.receipt_handle)
                odd.held.append(part.message.system_properties.receipt_handle)
    elif name == "Telemetry":
        again = right(name, odd)
        odd.change(again, 2)
        await raw.telemetry([data, odd.data(again)], metadata)
    else:
        answer = await raw.unary(name, next(u.answer for u in UNARY if u.name == name), data, metadata)
        for entry in getattr(answer, "entries", ()):
            for kept in ("transaction_id", "recall_handle"):
                if getattr(entry, kept, ""):
                    odd.seen.append(getattr(entry, kept))
    del odd.seen[:-50], odd.held[:-50]


@pytest.mark.parametrize("seed", range(2))
async def test_no_request_however_odd_is_answered_with_an_internal_error(
    gateway: GatewayProcess, seed: int
) -> None:
    odd = Odd(seed)
    names = [*(what.name for what in UNARY), *STREAMS, "Telemetry"]
    async with grpc.aio.insecure_channel(gateway.endpoint) as channel:
        raw = Raw(channel)
        for _ in range(ROUNDS):
            # Each RPC once, at the same time.
            await asyncio.gather(*(ask(raw, odd, name) for name in names))
        # That was no test if everything had been refused at the door, or nothing.
        assert len(raw.codes) > 40, raw.codes
        for name in (
            "SendMessage",
            "AckMessage",
            "QueryRoute",
            "QueryAssignment",
            "UpdateOffset",
            "GetOffset",
            "QueryOffset",
            "ReceiveMessage",
            "PullMessage",
            "Telemetry",
        ):
            assert raw.codes[f"{name} OK"], raw.codes

        topic, group = pb.Resource(name=f"sound-{seed}"), pb.Resource(name="sound-readers")
        metadata = [("x-mq-client-id", "sound")]
        sound = pb.Message(topic=topic, body=b"sound")
        sound.system_properties.message_id = make_message_id()
        request = rpc.SendMessageRequest(messages=[sound])
        sent = await raw.unary("SendMessage", rpc.SendMessageResponse, request.SerializeToString(), metadata)
        assert sent.status.code == Code.OK
        wanted = rpc.ReceiveMessageRequest(group=group, batch_size=1, auto_renew=True)
        wanted.message_queue.topic.CopyFrom(topic)
        receive = STREAMS["ReceiveMessage"]
        parts = await raw.streamed(receive, wanted.SerializeToString(), metadata)
        assert [part.message.body for part in parts if part.HasField("message")] == [b"sound"]
    assert '"level": "error"' not in gateway.log
    assert "Traceback" not in gateway.log
