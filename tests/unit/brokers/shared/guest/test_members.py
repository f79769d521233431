"""brokers.shared.guest.members: clients of guests, known to the host and to all other guests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokers.capabilities import CarriesReplies, GroupMember, TellsConsumers
from brokers.client_registration import ConnectedClient, RegistersClients
from brokers.embedded.port.members import Membership
from popgate.errors import BrokerBusy, NotFound
from popgate.model import Message


@pytest.fixture
def place(place: Any) -> Any:
    """As ever, with a broker that knows clients."""

    class Knowing(type(place.broker), RegistersClients, TellsConsumers, CarriesReplies):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.membership = Membership()
            self.reply: Any = None

        def client_is_here(self, client: ConnectedClient) -> None:
            self.membership.here(client)

        def client_left(self, key: str) -> None:
            self.membership.left(key)

        def on_question(self, asker: Any) -> None: ...

        async def consumers(self, group: str) -> list[str]:
            return self.membership.consumers(group)

        async def members(self, group: str) -> list[GroupMember]:
            return self.membership.members(group)

        def on_members(self, handler: Any) -> None:
            self.membership.on_members = handler

        async def send_reply(self, context: Any, message: Message) -> Any:
            self.done.append(("send_reply", (context, message)))
            if not await self.reply(message.message_id, self.letter):
                raise NotFound("nobody took it")
            return (await self.send(context, [message]))[0]

        def on_reply(self, handler: Any) -> None:
            self.reply = handler

    place.broker = Knowing()
    return place


def client(name: str, group: str = "g", **more: Any) -> ConnectedClient:
    return ConnectedClient(name, group=group, key=f"{name} {group}", topics=frozenset({"t"}), **more)


async def test_clients_of_all_guests_and_of_the_host_are_in_the_group(place, soon) -> None:
    await place.open()
    one, other = await place.visit(), await place.visit()
    place.broker.client_is_here(client("host's"))
    one.client_is_here(client("one's", language="JAVA", version="493", broadcast=True))
    other.client_is_here(client("other's"))
    other.client_is_here(client("other's", "h"))
    await soon(lambda: len(place.broker.membership) == 4)
    for guest in (one, other):
        assert await guest.consumers("g") == ["host's", "one's", "other's"]
        assert await guest.consumers("h") == ["other's"]
    assert await one.consumers("nobody") == []
    other.client_left("other's g")
    other.client_left("unknown")
    await soon(lambda: len(place.broker.membership) == 3)
    assert await one.consumers("g") == ["host's", "one's"]


async def test_two_guests_may_have_clients_of_one_key(place, soon) -> None:
    await place.open()
    one, other = await place.visit(), await place.visit()
    for guest in (one, other):
        guest.client_is_here(client("same"))
    await soon(lambda: len(place.broker.membership) == 2)
    one.client_left("same g")
    await soon(lambda: len(place.broker.membership) == 1)
    assert await one.consumers("g") == ["same"]


async def test_clients_go_with_their_guest_and_come_back_with_it(place, soon) -> None:
    host = await place.open()
    guest, leaving = await place.visit(), await place.visit()
    for number in range(600):
        guest.client_is_here(client(f"c{number}"))
    leaving.client_is_here(client("leaving"))
    await soon(lambda: len(place.broker.membership) == 601)
    await leaving.stop()
    await soon(lambda: len(place.broker.membership) == 600)
    await host.stop()
    assert len(place.broker.membership) == 0
    await place.open()
    await soon(lambda: len(place.broker.membership) == 600)


async def test_clients_of_many_topics_come_back_in_as_many_frames_as_they_need(place, soon) -> None:
    """Together they fit into none: a host that was restarted would not know any of them."""
    host = await place.open()
    guest = await place.visit()
    for number in range(20):
        guest.client_is_here(
            ConnectedClient(f"c{number}", group="g", key=f"c{number}", topics=frozenset({"t" * 1_000_000}))
        )
    await soon(lambda: len(place.broker.membership) == 20)
    await host.stop()
    await place.open()
    await soon(lambda: len(place.broker.membership) == 20)


async def test_everybody_is_told_that_the_members_of_a_group_changed(place, soon) -> None:
    host = place.host = place.make_host()
    told: list[tuple[str, str]] = []
    await host.start(members=lambda group: told.append(("host", group)))
    one, other = await place.visit(), await place.visit()
    one.on_members(lambda group: told.append(("one", group)))
    other.on_members(lambda group: told.append(("other", group)))
    one.client_is_here(client("c"))
    await soon(lambda: set(told) == {("host", "g"), ("one", "g"), ("other", "g")})
    told.clear()
    await one.stop()
    await soon(lambda: set(told) == {("host", "g"), ("other", "g")})


async def test_a_guest_that_leaves_with_many_clients_is_told_of_once_for_each_group(place, soon) -> None:
    await place.open()
    one, other = await place.visit(), await place.visit()
    for number in range(600):
        one.client_is_here(client(f"c{number}", f"g{number % 3}"))
    await soon(lambda: len(place.broker.membership) == 600)
    told: list[str] = []
    other.on_members(told.append)
    other.client_is_here(client("m", "marker"))
    await soon(lambda: "marker" in told)  # and what was told before it
    told.clear()
    await one.stop()
    await soon(lambda: set(told) >= {"g0", "g1", "g2"})
    assert sorted(told) == ["g0", "g1", "g2"]


async def test_a_host_that_did_not_read_for_a_while_is_told_later_who_came_and_left(
    place, soon, monkeypatch
) -> None:
    await place.open()
    guest = await place.visit()
    for name in ("stays", "leaves", "leaves and comes back"):
        guest.client_is_here(client(name))
    await soon(lambda: len(place.broker.membership) == 3)
    link = guest._link
    full = BrokerBusy("the host does not read")

    def refuse(code: int, fields: object, body: bytes) -> None:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(link._channel, "tell", refuse)
        guest.client_left("leaves g")
        guest.client_left("leaves and comes back g")
        guest.client_is_here(client("leaves and comes back", language="JAVA"))
        guest.client_is_here(client("comes"))
        assert not link.tell(0, b"")
    assert await guest.consumers("g") == ["leaves", "leaves and comes back", "stays"]
    await guest.look()
    await soon(lambda: "leaves g" not in guest._unsaid)
    assert await guest.consumers("g") == ["comes", "leaves and comes back", "stays"]


async def test_a_guest_has_a_client_while_one_of_its_memberships_is_left(place, soon) -> None:
    host = await place.open()
    guest = await place.visit()
    for group in ("g", "h"):
        guest.client_is_here(client("c", group))
    guest.client_is_here(client("c", "g", language="JAVA"))
    await soon(lambda: len(place.broker.membership) == 2)
    (seen,) = host._guests
    guest.client_left("c g")
    await soon(lambda: len(place.broker.membership) == 1)
    assert seen.has("c")
    guest.client_left("c h")
    await soon(lambda: len(place.broker.membership) == 0)
    assert not seen.has("c")


async def test_a_host_keeps_a_bounded_number_of_clients_of_a_guest(place, soon) -> None:
    await place.open(max_members=2)
    guest = await place.visit()
    for name in ("a", "b", "c"):
        guest.client_is_here(client(name))
    guest.client_is_here(client("a", language="JAVA"))
    await soon(lambda: len(place.broker.membership) == 2)
    assert await guest.consumers("g") == ["a", "b"]


async def test_a_reply_goes_to_the_gateway_that_has_the_client(place, soon, stored) -> None:
    await place.open()
    place.broker.letter = stored(b"reply")
    asker, replier = await place.visit(), await place.visit()
    asker.client_is_here(client("waiting", ""))
    await soon(lambda: len(place.broker.membership) == 1)
    taken: list[tuple[str, bytes]] = []

    async def take(client_id: str, message: Any) -> bool:
        await asyncio.sleep(0)
        taken.append((client_id, message.body))
        return True

    with pytest.raises(NotFound):
        await replier.send_reply(place.context, Message("t", b"r", "waiting"))
    asker.on_reply(take)
    await replier.send_reply(place.context, Message("t", b"r", "waiting"))
    assert taken == [("waiting", b"reply")]
    with pytest.raises(NotFound):
        await replier.send_reply(place.context, Message("t", b"r", "somebody else"))


async def test_a_reply_whose_hand_over_goes_wrong_was_not_taken(place, soon, stored) -> None:
    await place.open()
    place.broker.letter = stored(b"reply")
    guest = await place.visit()
    guest.client_is_here(client("waiting", ""))
    await soon(lambda: len(place.broker.membership) == 1)

    def breaks(client_id: str, message: Any) -> bool:
        raise RuntimeError("broken")

    async def breaks_later(client_id: str, message: Any) -> bool:
        raise RuntimeError("broken")

    for handler in (breaks, breaks_later):
        guest.on_reply(handler)
        with pytest.raises(NotFound):
            await guest.send_reply(place.context, Message("t", b"r", "waiting"))
