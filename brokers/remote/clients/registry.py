"""Clients of this replica, registered at brokers with repeated heartbeats until they leave.

Without it no broker sends transaction checks to this replica, and the cluster's tools see no clients.
Heartbeats are sent without waiting for a response: one is due every `client_heartbeat_s` for each client and
broker, and at once when a client joins or changes, when a broker appears, and when a connection is reopened.
Sources: protocol facts 5.9, 7.4 and 7.5, any-replica section 2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from brokers.channel import Speaker
from brokers.client_registration import ConnectedClient
from brokers.remote.clients.brokers_of_client import addresses_of
from brokers.remote.clients.departures import Departure, Departures
from brokers.remote.clients.heartbeats import heartbeats_of, memberships_of, reading_in, speaker_of
from brokers.remote.clients.link_slots import LinkSlots, Membership, Role
from brokers.remote.clients.version_update import VersionUpdate
from brokers.remote.cluster.routes import Routes
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock, Timer
from popgate.errors import BrokerUnavailable, GatewayError
from popgate.wire.frames.codes import RequestCode, ResponseCode

_log = logging.getLogger(__name__)

_TICK_S = 1.0
_MOST_EXPECTED = 1_024
"""Producer groups that the gateway itself is registered for, because no client of theirs is known."""
_EXPECTED_S = 7_200.0
_GOODBYES = 32
"""Seats that brokers are told of at a time that somebody left them."""
_AT_A_TIME = 64
"""Clients whose heartbeats are told before others have their turn in the loop."""


@dataclass(slots=True)
class _Known:
    """A client. `bodies`: its heartbeats by link. `told`: the addresses at which it is registered."""

    client: ConnectedClient
    speaker: Speaker
    since_ms: int
    seats: dict[Membership, int | None] = field(default_factory=dict)
    bodies: dict[int, list[bytes]] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    due: float = 0.0
    """When its next heartbeat is to be told, in loop seconds."""
    queued: bool = False
    unsaid: set[str] = field(default_factory=set)
    """Addresses of brokers that keep the version which a connection told first: they must forget it to learn
    another one."""


class ClientRegistry:
    """The clients of this replica, and the brokers at which each is registered."""

    def __init__(self, links: ConnectionPool, routes: Routes, settings: RemoteSettings, clock: Clock) -> None:
        self._links = links
        self._routes = routes
        self._settings = settings
        self._clock = clock
        self._slots = LinkSlots(settings.max_links)
        self._here: dict[str, _Known] = {}
        """By the clients' keys; so is everything here that says who."""
        self._members: dict[tuple[str, str], str] = {}
        """The keys of consumers by client id and group."""
        self._by_link: dict[int, dict[str, _Known]] = {}
        self._due: deque[tuple[float, str]] = deque()
        """Who is due when, in this order; some are due later than that by now, or gone."""
        self._dirty: deque[str] = deque()
        self._left: deque[Departure] = deque()
        self._departures = Departures()
        self._expected: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._expects_others = False
        self._work = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._looked_at = float("-inf")
        self._to_ask: dict[str, tuple[_Known, int]] = {}
        """Brokers that were told something: one client and link of each is asked about, too."""
        self._refusals: dict[str, str] = {}
        self._version_update = VersionUpdate(links, settings.request_timeout_s)
        self._links.on_open(self._opened)

    def __repr__(self) -> str:
        return f"<ClientRegistry {len(self._here)} clients, {self._slots!r}>"

    def start(self) -> None:
        self._worker = asyncio.get_running_loop().create_task(self._run())
        self._timer = self._clock.call_later(_TICK_S, self._tick)

    async def stop(self) -> None:
        """Brokers remove the clients of a closed connection: no client has to be unregistered."""
        if self._timer is not None:
            self._timer.cancel()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    def figures(self) -> dict[str, float]:
        return {
            "clients_registered": len(self._here),
            "clients_merged": self._slots.merged,
            "client_links": self._slots.highest() + 1,
            "registrations_refused": len(self._refusals),
        }

    @property
    def refusals(self) -> dict[str, str]:
        """Why brokers take no heartbeats of clients, by address."""
        return dict(self._refusals)

    def is_here(self, client: ConnectedClient) -> None:
        key = client.key
        known = self._here.get(key)
        if known is None:
            known = self._here[key] = _Known(client, speaker_of(client), self._clock.now_ms())
        elif known.client == client:
            return
        else:
            if known.client.subscriptions != client.subscriptions:
                known.since_ms = self._clock.now_ms()
            self._forget_member(known.client)
            speaker = speaker_of(client)
            if speaker != known.speaker and reading_in(speaker[1]) is not None:
                # Only how a member reads is worth that its group takes it for gone for a moment.
                known.unsaid |= known.told
            known.client, known.speaker = client, speaker
        if client.group:
            self._members[client.client_id, client.group] = key
        wanted = memberships_of(client)
        self._leave(key, known, set(known.seats).difference(wanted))
        for membership in wanted:
            if membership not in known.seats:
                known.seats[membership] = self._slots.take(membership, key)
        self._reseated(key, known)

    def left(self, key: str) -> None:
        known = self._here.pop(key, None)
        if known is not None:
            self._forget_member(known.client)
            self._leave(key, known, list(known.seats))
            self._take_bodies(key, known, {})

    def find(self, client_id: str, group: str) -> tuple[ConnectedClient, int] | None:
        """A consumer of the group that is here, and since when it is as it is (wall time in ms)."""
        known = self._here.get(self._members.get((client_id, group), ""))
        return (known.client, known.since_ms) if known is not None else None

    def on_link(self, link: int, group: str) -> str | None:
        """The id of the consumer of the group that is registered on this link of each broker."""
        known = self._here.get(self._slots.seated(Membership(Role.CONSUMER, group), link) or "")
        return known.client.client_id if known is not None else None

    def expect_checks(self, topic: str, producer_group: str) -> None:
        """A half message is sent: register its producer group at brokers, even without a known client."""
        key = (topic, producer_group)
        if key in self._expected:
            self._expected[key] = self._clock.monotonic()
            self._expected.move_to_end(key)
        elif Membership(Role.PRODUCER, producer_group) not in self._slots:
            self._expected[key] = self._clock.monotonic()
            if len(self._expected) > _MOST_EXPECTED:
                self._expected.popitem(last=False)
            self._expectations_changed()

    def nobody_asked(self, topic: str, producer_group: str) -> None:
        """No producer of this group could be asked here: brokers are to ask other replicas."""
        if self._expected.pop((topic, producer_group), None) is not None:
            self._expectations_changed()

    # -- inside -------------------------------------------------------------------------------

    def _expectations_changed(self) -> None:
        """There may be many at once: the worker looks after all of them together."""
        self._expects_others = True
        self._work.set()

    def _tell_of_gateway(self) -> None:
        """Register the gateway itself as a producer of groups of half messages without another producer."""
        self._expects_others = False
        if not self._expected:
            self.left(self._settings.name)
            return
        self.is_here(
            ConnectedClient(
                self._settings.name,
                producer_groups=frozenset(group for _, group in self._expected),
                language="PYTHON",
            )
        )

    def _forget_member(self, client: ConnectedClient) -> None:
        if self._members.get((client.client_id, client.group)) == client.key:
            del self._members[client.client_id, client.group]

    def _leave(self, key: str, known: _Known, memberships: Iterable[Membership]) -> None:
        for membership in memberships:
            seat = known.seats.pop(membership)
            self._slots.leave(membership, key, seat)
            if seat is not None:
                self._left.append(Departure(known.client.client_id, membership, seat, known.told))
                self._work.set()

    def _reseated(self, key: str, known: _Known) -> None:
        """Rebuild the heartbeats, and queue them."""
        by_link: dict[int, list[Membership]] = {}
        for membership, seat in known.seats.items():
            if seat is not None:
                by_link.setdefault(seat, []).append(membership)
        bodies = {
            link: heartbeats_of(known.client, members, known.since_ms) for link, members in by_link.items()
        }
        self._take_bodies(key, known, bodies)
        self._make_dirty(key, known)

    def _take_bodies(self, key: str, known: _Known, bodies: dict[int, list[bytes]]) -> None:
        for link in known.bodies:
            if link not in bodies:
                del self._by_link[link][key]
        for link in bodies:
            self._by_link.setdefault(link, {})[key] = known
        known.bodies = bodies

    def _make_dirty(self, key: str, known: _Known) -> None:
        if not known.queued:
            known.queued = True
            self._dirty.append(key)
            self._work.set()

    def _tick(self) -> None:
        self._timer = self._clock.call_later(_TICK_S, self._tick)
        now = self._clock.monotonic()
        if self._routes.clusters.changed_at > self._looked_at:
            # A broker came, or has another master now: it knows nobody yet.
            self._looked_at = now
            for key, known in self._here.items():
                self._make_dirty(key, known)
        while self._due and self._due[0][0] <= now:
            _, key = self._due.popleft()
            entry = self._here.get(key)
            if entry is not None and entry.due <= now:
                self._make_dirty(key, entry)
        for departure in self._departures.take_due(now):
            # With a client in the seat its heartbeats keep the registration alive.
            if self._slots.reserve(departure.membership, departure.seat):
                self._left.append(departure)
                self._work.set()
        while self._expected and now - next(iter(self._expected.values())) > _EXPECTED_S:
            self._expected.popitem(last=False)
            self._expectations_changed()

    def _opened(self, address: str, link: int) -> None:
        """A new connection: the broker has forgotten, or never knew, who is on this link."""
        for known in self._by_link.get(link, {}).values():
            if address in known.told:
                self._beat(known, address, link)
                self._to_ask[address] = known, link
                self._work.set()

    def _beat(self, known: _Known, address: str, link: int) -> None:
        for body in known.bodies.get(link, ()):
            self._links.tell(address, RequestCode.HEART_BEAT, {}, body, link=link, speaker=known.speaker)

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                if self._expects_others:
                    self._tell_of_gateway()
                # Before anybody takes their seats, brokers must have forgotten who left.
                while self._left:
                    some = [self._left.popleft() for _ in range(min(len(self._left), _GOODBYES))]
                    await asyncio.gather(*(self._say_goodbye(departure) for departure in some))
                await self._tell_dirty()
            except Exception:
                _log.exception("brokers could not be told of clients")

    async def _tell_dirty(self) -> None:
        try:
            brokers = await self._routes.brokers()
        except BrokerUnavailable:
            brokers = ()
        unsaid = [entry for key in self._dirty if (entry := self._here.get(key)) is not None and entry.unsaid]
        said = {known.client.key: known.speaker for known in unsaid}
        for at in range(0, len(unsaid), _GOODBYES):
            await asyncio.gather(*(self._forget_version(known) for known in unsaid[at : at + _GOODBYES]))
        for count in range(len(self._dirty)):
            key = self._dirty.popleft()
            known = self._here.get(key)
            if known is None:
                continue
            known.queued = False
            if known.unsaid and said.get(key) != known.speaker:
                self._make_dirty(key, known)  # it changed while others were told of
            known.due = self._clock.monotonic() + self._settings.client_heartbeat_s
            self._due.append((known.due, key))
            known.told = await addresses_of(known.client, brokers, self._routes, known.told)
            for address in known.told:
                for link in known.bodies:
                    if self._links.is_open(address, link):
                        self._beat(known, address, link)
                        self._to_ask[address] = known, link
                    else:
                        # Told when the connection is there.
                        self._links.connect(address, link)
            if count % _AT_A_TIME == _AT_A_TIME - 1:
                await asyncio.sleep(0)
        asked, self._to_ask = self._to_ask, {}
        await asyncio.gather(*(self._ask(address, *question) for address, question in asked.items()))

    async def _ask(self, address: str, known: _Known, link: int) -> None:
        """Send one of a broker's heartbeats and wait for the response, to see whether it accepts them."""
        bodies = known.bodies.get(link)
        if not bodies:
            return
        try:
            answer = await self._links.call(
                address,
                RequestCode.HEART_BEAT,
                {},
                bodies[0],
                timeout_s=self._settings.request_timeout_s,
                link=link,
                speaker=known.speaker,
            )
        except GatewayError:
            return
        if answer.code == ResponseCode.SUCCESS:
            self._refusals.pop(address, None)
        elif address not in self._refusals:
            self._refusals[address] = answer.remark
            _log.warning(
                "broker %s does not take heartbeats of clients (code %d): %s",
                address,
                answer.code,
                answer.remark[:200],
            )

    async def _say_goodbye(self, departure: Departure) -> None:
        """Tell the brokers that knew, and give the seat to the next one."""
        client_id, membership, seat, addresses, again = departure
        if again and membership.role is Role.PRODUCER:
            # A broker removes who is registered on the connection, and besides forgets where replies to the
            # client of this name go: it may be back by now, in another seat or through another gateway.
            client_id = self._settings.name
        fields = {"clientID": client_id, membership.role.value: membership.group}
        reached = [address for address in addresses if self._links.is_open(address, seat)]
        await asyncio.gather(*(self._unregister(address, seat, fields) for address in reached))
        following = self._slots.vacated(membership, seat)
        known = self._here.get(following) if following is not None else None
        if following is not None and known is not None:
            known.seats[membership] = seat
            self._reseated(following, known)
        if not again:
            self._departures.add(departure, self._clock.monotonic())

    async def _forget_version(self, known: _Known) -> None:
        """Update the version. If that fails, it is retried with the next heartbeat."""
        addresses, known.unsaid = known.unsaid & known.told, set()
        await asyncio.gather(*(self._said_anew(known, address) for address in addresses))

    async def _said_anew(self, known: _Known, address: str) -> None:
        """No other broker is waited for: until it hears of the client again one takes it for gone."""
        client = known.client
        for seat, (body, *_) in list(known.bodies.items()):
            if not self._links.is_open(address, seat):
                continue
            try:
                if await self._version_update.tell(
                    address, seat, client.client_id, client.group, body, known.speaker
                ):
                    continue
                _log.warning("broker %s keeps an older version of client %s", address, client.client_id)
            except GatewayError as error:
                _log.debug("broker %s was not told how a client reads: %s", address, error)
            known.unsaid.add(address)

    async def _unregister(self, address: str, seat: int, fields: dict[str, str]) -> bool:
        """A broker that does not answer forgets when the connection ends, or is told again (`Departures`)."""
        try:
            await self._links.call(
                address,
                RequestCode.UNREGISTER_CLIENT,
                fields,
                timeout_s=self._settings.request_timeout_s,
                link=seat,
            )
        except GatewayError as error:
            _log.debug("broker %s was not told that a client left: %s", address, error)
            return False
        return True
