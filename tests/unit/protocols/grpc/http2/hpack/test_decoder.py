"""Header blocks: the examples of RFC 7541, every error, what is remembered, kept and bounded."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hpack.table import HeaderTable

from popgate.errors import LocalWireError, PeerWireError
from protocols.grpc.http2.hpack.decoder import (
    Field,
    HeaderBomb,
    HeaderDecoder,
    HeadersTooLarge,
    HpackError,
    encode_fields,
)
from protocols.grpc.http2.hpack.static_table import STATIC_TABLE

Pairs = list[tuple[str, str]]
CALL: Pairs = [
    (":scheme", "http"),
    (":method", "POST"),
    (":authority", "10.0.0.1:8081"),
    (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("x-mq-client-id", "host@123@0@abc"),
]


def pairs(fields: tuple[Field, ...]) -> Pairs:
    return [(field.name, field.text) for field in fields]


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


def table(decoder: HeaderDecoder, entries: int) -> Pairs:
    """The dynamic table, newest first, as a peer can refer to it."""
    found = pairs(decoder.decode(bytes(range(190, 190 + entries))))
    with pytest.raises(HpackError):
        decoder.decode(bytes((190 + entries,)))
    return found


def test_the_static_table_is_the_published_one() -> None:
    assert [(name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE] == [*STATIC_TABLE]
    decoder = HeaderDecoder()
    assert pairs(decoder.decode(bytes(range(129, 190)))) == [*STATIC_TABLE]
    assert not any(field.bad for field in decoder.decode(bytes(range(129, 190))))


# -- appendix C -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "size"), [("2a", 10), ("3f9a0a", 1337), ("3f0b", 42)])
def test_integers(block: str, size: int) -> None:
    """C.1, as sizes of a table: 10 and 1337 with prefixes of 5 bits; 42 does not fit in one either."""
    assert HeaderDecoder(table_bytes=size).decode(hexed(block)) == ()
    with pytest.raises(HpackError, match=f"a table of {size} bytes"):
        HeaderDecoder(table_bytes=size - 1).decode(hexed(block))


@pytest.mark.parametrize(
    ("block", "field", "enters"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", ("custom-key", "custom-header"), True),
        ("040c2f73616d706c652f70617468", (":path", "/sample/path"), False),
        ("100870617373776f726406736563726574", ("password", "secret"), False),
        ("82", (":method", "GET"), False),
    ],
    ids=["indexed", "not indexed", "never indexed", "a reference"],
)
def test_one_field(block: str, field: tuple[str, str], enters: bool) -> None:
    """C.2."""
    decoder = HeaderDecoder()
    assert pairs(decoder.decode(hexed(block))) == [field]
    assert table(decoder, enters) == [field] * enters
    assert decoder.held == (55 if enters else 0)


FIRST = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
LAST = [(":method", "GET"), (":scheme", "https"), (":path", "/index.html"), (":authority", "www.example.com")]
PLAIN_REQUESTS = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
HUFFMAN_REQUESTS = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)


@pytest.mark.parametrize("blocks", [PLAIN_REQUESTS, HUFFMAN_REQUESTS], ids=["C.3", "C.4"])
def test_requests(blocks: tuple[str, ...]) -> None:
    decoder = HeaderDecoder()
    first, second, third = map(hexed, blocks)
    entries: Pairs = [(":authority", "www.example.com")]
    assert pairs(decoder.decode(first)) == FIRST
    assert (table(decoder, 1), decoder.held) == (entries, 57)
    assert pairs(decoder.decode(second)) == [*FIRST, ("cache-control", "no-cache")]
    entries.insert(0, ("cache-control", "no-cache"))
    assert (table(decoder, 2), decoder.held) == (entries, 110)
    assert pairs(decoder.decode(third)) == [*LAST, ("custom-key", "custom-value")]
    entries.insert(0, ("custom-key", "custom-value"))
    assert (table(decoder, 3), decoder.held) == (entries, 164)


PRIVATE, PLACE = ("cache-control", "private"), ("location", "https://www.example.com")
DATE, LATER = ("date", "Mon, 21 Oct 2013 20:13:21 GMT"), ("date", "Mon, 21 Oct 2013 20:13:22 GMT")
COOKIE = ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")
GZIP = ("content-encoding", "gzip")
PLAIN_RESPONSES = """
4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54
 6e1768747470733a2f2f7777772e6578616d706c652e636f6d
