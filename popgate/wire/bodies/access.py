"""Users and access lists of ACL 2.0, as brokers return them. Source: protocol facts 5.14; 3004 and 3009."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from popgate.wire.json_syntax import parts
from popgate.wire.json_syntax.fastjson import dumps


@dataclass(slots=True, frozen=True)
class UserInfo:
    """A user; `password` is the secret key. Types are Super and Normal, states enable and disable."""

    name: str
    password: str = ""
    kind: str = ""
    status: str = ""

    @classmethod
    def decode(cls, body: bytes) -> UserInfo:
        part = parts.load_object(body, "a user")
        return cls(
            parts.text(part, "username"),
            parts.text(part, "password"),
            parts.text(part, "userType"),
            parts.text(part, "userStatus"),
        )

    def encode(self) -> bytes:
        fields = {
            "password": self.password,
            "userStatus": self.status,
            "userType": self.kind,
            "username": self.name,
        }
        return dumps({name: value for name, value in fields.items() if value})

    def __repr__(self) -> str:
        return f"UserInfo({self.name!r}, {self.kind!r}, {self.status!r})"


@dataclass(slots=True, frozen=True)
class AccessEntry:
    """An access rule for a resource ("Topic:name"): actions, source addresses, decision."""

    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...]
    decision: str

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> AccessEntry:
        return cls(
            parts.text(part, "resource"),
            parts.texts(part, "actions"),
            parts.texts(part, "sourceIps"),
            parts.text(part, "decision"),
        )

    def table(self) -> dict[str, Any]:
        return {
            "actions": list(self.actions),
            "decision": self.decision,
            "resource": self.resource,
            "sourceIps": list(self.sources),
        }


@dataclass(slots=True, frozen=True)
class AccessPolicy:
    """Entries of one kind: Custom or Default."""

    kind: str
    entries: tuple[AccessEntry, ...]

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> AccessPolicy:
        return cls(parts.text(part, "policyType"), parts.each(part, "entries", AccessEntry.read))

    def table(self) -> dict[str, Any]:
        return {"entries": [each.table() for each in self.entries], "policyType": self.kind}


@dataclass(slots=True, frozen=True)
class AclInfo:
    """The access list of a subject ("User:name")."""

    subject: str
    policies: tuple[AccessPolicy, ...]

    @classmethod
    def decode(cls, body: bytes) -> AclInfo:
        part = parts.load_object(body, "an access list")
        return cls(parts.text(part, "subject"), parts.each(part, "policies", AccessPolicy.read))

    def encode(self) -> bytes:
        return dumps({"policies": [each.table() for each in self.policies], "subject": self.subject})
