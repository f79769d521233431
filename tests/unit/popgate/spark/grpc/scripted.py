"""A gRPC server whose answers a test gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.queue_client import QueuePlace
from tests.support.waiting import PATIENCE_S

OK = pb.Status(code=pb.OK, message="OK")
QUEUE = QueuePlace("t", "broker-a", 0)


class Scripted(grpc.GenericRpcHandler):
    """`answers`, by the name of the call: answers in turn, the last one again and again, or what makes them.

    Calls without any are not known here; every queue is there. An answer to PullMessage is a list of
    elements; one that is a StatusCode ends the call with it, and in a list breaks the stream off.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {"QueryOffset": [rpc.QueryOffsetResponse(status=OK)]}
        self.requests: list[tuple[str, Any, dict[str, str]]] = []
        self._ended = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._ended.set()
        self._server.stop(None).wait()

    def hang(self, _request: Any) -> grpc.StatusCode:
        """An answer that does not come as long as the server is there."""
        self._ended.wait(PATIENCE_S)
        return grpc.StatusCode.INTERNAL

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        name = handler_call_details.method.rpartition("/")[2]
        if name not in self.answers:
            return None

        def next_answer(request: Any, context: grpc.ServicerContext) -> Any:
            self.requests.append((name, request, dict(context.invocation_metadata())))
            answers = self.answers[name]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            return answer(request) if callable(answer) else answer

        def one(request: Any, context: grpc.ServicerContext) -> Any:
            return _given(next_answer(request, context), context)

        def many(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            answer = next_answer(request, context)
            for element in answer if isinstance(answer, list) else [answer]:
                yield _given(element, context)

        handle = grpc.unary_stream_rpc_method_handler if name == "PullMessage" else None
        return (handle or grpc.unary_unary_rpc_method_handler)(
            many if handle else one,
            request_deserializer=getattr(rpc, f"{name}Request").FromString,
            response_serializer=getattr(rpc, f"{name}Response").SerializeToString,
        )


def _given(answer: Any, context: grpc.ServicerContext) -> Any:
    if isinstance(answer, grpc.StatusCode):
        context.abort(answer, "as the test has it")
    return answer


def message(offset: int, body: bytes = b"body") -> rpc.PullMessageResponse:
    system = pb.SystemProperties(message_id=f"ID{offset}", queue_offset=offset, body_encoding=pb.IDENTITY)
    system.born_timestamp.FromMilliseconds(1_700_000_000_000)
    system.store_timestamp.FromMilliseconds(1_700_000_000_000)
    return rpc.PullMessageResponse(
        message=pb.Message(topic=pb.Resource(name="t"), body=body, system_properties=system)
    )


def pulled(
    next_offset: int | None, messages: Sequence[rpc.PullMessageResponse] = (), status: pb.Status = OK
) -> list[Any]:
    """The elements of a pull; `next_offset` None: it ends without one."""
    elements: list[Any] = [rpc.PullMessageResponse(status=status), *messages]
    return elements if next_offset is None else [*elements, rpc.PullMessageResponse(next_offset=next_offset)]
