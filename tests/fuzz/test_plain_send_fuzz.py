"""Seeded mutations of sends: what is read of them without protobuf's library is what the library reads.

The same seeds every time. `TEST_FUZZ_ROUNDS` asks for more.
"""

from __future__ import annotations

import os
import random

from tests.fuzz.test_wire_fuzz import mutated
from tests.unit.protocols.grpc.codec.test_plain_send import agree

ROUNDS = int(os.environ.get("TEST_FUZZ_ROUNDS", "400"))
TEXTS = (b"a", b"b", b"kind", b"k" * 130)
ODD_TEXTS = (
    b"a b",
    b" ",
    b" \t\n\r\x0b\x0c",
    b"\t",
    b"\x1c",
    b" a",
    b"",
    b"|",
    b"\x01",
    b"\x02",
    b"\x02c\x01d",
    b"\x02c\x01d\x02",
    b"\xff",
    b"\xc3\xbc",
    b"_x",
    b"KEYS",
)


class Odd:
    """Encodes sends as no client does: fields are repeated, missing, in another order, or wrong."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.chance = self.dice.choice((0.001, 0.01, 0.04))

    def rarely(self) -> bool:
        return self.dice.random() < self.chance

    def number(self, value: int) -> bytes:
        parts = []
        while value >= 0x80:
            parts.append(value & 0x7F | 0x80)
            value >>= 7
        parts.append(value)
        if self.rarely():  # longer than it needs to be
            parts[-1] |= 0x80
            parts += [0x80] * self.dice.randrange(9) + [self.dice.choice((0, 0, 1, 0x7F))]
        return bytes(parts)

    def tag(self, tag: int) -> bytes:
        return self.number(self.dice.choice((tag ^ 7, tag + 8, tag | 1)) if self.rarely() else tag)

    def field(self, tag: int, value: bytes) -> bytes:
        size = len(value)
        if self.rarely():
            size = max(size + self.dice.choice((-1, 1, 2, 200)), 0)
        return self.tag(tag) + self.number(size) + value

    def value(self, tag: int, values: tuple[int, ...], odd: tuple[int, ...]) -> bytes:
        return self.tag(tag) + self.number(self.dice.choice(odd if self.rarely() else values))

    def text(self) -> bytes:
        return self.dice.choice(ODD_TEXTS if self.rarely() else TEXTS)

    def mixed(self, fields: list[bytes]) -> bytes:
        """Mostly all of them in order, some once more."""
        chosen = [field for field in fields if not self.rarely()]
        if self.dice.random() < 0.2:
            self.dice.shuffle(chosen)
        if self.rarely() and chosen:
            chosen.insert(self.dice.randrange(len(chosen) + 1), self.dice.choice(fields))
        return b"".join(chosen)

    def time(self) -> bytes:
        seconds = self.value(0x08, (0, 1, 1_700_000_000, 253_402_300_799), (253_402_300_801, 1 << 63))
        nanos = self.value(0x10, (0, 1, 5_000_001, 999_999_999), (1_000_000_000, 1 << 41, (1 << 64) - 1))
        return self.mixed([seconds, nanos])

    def system(self) -> bytes:
        return self.mixed(
            [
                self.field(0x0A, self.text()),
                *(self.field(0x12, self.text()) for _ in range(self.dice.choice((0, 1, 1, 2)))),
                self.field(0x1A, b"01AB" + (self.text() if self.rarely() else b"")),
                self.value(0x28, (0, 1), (2, 0x101)),
                self.value(0x30, (0, 1), (2, 0x101)),
                self.field(0x3A, self.time()),
                *([self.field(0x42, self.text())] if self.dice.random() < 0.5 else []),
                *(
                    [self.value(0x68, (0, 7, 1 << 31), (1 << 50, (1 << 64) - 1))]
                    if self.dice.random() < 0.3
                    else []
                ),
            ]
        )

    def message(self) -> bytes:
        topic = self.field(0x12, b"T" if not self.rarely() else self.text())
        entries = [
            self.field(0x12, self.mixed([self.field(0x0A, self.text()), self.field(0x12, self.text())]))
            for _ in range(self.dice.choice((0, 1, 1, 2)))
        ]
        return self.mixed(
            [
                self.field(0x0A, b"" if self.rarely() else topic),
                *entries,
                self.field(0x1A, self.system()),
                self.field(0x22, self.dice.randbytes(self.dice.choice((0, 3, 200)))),
            ]
        )

    def request(self) -> bytes:
        return b"".join(self.field(0x0A, self.message()) for _ in range(self.dice.choice((1, 1, 2, 3))))


def test_what_is_read_of_odd_sends_is_what_the_library_reads() -> None:
    plain = 0
    for seed in range(ROUNDS * 10):
        odd = Odd(seed)
        data = odd.request()
        plain += agree(data)
        agree(mutated(odd.dice, data))
    # It would prove nothing if nearly none were read, or nearly all.
    assert ROUNDS < plain < ROUNDS * 8
