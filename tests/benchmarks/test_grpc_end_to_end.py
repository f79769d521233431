from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    lines = measured("grpc_end_to_end.py")
    assert [line.split()[0] for line in lines] == [
        "grpc.send_1",
        "grpc.receive_and_ack_1",
        "grpc.send_32",
        "grpc.receive_and_ack_32",
    ]
    form = re.compile(r"grpc\.\w+ \d+ msgs/s \d+\.\d us/msg of server CPU")
    assert [line for line in lines if not form.fullmatch(line)] == []
