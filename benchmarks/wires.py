"""What the wires cost: one line per figure, to be compared with the line of another run.

    python benchmarks/wires.py            # a few seconds
    python benchmarks/wires.py --quick    # a moment; proves only that it runs

Each figure is the best of several runs, in microseconds of one operation on one core.
"""

from __future__ import annotations

import argparse
import sys
import timeit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from popgate.filters.compiled import compile_filter
from popgate.ids.hashes import consistent_hash
from popgate.ids.message_id import make_message_id
from popgate.model import FilterKind
from popgate.sql import SqlFilter
from popgate.wire.bodies.pop_info import parse_pop_info
from popgate.wire.bodies.routes import decode_route
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command
from popgate.wire.frames.signature import sign
from popgate.wire.json_syntax.fastjson import loads
from popgate.wire.messages.batches import BatchItem, decode_batch, encode_batch
from popgate.wire.messages.compression import compress_gzip, decompress
from popgate.wire.messages.properties import decode_properties, encode_properties, find_property, set_property
from popgate.wire.messages.record_reader import RecordReader
from popgate.wire.messages.records import (
    decode_record,
    decode_records,
    encode_record,
    pack_host,
    place_record,
    record_properties,
)
from protocols.grpc.http2.hpack.decoder import HeaderDecoder, encode_fields
from protocols.grpc.http2.hpack.huffman import decode as decode_huffman

HOST = pack_host("10.0.0.1:10911")
BODY = bytes(range(256)) * 4
TABLE = {
    "UNIQ_KEY": make_message_id(),
    "TAGS": "TagA",
    "KEYS": "order-1 order-2",
    "__SHARDINGKEY": "customer-17",
    "region": "north",
    "amount": "42",
}
BLOCK = encode_properties(TABLE)


def encode() -> bytes:
    return encode_record(
        b"orders",
        3,
        1_000_000,
        4096,
        BODY,
        BLOCK,
        sys_flag=0,
        flag=0,
        born_ms=1_700_000_000_000,
        born_host=HOST,
        store_ms=1_700_000_000_001,
        store_host=HOST,
    )


RECORD = encode()
STREAM = RECORD * 32
BATCH = [BatchItem(0, BODY, BLOCK)] * 32
PACKED_BATCH = encode_batch(BATCH)
GZIP = compress_gzip(BODY)
TAG = compile_filter(FilterKind.TAG, "TagB || TagA || TagC")
SQL = compile_filter(FilterKind.SQL92, "region = 'north' AND amount BETWEEN 10 AND 100 OR vip = TRUE")
SQL_TEXT = SQL.expression
SEND_FIELDS = {
    "a": "producers",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": BLOCK.decode(),
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}
POP_FIELDS = {
    "popTime": "1700000000000",
    "invisibleTime": "60000",
    "reviveQid": "3",
    "restNum": "0",
    "startOffsetInfo": "0 0 100;0 1 90",
    "msgOffsetInfo": "0 0 100,101,102,103;0 1 90,91,92,93",
}
SEND_JSON = Command(RequestCode.SEND_MESSAGE_V2, 7, 0, SEND_FIELDS, BODY)
SEND_BINARY = replace(SEND_JSON, serialization=Serialization.ROCKETMQ)
ANSWER_FIELDS = {"msgId": "0A00000100002A9F00000000075BCD15", "queueId": "3", "queueOffset": "9"}
FRAME_JSON, FRAME_BINARY = encode_command(SEND_JSON), encode_command(SEND_BINARY)
FRAME_ANSWER = encode_command(SEND_JSON.answer(0, "", ANSWER_FIELDS))
WIRE = RemotingWire()
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{%b:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"C",'
    b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
    b'"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
)
ROUTE_QUOTED, ROUTE_BARE = ROUTE % b'"0"', ROUTE % b"0"

REQUEST_ID = b"5a3c1b9e-7d20-4f86-9a41-0c6e8b2f7d13"
REQUEST_ID_HUFFMAN = bytes.fromhex("6c6c9031be559d904059a95e7167c6d056011c2bd18a57640b3f")
REFERENCES = bytes((131, 134, *range(190, 201)))
"""A method, a scheme and the eleven newest entries of a table: what a call says each time."""
ENTERING = b"\x40\x0fx-mq-request-id"
FRESH = REFERENCES + ENTERING + bytes((len(REQUEST_ID),)) + REQUEST_ID
FRESH_HUFFMAN = REFERENCES + ENTERING + bytes((128 + len(REQUEST_ID_HUFFMAN),)) + REQUEST_ID_HUFFMAN
REMEMBERING, CHANGING, FORGETFUL = HeaderDecoder(), HeaderDecoder(), HeaderDecoder(remembered=0)
for decoder in (REMEMBERING, CHANGING, FORGETFUL):
    for _ in range(100):
        decoder.decode(FRESH[len(REFERENCES) :])
