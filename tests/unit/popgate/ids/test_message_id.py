import os
import re
import time
from datetime import UTC, datetime

import pytest

from popgate.ids.message_id import decode_offset_message_id, encode_offset_message_id, make_message_id


def test_a_new_id_has_the_form_of_grpc_clients() -> None:
    assert re.fullmatch(r"01[0-9A-F]{32}", make_message_id())


def test_new_ids_differ() -> None:
    assert len({make_message_id() for _ in range(10_000)}) == 10_000


def test_the_seconds_count_from_2021() -> None:
    begin_2021 = datetime(2021, 1, 1, tzinfo=UTC).timestamp()
    before = int(time.time() - begin_2021)
    told = int(make_message_id()[18:26], 16)
    assert before <= told <= int(time.time() - begin_2021)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_makes_other_ids() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, make_message_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 64).decode()
    os.close(reader)
    os.close(writer)
    assert len(theirs) == 34
    assert theirs[2:14] != make_message_id()[2:14]


@pytest.mark.parametrize(
    ("host", "offset", "text"),
    [
        ("10.0.0.1:10911", 123456789, "0A00000100002A9F00000000075BCD15"),
        ("[::1]:10911", 5, "0" * 31 + "100002A9F0000000000000005"),
        ("0.0.0.0:0", 0, "0" * 32),
    ],
)
def test_an_offset_id_names_host_and_offset(host: str, offset: int, text: str) -> None:
    assert encode_offset_message_id(host, offset) == text
    assert decode_offset_message_id(text) == (host, offset)
    assert decode_offset_message_id(text.lower()) == (host, offset)


@pytest.mark.parametrize(
    "text",
    ["", "0" * 31, "0" * 33, "0" * 34, "0" * 55, "x" * 32, "0A 0" * 8, "０" * 32, "0" * 30 + "\n0"],
)
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_offset_message_id(text)


def test_the_id_of_a_client_is_no_offset_id() -> None:
    with pytest.raises(ValueError):
        decode_offset_message_id(make_message_id())
