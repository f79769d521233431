"""popgate.kinds: credentials, and what can be kept in tables."""

import hmac
from dataclasses import replace

from popgate.kinds import NO_CREDENTIALS, Action, Credentials, Resource, ResourceKind


def test_credentials_do_not_show_their_secrets() -> None:
    shown = repr(Credentials(access_key="AK", password="hunter2", token="t0ken"))
    assert "AK" in shown
    assert "hunter2" not in shown
    assert "t0ken" not in shown


def test_a_signature_proves_its_secret_and_nothing_else() -> None:
    """Vector: protocol facts 10."""
    told = Credentials("AK", bytes.fromhex("AF2C284C4C7BA6DCA61AFA66FB97CF8396323174"), b"20250101T000000Z")

    assert told.proves("SECRET")
    assert not told.proves("SECRE")
    assert not told.proves("")
    assert not replace(told, signed=b"20250101T000001Z").proves("SECRET")
    assert not replace(told, signature=told.signature[:-1]).proves("SECRET")
    empty = Credentials("AK", hmac.digest(b"", b"", "sha1"))
    assert not empty.proves("")
    assert not NO_CREDENTIALS.proves("SECRET")


def test_no_credentials_are_empty() -> None:
    assert Credentials() == NO_CREDENTIALS
    assert not NO_CREDENTIALS.access_key


def test_resources_and_actions_can_be_kept_in_tables() -> None:
    table = {(Resource(ResourceKind.TOPIC, "T"), Action.PUBLISH): True}
    assert table[Resource(ResourceKind.TOPIC, "T"), Action.PUBLISH]
    assert (Resource(ResourceKind.GROUP, "T"), Action.PUBLISH) not in table
