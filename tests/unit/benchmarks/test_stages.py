"""The budget by stages: what a sample counts for."""

from __future__ import annotations

import pytest

from benchmarks.stages import shares, stage_of

DRIVER = "popgate/sockets/wire_driver.py"
BELOW = f"main (proxy/serve_process.py:9);run (asyncio/runners.py:118);buffer_updated ({DRIVER}:107)"
DISPATCHER = "protocols/grpc/rpcs/dispatcher.py"
RECEIVED = "protocols/grpc/codec/received_message.py"
CALL = f"{BELOW};EagerTask._step (protocols/eager_tasks.py:90);Door.unary ({DISPATCHER}:210)"


def test_a_sample_counts_for_the_innermost_function_that_has_a_stage() -> None:
    raw = "\n".join(
        (
            f"{BELOW} 1",
            f"{BELOW};Connection._read (protocols/grpc/http2/frames/connection.py:140) 2",
            f"{BELOW};WireDriver._write (popgate/sockets/wire_driver.py:77) 3",
            f"{CALL} 4",
            f"{CALL};message_in (protocols/grpc/codec/convert.py:80);monotonic (popgate/clock.py:41) 5",
            f"{CALL};encode_sent (protocols/grpc/codec/packer.py:165);varint ({RECEIVED}:70) 8",
            f"{CALL};send (processors/messaging.py:149);Sending.send (brokers/remote/produce/send.py:74) 6",
            f"{CALL};send (processors/messaging.py:149) 7",
        )
    )
    assert shares(raw) == {
        "HTTP/2 and gRPC framing": 3,
        "handing to the socket": 3,
        "door": 4,
        "conversion": 5,
        "encoding answers": 8,
        "broker": 6,
        "processor": 7,
    }
    assert stage_of(["wait (threading.py:1)"]) == "other"


@pytest.mark.parametrize(
    ("innermost", "stage"),
    [
        ("write (libc.so.6)", "system calls"),
        ("__writev (/usr/lib/x86_64-linux-gnu/libc.so.6)", "system calls"),
        ("__libc_recv (/lib/libc-2.31.so)", "system calls"),
        ("epoll_pwait (libc.so.6)", "system calls"),
        ("fdatasync (/lib64/libc.so.6)", "system calls"),
        ("pwrite64 (/lib64/libc.so.6)", "system calls"),
        ("malloc (/lib64/libc.so.6)", "door"),
        ("readlink (libc.so.6)", "door"),
        ("upb_Message_GetField (_message.abi3.so)", "protobuf"),
        ("UVStream__exec_write (loop.c:107733)", "event loop"),
        ("uv__io_poll (linux.c:1452)", "event loop"),
        ("rocksdb::(anonymous namespace)::SkipListRep::Allocate (rocksdict/rocksdict.so)", "RocksDB"),
        ("PyDict_GetItem (/usr/bin/python3.11)", "door"),
        ("split_properties (popgate/wire/messages/properties.py:60)", "door"),
        ("decode_record (popgate/wire/messages/records.py:60)", "broker: wire"),
    ],
)
def test_functions_in_c_have_stages_or_count_for_who_calls_them(innermost: str, stage: str) -> None:
    assert stage_of([innermost, *reversed(CALL.split(";"))]) == stage


def test_a_thread_that_waits_for_work_gives_no_sample() -> None:
    worker = "_bootstrap (threading.py:995);_worker (concurrent/futures/thread.py:81)"
    write = (
        "_WorkItem.run (concurrent/futures/thread.py:58);Store._write (brokers/embedded/storage/store.py:260)"
    )
    raw = f"{worker} 9\n{worker};_queue_SimpleQueue_get (_queuemodule.c.h:177) 8\n{worker};{write} 7"
    assert shares(raw) == {"broker": 7}
