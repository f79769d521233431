"""The composition of a test cluster, and the settings that make RocketMQ's servers small and fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CLUSTER_NAME = "DefaultCluster"
MASTER = 0
"""The broker id of a master."""
_PATIENT_S = 30
PATIENT = tuple(
    word
    for name in ("connect_timeout_s", "request_timeout_s", "probe_s")
    for word in ("--set", f"remote.{name}={_PATIENT_S}")
)
"""Flags for a gateway whose clients must not see errors: on small, busy machines a broker may pause for
longer than the default of 3 s, and still be alive."""


@dataclass(slots=True, frozen=True)
class BrokerPlan:
    """One broker process: brokers of one name are a master (number 0) and its slaves."""

    name: str = "broker-a"
    number: int = MASTER
    settings: Mapping[str, str] = field(default_factory=dict)
    """Lines of its broker.conf, over those of the cluster."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """System properties, over those of the cluster."""


def pairs(*names: str, settings: Mapping[str, str] | None = None) -> tuple[BrokerPlan, ...]:
    """A master and a slave of each name; the slave has every message that the master has acknowledged.

    SYNC_MASTER alone does not do that: RocketMQ 5 waits for `inSyncReplicas` copies, which is 1 by default.
    """
    kept = {"inSyncReplicas": "2", "totalReplicas": "2", **(settings or {})}
    return tuple(
        BrokerPlan(name, number, {"brokerRole": "SLAVE" if number else "SYNC_MASTER", **kept})
        for name in names
        for number in (0, 1)
    )


def replicas(name: str, count: int = 2, settings: Mapping[str, str] | None = None) -> tuple[BrokerPlan, ...]:
    """Brokers of one name among which a controller chooses the master; all in sync have what was answered."""
    kept = {
        "enableControllerMode": "true",
        "allAckInSyncStateSet": "true",
        "inSyncReplicas": "2",
        "totalReplicas": str(count),
        **(settings or {}),
    }
    return tuple(BrokerPlan(name, number, kept) for number in range(count))


BROKER_SETTINGS: Mapping[str, str] = {
    "brokerClusterName": CLUSTER_NAME,
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    # Topics and groups are made by those who want them, so that what is missing is told.
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "enablePropertyFilter": "true",  # SQL92
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "transactionCheckInterval": "3000",
    "transactionTimeOut": "3000",
    # A broker that looks every 3 s has given up after 45 s as shipped, whether or not anybody could be asked:
    # on a busy machine a gateway and its clients take longer to be back.
    "transactionCheckMax": "1000",
    # As shipped a thread spins for ever once a transaction has ended: what says so is written when 3 s are
    # over, and the next look is due 3 s after the last write, which lies in the past. So it is written at
    # once, and the next look is far away.
    "transactionOpMsgMaxSize": "1",
    "transactionOpBatchInterval": "3600000",
    # The timer's wheel of 37 MB is written that often, whatever is in it: as shipped each second.
    "timerFlushIntervalMs": "60000",
    "registerNameServerPeriod": "10000",
    # Files of the shipped sizes are of gigabytes.
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "diskMaxUsedSpaceRatio": "95",
    # On a busy machine of two cores the shipped 200 ms and 1 s refuse requests of tests; and a broker that
    # stood still for some seconds refuses all that came meanwhile, where it waits 3 s or 5 s as shipped.
    "waitTimeMillsInSendQueue": "60000",
    "waitTimeMillsInPullQueue": "60000",
    "waitTimeMillsInLitePullQueue": "60000",
    "waitTimeMillsInAckQueue": "60000",
    "waitTimeMillsInTransactionQueue": "60000",
    "waitTimeMillsInAdminBrokerQueue": "60000",
    "osPageCacheBusyTimeOutMills": "60000",
    # As shipped a send fails when the slave did not say within 3 s that it has it, and a broker that said
    # nothing for 10 s, as on a machine that stood still, is taken for gone by its name server or controller:
    # another one stands in for it. One that was killed they know by its connection.
    "slaveTimeout": "30000",
    "haHousekeepingInterval": "120000",
    "brokerNotActiveTimeoutMillis": "60000",
    "controllerHeartBeatTimeoutMills": "60000",
    "enablePopLog": "false",
}
NAME_SERVER_SETTINGS: Mapping[str, str] = {
    # Its shipped 120 s of silence and 5 s between looks; a broker that is stopped says so itself.
    "scanNotActiveBrokerInterval": "5000",
}
BROKER_HEAP = ("-Xms128m", "-Xmx768m", "-XX:MaxDirectMemorySize=512m")
NAME_SERVER_HEAP = ("-Xms32m", "-Xmx256m")
PROXY_HEAP = ("-Xms256m", "-Xmx512m")
ADMIN_HEAP = ("-Xms32m", "-Xmx256m")


def as_properties(settings: Mapping[str, str]) -> str:
    """A file of Java properties; for names and values of ASCII without spaces around them."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())
