"""popgate.spark.options.gateway_options: options, files and variables for the gateway."""

from __future__ import annotations

import logging
import pickle
import ssl
from pathlib import Path

import pytest

from popgate.blocking import Credentials
from popgate.errors import Fault
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.gateway_options import SHARED, Gateway, gateway_of
from popgate.testing.papers import Papers

LEAST = {"endpoints": "a:1"}
TLS = {**LEAST, "rocketmq.client.tls": "true"}


def refusal(code: Code, given: dict[str, str]) -> str:
    with pytest.raises(SparkSourceError) as refused:
        gateway_of(given)
    assert refused.value.code is code
    return str(refused.value)


def test_a_gateway_is_reached_in_the_clear_and_unsigned_unless_options_say_so() -> None:
    assert gateway_of(LEAST) == Gateway(("a:1",))
    assert Gateway(("a:1",)).credentials() is None


def test_a_name_server_is_an_endpoint_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert gateway_of({"nameServer": "a:1;b:2"}).endpoints == ("a:1", "b:2")
    assert "nameServer is taken for endpoints" in caplog.text
    assert "endpoints is given too" in refusal(Code.ILLEGAL_OPTION, {**LEAST, "nameServer": "b:1"})
    assert "option nameServer = 'b'" in refusal(Code.ILLEGAL_OPTION, {"nameServer": "b"})


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ({"rocketmq.client.tls.ca": "x"}, Code.ILLEGAL_OPTION, "it needs rocketmq.client.tls = true"),
        ({**TLS, "rocketmq.client.tls": "yes"}, Code.ILLEGAL_OPTION, "true or false"),
        ({**TLS, "rocketmq.client.tls.verify": "no"}, Code.ILLEGAL_OPTION, "true or false"),
        ({**TLS, "rocketmq.client.tls.key": "x"}, Code.ILLEGAL_OPTION, "it needs rocketmq.client.tls.cert"),
        ({"rocketmq.client.connectTimeoutMs": "1"}, Code.ILLEGAL_OPTION, "from 100 to 3600000"),
        *(
            ({"rocketmq.client.namespace": text}, Code.ILLEGAL_OPTION, "1 to 125 letters, digits and | - _")
            for text in ("", "a%b", "a b", "größe", "x\n", "x" * 126)
        ),
        ({"credentials": "env:"}, Code.ILLEGAL_OPTION, "env:NAME or file:/path"),
        (
            {"credentials": "env:A", "accessKey": "a", "secretKey": "b"},
            Code.ILLEGAL_OPTION,
            "accessKey is given too",
        ),
        ({"accessKey": "a"}, Code.MISSING_OPTION, "together or not"),
    ],
)
def test_what_cannot_be_right_is_refused(given: dict[str, str], code: Code, says: str) -> None:
    assert says in refusal(code, {**LEAST, **given})


def test_a_gateway_is_spoken_to_by_remoting_unless_an_option_says_grpc() -> None:
    assert (
        gateway_of(LEAST).transport == gateway_of({**LEAST, "transport": "REMOTING"}).transport == "remoting"
    )
    over_grpc = gateway_of({**LEAST, "transport": "gRPC"})
    assert over_grpc.is_grpc
    # A connection of one transport is not taken for the other's.
    assert over_grpc != gateway_of(LEAST)
    for text in ("", "http", "grpc+remoting"):
        sentence = refusal(Code.ILLEGAL_OPTION, {**LEAST, "transport": text})
        assert f"option transport = '{text}': it is one of grpc, remoting" in sentence


def test_grpc_verifies_certificates() -> None:
    unverified = {**TLS, "transport": "grpc", "rocketmq.client.tls.verify": "false"}
    sentence = refusal(Code.ILLEGAL_OPTION, unverified)
    assert "option rocketmq.client.tls.verify = 'false': with transport = grpc certificates are" in sentence
    assert gateway_of({**TLS, "transport": "grpc", "rocketmq.client.tls.verify": "true"}).tls is not None


def test_topics_and_groups_are_of_no_namespace_unless_an_option_says_so() -> None:
    assert gateway_of(LEAST).namespace == ""
    assert gateway_of({**LEAST, "rocketmq.client.namespace": "MQ_INST-1|a"}).namespace == "MQ_INST-1|a"


