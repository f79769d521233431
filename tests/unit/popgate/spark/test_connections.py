"""popgate.spark.connections: connections that are kept, with a listener that the test holds."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from popgate.errors import BrokerTimeout, BrokerUnavailable, Forbidden
from popgate.queue_client import QueueClient
from popgate.spark.connections import client_of, close_idle
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.source_options import SourceOptions, read_source_options
from popgate.wire.frames.codes import RequestCode
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)
        yield listening
    close_idle()


def at(*endpoints: str, **given: str) -> SourceOptions:
    return read_source_options({"endpoints": ",".join(endpoints), "topic": "t", **given}, streaming=False)


def endpoint(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def used(options: SourceOptions) -> QueueClient:
    with client_of(options) as client:
        return client


def test_a_connection_is_kept_for_the_next_piece_of_work(listener: socket.socket) -> None:
    options = at(endpoint(listener))
    assert used(options).connection is used(options).connection


def test_another_account_has_another_connection(listener: socket.socket) -> None:
    plain, signed = at(endpoint(listener)), at(endpoint(listener), accessKey="a", secretKey="b")
    assert used(plain).connection is not used(signed).connection


def test_a_connection_that_nobody_used_for_a_minute_is_closed(listener: socket.socket) -> None:
    options, clock = at(endpoint(listener)), [0.0]

    def used_at(time_s: float, its: SourceOptions = options) -> QueueClient:
        clock[0] = time_s
        with client_of(its, now=lambda: clock[0]) as client:
            return client

    first = used_at(0.0).connection
    assert used_at(60.0).connection is first
    # Those of others are closed by whoever comes by.
    used_at(120.1, at(endpoint(listener), accessKey="a", secretKey="b"))
    assert not first.is_open
    assert used_at(120.2).connection is not first


def test_keys_that_changed_have_another_connection(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = at(endpoint(listener), credentials="env:POPGATE_KEYS")
    monkeypatch.setenv("POPGATE_KEYS", "me:one")
    first = used(options).connection
    assert used(options).connection is first
    monkeypatch.setenv("POPGATE_KEYS", "me:two")
    assert used(options).connection is not first


def test_a_connection_waits_as_long_as_whoever_uses_it_says(listener: socket.socket) -> None:
    short, long = (at(endpoint(listener), pullTimeoutMs=text) for text in ("1000", "2000"))
    assert used(short).connection.timeout_s == 1
    assert used(long).connection is used(short).connection
    assert used(long).connection.timeout_s == 2


def test_two_at_a_time_have_two_and_one_is_kept(listener: socket.socket) -> None:
    options = at(endpoint(listener))
    with client_of(options) as one, client_of(options) as other:
        assert one.connection is not other.connection
    assert used(options).connection is one.connection
    assert not other.connection.is_open


# Drivers have a thread for each listener of queries that reports to a gateway. Each of these tests lets
# another one in where it may come in.


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def used_at(time_s: float, options: SourceOptions) -> QueueClient:
    with client_of(options, now=lambda: time_s) as client:
        return client


def test_two_threads_that_end_at_once_leave_one_connection(listener: socket.socket) -> None:
    options, others, times = at(endpoint(listener)), list[QueueClient](), 0

    def now() -> float:
        nonlocal times
        times += 1
        if times == 2:  # the work is done, and the connection about to be kept
            in_a_thread(lambda: others.append(used_at(0.0, options)))
        return 0.0

    with client_of(options, now=now) as client:
        pass
    assert [each.connection.is_open for each in (client, *others)].count(True) == 1
    assert used_at(0.0, options).connection.is_open


def test_a_connection_is_not_closed_under_another_thread(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, others = at(endpoint(listener)), list[QueueClient]()
    with client_of(options):
        idle = used(options).connection
        close = idle.close

        def close_later() -> None:
            monkeypatch.undo()
            in_a_thread(lambda: others.append(used(options)))
            close()

        monkeypatch.setattr(idle, "close", close_later)
    assert [each.connection is idle for each in others] == [False]


def test_two_threads_may_close_old_connections_at_once(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (at(endpoint(listener), accessKey=name, secretKey="s") for name in ("a", "b", "c"))
    first, second = used_at(0.0, one).connection, used_at(0.0, two).connection
    close = first.close
    with contextlib.ExitStack() as another:

        def close_later() -> None:
            monkeypatch.undo()
            another.enter_context(client_of(two, now=lambda: 100.0))
            close()

        monkeypatch.setattr(first, "close", close_later)
        assert used_at(100.0, three).connection.is_open
    assert not first.is_open
    assert not second.is_open


def test_a_connection_whose_other_side_is_gone_is_not_used_again(listener: socket.socket) -> None:
    options = at(endpoint(listener))
    first = used(options).connection
    far, _ = listener.accept()
    far.close()
    # Until the system has told this side.
    select.select([first._socket], [], [], PATIENCE_S)
    assert used(options).connection is not first


def test_after_a_failure_a_connection_is_not_used_again(listener: socket.socket) -> None:
    options = at(endpoint(listener))
    with pytest.raises(ValueError, match="mine"), client_of(options) as client:
        raise ValueError("mine")
    assert not client.connection.is_open


def test_a_failure_of_the_gateway_has_its_fault_and_the_endpoints(listener: socket.socket) -> None:
    options = at(endpoint(listener))
    with pytest.raises(SparkSourceError) as told, client_of(options):
        raise BrokerUnavailable("it ends")
    assert told.value.code is Code.GATEWAY
    assert "BROKER_UNAVAILABLE: it ends" in str(told.value)
    assert endpoint(listener) in str(told.value)
    assert isinstance(told.value.__cause__, BrokerUnavailable)


def test_the_first_endpoint_that_answers_is_taken(listener: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = endpoint(gone)
    assert used(at(closed, endpoint(listener))).connection.endpoint == endpoint(listener)
    with pytest.raises(SparkSourceError) as told:
        used(at(closed))
    assert "BROKER_UNAVAILABLE: no connection to" in str(told.value)
    assert "each executor connect to the gateway themselves" in str(told.value)
    assert closed in str(told.value)


@pytest.mark.parametrize("is_caught", [False, True])
def test_an_endpoint_that_does_not_answer_comes_last_for_a_minute(
    listener: socket.socket, *, is_caught: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        options, clock = at(endpoint(hanging), endpoint(listener)), [0.0]

        def endpoint_at(time_s: float) -> str:
            clock[0] = time_s
            with client_of(options, now=lambda: clock[0]) as client:
                client.connection.close()
                return client.connection.endpoint

        def ask_in_vain(client: QueueClient) -> None:
            client.connection.call(RequestCode.GET_MAX_OFFSET, {}, timeout_s=0.01)

        with contextlib.suppress(SparkSourceError), client_of(options, now=lambda: clock[0]) as client:
            assert client.connection.endpoint == endpoint(hanging)
            if is_caught:  # as the sink does, which then leaves the connection
                with pytest.raises(BrokerTimeout):
                    ask_in_vain(client)
                client.connection.close()
            else:
                ask_in_vain(client)
        assert endpoint_at(1.0) == endpoint_at(60.0) == endpoint(listener)
        assert endpoint_at(60.1) == endpoint(hanging)


@pytest.mark.parametrize("given", [{}, {"accessKey": "alice", "secretKey": "hidden"}])
def test_a_refused_account_is_told_with_the_option_that_names_it(
    listener: socket.socket, given: dict[str, str]
) -> None:
    options = at(endpoint(listener), **given)
    with pytest.raises(SparkSourceError) as told, client_of(options):
        raise Forbidden("not yours")
    account = "option accessKey = 'alice'" if given else "there is no option accessKey"
    assert f"FORBIDDEN: not yours (option endpoints = {options.gateway.endpoints}, {account}: let" in str(
        told.value
    )
    assert "hidden" not in str(told.value)
