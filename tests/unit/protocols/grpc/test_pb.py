"""The generated code is what the .proto files say, and says what the official client's says."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto
from grpc_health.v1 import health_pb2 as their_health
from rocketmq.grpc_protocol import definition_pb2 as their_definition
from rocketmq.grpc_protocol import service_pb2 as their_service

import popgate.pb
from popgate.pb import definition_pb2, duration_pb2, health_pb2, service_pb2, timestamp_pb2

ROOT = Path(__file__).resolve().parents[4]

OURS_ONLY = {
    "message Settings.client_properties",
    "message Settings.ClientPropertiesEntry.key",
    "message Settings.ClientPropertiesEntry.value",
    "enum Code.INVALID_CLIENT_PROPERTIES",
}
"""What the public interface has (protocol facts 1.10) and the client's package, which is older, lacks."""


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def facts(file: FileDescriptorProto) -> Iterator[tuple[str, object]]:
    """Every name of a file with all that decides how it looks on the wire and in a program."""
    for message in file.message_type:
        yield from _message("", message)
    for enum in file.enum_type:
        yield from _enum("", enum)
    for service in file.service:
        for method in service.method:
            yield (
                f"rpc {service.name}.{method.name}",
                (method.input_type, method.output_type, method.client_streaming, method.server_streaming),
            )


def _message(prefix: str, message: DescriptorProto) -> Iterator[tuple[str, object]]:
    name = prefix + message.name
    yield f"message {name}", bool(message.options.map_entry)
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        yield (
            f"message {name}.{field.name}",
            (field.number, field.type, field.label, field.type_name, oneof, field.proto3_optional),
        )
    for nested in message.nested_type:
        yield from _message(name + ".", nested)
    for enum in message.enum_type:
        yield from _enum(name + ".", enum)


def _enum(prefix: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, object]]:
    yield f"enum {prefix}{enum.name}", len(prefix)
    for value in enum.value:
        yield f"enum {prefix}{enum.name}.{value.name}", value.number


def described(*modules: ModuleType, package: str = "apache.rocketmq.v2") -> dict[str, object]:
    found: dict[str, object] = {}
    for module in modules:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        assert file.package == package
        assert file.syntax == "proto3"
        found.update(facts(file))
    return found


def test_every_name_number_type_label_oneof_and_presence_equals_the_official_clients() -> None:
    ours = described(definition_pb2, service_pb2)
    theirs = described(their_definition, their_service)
    assert len(theirs) > 350
    differing = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    assert differing == OURS_ONLY | {"message Settings.ClientPropertiesEntry"}


def test_the_health_check_is_the_one_of_grpcs_own_package_without_its_list() -> None:
    ours = described(health_pb2, package="grpc.health.v1")
    theirs = described(their_health, package="grpc.health.v1")
    assert len(ours) > 10
    assert {name: theirs.get(name) for name in ours} == ours
    assert all("List" in name for name in theirs.keys() - ours.keys())


def test_both_are_loaded_in_one_process_and_read_each_others_bytes() -> None:
    assert definition_pb2.DESCRIPTOR.pool is not their_definition.DESCRIPTOR.pool
    ours = definition_pb2.Message(body=b"hi")
    ours.system_properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
    theirs = their_definition.Message.FromString(ours.SerializeToString())
    assert theirs.body == b"hi"
    assert theirs.system_properties.born_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert definition_pb2.Message.FromString(theirs.SerializeToString()) == ours


def test_the_well_known_types_come_from_the_private_pool_too() -> None:
    settings = definition_pb2.Settings(request_timeout=duration_pb2.Duration(seconds=3))
    assert settings.request_timeout.ToMilliseconds() == 3000
    assert definition_pb2.DESCRIPTOR.pool.FindMessageTypeByName("google.protobuf.Timestamp") is (
        timestamp_pb2.Timestamp.DESCRIPTOR
    )


def test_the_committed_code_is_what_the_generator_makes(generator: ModuleType, tmp_path: Path) -> None:
    generator.generate(tmp_path)
    committed = Path(next(iter(popgate.pb.__path__)))
    names = {p.name for p in committed.iterdir() if p.suffix in {".py", ".pyi"}}
    assert names == {p.name for p in tmp_path.iterdir()}
    for name in sorted(names):
        assert (committed / name).read_text() == (tmp_path / name).read_text(), f"{name}: run `make proto`"
