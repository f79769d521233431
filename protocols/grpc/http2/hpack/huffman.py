"""The Huffman code of HPACK, decoded a byte at a time (RFC 7541 section 5.2 and appendix B).

Codes are 5 to 30 bits long, so a byte never ends more than two symbols. The effect of a byte after a
given number of bits of a symbol is computed once for the whole process and cached: a row of 256
steps for each of the 256 positions between symbols, of which text uses some thirty (60 KiB), and all of
them together 5 MB when peers send every possible byte.
"""

from __future__ import annotations

from typing import Final

from popgate.errors import PeerWireError

Row = list[object]
"""Steps by byte, None where it was not met yet; last the bits that were read of the symbol so far."""

_EOS: Final = 256
_BY_LENGTH: Final[tuple[tuple[int, bytes], ...]] = (
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b'!"()?'),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\x00$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
    (19, b"\\\xc3\xd0"),
    (20, bytes.fromhex("80 82 83 a2 b8 c2 e0 e2")),
    (21, bytes.fromhex("99 a1 a7 ac b0 b1 b3 d1 d8 d9 e3 e5 e6")),
    (
        22,
        bytes.fromhex(
            "81 84 85 86 88 92 9a 9c a0 a3 a4 a9 aa ad b2 b5 b9 ba bb bd be c4 c6 e4 e8 e9",
        ),
    ),
    (
        23,
        bytes.fromhex(
            "01 87 89 8a 8b 8c 8d 8f 93 95 96 97 98 9b 9d 9e a5 a6 a8 ae af b4 b6 b7 bc bf c5 e7 ef",
        ),
    ),
    (24, bytes.fromhex("09 8e 90 91 94 9f ab ce d7 e1 ec ed")),
    (25, bytes.fromhex("c7 cf ea eb")),
    (26, bytes.fromhex("c0 c1 c8 c9 ca cd d2 d5 da db ee f0 f2 f3 ff")),
    (27, bytes.fromhex("cb cc d3 d4 d6 dd de df f1 f4 f5 f6 f7 f8 fa fb fc fd fe")),
    (
        28,
        bytes.fromhex(
            "02 03 04 05 06 07 08 0b 0c 0e 0f 10 11 12 13 14 15 17 18 19 1a 1b 1c 1d 1e 1f 7f dc f9",
        ),
    ),
    (30, b"\n\r\x16"),
)
"""Appendix B. The code is canonical: among those of one length, and from length to length, codes count
up in the order of the symbols; EOS comes last, with 30 bits."""

_BEGIN: Final = 1
"""Bits are held in a number behind a leading 1, which keeps zeros in front: this is none of them."""
_ENDS: Final = frozenset((1 << ones + 1) - 1 for ones in range(8))
"""What may be left over when the text ends: up to 7 bits, all of them ones."""


class HpackError(PeerWireError):
    """A header block that cannot be decoded: the end of the connection (COMPRESSION_ERROR)."""


def _codes() -> dict[int, int]:
    """Symbols by their codes, which are held as `_BEGIN` says."""
    codes: dict[int, int] = {}
    code = length = 0
    for longer, symbols in _BY_LENGTH:
        code <<= longer - length
        length = longer
        for symbol in symbols:
            codes[1 << length | code] = symbol
            code += 1
    codes[1 << length | code] = _EOS
    return codes


_SYMBOLS: Final = _codes()
_rows: dict[int, Row] = {}


def _row(bits: int) -> Row:
    row = _rows.get(bits)
    if row is None:
        row = _rows[bits] = [None] * 256
        row.append(bits)
    return row


def _learn(row: Row, byte: int) -> tuple[bytes, Row]:
    bits: int = row[256]  # type: ignore[assignment]
    ended = bytearray()
    for shift in range(7, -1, -1):
        bits = bits << 1 | byte >> shift & 1
        symbol = _SYMBOLS.get(bits)
        if symbol is not None:
            if symbol == _EOS:
                raise HpackError("a Huffman text with the symbol that ends it inside")
            ended.append(symbol)
            bits = _BEGIN
    step = row[byte] = (bytes(ended), _row(bits))
    return step


_FIRST: Final = _row(_BEGIN)


def decode(data: bytes) -> bytes:
    """The text of a Huffman coded string literal. Raises HpackError."""
    row: Row = _FIRST
    ended: list[bytes] = []
    keep = ended.append
    try:
        for byte in data:
            symbols, row = row[byte]  # type: ignore[misc]
            keep(symbols)  # type: ignore[has-type]
    except TypeError:  # a step that was not met yet
        return _decode_learning(data)
    if row[256] not in _ENDS:
        raise HpackError("the padding of a Huffman text is not up to 7 bits, all of them ones")
    return b"".join(ended)


def _decode_learning(data: bytes) -> bytes:
    row = _FIRST
    for byte in data:
        row = (row[byte] or _learn(row, byte))[1]  # type: ignore[index]
    return decode(data)
