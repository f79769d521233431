"""Seeded mutations of valid input, a bounded number of them in every run.

More than in the property tests, and bigger input: the same seeds every time, so that a failure
comes back. `TEST_FUZZ_ROUNDS` asks for more.
"""

import os
import random
import re
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from popgate.errors import IllegalFilter, IllegalReceipt, PeerWireError
from popgate.ids.receipt import parse_receipt
from popgate.sql import SqlFilter
from popgate.wire.bodies import small_bodies
from popgate.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from popgate.wire.bodies.consumer_info import ConsumerRunningInfo
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from popgate.wire.bodies.offset_stats import TopicStats
from popgate.wire.bodies.pop_info import decode_bits, encode_bits, encode_pop_info, parse_pop_info
from popgate.wire.bodies.routes import decode_route
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command
from popgate.wire.json_syntax.fastjson import loads
from popgate.wire.messages.batches import BatchItem, decode_batch, encode_batch
from popgate.wire.messages.compression import (
    compress_gzip,
    compress_lz4,
    compress_zlib,
    compress_zstd,
    decompress,
)
from popgate.wire.messages.properties import decode_properties, encode_properties, find_property
from popgate.wire.messages.record_reader import RecordReader
from popgate.wire.messages.records import encode_record, pack_host
from protocols.grpc.http2.hpack.decoder import HeaderDecoder, HeadersTooLarge, encode_fields
from protocols.proxy_protocol import ProxyHeader
from tests.fuzz import passed_on
from tests.fuzz.bodies import BODIES
from tests.fuzz.http2 import FRAMES as HTTP2_FRAMES
from tests.fuzz.http2 import GRPCIO, read_http2, read_http2_frames

ROUNDS = int(os.environ.get("TEST_FUZZ_ROUNDS", "400"))
LIMIT = 1 << 16
BLOCK = encode_properties({"UNIQ_KEY": "01" * 17, "TAGS": "TagA", "KEYS": "k1 k2", "n": "42", "中": "文"})
BODY = bytes(range(256)) * 8


