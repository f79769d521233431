"""brokers.shared.session.hello: who speaks what, and who knows the secret."""

from __future__ import annotations

import pytest

from brokers.shared.session.hello import LAYOUT, check_hello, check_proof, hello_fields, make_nonce, proof
from popgate import __version__
from popgate.errors import BadRequest, Unauthenticated, Unsupported


def test_a_hello_is_understood() -> None:
    nonce = make_nonce()
    assert check_hello(hello_fields(nonce, "me"), other="gateway") == nonce
    assert hello_fields(nonce, "me")["gateway"] == "me"
    assert make_nonce() != make_nonce()


@pytest.mark.parametrize("name", ["protocol", "layout"])
def test_another_version_is_refused_with_both_named(name: str) -> None:
    fields = {**hello_fields(make_nonce()), name: "other", "version": "9.9"}
    with pytest.raises(Unsupported, match=rf"popgate {__version__} and a host that is popgate 9\.9"):
        check_hello(fields, other="host")
    with pytest.raises(Unsupported, match="of an unknown version"):
        check_hello({}, other="host")


@pytest.mark.parametrize("fields", [{"nonce": "short"}, {"nonce": "x" * 1_000}, {"version": "x" * 1_000}])
def test_a_hello_that_nobody_says_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        check_hello({**hello_fields(make_nonce()), **fields}, other="gateway")


def test_a_proof_is_good_for_one_meeting_and_one_side_only() -> None:
    said = proof("secret", "guest", "a" * 64, "b" * 64)
    check_proof(said, said, other="gateway")
    others = [
        proof("other", "guest", "a" * 64, "b" * 64),
        proof("secret", "host", "a" * 64, "b" * 64),
        proof("secret", "guest", "c" * 64, "b" * 64),
        proof("secret", "guest", "a" * 64, "c" * 64),
        "\udcff",
    ]
    for other in others:
        with pytest.raises(Unauthenticated, match="does not know the secret"):
            check_proof(said, other, other="gateway")
    assert LAYOUT not in said
    assert "secret" not in said


def test_without_a_secret_nothing_is_proved_and_who_has_one_is_told() -> None:
    assert proof("", "guest", "a", "b") == ""
    check_proof("", "", other="host")
    with pytest.raises(Unauthenticated, match="the host has a secret and this side has none"):
        check_proof("", "said", other="host")
    with pytest.raises(Unauthenticated, match="this side has a secret and the host none"):
        check_proof("known", "", other="host")
