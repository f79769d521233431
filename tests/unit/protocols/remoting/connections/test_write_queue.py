"""What waits to be written to a connection."""

from __future__ import annotations

from popgate.context import Context
from popgate.wire.frames.remoting import Command
from protocols.remoting.connections.write_queue import MOST_TOLD, WriteQueue
from protocols.remoting.requests import Request


def answered(out: WriteQueue, lost: list[str], name: str, size: int = 10) -> None:
    command = Command(11)
    request = Request(command, Context(), None)  # type: ignore[arg-type]
    request.unwritten = lambda: lost.append(name)
    out.answer(command.answer(0, body=bytes(size)), request)


def test_requests_of_ours_are_taken_again_when_some_were_written_though_answers_still_wait() -> None:
    out, part = WriteQueue(), bytes(MOST_TOLD // 4)
    for _ in range(4):
        assert out.request(part)
    assert not out.request(b"more")
    answered(out, [], "waits", size=MOST_TOLD)
    assert out.take() == [part * 4]
    assert out, "the answer still waits"
    assert out.request(b"more")


def test_who_answered_is_told_of_what_is_lost_whether_it_waited_or_was_held_back() -> None:
    out, lost = WriteQueue(), []  # type: WriteQueue, list[str]
    answered(out, lost, "written")
    out.take()
    answered(out, lost, "waits")
    command = Command(11)
    request = Request(command, Context(), None)  # type: ignore[arg-type]
    request.unwritten = lambda: lost.append("held back")
    out.hold_back(command.answer(19), request)
    assert out.request(b"ours")
    out.lose()
    assert sorted(lost) == ["held back", "waits"]
    assert not out
    assert out.take() == []
