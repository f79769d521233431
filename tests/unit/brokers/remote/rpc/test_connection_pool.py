"""brokers.remote.rpc.connection_pool: requests and answers on connections to brokers."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import Credentials, RemoteSettings
from popgate.errors import BadRequest, BrokerBusy, BrokerTimeout, BrokerUnavailable
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedPeer
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.frames.signature import sign

ASK = int(RequestCode.GET_MAX_OFFSET)
TELL = int(RequestCode.UPDATE_CONSUMER_OFFSET)


async def ask(links: ConnectionPool, peer: ScriptedPeer, **fields: str) -> Command:
    return await links.call(peer.address, ASK, fields, timeout_s=3.0)


async def test_an_answer_comes_with_its_fields_body_and_code(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: request.answer(17, "none", {"offset": request.fields["queueId"]}, b"body"))
    answer = await links.call(peer.address, ASK, {"queueId": "7"}, b"asked", timeout_s=3.0)
    assert (answer.code, answer.remark, answer.fields, answer.body) == (17, "none", {"offset": "7"}, b"body")
    assert peer.requests[0].body == b"asked"


async def test_many_requests_share_a_connection_and_their_answers_may_cross(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    held: list[Command] = []

    def last_first(request: Command) -> list[Command]:
        held.append(request)
        if len(held) < 500:
            return []
        return [one.answer(0, fields=one.fields) for one in reversed(held)]

    peer.on(ASK, last_first)
    answers = await asyncio.gather(*(ask(links, peer, queueId=str(one)) for one in range(500)))
    assert [answer.fields["queueId"] for answer in answers] == [str(one) for one in range(500)]
    assert peer.joined == 1
    assert links.figures()["requests_in_flight"] == 0


async def test_what_is_asked_in_one_turn_of_the_loop_is_written_at_once(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    await ask(links, peer)
    pieces = []
    peer.heard = pieces.append
    await asyncio.gather(*(ask(links, peer) for _ in range(50)))
    # 50 small requests fit into one read of the other side.
    assert len(pieces) == 1


async def test_links_to_one_broker_are_connections_of_their_own(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    for number in (0, 3, 3, 0):
        await links.call(peer.address, ASK, {}, timeout_s=3.0, link=number)
    assert peer.joined == 2
    assert links.is_open(peer.address)
    assert links.is_open(peer.address, 3)
    assert not links.is_open(peer.address, 1)


async def test_an_answer_that_does_not_come_in_time_is_a_timeout_and_dropped_when_it_comes(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock
) -> None:
    held: list[Command] = []
    peer.on(ASK, lambda request: held.append(request))
    asking = asyncio.create_task(ask(links, peer))
    await peer.until(lambda: bool(held))
    clock.advance(2.9)
    await asyncio.sleep(0)
    assert not asking.done()
    clock.advance(0.2)
    with pytest.raises(BrokerTimeout, match=r"did not answer GET_MAX_OFFSET within 3.0 s"):
        await asking
    peer.connections[0].send(held[0].answer(0))
    peer.on(ASK, lambda request: request.answer(0, "fresh"))
    assert (await ask(links, peer)).remark == "fresh"
    assert links.figures()["late_answers_total"] == 1


async def test_each_request_has_its_own_time(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock
) -> None:
    peer.on(ASK, lambda request: None)
    tasks = [
        asyncio.create_task(links.call(peer.address, ASK, {}, timeout_s=seconds))
        for seconds in (2.0, 0.5, 1.0)
    ]
    await peer.until(lambda: len(peer.of(ASK)) == 3)
    over = []
    for _ in range(3):
        await asyncio.sleep(0)
        clock.advance(0.7)
        await asyncio.gather(*(asyncio.wait([task], timeout=0) for task in tasks))
        over.append([task.done() for task in tasks])
    assert over == [[False, True, False], [False, True, True], [True, True, True]]
    for task in tasks:
        with pytest.raises(BrokerTimeout):
            await task


async def test_a_caller_who_leaves_takes_the_request_along(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock
) -> None:
    held: list[Command] = []
    peer.on(ASK, lambda request: held.append(request))
    asking = asyncio.create_task(ask(links, peer))
    await peer.until(lambda: bool(held))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert links.figures()["requests_in_flight"] == 0
    peer.connections[0].send(held[0].answer(0))
    clock.advance(10.0)
    peer.on(ASK, lambda request: request.answer(0))
    await ask(links, peer)


async def test_a_request_that_is_cancelled_before_it_was_written_is_not_written(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    asking = asyncio.create_task(ask(links, peer, queueId="1"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await ask(links, peer, queueId="2")
    assert [one.fields["queueId"] for one in peer.requests] == ["2"]


async def test_where_nobody_listens_the_request_was_not_done(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    await peer.stop()
    with pytest.raises(BrokerUnavailable, match=f"{peer.address} cannot be reached: Connection refused"):
        await ask(links, peer)
    assert links.trouble(peer.address) == "Connection refused"


async def test_a_connection_lost_after_the_request_was_written_leaves_the_outcome_open(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: peer.cut())
    with pytest.raises(BrokerTimeout, match="was lost before it answered GET_MAX_OFFSET"):
        await ask(links, peer)


async def test_a_broker_that_does_not_read_holds_callers_back_and_learns_nothing_of_what_waits(
    make_links: Callable[..., ConnectionPool], peer: ScriptedPeer, clock: MovableClock
) -> None:
    links = make_links(max_queued_bytes=4 << 20, connect_timeout_s=30.0)
    peer.on(ASK, lambda request: request.answer(0))
    await ask(links, peer)
    transport = peer.connections[0].transport
    assert transport is not None
    transport.pause_reading()
    tasks = []
    busy = 0
    for _ in range(60):
        tasks.append(asyncio.create_task(links.call(peer.address, ASK, {}, bytes(1 << 20), timeout_s=60.0)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        busy = sum(task.done() for task in tasks)
        if busy:
            break
    assert busy == 1
    with pytest.raises(BrokerBusy, match="does not read"):
        await next(task for task in tasks if task.done())
    queued = int(links.figures()["requests_queued"])
    assert queued >= 3
    # The connection is lost: what waited was not done, of what was written nobody knows.
    peer.cut()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(one, BrokerUnavailable) for one in told) == queued
    assert sum(isinstance(one, BrokerTimeout) for one in told) == len(tasks) - queued - 1


async def test_what_was_not_written_in_its_time_was_not_done(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock
) -> None:
    asking = asyncio.create_task(links.call(peer.address, ASK, {}, timeout_s=0.5))
    await asyncio.sleep(0)
    clock.advance(0.6)
    with pytest.raises(BrokerUnavailable, match=r"took nothing within 0.5 s"):
        await asking
    peer.on(ASK, lambda request: request.answer(0))
    await ask(links, peer, queueId="9")
    assert [one.fields for one in peer.requests] == [{"queueId": "9"}]


async def test_no_more_requests_wait_than_the_bound(
    make_links: Callable[..., ConnectionPool], peer: ScriptedPeer
) -> None:
    links = make_links(max_in_flight=10)
    peer.on(ASK, lambda request: None)
    tasks = [asyncio.create_task(ask(links, peer)) for _ in range(11)]
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(BrokerBusy, match="owes 10 answers"):
        await done.pop()
    for task in waiting:
        task.cancel()


async def test_a_request_that_fits_into_no_frame_is_refused_and_hurts_no_other(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    with pytest.raises(BadRequest, match="16777216"):
        await links.call(peer.address, ASK, {}, bytes(17 << 20), timeout_s=3.0)
    await ask(links, peer)
    assert links.figures()["requests_in_flight"] == 0


async def test_oneway_requests_are_written_where_there_is_a_connection(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    links.tell(peer.address, TELL, {"n": "1"})
    assert links.figures()["oneway_dropped_total"] == 1
    await peer.until(lambda: peer.joined == 1)
    peer.on(ASK, lambda request: request.answer(0))
    await ask(links, peer)
    links.tell(peer.address, TELL, {"n": "2"})
    await peer.until(lambda: bool(peer.of(TELL)))
    (told,) = peer.of(TELL)
    assert told.is_oneway
    assert told.fields == {"n": "2"}


async def test_oneway_requests_to_nobody_raise_nothing(links: ConnectionPool, peer: ScriptedPeer) -> None:
    await peer.stop()
    for _ in range(3):
        links.tell(peer.address, TELL, {})
        await asyncio.sleep(0)
    assert links.figures()["oneway_dropped_total"] == 3


@pytest.mark.parametrize("later", [False, True])
async def test_requests_of_the_broker_reach_the_handler_of_their_code(
    links: ConnectionPool, peer: ScriptedPeer, later: bool
) -> None:
    seen: list[Any] = []

    def at_once(address: str, link: int, request: Command) -> Command:
        seen.append((address, link, request.body))
        return request.answer(0, "done", {"k": "v"}, b"told")

    async def in_a_while(address: str, link: int, request: Command) -> Command | None:
        await asyncio.sleep(0)
        return at_once(address, link, request)

    handler: Callable[..., Command | Awaitable[Command | None]] = in_a_while if later else at_once
    links.on_request(RequestCode.CHECK_TRANSACTION_STATE, handler)
    peer.on(ASK, lambda request: request.answer(0))
    await links.call(peer.address, ASK, {}, timeout_s=3.0, link=2)
    (connection,) = peer.connections
    answer = await connection.ask(Command(RequestCode.CHECK_TRANSACTION_STATE, body=b"half"))
    assert (answer.code, answer.remark, answer.fields, answer.body) == (0, "done", {"k": "v"}, b"told")
    assert seen == [(peer.address, 2, b"half")]
    unknown = await connection.ask(Command(999))
    assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_broker_that_goes_away_is_asked_again_on_another_connection(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    asked: list[Command] = []

    def script(request: Command) -> Command:
        asked.append(request)
        return request.answer(ResponseCode.GO_AWAY if len(asked) == 2 else 0)

    peer.on(ASK, script)
    await ask(links, peer)
    assert (await ask(links, peer)).code == 0
    assert peer.joined == 2
    await peer.until(lambda: len(peer.connections) == 1)


async def test_what_is_under_way_when_a_broker_goes_away_is_still_answered(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    held: list[Command] = []
    peer.on(ASK, lambda request: request.answer(0))
    await ask(links, peer)
    peer.on(ASK, lambda request: held.append(request))
    slow = asyncio.create_task(ask(links, peer))
    await peer.until(lambda: bool(held))
    (old,) = peer.connections
    answers = iter([int(ResponseCode.GO_AWAY), 0])
    peer.on(ASK, lambda request: request.answer(next(answers)))
    assert (await ask(links, peer)).code == 0
    assert len(peer.connections) == 2
    old.send(held[0].answer(0, "at last"))
    assert (await slow).remark == "at last"
    await peer.until(lambda: old not in peer.connections)


async def test_connections_of_clients_leave_room_for_those_that_all_need(
    make_links: Callable[..., ConnectionPool], peer: ScriptedPeer
) -> None:
    """A gateway that has very many clients must reach a broker that is new, or a new master."""
    links = make_links(max_addresses=4)
    peer.on(ASK, lambda request: request.answer(0))
    for number in range(6):
        links.connect("127.0.0.1:1", number)
    assert links.figures()["links"] == 4
    assert (await ask(links, peer)).code == 0
    with pytest.raises(BrokerUnavailable, match="5 links already"):
        await links.call(peer.address, ASK, {}, timeout_s=3.0, link=1)


async def test_an_address_answers_when_it_did_since_its_last_loss(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock, loop_turns: Callable[[], Awaitable[None]]
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    for link in (0, 1):
        await links.call(peer.address, ASK, {}, timeout_s=3.0, link=link)
    assert links.answers(peer.address)
    clock.advance(1.0)
    peer.connections[1].cut()
    await peer.until(lambda: bool(links.trouble(peer.address, 1)))
    assert not links.answers(peer.address)
    clock.advance(1.0)
    await loop_turns()
    assert links.is_open(peer.address, 1)
    assert not links.answers(peer.address)
    await ask(links, peer)
    assert links.answers(peer.address)


async def test_a_broker_that_only_tells_clients_to_go_is_left_alone_for_a_while(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: request.answer(ResponseCode.GO_AWAY))
    for _ in range(5):
        with pytest.raises(BrokerUnavailable, match="go away"):
            await ask(links, peer)
    assert peer.joined == 1


async def test_nonsense_from_the_other_side_ends_the_connection(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    def nonsense(request: Command) -> None:
        transport = peer.connections[0].transport
        assert transport is not None
        transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    peer.on(ASK, nonsense)
    with pytest.raises(BrokerTimeout, match="does not speak the remoting protocol"):
        await ask(links, peer)


async def test_every_request_is_signed_by_the_account_of_the_gateway(
    make_links: Callable[..., ConnectionPool], peer: ScriptedPeer, clock: MovableClock
) -> None:
    links = make_links(credentials=Credentials("key", "secret"), heartbeat_s=5.0)
    assert "secret" not in repr(Credentials("key", "secret"))
    peer.on(ASK, lambda request: request.answer(0))
    await links.call(peer.address, ASK, {"topic": "t"}, b"body", timeout_s=3.0)
    links.tell(peer.address, TELL, {"topic": "t"})
    clock.advance(5.1)
    await peer.until(lambda: len(peer.requests) == 3)
    for request in peer.requests:
        said = {name: value for name, value in request.fields.items() if name == "topic"}
        assert request.fields == {**said, **sign(said, request.body, "key", "secret")}
        assert request.fields["AccessKey"] == "key"


async def test_links_are_bounded(make_links: Callable[..., ConnectionPool], peer: ScriptedPeer) -> None:
    links = make_links(max_links=2, max_addresses=2)
    peer.on(ASK, lambda request: request.answer(0))
    for number in (0, 1):
        await links.call(peer.address, ASK, {}, timeout_s=3.0, link=number)
    links.connect("127.0.0.1:1", 0)
    assert links.figures()["links"] == 3
    for address, number in ((peer.address, 2), (peer.address, -1), ("127.0.0.1:1", 1), ("127.0.0.1:2", 0)):
        with pytest.raises(BrokerUnavailable, match=r"beyond|bound"):
            await links.call(address, ASK, {}, timeout_s=3.0, link=number)


async def test_who_follows_links_is_told_when_they_come_and_go(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    told: list[tuple[str, str, int]] = []
    links.on_open(lambda address, link: told.append(("open", address, link)))
    links.on_lost(lambda address, link: told.append(("lost", address, link)))
    links.connect(peer.address, 1)
    await peer.until(lambda: peer.joined == 1)
    peer.on(ASK, lambda request: request.answer(0))
    await links.call(peer.address, ASK, {}, timeout_s=3.0, link=1)
    peer.cut()
    await peer.until(lambda: not peer.connections)
    while len(told) < 2:
        await asyncio.sleep(0)
    assert told == [("open", peer.address, 1), ("lost", peer.address, 1)]


async def test_after_the_end_nothing_is_asked_and_nothing_is_left(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: None)
    asking = asyncio.create_task(ask(links, peer))
    await peer.until(lambda: bool(peer.requests))
    await links.close()
    with pytest.raises(BrokerTimeout, match="the gateway stops"):
        await asking
    with pytest.raises(BrokerUnavailable, match="the gateway stops"):
        await ask(links, peer)
    links.tell(peer.address, TELL, {})
    links.connect(peer.address)
    await peer.until(lambda: not peer.connections)
    gc.collect()
    assert repr(links) == "<ConnectionPool 0 open of 0>"


async def _backlog(links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock) -> None:
    made = [links]
    await test_a_broker_that_does_not_read_holds_callers_back_and_learns_nothing_of_what_waits(
        lambda **settings: made[0], peer, clock
    )


@pytest.mark.parametrize(
    "behaviour",
    [
        test_many_requests_share_a_connection_and_their_answers_may_cross,
        test_what_is_asked_in_one_turn_of_the_loop_is_written_at_once,
        test_where_nobody_listens_the_request_was_not_done,
        test_a_connection_lost_after_the_request_was_written_leaves_the_outcome_open,
        test_what_is_under_way_when_a_broker_goes_away_is_still_answered,
        test_after_the_end_nothing_is_asked_and_nothing_is_left,
        _backlog,
    ],
    ids=lambda behaviour: behaviour.__name__,
)
def test_the_loop_that_serves_does_it_alike(behaviour: Callable[..., Any]) -> None:
    """The tests above run on the loop of the standard library, these on uvloop."""

    async def run() -> None:
        clock = MovableClock()
        settings = RemoteSettings(max_queued_bytes=4 << 20)
        async with ScriptedPeer() as peer:
            links = ConnectionPool(settings, clock)
            given = {"links": links, "peer": peer, "clock": clock}
            wanted = inspect.signature(behaviour).parameters
            await behaviour(**{name: value for name, value in given.items() if name in wanted})
            await links.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
