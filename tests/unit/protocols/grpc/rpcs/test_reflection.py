"""Server reflection, asked by gRPC's own client package and, for v1, which it lacks, by hand."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2 as theirs
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from popgate.pb import definition_pb2, reflection_pb2, service_pb2
from protocols.grpc.rpcs.reflection import Reflection
from protocols.grpc.transport import CallFailed

SERVICES = [
    "apache.rocketmq.v2.MessagingService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
]
VERSIONS = ["grpc.reflection.v1", "grpc.reflection.v1alpha"]


def reflected(client: Any, version: str, timeout: float | None = 10) -> Any:
    method = client.channel.stream_stream(
        f"/{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=theirs.ServerReflectionRequest.SerializeToString,
        response_deserializer=theirs.ServerReflectionResponse.FromString,
    )
    return method(timeout=timeout)


async def ask(client: Any, version: str = VERSIONS[0], **what: Any) -> Any:
    stream = reflected(client, version)
    await stream.write(theirs.ServerReflectionRequest(**what))
    await stream.done_writing()
    answer = await stream.read()
    assert await stream.read() is grpc.aio.EOF
    return answer


async def test_grpcs_own_client_finds_every_service_with_all_of_its_messages(gateway: Any) -> None:
    def look() -> tuple[list[str], Any]:
        with grpc.insecure_channel(gateway.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(database)
            services = [pool.FindServiceByName(name) for name in database.get_services()]
            return [service.full_name for service in services], services[0]

    with ThreadPoolExecutor(1) as thread:
        names, messaging = await asyncio.get_running_loop().run_in_executor(thread, look)
    assert names == SERVICES
    ours = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
    assert [m.name for m in messaging.methods] == [m.name for m in ours.methods]
    for mine, told in zip(ours.methods, messaging.methods, strict=True):
        assert told.input_type.full_name == mine.input_type.full_name
        assert [f.name for f in told.output_type.fields] == [f.name for f in mine.output_type.fields]


@pytest.mark.parametrize("version", VERSIONS)
async def test_both_versions_tell_the_same(client: Any, version: str) -> None:
    listed = await ask(client, version, list_services="", host="here")
    assert [service.name for service in listed.list_services_response.service] == SERVICES
    assert (listed.valid_host, listed.original_request.host) == ("here", "here")
    found = await ask(client, version, file_containing_symbol=f"{version}.ServerReflection")
    [file] = found.file_descriptor_response.file_descriptor_proto
    pool = DescriptorPool()
    pool.AddSerializedFile(file)
    [method] = pool.FindServiceByName(f"{version}.ServerReflection").methods
    assert method.input_type.full_name == f"{version}.ServerReflectionRequest"
    assert method.output_type.full_name == f"{version}.ServerReflectionResponse"
    by_name = await ask(client, file_by_filename=f"{version.replace('.', '/')}/reflection.proto")
    assert by_name.file_descriptor_response.file_descriptor_proto == [file]


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("apache.rocketmq.v2.MessagingService", service_pb2),
        ("apache.rocketmq.v2.MessagingService.QueryRoute", service_pb2),
        ("apache.rocketmq.v2.Message", definition_pb2),
        ("apache.rocketmq.v2.Message.body", definition_pb2),
        ("apache.rocketmq.v2.Code", definition_pb2),
    ],
)
async def test_a_symbol_is_found_with_all_that_its_file_imports(client: Any, symbol: str, file: Any) -> None:
    answer = await ask(client, file_containing_symbol=symbol)
    files = list(answer.file_descriptor_response.file_descriptor_proto)
    assert files[0] == file.DESCRIPTOR.serialized_pb
    assert len(files) == len(set(files))
    pool = DescriptorPool()
    for data in reversed(files):
        pool.AddSerializedFile(data)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"file_containing_symbol": "no.such.Thing"}, 5),
        ({"file_containing_symbol": "apache.rocketmq.v2.MessagingService.Nothing"}, 5),
        ({"file_containing_symbol": "grpc.reflection.v1alpha.Nothing"}, 5),
        ({"file_containing_symbol": ""}, 5),
        ({"file_by_filename": "../../etc/passwd"}, 5),
        ({"all_extension_numbers_of_type": "no.such.Thing"}, 5),
        (
            {
                "file_containing_extension": theirs.ExtensionRequest(
                    containing_type="apache.rocketmq.v2.Message", extension_number=1
                )
            },
            5,
        ),
        ({}, 3),
    ],
)
async def test_what_is_not_there_is_told_in_the_answer(client: Any, what: Any, code: int) -> None:
    answer = await ask(client, **what)
    assert answer.error_response.error_code == code
    assert answer.error_response.error_message


async def test_a_message_without_extensions_has_none(client: Any) -> None:
    answer = await ask(client, all_extension_numbers_of_type="apache.rocketmq.v2.Message")
    told = answer.all_extension_numbers_response
    assert (told.base_type_name, list(told.extension_number)) == ("apache.rocketmq.v2.Message", [])


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\x0a" + b"\xff" * 40_000, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_bytes_that_are_no_question_end_the_stream(client: Any, question: bytes, status: Any) -> None:
    method = client.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    stream = method(timeout=60)
    await stream.write(question)
    assert await stream.code() is status


class Deaf:
    """A client that asks and does not read."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def read(self) -> bytes | None:
        return theirs.ServerReflectionRequest(list_services="").SerializeToString()

    async def write(self, _answer: bytes) -> None:
        self.asked.set()
        await asyncio.get_running_loop().create_future()