def records() -> bytes:
    hosts = (pack_host("10.0.0.1:1"), pack_host("[::1]:1"))
    return b"".join(
        encode_record(
            topic.encode(),
            n,
            n,
            n,
            BODY[: n * 100],
            BLOCK,
            sys_flag=0,
            flag=0,
            born_ms=1,
            born_host=hosts[n % 2],
            store_ms=2,
            store_host=hosts[n // 2 % 2],
        )
        for n, topic in enumerate(["T", "topic-b", "x" * 127, "x" * 128, "主题"])
    )


def read_records(data: bytes) -> None:
    reader = RecordReader(largest=1 << 20)
    for at in range(0, len(data), 97):
        reader.receive(data[at : at + 97])
        while reader.next_event() is not None:
            pass
    reader.receive(b"")
    while reader.next_event() is not None:
        pass


def read_headers(data: bytes) -> None:
    """Blocks of one connection behind their lengths, each read twice."""
    decoder = HeaderDecoder(max_list_bytes=1_000)
    while data:
        end = 2 + int.from_bytes(data[:2], "big")
        for _ in range(2):
            try:
                fields = decoder.decode(data[2:end])
            except HeadersTooLarge:
                continue
            for field in fields:
                assert field.bad in (True, False)
                assert field.size == 32 + len(field.name) + len(field.raw)
                assert isinstance(field.text, str)
            assert sum(field.size for field in fields) <= 1_000
        assert 0 <= decoder.held <= 4_096
        data = data[end:]


def read_proxy_header(data: bytes) -> None:
    """However it comes in pieces, it says the same, and what is behind it stays as it is."""
    whole, pieces = ProxyHeader(), ProxyHeader()
    whole.receive(data)
    told = whole.next_event()
    if told is None:
        whole.receive(b"")
        with pytest.raises(PeerWireError):
            whole.next_event()
        raise PeerWireError("it is not there as a whole")
    at, again = 0, None
    while again is None:
        pieces.receive(data[at : at + 7])
        at += 7
        again = pieces.next_event()
    assert again == told
    assert pieces.rest() + data[at:] == whole.rest()
    for place in (told.peer, told.local):
        assert place is None or (ip_address(place[0]) and 0 <= place[1] <= 0xFFFF)


def unpack(data: bytes) -> None:
    assert len(decompress(data, LIMIT)) <= LIMIT


def read_block(data: bytes) -> None:
    all_of_it = decode_properties(data)
    for name in ("TAGS", "KEYS", "n", "中"):
        found = find_property(data, name.encode())
        assert (None if found is None else found.decode("utf-8", "replace")) == all_of_it.get(name)
    assert SqlFilter("n > 5 AND TAGS IN ('TagA') OR NOT KEYS CONTAINS '1'").truth(data) in (True, False, None)


def compile_expression(data: bytes) -> None:
    SqlFilter(data.decode("latin-1")).matches(BLOCK)


def read_batch(data: bytes) -> None:
    assert sum(len(item.body) + len(item.properties) for item in decode_batch(data)) <= len(data)


def read_receipt(data: bytes) -> None:
    parse_receipt(parse_receipt(data.decode("latin-1")).encode())


def read_frames(data: bytes) -> None:
    """What is read can be written again, and is read as the same."""
    wire, again = RemotingWire(max_frame=1 << 20), RemotingWire()
    for at in range(0, len(data), 41):
        wire.receive(data[at : at + 41])
        while (command := wire.next_event()) is not None:
            again.receive(encode_command(command))
            assert again.next_event() == command
    wire.receive(b"")
    assert wire.next_event() is None


def read_route(data: bytes) -> None:
    route = decode_route(data)
    assert decode_route(route.encode()) == route
    route.order_queues()


def read_heartbeat(data: bytes) -> None:
    heartbeat = HeartbeatData.decode(data)
    assert HeartbeatData.decode(heartbeat.encode()) == heartbeat


def read_configs(data: bytes) -> None:
    topic, group = TopicConfig.decode(data), SubscriptionGroupConfig.decode(data)
    topic.encode()
    group.encode()


def read_running(data: bytes) -> None:
    info = ConsumerRunningInfo.decode(data)
    info.encode()


def read_standing(data: bytes) -> None:
    stats = TopicStats.decode(data)
    assert TopicStats.decode(stats.encode()) == stats


def read_acks(data: bytes) -> None:
    broker, acks = small_bodies.decode_batch_acks(data)
    assert small_bodies.decode_batch_acks(small_bodies.encode_batch_acks(broker, acks)) == (broker, acks)


def read_pop_info(data: bytes) -> None:
    text = data.decode("latin-1")
    told = {"startOffsetInfo": text, "msgOffsetInfo": text, "orderCountInfo": text}
    info = parse_pop_info({"popTime": "1", "invisibleTime": "1", "reviveQid": "1"} | told)
    assert parse_pop_info(encode_pop_info(info)) == info


def read_bits(data: bytes) -> None:
    offsets = decode_bits(data.decode("latin-1"), 7)
    assert decode_bits(encode_bits(offsets, 7), 7) == offsets


FIELDS = {"consumerGroup": "g", "topic": "主题", "queueId": "-1", "exp": "a = '\x01\n\"'", "order": "false"}
FRAMES = b"".join(
    encode_command(
        Command(RequestCode.PULL_MESSAGE, 7 + way, way, FIELDS, b"body" * way, "why \n", "JAVA", 513, way)
    )
    for way in Serialization
)
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"x"},"brokerName":"broker-a","cluster":"C",'
    b'"enableActingMaster":false},{"$ref":"$.brokerDatas[0]"}],"filterServerTable":{},"orderTopicConf":'
    b'"broker-a:4","queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,'
    b'"writeQueueNums":8}],"topicQueueMappingByBroker":{"broker-a":{"bname":"broker-a","currIdMap":{0:0,1:5},'
    b'"dirty":false,"epoch":100,"scope":"__global__","topic":"T","totalQueues":4}}}'
)
HEARTBEAT = HeartbeatData(
    "client", ("pg",), (ConsumerData("g", (SubscriptionData("T", "a||b", "TAG", ("a", "b"), (97, 98), 5),)),)
).encode()
CONFIG = (
    b'{"topicName":"T","groupName":"g","attributes":{"message.type":"FIFO"},"order":false,"perm":6,'
    b'"groupRetryPolicy":{"customizedRetryPolicy":{"next":[1000,5000]},"type":"CUSTOMIZED"},"newer":[{}],'
    b'"mappingDetail":{"bname":"b","hostedQueues":{1:[{"bname":"b","gen":0,"logicOffset":0,"queueId":5}]}}}'
)
STANDING = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":5,"maxOffset":9,'
    b'"minOffset":1},{"brokerName":"broker-a","queueId":0,"topic":"T"}:{}},"topicPutTps":0.5}'
)
RUNNING = (
    b'{"mqPopTable":{{"brokerName":"b","queueId":1,"topic":"T"}:{"droped":false}},"mqTable":{{"brokerName":"b",'
    b'"queueId":0,"topic":"T"}:{"cachedMsgCount":1,"locked":true}},"properties":{"a":"b"},"statusTable":{"T":'
    b'{"pullRT":1.5}},"subscriptionSet":[{"topic":"T","tagsSet":["x"]}],"userConsumerInfo":{},"jstack":"s"}'
)
ACKS = small_bodies.encode_batch_acks(
    "b", [small_bodies.BatchAck("g", "T", 0, 100, 2, 3, 1, 60_000, (100, 102, 190))]
)
SQL = (
    b"(n BETWEEN 1 AND 1e3 OR TAGS NOT IN ('a', 'it''s')) AND NOT x = -5 /* c */"
    b" AND y ENDSWITH 'z' IS NOT NULL"
)
BATCH = encode_batch([BatchItem(n, BODY[: n * 50], BLOCK) for n in range(5)])
HEADER_BLOCKS = (
    # Three calls of one client, with Huffman: most enters the table; a new size of the table, references
    # and fields that stay outside; a value that enters by the name of an entry.
    bytes.fromhex(
        "8386418cf1e3c2e5f23a6ba0ab90f4ff4082497f864d833505b11f5f831b11ff4089f2b585ed6950958d27"
        "88765000000056003f"
    ),
    bytes.fromhex("3fc9078386c1c0bfbe1f0884ea5f4a07")
    + encode_fields([("x", "v" * 300), ("grpc-timeout", "5S")]),
    bytes.fromhex("8386c1c0bf7e0b37663030303030312d3031"),
)
HEADERS = b"".join(len(block).to_bytes(2, "big") + block for block in HEADER_BLOCKS)
PROXY_BINARY = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x28"
    + bytes(15)
    + b"\1"
    + bytes(15)
    + b"\2\x9c\x40\x1f\x91\4\0\1\0behind"
)
TARGETS: list[tuple[str, bytes, Callable[[bytes], None]]] = [
    ("records", records(), read_records),
    ("batch", BATCH, read_batch),
    ("records_passed_on", passed_on.RECORDS, passed_on.read_scanned),
    ("batch_forwarded", passed_on.BATCH, passed_on.read_forwarded),
    ("message_forwarded", passed_on.BLOCK, passed_on.read_single),
    ("properties", BLOCK, read_block),
    ("gzip", compress_gzip(BODY), unpack),
    ("zlib", compress_zlib(BODY), unpack),
    ("lz4", compress_lz4(BODY), unpack),
    ("zstd", compress_zstd(BODY), unpack),
    ("sql", SQL, compile_expression),
    ("frames", FRAMES, read_frames),
    ("route", ROUTE, read_route),
    ("fastjson", b"[%b,%b]" % (STANDING, ROUTE.replace(b"$.", b"$[1].")), loads),
    ("heartbeat", HEARTBEAT, read_heartbeat),
    ("configs", CONFIG, read_configs),
    ("running", RUNNING, read_running),
    ("standing", STANDING, read_standing),
    ("acks", ACKS, read_acks),
    ("pop_info", b"0 2 100;1 0 7;2 3 12", read_pop_info),
    ("bits", b"BwAAAAAAAIA=", read_bits),
    *BODIES,
    ("proxy_line", b"PROXY TCP4 10.0.0.1 10.0.0.2 40000 8081\r\nbehind", read_proxy_header),
    ("proxy_binary", PROXY_BINARY, read_proxy_header),
    ("hpack", HEADERS, read_headers),
    ("http2", GRPCIO, read_http2),
    ("http2_frames", HTTP2_FRAMES, read_http2_frames),
    ("receipt", b"100 1700000000000 60000 3 0 broker-a 2 101 4096", read_receipt),
]


