import pytest

from popgate.errors import LocalWireError
from popgate.wire.messages.hosts import NOWHERE, host_text, pack_host


@pytest.mark.parametrize(
    ("text", "packed"),
    [
        ("10.0.0.1:10911", "0a00000100002a9f"),
        ("255.255.255.255:65535", "ffffffff0000ffff"),
        ("[::1]:10911", "00" * 15 + "0100002a9f"),
        ("[2001:db8::1]:0", "20010db8" + "00" * 11 + "0100000000"),
    ],
)
def test_an_address_is_packed_and_read(text: str, packed: str) -> None:
    assert pack_host(text).hex() == packed
    assert host_text(bytes.fromhex(packed)) == text


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("10.0.0.1", "10.0.0.1:0"),
        ("::1", "[::1]:0"),
        ("[fe80::1%eth0]:7", "[fe80::1]:7"),
        ("10.0.0.1:99999", "10.0.0.1:0"),
        ("10.0.0.1:x", "10.0.0.1:0"),
        ("10.0.0.1:٣", "10.0.0.1:0"),
    ],
)
def test_a_missing_part_is_zero(text: str, read: str) -> None:
    assert host_text(pack_host(text)) == read


@pytest.mark.parametrize(
    "text", ["", ":", "laptop", "laptop:80", "unix:/run/x", "1.2.3:4", "[::1", "\0:1", "🦊"]
)
def test_what_is_no_address_is_nowhere(text: str) -> None:
    assert host_text(pack_host(text)).endswith(":0") or pack_host(text) == NOWHERE


@pytest.mark.parametrize("size", [0, 4, 7, 9, 16, 21])
def test_a_packed_host_has_one_of_two_lengths(size: int) -> None:
    with pytest.raises(LocalWireError):
        host_text(bytes(size))