ANSWER = ((":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0"))


def decode_frame(frame: bytes) -> object:
    WIRE.receive(frame)
    return WIRE.next_event()


def read_stream() -> None:
    reader = RecordReader()
    for at in range(0, len(STREAM), 4096):
        reader.receive(STREAM[at : at + 4096])
        while reader.next_event() is not None:
            pass


# name, operation, how many messages (or whatever the name says) one call handles
FIGURES: list[tuple[str, Callable[[], object], int]] = [
    ("records.encode", encode, 1),
    ("records.decode", lambda: decode_record(RECORD), 1),
    ("records.decode_32", lambda: list(decode_records(STREAM)), 32),
    ("records.decode_verified", lambda: decode_record(RECORD, verify=True), 1),
    (
        "records.place",
        lambda: place_record(RECORD, queue_id=1, offset=2, commit_offset=3, store_ms=1_700_000_000_002),
        1,
    ),
    ("records.properties", lambda: record_properties(RECORD), 1),
    ("record_reader.stream_4k", read_stream, 32),
    ("remoting.encode_json", lambda: encode_command(SEND_JSON), 1),
    ("remoting.decode_json", lambda: decode_frame(FRAME_JSON), 1),
    ("remoting.decode_json_answer", lambda: decode_frame(FRAME_ANSWER), 1),
    ("remoting.encode_binary", lambda: encode_command(SEND_BINARY), 1),
    ("remoting.decode_binary", lambda: decode_frame(FRAME_BINARY), 1),
    ("hpack.remembered_13", lambda: REMEMBERING.decode(REFERENCES), 1),
    ("hpack.references_13", lambda: FORGETFUL.decode(REFERENCES), 1),
    ("hpack.fresh_1_of_14", lambda: CHANGING.decode(FRESH), 1),
    ("hpack.fresh_1_of_14_huffman", lambda: CHANGING.decode(FRESH_HUFFMAN), 1),
    ("hpack.encode_3", lambda: encode_fields(ANSWER), 1),
    ("huffman.decode_uuid", lambda: decode_huffman(REQUEST_ID_HUFFMAN), 1),
    ("signing.sign", lambda: sign(SEND_FIELDS, BODY, "gateway", "secret"), 1),
    ("handles.pop_info", lambda: parse_pop_info(POP_FIELDS), 1),
    ("routes.decode", lambda: decode_route(ROUTE_QUOTED), 1),
    ("fastjson.bare_keys", lambda: loads(ROUTE_BARE), 1),
    ("batches.encode", lambda: encode_batch(BATCH), 32),
    ("batches.decode", lambda: decode_batch(PACKED_BATCH), 32),
    ("properties.encode_6", lambda: encode_properties(TABLE), 1),
    ("properties.decode_6", lambda: decode_properties(BLOCK), 1),
    ("properties.find_first", lambda: find_property(BLOCK, b"UNIQ_KEY"), 1),
    ("properties.find_last", lambda: find_property(BLOCK, b"amount"), 1),
    ("properties.find_absent", lambda: find_property(BLOCK, b"absent"), 1),
    ("properties.set", lambda: set_property(BLOCK, b"POP_CK", b"1"), 1),
    ("filters.tag", lambda: TAG.matches(BLOCK), 1),
    ("filters.sql", lambda: SQL.matches(BLOCK), 1),
    ("filters.cached", lambda: compile_filter(FilterKind.SQL92, SQL_TEXT), 1),
    ("sql.compile", lambda: SqlFilter(SQL_TEXT), 1),
    ("hashing.consistent_16", lambda: consistent_hash(-1207111310, 16), 1),
    ("message_id.make", make_message_id, 1),
    ("compression.gunzip_1k", lambda: decompress(GZIP, 4096), 1),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure popgate's wires.")
    parser.add_argument("--quick", action="store_true", help="one short run of each, for tests")
    quick = parser.parse_args().quick
    for name, operation, messages in FIGURES:
        timer = timeit.Timer(operation)
        calls = 3 if quick else max(1, int(0.05 / (timer.timeit(100) / 100)))
        best = min(timer.repeat(1 if quick else 5, calls)) / calls / messages
        print(f"{name} {best * 1e6:.2f} us/op")


if __name__ == "__main__":
    main()
