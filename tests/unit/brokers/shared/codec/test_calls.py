"""brokers.shared.codec.calls: the port's calls as they travel."""

from __future__ import annotations

import inspect

import pytest

from brokers import capabilities
from brokers.port import Directory, Offsets, Store, Transactions
from brokers.relay import AsksGateways
from brokers.resets import HoldsResets
from brokers.shared.codec import calls
from brokers.shared.codec.calls import CALLS, CANCELLED, DONE, FAILED, TAKING, WAITING, fingerprint
from brokers.shared.codec.kinds import Sink, Source
from popgate.context import Context
from popgate.errors import IllegalReceipt, PeerWireError
from popgate.filters.compiled import EVERYTHING
from popgate.model import Message, Pop, Sent
from popgate.wire.frames.codes import PortCode, RequestCode, ResponseCode

SHARED = (
    *(Store, Offsets, Transactions, Directory),
    *(capabilities.RedrivesDeadLetters, capabilities.ReclaimsRetries, capabilities.LiteTopics),
    *(capabilities.TellsConsumers, capabilities.CarriesReplies, capabilities.FindsByPlace),
    *(AsksGateways, HoldsResets),
)


def test_every_waiting_method_of_the_port_and_of_shared_capabilities_travels() -> None:
    wanted = {
        name
        for owner in SHARED
        for name, method in vars(owner).items()
        if inspect.iscoroutinefunction(method)
    }
    wanted.discard("send_packed")  # the port itself sends what it unpacks
    assert {call.name for call in CALLS.values()} == wanted


def test_numbers_are_our_own() -> None:
    assert not {*RequestCode} & {*PortCode}
    assert not {*ResponseCode} & {*PortCode}
    assert all(770_000 <= code <= 770_999 for code in PortCode)
    assert len({DONE, FAILED, CANCELLED}) == 3
    assert set(CALLS) == {code for code in PortCode if code >= 770_100}
    assert TAKING < WAITING < set(CALLS)


def test_arguments_are_read_as_they_were_given() -> None:
    context = Context(client_id="c", deadline=12.0)
    messages = [Message("t", b"body", "id", user_properties={"a": "b"}, priority=3)]
    sink = Sink(now=10.0)
    calls.SEND.write(sink, context, messages)
    args, named = calls.SEND.read(Source(sink.data(), now=100.0))
    assert args == [Context(client_id="c", deadline=102.0), messages]
    assert named == {}


def test_keywords_stay_keywords_and_may_be_left_out() -> None:
    sink = Sink()
    calls.CHANGE_INVISIBLE.write(sink, Context(), "t", "g", "r", 5)
    calls.CHANGE_INVISIBLE.write(other := Sink(), Context(), "t", "g", "r", 5, suspend=True)
    assert calls.CHANGE_INVISIBLE.read(Source(sink.data()))[1] == {"suspend": False}
    assert calls.CHANGE_INVISIBLE.read(Source(other.data()))[1] == {"suspend": True}


def test_a_call_without_arguments_is_empty() -> None:
    sink = Sink()
    calls.TOPICS.write(sink)
    assert sink.data() == b""
    assert calls.TOPICS.read(Source(b"")) == ([], {})


def test_a_wait_travels_as_a_duration() -> None:
    sink = Sink(now=10.0)
    calls.POP.write(sink, Context(), Pop("t", "g", EVERYTHING, 1_000, wait_until=13.0))
    (_, request), _ = calls.POP.read(Source(sink.data(), now=50.0))
    assert request.wait_until == 53.0


def test_results_of_both_kinds_come_back_in_order() -> None:
    results = [Sent("id", "b", 1, 2), IllegalReceipt("h", "why"), Sent("id2", "b", 1, 3)]
    sink = Sink()
    calls.SEND.write_result(sink, results)
    read = calls.SEND.read_result(Source(sink.data()))
    assert [read[0], read[2]] == [results[0], results[2]]
    assert isinstance(read[1], IllegalReceipt)
    with pytest.raises(PeerWireError, match="left over"):
        calls.SEND.read_result(Source(sink.data() + b"\0"))


def test_what_two_processes_must_agree_on_has_a_fingerprint() -> None:
    assert fingerprint() == fingerprint()
    assert fingerprint() != fingerprint("another field")
    assert len(fingerprint()) == 16
