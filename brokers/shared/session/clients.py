"""Clients as guests and hosts tell each other of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brokers.client_registration import ConnectedClient
from brokers.relay import BrokerAnswer
from brokers.shared.codec.kinds import Kind
from brokers.shared.codec.type_hints import kind_of
from popgate.model import Reading, StoredMessage


@dataclass(slots=True, frozen=True)
class Member:
    """A client as it travels: without its filters, which its own gateway knows."""

    key: str
    client_id: str
    group: str
    pushed: bool
    broadcast: bool
    topics: tuple[str, ...]
    producer_groups: tuple[str, ...]
    language: str
    version: str
    reading: Reading


HERE: Kind[tuple[Member, ...]] = kind_of(tuple[Member, ...])
"""What a guest tells of clients that came or changed."""
LEAVERS: Kind[tuple[str, ...]] = kind_of(tuple[str, ...])
"""The keys of those that left."""
CHANGED: Kind[tuple[str, ...]] = kind_of(tuple[str, ...])
"""What a host tells of groups: their consumers changed."""
REPLY: Kind[tuple[str, StoredMessage]] = kind_of(tuple[str, StoredMessage])
"""A reply for a client of a guest, which answers with one byte, 1 when the client took it."""

COMMAND: Kind[tuple[int, Mapping[str, str]]] = kind_of(tuple[int, Mapping[str, str]])
"""A command of a tool for the clients of a guest: its code and its fields."""
ANSWER: Kind[BrokerAnswer] = kind_of(BrokerAnswer)
"""What the guest answers."""


def member_of(client: ConnectedClient) -> Member:
    return Member(
        client.key,
        client.client_id,
        client.group,
        client.pushed,
        client.broadcast,
        tuple(client.topics),
        tuple(client.producer_groups),
        client.language,
        client.version,
        client.reading,
    )


def client_of(member: Member, guest: str) -> ConnectedClient:
    """The same at the host, where the keys of all guests must differ."""
    return ConnectedClient(
        member.client_id,
        member.group,
        member.pushed,
        frozenset(member.topics),
        frozenset(member.producer_groups),
        language=member.language,
        version=member.version,
        broadcast=member.broadcast,
        key=key_of(member.key, guest),
        reading=member.reading,
    )


def key_of(key: str, guest: str) -> str:
    return f"{guest}\n{key}"
