"""The options of the sink, parsed and checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from popgate.spark.errors import Code, SparkSourceError, illegal_option
from popgate.spark.offsets import LARGEST_OFFSET
from popgate.spark.options.gateway_options import SHARED, Gateway, gateway_of, refuse_over_grpc
from popgate.spark.options.option_values import at_most_one, named, number, one_of, topic_of
from popgate.spark.options.source_options import KNOWN, NOT_YET, SINKS_ONLY

AT_LEAST_ONCE: Final = "at-least-once"
EFFECTIVELY_ONCE: Final = "effectively-once"
TRANSACTIONAL: Final = "transactional"
BY_VERSION: Final = "txnVersion"
"""The option that numbers the batches of `txnAppId`, and in the ledger the name of their query."""
_SHARED: Final = ("topic", *SHARED)
"""Of the source too."""
SINK_KNOWN: Final = (*_SHARED, *SINKS_ONLY)
_SOURCES_ONLY: Final = tuple(name for name in KNOWN if name not in _SHARED)
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Those of a query, which Spark gives to its sink as well; in lower case."""
_IDS: Final = ("sinkId", "txnAppId")
_LONGEST_SINK_ID: Final = 255
_NUMBERS: Final = {
    # name: least, most, default
    "sendBatchRows": (1, 1024, 1024),
    "sendBatchBytes": (1, 4 << 20, 1 << 20),
    "sendInFlight": (1, 64, 16),
    "sendTimeoutMs": (100, 3_600_000, 30_000),
    "send.numRetries": (0, 100_000, 10),
    "send.retryIntervalMs": (0, 3_600_000, 100),
}
"""The most rows are those of one send to the gateway, the most bytes those of a batch that RocketMQ takes."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options, with their defaults. `topic` is empty where rows name theirs."""

    gateway: Gateway
    topic: str
    sink_id: str
    dedupe_key: str
    """The column whose value makes a message's id; empty: its place in the query does."""
    guarantee: str = AT_LEAST_ONCE
    ledger_topic: str = ""
    """Empty where the guarantee needs none."""
    version: int = -1
    """The number of this batch among those of `sink_id`; -1: Spark tells it, or nobody."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """By the option's name."""

    @property
    def group(self) -> str:
        """None: sends need no group of consumers."""
        return ""

    @property
    def has_ledger(self) -> bool:
        return self.guarantee != AT_LEAST_ONCE

    @property
    def transactional(self) -> bool:
        return self.guarantee == TRANSACTIONAL

    @property
    def timeout_s(self) -> float:
        """For each answer of the gateway."""
        return self.numbers["sendTimeoutMs"] / 1000


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises SparkSourceError."""
    given = {name: value for name, value in given.items() if name.lower() not in _SPARKS_OWN}
    options = named(given, SINK_KNOWN, others=_SOURCES_ONLY, side="source", not_yet=NOT_YET)
    guarantee = one_of(options, "deliveryGuarantee", (AT_LEAST_ONCE, EFFECTIVELY_ONCE, TRANSACTIONAL))
    gateway = gateway_of(options)
    if gateway.is_grpc and guarantee != AT_LEAST_ONCE:
        raise refuse_over_grpc(
            "deliveryGuarantee",
            options["deliveryGuarantee"],
            "nobody tells the settings of topics, which a ledger is based on",
        )
    topic = topic_of(options, "topic", options["topic"]) if "topic" in options else ""
    at_most_one(options, _IDS)
    id_option = next((name for name in _IDS if name in options), "")
    sink_id = options.get(id_option, "")
    if id_option and not (sink_id.isprintable() and 0 < len(sink_id) <= _LONGEST_SINK_ID):
        raise illegal_option(id_option, sink_id, f"it has 1 to {_LONGEST_SINK_ID} printable characters")
    if "dedupeKeyColumn" in options and not options["dedupeKeyColumn"]:
        raise illegal_option("dedupeKeyColumn", "", "it names a column")
    return SinkOptions(
        guarantee=guarantee,
        version=_version(options, guarantee),
        ledger_topic=_ledger_topic(options, guarantee),
        gateway=gateway,
        topic=topic,
        sink_id=sink_id,
        dedupe_key=options.get("dedupeKeyColumn", ""),
        numbers={
            name: number(options, name, least, most, default) or 0
            for name, (least, most, default) in _NUMBERS.items()
        },
    )


def _version(options: Mapping[str, str], guarantee: str) -> int:
    """-1: the batch is not numbered by options."""
    version = number(options, BY_VERSION, 0, LARGEST_OFFSET, None)
    if (version is None) != ("txnAppId" not in options):
        raise SparkSourceError(
            Code.MISSING_OPTION, f"options txnAppId and {BY_VERSION} are given together or not"
        )
    if version is None:
        return -1
    if guarantee == AT_LEAST_ONCE:
        raise illegal_option(
            BY_VERSION, options[BY_VERSION], f"it needs deliveryGuarantee = {EFFECTIVELY_ONCE}"
        )
    return version


def _ledger_topic(options: Mapping[str, str], guarantee: str) -> str:
    """Empty: none is needed."""
    if guarantee == AT_LEAST_ONCE:
        if "ledgerTopic" in options:
            raise illegal_option(
                "ledgerTopic", options["ledgerTopic"], f"it needs deliveryGuarantee = {EFFECTIVELY_ONCE}"
            )
        return ""
    for names, purpose in (
        (_IDS, "a name of the sink that no other has"),
        (("ledgerTopic",), "a compacted topic"),
    ):
        name = names[0]
        if options.keys().isdisjoint(names):
            raise SparkSourceError(
                Code.MISSING_OPTION,
                f"option {name} is missing, deliveryGuarantee = {guarantee} needs it: {purpose}",
            )
    return topic_of(options, "ledgerTopic", options["ledgerTopic"])
