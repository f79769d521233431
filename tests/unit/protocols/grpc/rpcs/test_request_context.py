"""From what came beside a request to its Context."""

from __future__ import annotations

import pytest

from popgate.errors import BadRequest, Fault, Unauthenticated
from popgate.kinds import NO_CREDENTIALS, Credentials
from popgate.testing import MovableClock
from protocols.grpc.rpcs.request_context import check_client_id, credentials_in, open_context


class FakeCall:
    peer = "10.0.0.9:5000"
    local = "127.0.0.1:8081"
    names = ("CN:orders",)

    def __init__(self, *metadata: tuple[str, str | bytes], remaining: float | None = None) -> None:
        self._headers = dict(metadata)
        self.remaining = remaining

    def header(self, name: str) -> str | bytes:
        return self._headers.get(name, "")

    def time_remaining(self) -> float | None:
        return self.remaining


def test_the_headers_that_mean_something_are_read() -> None:
    call = FakeCall(
        ("x-mq-client-id", "host@1@0@abc#7"),
        ("x-mq-language", "java"),
        ("x-mq-client-version", "5.2.0"),
        ("x-mq-namespace", "ns"),
        remaining=2.5,
    )
    clock = MovableClock(monotonic=100.0)
    context = open_context(call, clock.monotonic())
    assert (context.client_id, context.language) == ("host@1@0@abc#7", "JAVA")
    assert (context.client_version, context.namespace) == ("5.2.0", "ns")
    assert (context.door, context.peer, context.local) == ("grpc", "10.0.0.9:5000", "127.0.0.1:8081")
    assert context.certificate == ("CN:orders",)
    assert context.deadline == 102.5


def test_what_a_client_claims_about_its_address_or_its_key_is_not_read() -> None:
    context = open_context(
        FakeCall(
            ("rpc-remote-address", "1.1.1.1:1"),
            ("rpc-local-address", "2.2.2.2:2"),
            ("x-mq-channel-id", "x"),
            ("x-mq-authorization-ak", "admin"),
            ("proxy_protocol_addr", "3.3.3.3"),
        ),
        MovableClock().monotonic(),
    )
    assert (context.peer, context.local) == ("10.0.0.9:5000", "127.0.0.1:8081")
    assert context.principal.name == ""


def test_no_deadline_is_none_and_one_in_years_is_far_away() -> None:
    assert open_context(FakeCall(), 0.0).deadline is None
    assert open_context(FakeCall(remaining=21_900 * 86_400.0), 0.0).deadline == 21_900 * 86_400.0


@pytest.mark.parametrize("language", ["KLINGON", "", "x" * 10_000, b"\xff\xfe"])
def test_a_language_that_nobody_knows_is_no_error_and_has_a_bound(language: str | bytes) -> None:
    context = open_context(FakeCall(("x-mq-language", language)), MovableClock().monotonic())
    assert len(context.language) <= 256


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("x-mq-client-id", "")],
        [("x-mq-client-id", "  \t")],
        [("x-mq-client-id", "id of another\ngroup")],
    ],
)
def test_a_client_id_that_is_blank_or_has_lines_is_refused(metadata: list[tuple[str, str]]) -> None:
    context = open_context(FakeCall(*metadata), MovableClock().monotonic())
    with pytest.raises(BadRequest) as caught:
        check_client_id(context)
    assert caught.value.fault is Fault.CLIENT_ID_REQUIRED


SIGNED = "MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time, Signature=AF2C"


@pytest.mark.parametrize(
    "header",
    [
        SIGNED,
        SIGNED.lower().replace("credential", "Credential").replace("signature", "Signature"),
        SIGNED.replace("ak,", "ak/region/service,"),
    ],
)
def test_every_official_form_of_the_authorization_header_is_read(header: str) -> None:
    found = credentials_in({"authorization": header, "x-mq-date-time": "20250101T000000Z"})
    assert found == Credentials(access_key="ak", signature=b"\xaf\x2c", signed=b"20250101T000000Z")


def test_no_header_offers_nothing() -> None:
    assert credentials_in({}) is NO_CREDENTIALS


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": SIGNED},
        {"authorization": "Bearer x", "x-mq-date-time": "d"},
        {"authorization": SIGNED.replace("AF2C", "xyz"), "x-mq-date-time": "d"},
        {"authorization": SIGNED.replace("=ak", "="), "x-mq-date-time": "d"},
    ],
)
def test_a_malformed_header_proves_nothing(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        credentials_in(headers)
