"""HPACK next to the published package: both ways, and with blocks that were changed on the way."""

from __future__ import annotations

import contextlib

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.grpc.http2.hpack import huffman
from protocols.grpc.http2.hpack.decoder import (
    HeaderBomb,
    HeaderDecoder,
    HeadersTooLarge,
    HpackError,
    encode_fields,
)

PUBLISHED = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
TABLE = 4_096
LIMIT = 16_384

KNOWN = [b"te", b":path", b":method", b"content-type", b"x-mq-client-id", b"x-mq-request-id", b"grpc-timeout"]
NAME = st.sampled_from(KNOWN) | st.text("abcxyz0189-_.", min_size=1, max_size=40).map(str.encode)
VALUE = (
    st.sampled_from([b"", b"trailers", b"POST", b"/a/b", b"1S", b"v" * 126, b"v" * 127, b"w" * 600])
    | st.uuids().map(lambda one: str(one).encode())
    | st.binary(max_size=40)
)
HEADER = st.tuples(NAME, VALUE, st.booleans())
"""The last: it must not enter a table."""
SENT = st.tuples(
    st.lists(HEADER, max_size=12),
    st.booleans(),
    st.none() | st.sampled_from([0, 33, 64, 150, 1_000, TABLE]),
    st.booleans(),
)
"""Headers, whether with Huffman, the size of the table from then on, and whether all of it twice."""


def raw(decoder: HeaderDecoder, block: bytes) -> list[tuple[bytes, bytes]]:
    return [(field.name.encode("latin-1"), field.raw) for field in decoder.decode(block)]


def theirs(decoder: Decoder, block: bytes) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]


def blocks_of(sent: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None, bool]]) -> list[bytes]:
    encoder = Encoder()
    blocks = []
    for headers, coded, size, twice in sent:
        if size is not None:
            encoder.header_table_size = size
        told = [NeverIndexedHeaderTuple(n, v) if secret else (n, v) for n, v, secret in headers]
        blocks += [encoder.encode(told, huffman=coded) for _ in range(1 + twice)]
    return blocks


@given(st.lists(SENT, max_size=12))
def test_what_the_published_encoder_says_is_read_as_its_decoder_reads_it(
    sent: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None, bool]],
) -> None:
    ours, published = HeaderDecoder(), Decoder()
    for block in blocks_of(sent):
        found = raw(ours, block)
        assert found == theirs(published, block)
        assert ours.held == sum(
            32 + len(name) + len(value) for name, value in published.header_table.dynamic_entries
        )
        assert sum(32 + len(name) + len(value) for name, value in found) <= LIMIT


@given(st.lists(SENT, min_size=1, max_size=6))
def test_the_same_block_again_means_the_same_as_without_a_memory(
    sent: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None, bool]],
) -> None:
    with_memory, without, published = HeaderDecoder(), HeaderDecoder(remembered=0), Decoder()
    for block in blocks_of(sent):
        for _ in range(3):
            try:
                expected = theirs(published, block)
            except HPACKError:
                return
            assert raw(with_memory, block) == raw(without, block) == expected


@given(st.lists(st.tuples(NAME, VALUE), max_size=12))
def test_what_is_written_is_read_by_both(headers: list[tuple[bytes, bytes]]) -> None:
    lawful = [
        (name.decode(), value) for name, value in headers if not any(byte in value for byte in b"\0\r\n")
    ]
    block = encode_fields(lawful)
    expected = [(name.encode(), value) for name, value in lawful]
    assert theirs(Decoder(), block) == expected
    assert raw(HeaderDecoder(max_list_bytes=1 << 20), block) == expected


@given(
    st.lists(SENT, min_size=1, max_size=5),
    st.integers(0, 4),
    st.lists(
        st.tuples(st.integers(0, 1 << 12), st.integers(0, 255), st.integers(0, 3)), min_size=1, max_size=3
    ),
)
def test_changed_blocks_are_refused_or_read_as_the_published_decoder_reads_them(
    sent: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None, bool]],
    which: int,
    changes: list[tuple[int, int, int]],
) -> None:
    blocks = blocks_of(sent)
    changed = bytearray(blocks[which % len(blocks)])
    for at, byte, how in changes:
        at %= len(changed) + 1
        changed[at : at + (how > 0)] = bytes((byte,)) * (how != 1)
    blocks[which % len(blocks)] = bytes(changed)
    ours, published = HeaderDecoder(max_list_bytes=LIMIT), Decoder(max_header_list_size=LIMIT)
    for block in blocks:
        try:
            expected = theirs(published, block)
        except HPACKError:
            expected = None
        try:
            found = raw(ours, block)
        except (HpackError, HeadersTooLarge):
            found = None
        assert found == expected
        if found is None:
            return


@given(st.lists(SENT, min_size=1, max_size=8), st.integers(100, 900))
def test_a_list_is_refused_exactly_above_its_limit_and_the_table_stays_in_step(
    sent: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None, bool]], limit: int
) -> None:
    ours, published = HeaderDecoder(max_list_bytes=limit), Decoder(max_header_list_size=1 << 20)
    for block in blocks_of(sent):
        expected = theirs(published, block)
        size = sum(32 + len(name) + len(value) for name, value in expected)
        if size <= limit:
            assert raw(ours, block) == expected
        else:
            with pytest.raises((HeadersTooLarge, HeaderBomb)) as refused:
                ours.decode(block)
            if isinstance(refused.value, HeaderBomb):
                assert size > 4 * limit
                return  # its connection ends: the table need not keep step
            assert limit < refused.value.size <= size


@given(st.binary(max_size=200))
def test_huffman_comes_back(data: bytes) -> None:
    coded = PUBLISHED.encode(data)
    assert huffman.decode(coded) == data
    if coded:
        # Without its last byte it is another text, or none, but never this one.
        with contextlib.suppress(HpackError):
            assert huffman.decode(coded[:-1]) != data


@given(st.binary(max_size=60))
@settings(max_examples=400)
def test_any_bytes_are_huffman_or_refused(data: bytes) -> None:
    try:
        text = huffman.decode(data)
    except HpackError:
        return
    assert PUBLISHED.encode(text) == data
    assert len(text) <= len(data) * 8 // 5