JSON_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][-+.0-9eE]*|true|false|null')
JSON_WORDS = (
    *(b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b"[null]", b'{"a":1}', b"[" * 200, b"NaN"),
    *(b"-1", b"0", b"1", b"255", b"2147483648", b"9223372036854775808", b"-" + b"9" * 40, b"1.5", b"1e999"),
    *(b'""', b'" "', b'"x\\u0000\\u0001"', b'"\\ud800"', '"名字"'.encode(), b'"12"', b'"%s"' % (b"k" * 300)),
)


def odd_json(dice: random.Random, data: bytes) -> bytes:
    """Some of its words, or names, in place of which stand others."""
    for _ in range(dice.choice((1, 1, 2, 4))):
        words = list(JSON_WORD.finditer(data))
        if not words:
            break
        word = dice.choice(words)
        other = dice.choice(JSON_WORDS) if dice.random() < 0.8 else dice.choice(words)[0]
        data = data[: word.start()] + other + data[word.end() :]
    return data


def mutated(dice: random.Random, data: bytes) -> bytes:
    """Changed bytes; half of what is JSON is mostly JSON afterwards, and says something else."""
    if data[:1] in (b"{", b"[") and dice.random() < 0.5:
        return odd_json(dice, data)
    changed = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << dice.randrange(8)
            case 1 if at < len(changed):
                changed[at] = dice.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
            case 2:
                changed[at:at] = dice.randbytes(dice.randint(1, 9))
            case 3:
                del changed[at : at + dice.randint(1, 9)]
            case 4:
                begin = dice.randrange(len(changed) + 1)
                changed[at:at] = changed[begin : begin + dice.randint(1, 200)]
            case _:
                changed[at : at + 4] = dice.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))
    return bytes(changed)


@pytest.mark.parametrize(("data", "read"), [t[1:] for t in TARGETS], ids=[t[0] for t in TARGETS])
def test_mutated_input_is_read_or_refused(data: bytes, read: Callable[[bytes], None]) -> None:
    read(data)
    dice = random.Random(20250101)
    refused = 0
    for _ in range(ROUNDS):
        case = mutated(dice, data)
        try:
            read(case)
        except (PeerWireError, IllegalFilter, IllegalReceipt):
            refused += 1
        except Exception as error:
            error.add_note(f"input: {case.hex()}")
            raise
    # A block of properties is never refused; everything else is, mostly.
    assert (refused == 0) is (read is read_block)
