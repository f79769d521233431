from popgate.wire.messages.buffer import Buffer


def test_bytes_leave_in_the_order_in_which_they_came() -> None:
    buffer = Buffer()
    buffer.append(b"abc")
    buffer.append(bytearray(b"de"))
    buffer.append(memoryview(b"fgh"))
    assert len(buffer) == 8
    assert buffer.take(2) == b"ab"
    assert buffer.peek(3) == b"cde"
    assert buffer.take(5) == b"cdefg"
    assert buffer.take(5) == b"h"
    assert buffer.take(5) == b""
    assert len(buffer) == 0


def test_what_was_taken_is_not_changed_by_what_comes() -> None:
    buffer = Buffer()
    buffer.append(b"abcd")
    taken, seen = buffer.take(2), buffer.peek(2)
    buffer.append(b"xyz" * 1000)
    buffer.clear()
    assert (taken, seen, len(buffer)) == (b"ab", b"cd", 0)
