"""Remoting: round trips, any cut gives the same events, mutated bytes raise only PeerWireError."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popgate.errors import PeerWireError
from popgate.wire.bodies.pop_info import PopInfo, decode_bits, encode_bits, encode_pop_info, parse_pop_info
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.bodies.static_topics import QueueMapping
from popgate.wire.frames.headers import LANGUAGES, Serialization
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command
from popgate.wire.frames.signature import sign, verify
from popgate.wire.json_syntax.fastjson import dumps, dumps_keyed, loads, object_key
from popgate.wire.json_syntax.jsontext import dumps_plain, loads_plain

INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
COUNT = st.integers(0, 1 << 40)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FIELDS = st.dictionaries(TEXT, TEXT, max_size=6)
SHORT = st.integers(-(1 << 15) + 1, (1 << 15) - 1)
LANGUAGE = st.sampled_from(LANGUAGES)


def commands(code: st.SearchStrategy[int], way: Serialization) -> st.SearchStrategy[Command]:
    return st.builds(
        Command, code, INT, INT, FIELDS, st.binary(max_size=40), TEXT, LANGUAGE, SHORT, st.just(way)
    )


COMMAND = commands(INT, Serialization.JSON) | commands(SHORT, Serialization.ROCKETMQ)
STREAM = st.lists(COMMAND, max_size=4)
VALUE = st.recursive(
    st.none() | st.booleans() | LONG | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
QUEUE = st.fixed_dictionaries({"brokerName": TEXT, "queueId": INT, "topic": TEXT})


def drain(wire: RemotingWire) -> list[Command]:
    return list(iter(wire.next_event, None))


@given(COMMAND)
def test_a_command_comes_back(command: Command) -> None:
    wire = RemotingWire()
    wire.receive(encode_command(command))
    assert drain(wire) == [command]


@given(STREAM, st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_any_cut_gives_the_same_events(stream: list[Command], cuts: list[int]) -> None:
    data = b"".join(map(encode_command, stream))
    wire = RemotingWire()
    seen: list[Command] = []
    at = turn = 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        wire.receive(data[at : at + size])
        if turn % 3:  # sometimes nobody looks
            seen += drain(wire)
        at, turn = at + size, turn + 1
    wire.receive(b"")
    assert seen + drain(wire) == stream


@given(STREAM, st.data())
def test_mutated_bytes_raise_only_peer_wire_error(stream: list[Command], data: st.DataObject) -> None:
    changed = bytearray(b"".join(map(encode_command, stream)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        changed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    wire = RemotingWire()
    wire.receive(changed)
    read: list[Command] = []
    failed: PeerWireError | None = None
    try:
        while (command := wire.next_event()) is not None:
            read.append(command)
    except PeerWireError as error:
        failed = error
    # What was read before the damage is whole: it is written again as the same.
    again = RemotingWire()
    again.receive(b"".join(map(encode_command, read)))
    assert drain(again) == read
    if failed is not None:
        with pytest.raises(PeerWireError):
            wire.next_event()


@given(VALUE)
def test_json_comes_back_by_both_ways(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert loads_plain(dumps(value)) == value
    assert loads(dumps_plain(value)) == value


@given(st.dictionaries(st.integers(-99, 99), VALUE, min_size=1, max_size=4))
def test_numbers_as_keys_are_read_as_if_they_stood_in_quotes(table: dict[int, Any]) -> None:
    bare = b"{%b}" % b",".join(b"%d:%b" % (key, dumps(value)) for key, value in table.items())
    assert loads(bare) == json.loads(json.dumps(table))


@given(st.lists(st.tuples(QUEUE, VALUE), max_size=4))
def test_objects_as_keys_come_back(pairs: list[tuple[dict[str, Any], Any]]) -> None:
    table = {object_key(queue): value for queue, value in pairs}
    assert loads(dumps_keyed({"t": table})) == {"t": table}


@given(st.binary(max_size=60) | st.text('{}[]:,"\\0 a$ref', max_size=40).map(str.encode))
def test_any_text_is_read_or_refused(data: bytes) -> None:
    try:
        value = loads(data)
    except PeerWireError:
        return
    dumps_keyed(value)


@given(
    st.lists(
        st.builds(QueueData, TEXT, st.integers(0, 999), st.integers(0, 999), st.integers(0, 7), INT),
        max_size=3,
    ),
    st.lists(
        st.builds(BrokerData, TEXT, TEXT, st.dictionaries(COUNT, TEXT, max_size=3), TEXT, st.booleans()),
        max_size=3,
    ),
    TEXT,
    st.dictionaries(
        TEXT,
        st.builds(
            QueueMapping,
            TEXT,
            TEXT,
            st.integers(0, 99),
            TEXT,
            LONG,
            st.booleans(),
            st.dictionaries(INT, INT, max_size=3),
        ),
        max_size=2,
    ),
)
def test_a_route_comes_back(
    queues: list[QueueData], brokers: list[BrokerData], conf: str, mappings: dict[str, QueueMapping]
) -> None:
    route = TopicRoute(tuple(queues), tuple(brokers), conf, mappings)
    assert TopicRoute.decode(route.encode()) == route


@given(st.integers(0, 1 << 62), st.sets(st.integers(0, 300), max_size=20))
def test_the_bits_of_a_batch_acknowledgement_come_back(start: int, bits: set[int]) -> None:
    offsets = sorted(start + bit for bit in bits)
    assert decode_bits(encode_bits(offsets, start), start) == offsets


PLACE = st.tuples(st.integers(0, 2), st.integers(0, 99))


@given(
    st.builds(
        PopInfo,
        COUNT,
        COUNT,
        st.integers(0, 999),
        COUNT,
        st.dictionaries(PLACE, COUNT, max_size=3),
        st.dictionaries(PLACE, st.lists(COUNT, min_size=1, max_size=4), max_size=3),
        st.dictionaries(PLACE, COUNT, max_size=3),
        st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 99), COUNT), COUNT, max_size=3),
    )
)
def test_the_fields_of_a_pop_answer_come_back(info: PopInfo) -> None:
    assert parse_pop_info(encode_pop_info(info)) == info


@given(FIELDS, st.binary(max_size=20), TEXT, TEXT)
def test_what_is_signed_is_verified(fields: dict[str, str], body: bytes, access: str, secret: str) -> None:
    signed = fields | sign(fields, body, access, secret)
    assert verify(signed, body, secret, 479)
    assert not verify(signed, body + b"x", secret, 479)
