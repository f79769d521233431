"""What operators do to brokers, by RocketMQ's own requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping

from brokers.remote.metadata.config_codec import group_body, topic_fields
from popgate.errors import PeerWireError
from popgate.model import GroupConfig, TopicConfig
from popgate.testing.rocketmq import JavaServer, RocketMQ
from popgate.testing.rocketmq.requests import addresses_known, ask
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.fastjson import loads
from tests.cluster.load import until
from tests.cluster.records import Records

QUEUES = 4
ACCOUNT = ("gateway", "gateway-secret")
"""The name and the secret of the one who may ask a guarded broker."""
_WITHIN_S = 60.0
NOT_TAKEN_OVER = "a master that came back did not take over the positions of the slave that acted for it"
"""It does so only when the version of its own is not larger, which counts what was written of them: that of a
busy master is (`BrokerPreOnlineService`; seen on 5.5.0, in its log and in both files of positions: 10 and 4).
So it reads on from where it had died."""
_ASKED_ITS_SLAVE = b"Get metadata reverse from"
_TOOK_POSITIONS = b"'s consumerOffset will be used"


def asked(address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    """The body of an answer that must be a success."""
    answer = ask(address, code, fields, body)
    assert answer.code == ResponseCode.SUCCESS, f"{address} answered {answer.code}: {answer.remark}"
    return answer.body


def make_at(address: str, names: Iterable[str]) -> None:
    """Make topics, and groups of the same names, at a master."""
    for name in names:
        config = TopicConfig(name, read_queues=QUEUES, write_queues=QUEUES)
        asked(address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(config, None))
        body = group_body(GroupConfig(name), None)
        asked(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def make(cluster: RocketMQ, names: Iterable[str]) -> None:
    """Make them at all masters, and wait until the slaves have them, too."""
    wanted = set(names)
    known = addresses_known(cluster.addresses[0])
    for addresses in known.values():
        make_at(addresses[0], names)
    end = time.monotonic() + _WITHIN_S
    for addresses in known.values():
        for address in addresses.values():
            while not wanted <= topics_at(address).keys():
                assert time.monotonic() < end, f"{address} does not hear of topics"
                time.sleep(0.1)


def topics_at(address: str) -> dict[str, object]:
    told = loads(asked(address, RequestCode.GET_ALL_TOPIC_CONFIG))
    return dict(told["topicConfigTable"])


def slave_is_current(cluster: RocketMQ, broker: str) -> bool:
    """Whether the slaves know every topic of their master: they ask for them every 10 s.

    Raises OSError, PeerWireError.
    """
    known = addresses_known(cluster.addresses[0]).get(broker, {})
    topics = [topics_at(address).keys() for _, address in sorted(known.items())]
    return len(topics) > 1 and all(topics[0] <= other for other in topics[1:])


def end_of(address: str, broker: str, topic: str) -> int:
    """How many messages of a topic a broker has stored, in all of its queues."""
    total = 0
    for queue_id in range(QUEUES):
        fields = {"topic": topic, "queueId": str(queue_id), "bname": broker}
        answer = ask(address, RequestCode.GET_MAX_OFFSET, fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        total += int(answer.fields["offset"])
    return total


def wipe_write_permission(cluster: RocketMQ, broker: str) -> None:
    """As `mqadmin wipeWritePerm` does it: name servers tell the broker's queues as not writable."""
    for address in cluster.addresses:
        asked(address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": broker})


def configure(server: JavaServer, **settings: str) -> None:
    """As `mqadmin updateBrokerConfig` does it."""
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    asked(server.address, RequestCode.UPDATE_BROKER_CONFIG, body=lines.encode())


def register_now(server: JavaServer) -> None:
    """Have a broker tell the name servers of itself, which it does else every 10 s."""
    configure(server, brokerPermission="6")  # as shipped; whoever is given one registers with it


async def chosen(cluster: RocketMQ, dead: JavaServer) -> bool:
    """Whether a name server tells of another master; that is RocketMQ's own work."""
    try:
        return await asyncio.to_thread(cluster.master) is not dead
    except KeyError:
        return False


async def comes_back(cluster: RocketMQ, name: str, records: Records, cause: str) -> None:
    """Start a master that died. Clients may feel it as soon as a name server tells of it, and it takes
    messages when its slave follows it: that is RocketMQ's own work."""
    master = cluster.brokers[name, 0]
    log = master.folder / "home/logs/rocketmqlogs/broker.log"
    logged = log.stat().st_size
    died = next(fault for fault in reversed(records.faults) if name in fault.brokers)
    unseen = time.monotonic()
    await asyncio.to_thread(master.launch)

    def told() -> bool:
        nonlocal unseen
        now = time.monotonic()
        known = [addresses_known(address) for address in cluster.addresses]
        if any(master.address in one.get(name, {}).values() for one in known):
            return True
        unseen = now
        return False

    await until(lambda: asyncio.to_thread(told))
    fault = records.fault(name, cause=cause, at=unseen)
    await asyncio.to_thread(master.wait_until_ready)

    def followed() -> bool:
        with contextlib.suppress(OSError, PeerWireError):
            return cluster.is_followed(name)
        return False

    await until(lambda: asyncio.to_thread(followed))
    fault.is_over()
    said = log.read_bytes()[logged:]
    if _ASKED_ITS_SLAVE in said and _TOOK_POSITIONS not in said:
        fault.cause = NOT_TAKEN_OVER
        fault.forgets_since(died)