4803333037c1c0bf
88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a6970
 7738666f6f3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d
 333630303b2076657273696f6e3d31"""
HUFFMAN_RESPONSES = """
488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff
 6e919d29ad171863c78f0b97c8e9ae82ae43d3
4883640effc1c0bf
88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab
 77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"""


@pytest.mark.parametrize("blocks", [PLAIN_RESPONSES, HUFFMAN_RESPONSES], ids=["C.5", "C.6"])
def test_responses_that_drop_entries(blocks: str) -> None:
    decoder = HeaderDecoder(table_bytes=256)
    first, second, third = map(hexed, blocks.replace("\n ", "").split())
    assert pairs(decoder.decode(first)) == [(":status", "302"), PRIVATE, DATE, PLACE]
    assert (table(decoder, 4), decoder.held) == ([PLACE, DATE, PRIVATE, (":status", "302")], 222)
    assert pairs(decoder.decode(second)) == [(":status", "307"), PRIVATE, DATE, PLACE]
    assert (table(decoder, 4), decoder.held) == ([(":status", "307"), PLACE, DATE, PRIVATE], 222)
    assert pairs(decoder.decode(third)) == [(":status", "200"), PRIVATE, LATER, PLACE, GZIP, COOKIE]
    assert (table(decoder, 3), decoder.held) == ([COOKIE, GZIP, LATER], 215)


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("80", "entry 0 "),
        ("be", "entry 62 .* 1 to 61$"),
        ("82fe", "entry 126 "),
        ("ff00", "entry 127 "),
        ("ff80ffffff07", "entry 2147483647 "),
        ("ff81ffffff07", "above 2147483647"),
        ("7f00 0161", "entry 63 "),
        ("7e 0161", "entry 62 "),
        ("0f2f 0161", "entry 62 "),
        ("1f2f 0161", "entry 62 "),
        ("ff8180808008", "above 2147483647"),
        ("ff808080808000", "above 2147483647, or of more than 5 bytes"),
        ("ffffffffffff7f", "more than 5 bytes"),
        ("3fffffffff7f", "above 2147483647"),
        ("04ffffffffff7f", "above 2147483647"),
        ("ff", "ends within a number"),
        ("ff80", "ends within a number"),
        ("3f", "ends within a number"),
        ("0f", "ends within a number"),
        ("047f", "ends within a number"),
        ("40", "ends within a header"),
        ("00", "ends within a header"),
        ("000161", "ends within a header"),
        ("04", "ends within a header"),
        ("000261", "a string of 2 bytes, 1 are left"),
        ("040361", "a string of 3 bytes, 1 are left"),
        ("047fff0f61", "a string of 2174 bytes"),
        ("8220", "behind a header"),
        ("82203f00", "behind a header"),
        ("0001610020", "behind a header"),
        ("3fe21f", "a table of 4097 bytes, the limit is 4096"),
        ("0081ff0161", "padding"),
        ("4081ff0161", "padding"),
        ("400161 81ff", "padding"),
        ("400161 84ffffffff", "ends it inside"),
        ("400161 8118", "padding"),
    ],
)
def test_nonsense_is_refused(block: str, says: str) -> None:
    with pytest.raises(HpackError, match=says) as refused:
        HeaderDecoder().decode(hexed(block))
    assert isinstance(refused.value, PeerWireError)


def test_a_number_need_not_be_short() -> None:
    assert HeaderDecoder().decode(hexed("3f80808000")) == ()
    assert pairs(HeaderDecoder().decode(hexed("0f8000 0161"))) == [("accept-charset", "a")]


@pytest.mark.parametrize("literal", ["00", "10", "40"])
@pytest.mark.parametrize("value", ["82ffff", "84 49509fff", "83 495090", "87 4951fffffffa7f"])
def test_a_wrong_huffman_value_is_refused_though_nobody_asks_for_it(literal: str, value: str) -> None:
    """Padding that is too long or no ones, or EOS inside (section 5.2; h2spec hpack/5.2)."""
    with pytest.raises(HpackError):
        HeaderDecoder().decode(hexed(f"400178 0179 {literal}0161 {value} 400162 0163"))


# -- the table ------------------------------------------------------------------------------------


def test_a_field_larger_than_the_table_empties_it() -> None:
    decoder = HeaderDecoder(table_bytes=64)
    decoder.decode(hexed("400161 0162"))
    assert decoder.held == 34
    large = decoder.decode(b"\x7e" + b"\x40" + b"v" * 64)  # its name is that of the entry that goes
    assert pairs(large) == [("a", "v" * 64)]
    assert (table(decoder, 0), decoder.held) == ([], 0)


def test_a_field_as_large_as_the_table_stays_alone() -> None:
    decoder = HeaderDecoder(table_bytes=64)
    decoder.decode(hexed("400161 0162"))
    decoder.decode(b"\x40\x01a\x1f" + b"v" * 31)
    assert (table(decoder, 1), decoder.held) == ([("a", "v" * 31)], 64)


def test_updates_of_the_size() -> None:
    decoder = HeaderDecoder(table_bytes=200)
    for value in b"abc":
        decoder.decode(b"\x40\x01n\x01" + bytes((value,)))
    assert table(decoder, 3) == [("n", "c"), ("n", "b"), ("n", "a")]
    # The smallest in between counts, and entries behind it enter under the last.
    assert pairs(decoder.decode(hexed("3f03 3fa901 be 40016e0164"))) == [("n", "c"), ("n", "d")]
    assert table(decoder, 2) == [("n", "d"), ("n", "c")]
    assert decoder.decode(hexed("20")) == ()
    assert (table(decoder, 0), decoder.held) == ([], 0)
    assert pairs(decoder.decode(hexed("40016e0165"))) == [("n", "e")]
    assert (table(decoder, 0), decoder.held) == ([], 0)


def test_far_entries_of_a_large_table() -> None:
    encoder, decoder = Encoder(), HeaderDecoder(table_bytes=65_536, max_list_bytes=1 << 20)
    encoder.header_table_size = 65_536
    many = [(f"name-{n}", f"value {n}") for n in range(700)]
    assert pairs(decoder.decode(encoder.encode(many))) == many
    again = encoder.encode(many[::-1])
    assert len(again) < 1_900
    assert pairs(decoder.decode(again)) == many[::-1]


def test_long_strings() -> None:
    for length in (126, 127, 128, 254, 255, 5_000):
        block = encode_fields([("n" * length, "v" * length)])
        (field,) = HeaderDecoder().decode(block)
        assert (field.name, field.text, field.size) == ("n" * length, "v" * length, 32 + 2 * length)


# -- what is remembered ---------------------------------------------------------------------------


def test_a_block_gives_the_same_tuple_until_the_table_changes() -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    first = decoder.decode(encoder.encode(CALL))
    block = encoder.encode(CALL)
    again = decoder.decode(block)
    assert again is not first  # the first one changed the table
    assert decoder.decode(block) is again
    assert decoder.decode(bytes(bytearray(block))) is again
    assert [one is other for one, other in zip(first, again, strict=True)] == [True] * len(CALL)
    decoder.decode(encoder.encode([("x-mq-request-id", "new")]))
    with_other_numbers = decoder.decode(block)
    assert pairs(with_other_numbers) != CALL
    now = decoder.decode(encoder.encode(CALL))
    assert pairs(now) == CALL
    assert now[0] is again[0]


def test_an_update_of_the_size_forgets_and_is_not_remembered() -> None:
    decoder = HeaderDecoder()
    decoder.decode(hexed("400161 0162"))
    found = decoder.decode(hexed("be"))
    assert decoder.decode(hexed("be")) is found
    updating = decoder.decode(hexed("2082"))
    with pytest.raises(HpackError):
        decoder.decode(hexed("be"))
    assert decoder.decode(hexed("2082")) is not updating


def test_literals_outside_the_table_are_remembered_too() -> None:
    decoder = HeaderDecoder()
    block = encode_fields([("grpc-timeout", "5S")])
    assert decoder.decode(block) is decoder.decode(block)


def test_remembered_blocks_are_few() -> None:
    decoder = HeaderDecoder(remembered=4)
    blocks = [bytes((129 + n,)) for n in range(5)]
    seen = [decoder.decode(block) for block in blocks[:4]]
    assert all(decoder.decode(block) is one for block, one in zip(blocks, seen, strict=False))
    last = decoder.decode(blocks[4])
    assert decoder.decode(blocks[4]) is last
    assert decoder.decode(blocks[0]) is not seen[0]
    none = HeaderDecoder(remembered=0)
    assert none.decode(b"\x82") is not none.decode(b"\x82")


def test_remembered_blocks_are_small_together() -> None:
    decoder = HeaderDecoder()
    blocks = [b"\x82\x83" * 90 + bytes((129 + n,)) for n in range(30)]  # some 7,600 bytes counted each
    first = decoder.decode(blocks[0])
    assert decoder.decode(blocks[0]) is first
    for block in blocks:
        decoder.decode(block)
    assert decoder.decode(blocks[0]) is not first
    large = encode_fields([("a", "v" * 16_200)])
    assert decoder.decode(large) is not decoder.decode(large)


def test_empty_blocks() -> None:
    decoder = HeaderDecoder()
    assert decoder.decode(b"") == () == decoder.decode(b"")


# -- bounds ---------------------------------------------------------------------------------------


def test_a_list_at_its_limit() -> None:
    block = encode_fields([("a", "v" * 67), ("b", "v" * 67)])
    assert len(HeaderDecoder(max_list_bytes=200).decode(block)) == 2
    with pytest.raises(HeadersTooLarge) as refused:
        HeaderDecoder(max_list_bytes=199).decode(block)
    assert (refused.value.size, refused.value.limit) == (200, 199)
    assert isinstance(refused.value, PeerWireError)
    assert not isinstance(refused.value, HpackError)


def test_huffman_values_are_counted_as_long_as_they_are() -> None:
    """They are 8 bits a symbol here."""
    values = [("x", "&" * 100), ("y", "X" * 100), ("z", "Z" * 100)]
    secret = [NeverIndexedHeaderTuple(*pair) for pair in values]
    block = Encoder().encode(secret, huffman=True)
    assert pairs(HeaderDecoder(max_list_bytes=399).decode(block)) == values
    with pytest.raises(HeadersTooLarge) as refused:
        HeaderDecoder(max_list_bytes=398).decode(block)
    assert refused.value.size == 399
    behind = block + b"\x82"
    assert len(HeaderDecoder(max_list_bytes=399 + 42).decode(behind)) == 4
    with pytest.raises(HeadersTooLarge):
        HeaderDecoder(max_list_bytes=399 + 41).decode(behind)
    assert [field.size for field in HeaderDecoder().decode(behind)] == [133, 133, 133, 42]


def test_lists_too_large_leave_the_table_in_step() -> None:
    decoder = HeaderDecoder(max_list_bytes=1_000)
    encoder = Encoder()
    long = [("a", "1" * 500), ("b", "2" * 500), ("c", "3"), *CALL]
    for _ in range(3):
        with pytest.raises(HeadersTooLarge):
            decoder.decode(encoder.encode(long))
        assert pairs(decoder.decode(encoder.encode(CALL))) == CALL
    with pytest.raises(HeadersTooLarge):
        decoder.decode(encoder.encode([*long, ("d", "new")]))
    assert pairs(decoder.decode(encoder.encode([("d", "new")]))) == [("d", "new")]


def test_nonsense_behind_too_much_is_nonsense() -> None:
    with pytest.raises(HpackError):
        HeaderDecoder(max_list_bytes=100).decode(b"\x82" * 50 + b"\x80")


def test_a_bomb_costs_no_memory() -> None:
    """4 KB in the table, and 15,000 references to it: 60 MB of headers."""
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01a" + b"\x7f" + hexed("a11e") + b"v" * 4_000)
    assert decoder.held == 4_033
    bombs = (b"\xbe" * 15_000, b"\x7e\x00" * 7_500, b"\x0f\x2f\x00" * 5_000, b"\0\x01a\x81\x1f" * 3_000)
    for bomb in bombs:
        tracemalloc.start()
        with pytest.raises((HeadersTooLarge, HeaderBomb)):
            decoder.decode(bomb)
        kept, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 250_000
        assert kept < 60_000


def test_the_number_of_fields_is_bounded() -> None:
    decoder = HeaderDecoder()
    assert len(decoder.decode(b"\x00\x00\x00" * 512)) == 512
    with pytest.raises(HeadersTooLarge):
        decoder.decode(b"\x00\x00\x00" * 513)


def test_an_idle_decoder_is_small() -> None:
    decoder = HeaderDecoder()
    parts = [decoder, decoder._table]
    assert sum(map(sys.getsizeof, parts)) < 250


def test_connections_that_begin_alike_share_their_fields() -> None:
    call = Encoder().encode(CALL)
    one, other = HeaderDecoder().decode(call), HeaderDecoder().decode(call)
    assert [a is b for a, b in zip(one, other, strict=True)] == [True] * len(CALL)
    secret = Encoder().encode([NeverIndexedHeaderTuple("authorization", "key")])
    (mine,), (yours,) = HeaderDecoder().decode(secret), HeaderDecoder().decode(secret)
    assert mine is not yours


def test_only_the_first_fields_of_a_connection_are_shared() -> None:
    for large in (False, True):
        encoder, one, other = Encoder(), HeaderDecoder(), HeaderDecoder()
        for n in range(100):
            block = encoder.encode([("id", f"{n} {'long' * 100 * large}")])
            (mine,), (yours,) = one.decode(block), other.decode(block)
            assert mine.text == yours.text
            assert (mine is yours) == (n < 48 and not large)


# -- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("te", False),
        (":path", False),
        ("x-mq_1.2~!#$%&'*+^`|", False),
        ("", True),
        (":", True),
        ("::path", True),
        ("a:b", True),
        ("Te", True),
        (":Path", True),
        ("a b", True),
        ("a\n", True),
        ("a\x00", True),
        ("a\x7f", True),
        ("\xe4", True),
        ('a"', True),
        ("a/b", True),
    ],
)
@pytest.mark.parametrize("first", [0x00, 0x10, 0x40])
def test_unlawful_names_are_told(name: str, bad: bool, first: int) -> None:
    decoder = HeaderDecoder()
    raw = name.encode("latin-1")
    (field,) = decoder.decode(bytes((first, len(raw))) + raw + b"\x01v")
    assert (field.name, field.bad, field.text) == (name, bad, "v")
    if first == 0x40:
        (named,) = decoder.decode(b"\x0f\x2f\x01w")
        assert (named.name, named.bad, named.text) == (name, bad, "w")


@pytest.mark.parametrize("huffman", [False, True])
@pytest.mark.parametrize("tuple_of", [HeaderTuple, NeverIndexedHeaderTuple])
@pytest.mark.parametrize(
    ("value", "text"), [(b"plain", "plain"), ("ü 文".encode(), "ü 文"), (b"\xfc \xff", "ü ÿ"), (b"", "")]
)
def test_values_are_bytes_and_text(
    value: bytes, text: str, tuple_of: type[HeaderTuple], huffman: bool
) -> None:
    block = Encoder().encode([tuple_of(b"n", value)], huffman=huffman)
    (field,) = HeaderDecoder().decode(block)
    for _ in range(2):
        assert (field.raw, field.text, field.size) == (value, text, 33 + len(value))
    (field,) = HeaderDecoder().decode(block)
    assert (field.text, field.size, field.raw) == (text, 33 + len(value), value)
    (field,) = HeaderDecoder().decode(block)
    assert (field.size, field.raw, field.text) == (33 + len(value), value, text)


def test_a_value_is_cut_where_it_is_shown() -> None:
    (field,) = HeaderDecoder().decode(encode_fields([("n", "v" * 500)]))
    assert len(repr(field)) < 120


# -- writing --------------------------------------------------------------------------------------


def test_blocks_are_written_without_state() -> None:
    fields: list[tuple[str, str | bytes]] = [
        (":status", "200"),
        (":status", "418"),
        ("content-type", "application/grpc"),
        ("grpc-status", "0"),
        ("grpc-message", ""),
        ("x-bytes-bin", b"\x01\x02\xff"),
        ("x-text", "ü"),
        ("x-long", "v" * 20_000),
        ("n" * 300, b""),
    ]
    block = encode_fields(fields)
    assert block == encode_fields(iter(fields))
    written = [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in fields]
    for _ in range(2):
        assert [tuple(pair) for pair in Decoder().decode(block, raw=True)] == written
    assert block.startswith(b"\x88\x08\x03418\x0f\x10")
    assert encode_fields([]) == b""


@pytest.mark.parametrize("value", ["a\nb", "\r", "a\0", b"a\nb", b"\r\n", b"\0"])
def test_values_that_http2_forbids_are_not_written(value: str | bytes) -> None:
    with pytest.raises(LocalWireError, match="the value of header 'x'"):
        encode_fields([("x", value)])


@pytest.mark.parametrize("name", ["", "X", "a b", "a\n", "ü"])
def test_names_that_http2_forbids_are_not_written(name: str) -> None:
    with pytest.raises(LocalWireError, match="unlawful"):
        encode_fields([(name, "v")])