def test_keys_that_stand_in_the_place_of_their_place_are_not_shown() -> None:
    assert "hidden" not in refusal(Code.ILLEGAL_OPTION, {**LEAST, "credentials": "me:hidden"})


def test_keys_are_read_from_a_variable_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = pickle.loads(pickle.dumps(gateway_of({**LEAST, "credentials": "env:POPGATE_KEYS"})))
    for text, expected in (("me:se:cret", ("me", "se:cret")), (" you:other\n", ("you", "other"))):
        monkeypatch.setenv("POPGATE_KEYS", text)
        assert gateway.credentials() == Credentials(*expected)
    monkeypatch.delenv("POPGATE_KEYS")
    with pytest.raises(SparkSourceError, match="no accessKey:secretKey stands there"):
        gateway.credentials()


def test_keys_are_read_from_a_file_each_time(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    gateway = gateway_of({**LEAST, "credentials": f"file:{file}"})
    with pytest.raises(SparkSourceError, match=r"option credentials = 'file:.*it cannot be read"):
        gateway.credentials()
    for key in ("one", "two"):
        file.write_text(f"me:{key}\n")
        assert gateway.credentials() == Credentials("me", key)
    file.write_text("hidden")
    with pytest.raises(SparkSourceError) as refused:
        gateway.credentials()
    assert "hidden" not in str(refused.value)


def test_tls_trusts_the_authorities_of_its_file(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    certificate, key = papers.pair("client")
    told = gateway_of(
        {
            **TLS,
            "rocketmq.client.tls.ca": str(papers.authority),
            "rocketmq.client.tls.certificate": str(certificate),
            "rocketmq.client.tls.key": str(key),
            "rocketmq.client.tls.serverName": "gateway",
        }
    ).tls
    assert told is not None
    context = told.context()
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT, "refuses what `openssl req -x509` makes"
    assert (told.server_name, context.check_hostname, context.verify_mode) == (
        "gateway",
        True,
        ssl.CERT_REQUIRED,
    )
    assert len(context.get_ca_certs()) == 1
    # A key with a password is refused, not asked for.
    locked = {**TLS, "rocketmq.client.tls.certificate": str(certificate)}
    tls = gateway_of({**locked, "rocketmq.client.tls.key": str(papers.encrypted("client"))}).tls
    assert tls is not None
    with pytest.raises(SparkSourceError, match=r"option rocketmq\.client\.tls\.certificate .*cannot be used"):
        tls.context()


@pytest.mark.parametrize("name", ["ca", "certificate", "key", "serverName"])
def test_an_empty_text_is_not_taken_for_none(name: str) -> None:
    option = f"rocketmq.client.tls.{name}"
    pair = {"rocketmq.client.tls.certificate": "x"} if name == "key" else {}
    assert f"option {option} = '': it is empty" in refusal(Code.ILLEGAL_OPTION, {**TLS, **pair, option: ""})


def test_tls_without_verification_takes_any_certificate_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        gateway_of(TLS)
        assert caplog.text == ""
        tls = gateway_of({**TLS, "rocketmq.client.tls.verify": "false"}).tls
    assert "rocketmq.client.tls.verify = false: whoever answers" in caplog.text
    assert tls is not None
    assert tls.context().verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize("text", ["", "no certificate"])
def test_an_authority_that_is_none_is_refused_with_its_option(text: str, tmp_path: Path) -> None:
    file = tmp_path / "authority.pem"
    tls = gateway_of({**TLS, "rocketmq.client.tls.ca": str(file)}).tls
    assert tls is not None
    with pytest.raises(SparkSourceError, match=r"option rocketmq\.client\.tls\.ca = .*cannot be used"):
        tls.context()
    file.write_text(text)
    with pytest.raises(SparkSourceError, match=r"option rocketmq\.client\.tls\.ca = .*cannot be used"):
        tls.context()


def test_a_failure_names_the_options_that_it_is_a_matter_of() -> None:
    named = gateway_of({**LEAST, "credentials": "env:KEYS"})
    assert named.told(Fault.BROKER_TIMEOUT) == "option endpoints = ('a:1',)"
    assert ", option credentials = env:KEYS: name an account" in named.told(Fault.UNAUTHENTICATED)
    assert ", option credentials = env:KEYS: let the account" in named.told(Fault.FORBIDDEN)


def test_every_option_is_named_once() -> None:
    assert len({name.lower() for name in SHARED}) == len(SHARED)
