import gzip
import sys
import zlib
from collections.abc import Callable

import pytest
import zstandard

from popgate.errors import PeerWireError, Unsupported
from popgate.wire.messages.compression import (
    Compression,
    compress_gzip,
    compress_lz4,
    compress_zlib,
    compress_zstd,
    compression_of,
    decompress,
)

BODY = bytes(range(256)) * 40
WAYS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.GZIP: compress_gzip,
    Compression.ZLIB: compress_zlib,
    Compression.LZ4: compress_lz4,
    Compression.ZSTD: compress_zstd,
}


@pytest.mark.parametrize("way", Compression)
@pytest.mark.parametrize("body", [b"", b"x", BODY])
def test_a_body_comes_back_and_tells_its_way(way: Compression, body: bytes) -> None:
    packed = WAYS[way](body)
    assert compression_of(packed) is way
    assert decompress(packed, len(body)) == body


@pytest.mark.parametrize("way", Compression)
def test_a_body_above_the_limit_is_refused(way: Compression) -> None:
    packed = WAYS[way](BODY)
    assert decompress(packed, len(BODY)) == BODY
    with pytest.raises(PeerWireError, match=f"more than {len(BODY) - 1} bytes"):
        decompress(packed, len(BODY) - 1)


@pytest.mark.parametrize("way", Compression)
def test_a_bomb_is_not_unpacked(way: Compression) -> None:
    packed = WAYS[way](bytes(64 * 1024 * 1024))
    assert len(packed) < 512 * 1024
    with pytest.raises(PeerWireError, match="more than 1000 bytes"):
        decompress(packed, 1000)


def test_a_zstd_bomb_that_hides_its_size_is_not_unpacked() -> None:
    machine = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    packed = machine.compress(bytes(16 * 1024 * 1024)) + machine.flush()
    with pytest.raises(PeerWireError, match="above 1000 bytes"):
        decompress(packed, 1000)


@pytest.mark.parametrize("way", Compression)
def test_a_body_that_is_cut_off_is_refused(way: Compression) -> None:
    packed = WAYS[way](BODY)
    for end in (4, 7, len(packed) // 2, len(packed) - 1):
        with pytest.raises(PeerWireError):
            decompress(packed[:end], 1 << 20)


@pytest.mark.parametrize("way", [Compression.GZIP, Compression.ZLIB])
def test_a_checksum_that_does_not_fit_is_told(way: Compression) -> None:
    packed = bytearray(WAYS[way](BODY))
    packed[-5 if way is Compression.GZIP else -1] ^= 0xFF
    with pytest.raises(PeerWireError, match="damaged"):
        decompress(bytes(packed), 1 << 20)


@pytest.mark.parametrize("body", [b"", b"\x1f", b"hello", b"x", b"\x04\x22\x4d", b"{}"])
def test_a_plain_body_is_compressed_in_no_known_way(body: bytes) -> None:
    assert compression_of(body) is None
    with pytest.raises(PeerWireError, match="no known way"):
        decompress(body, 100)


def test_all_levels_of_zlib_are_known() -> None:
    for level in range(10):
        assert decompress(zlib.compress(BODY, level), len(BODY)) == BODY


def test_a_gzip_body_may_have_several_members_up_to_a_bound() -> None:
    assert decompress(gzip.compress(b"a") + gzip.compress(b"b"), 2) == b"ab"
    with pytest.raises(PeerWireError, match="more than 1 bytes"):
        decompress(gzip.compress(b"a") + gzip.compress(b"b"), 1)
    with pytest.raises(PeerWireError, match="members"):
        decompress(gzip.compress(b"") * 65, 10)


def test_bytes_behind_a_body_do_not_matter() -> None:
    for packed in (compress_gzip(BODY), compress_zlib(BODY)):
        assert decompress(packed + b"rest", len(BODY)) == BODY


@pytest.mark.parametrize(
    ("way", "package", "install"),
    [(Compression.LZ4, "lz4", "lz4"), (Compression.ZSTD, "zstandard", r"popgate\[fast\]")],
)
def test_a_missing_package_is_named(
    way: Compression, package: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to install: `lz4` is in no extra, as the gateway always has it."""
    packed = WAYS[way](BODY)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "lz4.frame", raising=False)
    with pytest.raises(Unsupported, match=f"package {package}"):
        decompress(packed, 1 << 20)
    with pytest.raises(Unsupported, match=rf"\(install {install}\)"):
        WAYS[way](BODY)
