"""A real RocketMQ for tests and benchmarks: downloaded once, started on free ports, and always stopped."""

from popgate.testing.made import Missing
from popgate.testing.rocketmq.cluster import RocketMQ
from popgate.testing.rocketmq.plans import PATIENT, BrokerPlan, pairs, replicas
from popgate.testing.rocketmq.servers import JavaServer, RocketMQDidNotStart
from popgate.testing.rocketmq.shared import SharedRocketMQ, shared_rocketmq

__all__ = [
    "PATIENT",
    "BrokerPlan",
    "JavaServer",
    "Missing",
    "RocketMQ",
    "RocketMQDidNotStart",
    "SharedRocketMQ",
    "pairs",
    "replicas",
    "shared_rocketmq",
]
