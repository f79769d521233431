"""Seeded mutations of receives and acknowledgements, as `test_plain_send_fuzz` has those of sends."""

from __future__ import annotations

from tests.fuzz.test_plain_send_fuzz import ROUNDS, Odd
from tests.fuzz.test_wire_fuzz import mutated
from tests.unit.protocols.grpc.codec.test_plain_consume import ATTEMPT, acks_agree, entry, receives_agree


class OddConsumer(Odd):
    """Encodes acknowledgements and receives as no client does."""

    def resource(self) -> bytes:
        fields = [self.field(0x12, self.text())]
        if self.rarely():
            fields.append(self.field(0x0A, self.text()))
        return self.mixed(fields)

    def entry(self) -> bytes:
        usual = entry(self.dice.randrange(3))
        texts = [usual.message_id.encode(), usual.receipt_handle.encode()]
        fields = [
            self.field(tag, self.text() if self.rarely() else text)
            for tag, text in zip((0x0A, 0x12), texts, strict=True)
        ]
        if self.rarely():
            fields.append(self.field(0x1A, self.text()))
        return self.mixed(fields)

    def ack(self) -> bytes:
        entries = [self.field(0x1A, self.entry()) for _ in range(self.dice.choice((1, 1, 2, 3)))]
        return self.mixed([self.field(0x0A, self.resource()), self.field(0x12, self.resource()), *entries])

    def receive(self) -> bytes:
        queue = self.mixed([self.field(0x0A, self.resource()), self.value(0x10, (0, 3), (1 << 40,))])
        passing = self.mixed([self.value(0x08, (0, 1, 2), (3,)), self.field(0x12, self.text())])
        attempt = self.field(0x42, ATTEMPT.encode() if not self.rarely() else self.text())
        return self.mixed(
            [
                self.field(0x0A, self.resource()),
                self.field(0x12, queue),
                self.field(0x1A, passing),
                self.value(0x20, (1, 32), (0, (1 << 64) - 1)),
                self.field(0x2A, self.time()),
                *([self.field(0x3A, self.time())] if self.dice.random() < 0.5 else []),
                *([attempt] if self.dice.random() < 0.5 else []),
            ]
        )


def assert_some(plain: int) -> None:
    """It would prove nothing if nearly none were read, or nearly all; a few rounds tell neither."""
    assert ROUNDS < 30 or ROUNDS < plain < ROUNDS * 4.5


def test_what_is_read_of_odd_acks_is_what_the_library_reads() -> None:
    plain = 0
    for seed in range(ROUNDS * 5):
        odd = OddConsumer(seed)
        data = odd.ack()
        plain += acks_agree(data)
        acks_agree(mutated(odd.dice, data))
    assert_some(plain)


def test_what_is_read_of_odd_receives_is_what_the_library_reads() -> None:
    plain = 0
    for seed in range(ROUNDS * 5):
        odd = OddConsumer(seed)
        data = odd.receive()
        plain += receives_agree(data)
        receives_agree(mutated(odd.dice, data))
    assert_some(plain)
