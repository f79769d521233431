"""The budget by stages: what a sample counts for."""

from __future__ import annotations

from benchmarks.stages import shares, stage_of

BELOW = "main (proxy/served.py:9);run (asyncio/runners.py:118);buffer_updated (popgate/driving.py:107)"
CALL = f"{BELOW};Running._step (protocols/stepping.py:90);Door.unary (protocols/grpc/rpcs.py:210)"


def test_a_sample_counts_for_the_innermost_function_that_has_a_stage() -> None:
    raw = "\n".join(
        (
            f"{BELOW} 1",
            f"{BELOW};Connection._read (protocols/grpc/http2/connection.py:140) 2",
            f"{BELOW};WireDriver._write (popgate/driving.py:77) 3",
            f"{CALL} 4",
            f"{CALL};message_in (protocols/grpc/convert.py:80);monotonic (popgate/clock.py:41) 5",
            f"{CALL};send (processors/messaging.py:149);Sending.send (brokers/remote/sending.py:74) 6",
            f"{CALL};send (processors/messaging.py:149) 7",
        )
    )
    assert shares(raw) == {
        "HTTP/2 and gRPC framing": 3,
        "socket write": 3,
        "door": 4,
        "convert and encode": 5,
        "broker": 6,
        "processor": 7,
    }
    assert stage_of(["wait (threading.py:1)"]) == "other"
