"""popgate.spark.grpc.connection, as the connector makes it (popgate.spark.connections)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from popgate.context import Context, Principal
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    Fault,
    GatewayError,
    GroupNotFound,
    TopicNotFound,
    Unauthenticated,
)
from popgate.kinds import Credentials
from popgate.model import TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.connections import client_of, close_idle
from popgate.spark.errors import SparkSourceError
from popgate.spark.options.source_options import SourceOptions, read_source_options
from popgate.testing.papers import Papers
from protocols.tls import Certificate
from tests.support.waiting import PATIENCE_S
from tests.unit.popgate.spark.grpc.scripted import OK, QUEUE, Scripted, pulled

T = TypeVar("T")


def at(*endpoints: str, **given: str) -> SourceOptions:
    options = {"endpoints": ",".join(endpoints), "topic": "t", "transport": "grpc", **given}
    options.setdefault("pullTimeoutMs", str(int(PATIENCE_S * 1000)))
    return read_source_options(options, streaming=False)


def used(options: SourceOptions, work: Callable[[QueueClient], T]) -> T:
    with client_of(options) as client:
        return work(client)


async def asked(options: SourceOptions, work: Callable[[QueueClient], T]) -> T:
    """The same beside a gateway in this process."""
    try:
        return await asyncio.to_thread(used, options, work)
    finally:
        await asyncio.to_thread(close_idle)


def failure(options: SourceOptions, work: Callable[[QueueClient], object]) -> GatewayError:
    with pytest.raises(SparkSourceError) as told:
        used(options, work)
    cause = told.value.__cause__
    assert isinstance(cause, GatewayError)
    return cause


def ends(client: QueueClient) -> dict[QueuePlace, int]:
    return client.maximums([QUEUE])


def offset(number: int) -> rpc.QueryOffsetResponse:
    return rpc.QueryOffsetResponse(status=OK, offset=number)


def refused(code: int, sentence: str = "because") -> rpc.QueryOffsetResponse:
    return rpc.QueryOffsetResponse(status=pb.Status(code=code, message=sentence))  # type: ignore[arg-type]


# -- a connection, and what becomes of it -----------------------------------------------------------


def test_a_connection_is_kept_for_the_next_piece_of_work(scripted: Scripted) -> None:
    scripted.answers["QueryOffset"] = [offset(3)]
    options = at(scripted.endpoint)
    first = used(options, lambda client: client.connection)
    assert used(options, ends) == {QUEUE: 3}
    assert used(options, lambda client: client.connection) is first
    with client_of(options) as one, client_of(options) as other:
        assert one.connection is not other.connection


def test_of_several_endpoints_the_first_that_is_there_is_taken(scripted: Scripted) -> None:
    gone = Scripted()
    gone.stop()
    options = at(gone.endpoint, scripted.endpoint)
    assert used(options, lambda client: client.connection.endpoint) == scripted.endpoint
    error = failure(at(gone.endpoint), ends)
    assert isinstance(error, BrokerUnavailable)
    assert f"no connection to {gone.endpoint}" in error.sentence
    assert "each executor connect to the gateway themselves" in error.sentence


def test_an_answer_that_does_not_come_is_a_silence(scripted: Scripted) -> None:
    scripted.answers["QueryOffset"] = [scripted.hang]
    scripted.answers["PullMessage"] = [scripted.hang]
    options = at(scripted.endpoint, pullTimeoutMs="100")
    for ask in (ends, lambda client: client.pull(QUEUE, 0, most=1)):
        with pytest.raises(SparkSourceError) as told, client_of(options) as client:
            ask(client)
        assert isinstance(told.value.__cause__, BrokerTimeout)
        assert client.connection.is_silent
        assert not client.connection.is_open


def test_a_call_behind_others_has_the_time_of_these_too(scripted: Scripted) -> None:
    """Over a slow line the last of many sends goes out when the others are there."""
    scripted.answers["QueryOffset"] = [offset(1)]
    scripted.answers["PullMessage"] = [pulled(7)]
    with client_of(at(scripted.endpoint)) as client:
        connection: Any = client.connection
        calls = [connection.start("QueryOffset", rpc.QueryOffsetRequest()) for _ in range(3)]
        calls.append(client.start_pull(QUEUE, 0, most=1))
        left = [connection._under_way[number].call.time_remaining() for number in calls]
        assert [round(seconds / PATIENCE_S) for seconds in left] == [1, 2, 3, 1]
        for number in calls:
            connection.forget(number)


def test_a_gateway_that_goes_ends_the_connection_and_what_waits_there(scripted: Scripted) -> None:
    scripted.answers["QueryOffset"] = [offset(1), offset(1), grpc.StatusCode.UNAVAILABLE]
    scripted.answers["PullMessage"] = [scripted.hang]
    with client_of(at(scripted.endpoint)) as client:
        assert ends(client) == {QUEUE: 1}
        number = client.start_pull(QUEUE, 0, most=1)
        with pytest.raises(BrokerUnavailable):
            ends(client)
        assert not client.connection.is_open
        for ask in (
            lambda: client.start_pull(QUEUE, 0, most=1),
            lambda: client.finish_pull(number, QUEUE),
        ):
            with pytest.raises(BrokerUnavailable, match="as the test has it"):
                ask()


def test_a_connection_is_not_closed_in_a_fork(scripted: Scripted) -> None:
    scripted.answers["QueryOffset"] = [offset(1)]
    with client_of(at(scripted.endpoint)) as client:
        connection: Any = client.connection
        connection._process = os.getpid() + 1
        connection.close()
        assert not connection.is_open
        connection._channel.unary_unary("/grpc.health.v1.Health/Check")
        connection._channel.close()


@pytest.mark.parametrize(
    ("code", "kind", "fault"),
    [
        (pb.TOO_MANY_REQUESTS, BrokerBusy, Fault.BROKER_BUSY),
        (pb.HA_NOT_AVAILABLE, BrokerUnavailable, Fault.BROKER_UNAVAILABLE),
        (pb.PROXY_TIMEOUT, BrokerTimeout, Fault.BROKER_TIMEOUT),
        (pb.TOPIC_NOT_FOUND, TopicNotFound, Fault.TOPIC_NOT_FOUND),
        (pb.UNAUTHORIZED, Unauthenticated, Fault.UNAUTHENTICATED),
        (pb.ILLEGAL_TOPIC, BadRequest, Fault.ILLEGAL_TOPIC),
        (pb.MESSAGE_CORRUPTED, BadRequest, Fault.BAD_REQUEST),
        (pb.INTERNAL_SERVER_ERROR, GatewayError, Fault.INTERNAL),
        (pb.UNSUPPORTED, GatewayError, Fault.UNSUPPORTED),
    ],
)
def test_a_status_is_the_fault_that_it_is(
    scripted: Scripted, code: int, kind: type[GatewayError], fault: Fault
) -> None:
    scripted.answers["QueryOffset"] = [refused(code)]
    error = failure(at(scripted.endpoint), ends)
    assert isinstance(error, kind)
    assert error.fault is fault


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, Fault.UNAUTHENTICATED),
        (grpc.StatusCode.PERMISSION_DENIED, Fault.FORBIDDEN),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Fault.TOO_MANY_REQUESTS),
        (grpc.StatusCode.INVALID_ARGUMENT, Fault.BAD_REQUEST),
        (grpc.StatusCode.INTERNAL, Fault.INTERNAL),
    ],
)
def test_a_call_that_fails_is_the_fault_that_it_is(
    scripted: Scripted, code: grpc.StatusCode, fault: Fault
) -> None:
    scripted.answers["QueryOffset"] = [code]
    error = failure(at(scripted.endpoint), ends)
    assert error.fault is fault
    assert (
        f"QueryOffset at {scripted.endpoint} failed with {code.name}: 'as the test has it'" in error.sentence
    )


def test_before_a_server_without_these_calls_it_is_told_what_would_do(scripted: Scripted) -> None:
    scripted.answers.clear()
    error = failure(at(scripted.endpoint), ends)
    assert error.fault is Fault.UNSUPPORTED
    assert "it needs a gateway of popgate, or transport = remoting" in error.sentence


def test_a_group_that_is_not_there_is_named(scripted: Scripted) -> None:
    status = pb.Status(code=pb.CONSUMER_GROUP_NOT_FOUND, message="no")
    scripted.answers["UpdateOffset"] = [rpc.UpdateOffsetResponse(status=status)]
    error = failure(at(scripted.endpoint), lambda client: client.commit("readers", {QUEUE: 1}))
    assert isinstance(error, GroupNotFound)
    assert error.group == "readers"


def test_without_grpcio_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("popgate.spark.grpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SparkSourceError, match="option transport = 'grpc': it needs grpcio and protobuf"):
        used(at("127.0.0.1:1"), ends)


def test_a_pull_that_nobody_finished_for_long_is_asked_again(scripted: Scripted) -> None:
    scripted.answers["PullMessage"] = [pulled(7)]
    with client_of(at(scripted.endpoint)) as client:
        connection: Any = client.connection
        number = client.start_pull(QUEUE, 5, most=1)
        first = connection._under_way[number]
        connection._under_way[number] = first._replace(began=first.began - PATIENCE_S)
        assert client.finish_pull(number, QUEUE).next_offset == 7
    assert first.call.code() is grpc.StatusCode.CANCELLED
    assert {request.offset for name, request, _ in scripted.requests if name == "PullMessage"} == {5}


# -- who asks ---------------------------------------------------------------------------------------


class Signatures:
    def authenticate(self, _context: Context, credentials: Credentials, _now: float) -> Principal:
        if not credentials.proves("SECRET"):
            raise Unauthenticated("the signature is wrong")
        return Principal(credentials.access_key)


async def test_the_gateway_takes_the_signature_of_the_account_and_no_other(town: Any) -> None:
    gateway = await town.gateway(authenticator=Signatures())
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    signed = at(gateway.address, accessKey="alice", secretKey="SECRET")
    queues = [QueuePlace("t", "popgate", 0)]
    assert await asked(signed, lambda client: client.maximums(queues)) == {queues[0]: 0}
    for given in ({}, {"accessKey": "alice", "secretKey": "wrong"}):
        with pytest.raises(SparkSourceError, match=r"UNAUTHENTICATED: .*name an account that the gateway"):
            await asked(at(gateway.address, **given), lambda client: client.maximums(queues))


def test_an_access_key_that_no_header_can_have_is_refused(scripted: Scripted) -> None:
    with pytest.raises(SparkSourceError, match="over gRPC an access key is printable ASCII, not 'größe'"):
        used(at(scripted.endpoint, accessKey="größe", secretKey="x"), ends)


async def test_tls_by_an_authority_with_a_certificate_of_its_own(town: Any, tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    certificate, key = papers.pair("spark")
    gateway = await town.gateway(
        listen="grpc://127.0.0.1:0?tls=true",
        certificate=Certificate(*papers.pair("gateway"), client_ca=papers.authority),
    )
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    tls = {"rocketmq.client.tls": "true", "rocketmq.client.tls.ca": str(papers.authority)}
    mine = {"rocketmq.client.tls.certificate": str(certificate), "rocketmq.client.tls.key": str(key)}
    queues = [QueuePlace("t", "popgate", 0)]
    for name in ("", "localhost"):
        named = {"rocketmq.client.tls.serverName": name} if name else {}
        options = at(gateway.address, **tls, **mine, **named)
        assert await asked(options, lambda client: client.maximums(queues)) == {queues[0]: 0}
    for given in (
        {**tls},
        {**tls, **mine, "rocketmq.client.tls.serverName": "elsewhere"},
        {"rocketmq.client.tls": "true", **mine},
        {},
    ):
        with pytest.raises(SparkSourceError, match="BROKER_UNAVAILABLE: no connection to"):
            await asked(at(gateway.address, **given), lambda client: client.maximums(queues))


async def test_authorities_may_be_in_the_systems_folder(
    town: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which Debian 12 has no file of all."""
    papers, folder = Papers(tmp_path), tmp_path / "authorities"
    gateway = await town.gateway(
        listen="grpc://127.0.0.1:0?tls=true", certificate=Certificate(*papers.pair("gateway"))
    )
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    folder.mkdir()
    (folder / "gone.0").symlink_to(tmp_path / "gone")
    command = ["openssl", "x509", "-noout", "-hash", "-in", str(papers.authority)]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    (folder / f"{name}.0").symlink_to(papers.authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    options = at(gateway.address, **{"rocketmq.client.tls": "true"})
    queues = [QueuePlace("t", "popgate", 0)]
    assert await asked(options, lambda client: client.maximums(queues)) == {queues[0]: 0}


@pytest.mark.parametrize("namespaces", [False, True])
async def test_names_with_a_namespace_are_those_of_the_gateway(town: Any, *, namespaces: bool) -> None:
    gateway = await town.gateway(namespaces=namespaces)
    for name in ("shop%t", "t"):
        await gateway.broker.create_topic(TopicConfig(name, read_queues=1, write_queues=1))
    options = at(gateway.address, **{"rocketmq.client.namespace": "shop", "group": "readers"})
    place = QueuePlace("shop%t", "popgate", 0)

    def work(client: QueueClient) -> None:
        assert client.queues("shop%t") == [place]
        client.send(QueuePlace("shop%t", "", -1), [(b"mine", b"UNIQ_KEY\x01A\x02")])
        assert client.maximums([place]) == {place: 1}
        answer = client.pull(place, 0, most=1)
        assert b"mine" in answer.body
        assert b"shop%t" in answer.body
        client.commit("shop%readers", {place: 1})
        assert client.committed("shop%readers", [place]) == {place: 1}

    await asked(options, work)
    assert {"shop%readers"} <= {group.name for group in await gateway.broker.groups()}
    assert sorted(topic.name for topic in await gateway.broker.topics()) == ["shop%t", "t"]
