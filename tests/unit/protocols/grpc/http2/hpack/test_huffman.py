"""The Huffman code, next to that of the published package, and its errors (RFC 7541 section 5.2)."""

from __future__ import annotations

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from popgate.errors import PeerWireError
from protocols.grpc.http2.hpack import huffman
from protocols.grpc.http2.hpack.huffman import HpackError, decode

PUBLISHED = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def bits(text: str) -> bytes:
    """Bytes of a string of zeros and ones, and spaces."""
    text = text.replace(" ", "")
    assert len(text) % 8 == 0
    return bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8))


@pytest.mark.parametrize(
    ("coded", "text"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
        ("a8eb10649cbf", "no-cache"),
        ("25a849e95ba97d7f", "custom-key"),
        ("25a849e95bb8e8b4bf", "custom-value"),
        ("6402", "302"),
        ("640eff", "307"),
        ("aec3771a4b", "private"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
        ("9bd9ab", "gzip"),
        ("", ""),
    ],
)
def test_the_texts_of_the_rfc(coded: str, text: str) -> None:
    assert decode(bytes.fromhex(coded)) == text.encode()


def test_every_symbol_alone_and_behind_and_before_every_other() -> None:
    for one in range(256):
        assert decode(PUBLISHED.encode(bytes((one,)))) == bytes((one,))
        text = b"".join(bytes((one, other)) for other in range(256))
        assert decode(PUBLISHED.encode(text)) == text


@pytest.mark.parametrize("ones", range(1, 8))
def test_ones_of_less_than_a_byte_are_padding(ones: int) -> None:
    # Symbols of 5 bits ('a' is 00011), as many as leave room for so many ones.
    count = next(n for n in range(1, 9) if (5 * n + ones) % 8 == 0)
    assert decode(bits("00011" * count + "1" * ones)) == b"a" * count


@pytest.mark.parametrize(
    "data",
    [
        bits("11111111"),
        bits("00011 111 11111111"),
        bits("00011 110"),
        bits("00011 000"),
        bits("00011 011"),
        bits("1111 1110"),
        PUBLISHED.encode(b"plain") + b"\xff",
        PUBLISHED.encode(b"\x16\x16\x16\x16")[:-1],
    ],
    ids=["8 ones", "11 ones", "a zero last", "zeros", "a zero first", "half a symbol", "a byte", "cut"],
)
def test_wrong_padding_is_refused(data: bytes) -> None:
    with pytest.raises(HpackError, match="padding"):
        decode(data)


@pytest.mark.parametrize("before", ["", "00011" * 8])
@pytest.mark.parametrize("after", ["11", "00 0001 1111", "11 1111 1111"])
def test_the_symbol_for_the_end_is_refused(before: str, after: str) -> None:
    with pytest.raises(HpackError, match="ends it inside"):
        decode(bits(before + "1" * 30 + after))


def test_a_wrong_text_is_wrong_again_and_leaves_right_ones_alone() -> None:
    right = PUBLISHED.encode(b"a request id: 7f")
    for _ in range(3):
        with pytest.raises(PeerWireError):
            decode(right + b"\xff\xff\xff\xff")
        assert decode(right) == b"a request id: 7f"


def test_what_is_learned_is_bounded() -> None:
    """One row for each place inside of a symbol, whatever peers send."""
    for one in range(256):
        for other in range(256):
            decode(PUBLISHED.encode(bytes((one, other, one))))
    assert len(huffman._rows) <= 256
    assert all(len(row) == 257 for row in huffman._rows.values())
