"""gRPC's server reflection (`grpc.reflection.v1` and `v1alpha`): the served API, for tools like grpcurl.

It answers from the private descriptor pool. Until the first request only this module of it is
loaded. Source: the comments of gRPC's reflection.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from popgate.pb.pool import POOL
from protocols.drain import LongPolls
from protocols.grpc.transport import CallFailed, CallStatus

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

    from popgate.pb.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

V1: Final = "grpc.reflection.v1"
V1_ALPHA: Final = "grpc.reflection.v1alpha"
SERVICES: Final = (f"{V1}.ServerReflection", f"{V1_ALPHA}.ServerReflection")
METHOD: Final = "ServerReflectionInfo"
"""The same bytes in both versions: only their package has another name."""

_MOST_STREAMS = 64
_LONGEST = 4096
"""Bytes of a question; it is repeated in its answer."""


class Raw(Protocol):
    """A stream of bytes both ways."""

    async def read(self) -> bytes | None:
        """None when the client sends no more. Raises BrokenStream."""
        ...

    async def write(self, answer: bytes) -> None:
        """Raises BrokenStream."""
        ...


class Reflection:
    """Tells of `services`, each of which the pool knows, and of itself."""

    def __init__(self, services: tuple[str, ...], *, most_streams: int = _MOST_STREAMS) -> None:
        self._services = sorted({*services, *SERVICES})
        self._most_streams = most_streams
        self._open = 0
        """Streams: those that wait for a question, and those that wait until an answer is read."""
        self._streams = LongPolls()

    def __repr__(self) -> str:
        return f"<Reflection open {self._open}>"

    async def serve(self, stream: Raw) -> None:
        """Answer until the client ends the stream. Raises CallFailed, BrokenStream."""
        if self._open >= self._most_streams:
            raise CallFailed(
                CallStatus.RESOURCE_EXHAUSTED, f"the limit of {self._most_streams} reflections is reached"
            )
        self._open += 1
        try:
            while (question := await self._streams.wait(stream.read())) is not None:
                await stream.write(self.answer(question))
        finally:
            self._open -= 1

    def drain(self) -> None:
        """End the streams."""
        self._streams.end()

    def answer(self, data: bytes) -> bytes:
        """The answer to one question. Raises CallFailed for bytes that are none."""
        from popgate.pb.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

        if len(data) > _LONGEST:
            raise CallFailed(
                CallStatus.RESOURCE_EXHAUSTED, f"the question has {len(data)} bytes, the limit is {_LONGEST}"
            )
        try:
            question = ServerReflectionRequest.FromString(data)
        except DecodeError:
            raise CallFailed(
                CallStatus.INVALID_ARGUMENT, "the bytes are no ServerReflectionRequest"
            ) from None
        answer = ServerReflectionResponse(valid_host=question.host, original_request=question)
        self._fill(answer, question)
        return answer.SerializeToString()

    def _fill(self, answer: ServerReflectionResponse, question: ServerReflectionRequest) -> None:
        try:
            match question.WhichOneof("message_request"):
                case "list_services":
                    for name in self._services:
                        answer.list_services_response.service.add(name=name)
                case "file_by_filename":
                    answer.file_descriptor_response.file_descriptor_proto.extend(
                        _by_name(question.file_by_filename)
                    )
                case "file_containing_symbol":
                    answer.file_descriptor_response.file_descriptor_proto.extend(
                        _by_symbol(question.file_containing_symbol)
                    )
                case "all_extension_numbers_of_type":
                    # The pool has no extensions; that the type is known is all that can be told.
                    POOL.FindMessageTypeByName(question.all_extension_numbers_of_type)
                    numbers = answer.all_extension_numbers_response
                    numbers.base_type_name = question.all_extension_numbers_of_type
                case "file_containing_extension":
                    raise KeyError
                case _:
                    _refuse(answer, CallStatus.INVALID_ARGUMENT, "nothing is asked")
        except KeyError:
            _refuse(answer, CallStatus.NOT_FOUND, "that is not known here")


def _refuse(answer: ServerReflectionResponse, code: CallStatus, sentence: str) -> None:
    answer.error_response.error_code = code
    answer.error_response.error_message = sentence


def _by_name(name: str) -> list[bytes]:
    """Raises KeyError."""
    if name == _ALPHA_FILE:
        return [_alpha()]
    return _with_imports(POOL.FindFileByName(name))


def _by_symbol(symbol: str) -> list[bytes]:
    """Raises KeyError."""
    if symbol == V1_ALPHA or symbol.startswith(f"{V1_ALPHA}."):
        _file_with(symbol.replace(V1_ALPHA, V1, 1))
        return [_alpha()]
    return _with_imports(_file_with(symbol))


def _file_with(symbol: str) -> FileDescriptor:
    """Raises KeyError. The pool finds all but methods by itself."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        owner, _, method = symbol.rpartition(".")
        service = POOL.FindServiceByName(owner)
        if method not in service.methods_by_name:
            raise
        return service.file


def _with_imports(file: FileDescriptor) -> list[bytes]:
    """The file and all its imports, each once, imports after the files that import them."""
    files: dict[str, bytes] = {}

    def visit(described: FileDescriptor) -> None:
        if described.name not in files:
            for imported in described.dependencies:
                visit(imported)
            files[described.name] = described.serialized_pb

    visit(file)
    return list(reversed(files.values()))


_ALPHA_FILE: Final = "grpc/reflection/v1alpha/reflection.proto"


def _alpha() -> bytes:
    """The file of v1, with the package of v1alpha."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    import popgate.pb.reflection_pb2 as v1

    file = FileDescriptorProto()
    v1.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = _ALPHA_FILE, V1_ALPHA
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = _renamed(field.type_name)
    for service in file.service:
        for method in service.method:
            method.input_type, method.output_type = _renamed(method.input_type), _renamed(method.output_type)
    return file.SerializeToString(deterministic=True)


def _renamed(name: str) -> str:
    return name.replace(f".{V1}.", f".{V1_ALPHA}.")
