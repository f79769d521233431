"""Texts: what RocketMQ 5.5.0 itself wrote."""

import pytest

from popgate.errors import PeerWireError
from popgate.wire.bodies.access import AccessEntry, AccessPolicy, AclInfo, UserInfo


def test_a_user_is_told_as_java_does() -> None:
    text = b'{"password":"p","userType":"Super","username":"u"}'
    assert UserInfo.decode(text) == UserInfo("u", "p", "Super")
    assert UserInfo("u", "p", "Super").encode() == text


def test_the_secret_is_not_shown() -> None:
    assert "hidden" not in repr(UserInfo("u", "hidden", "Super"))


def test_an_access_list_is_told_as_java_does() -> None:
    text = (
        b'{"policies":[{"entries":[{"actions":["Pub"],"decision":"Allow","resource":"Topic:*","sourceIps":'
        b'["10.0.0.0/8"]}]}],"subject":"User:u"}'
    )
    entry = AccessEntry("Topic:*", ("Pub",), ("10.0.0.0/8",), "Allow")
    assert AclInfo.decode(text) == AclInfo("User:u", (AccessPolicy("", (entry,)),))
    acl = AclInfo("User:u", (AccessPolicy("Custom", (entry,)),))
    assert AclInfo.decode(acl.encode()) == acl


@pytest.mark.parametrize("body", [b"[]", b'{"policies":{}}', b'{"policies":[{"entries":[{"actions":[1]}]}]}'])
def test_damage_is_told(body: bytes) -> None:
    with pytest.raises(PeerWireError):
        AclInfo.decode(body)
    with pytest.raises(PeerWireError):
        UserInfo.decode(b'{"username":1}')