async def test_a_stream_counts_also_while_its_client_does_not_read() -> None:
    reflection = Reflection(("grpc.health.v1.Health",), most_streams=2)
    clients = [Deaf() for _ in range(2)]
    serving = [asyncio.ensure_future(reflection.serve(one)) for one in clients]
    for one in clients:
        await one.asked.wait()
    with pytest.raises(CallFailed, match="the limit of 2 reflections"):
        await reflection.serve(Deaf())
    for task in serving:
        task.cancel()
    await asyncio.wait(serving)
    free = Deaf()
    again = asyncio.ensure_future(reflection.serve(free))
    await asyncio.wait_for(free.asked.wait(), 60)
    again.cancel()


async def test_streams_have_a_bound_and_a_drain_ends_them(town: Any, gateway: Any, client: Any) -> None:
    open_ones = [reflected(client, VERSIONS[0], None) for _ in range(64)]
    for stream in open_ones:
        await stream.write(theirs.ServerReflectionRequest(list_services=""))
        await stream.read()
    late = reflected(client, VERSIONS[0])
    assert await late.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    draining = asyncio.ensure_future(gateway.adapter.drain(gateway.clock.monotonic() + 60))
    assert await asyncio.wait_for(open_ones[0].read(), 60) is grpc.aio.EOF
    await asyncio.wait_for(draining, 60)


async def test_it_can_be_switched_off(town: Any) -> None:
    client = town.client(await town.gateway(reflection=False))
    stream = reflected(client, VERSIONS[0])
    assert await stream.code() is grpc.StatusCode.UNIMPLEMENTED


def test_its_messages_are_those_of_grpcs_own_package() -> None:
    ours, other = reflection_pb2.DESCRIPTOR.message_types_by_name, theirs.DESCRIPTOR.message_types_by_name
    assert ours.keys() == other.keys()
    for name, message in ours.items():
        mine = {(f.number, f.name, f.type, f.is_repeated) for f in message.fields}
        assert mine == {(f.number, f.name, f.type, f.is_repeated) for f in other[name].fields}, name


def test_nothing_of_it_is_loaded_until_somebody_asks() -> None:
    program = (
        "import sys, protocols.grpc.adapter\n"
        "loaded = [m for m in sys.modules if 'reflection_pb2' in m or 'descriptor_pb2' in m]\n"
        "sys.exit(repr(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
