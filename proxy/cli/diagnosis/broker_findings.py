"""Findings of `popgate doctor` about the brokers of a RocketMQ cluster: versions, clocks, settings, stores.

Versions known to be bad: RocketMQ's issues 7724 (redelivers another message than the one that is due),
7914 (loses unacknowledged messages) and 8479 (stuck on recreated topics), which affect versions 5
before 5.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from protocols.probing import Finding, Level
from proxy.config.units import duration_text

_READ, _WRITE = 4, 2
_SKEW_MS = 2_000
_FULL = 0.85
"""Of a disk: RocketMQ deletes messages before their time from there on, and refuses sends soon after."""
_TIMER_BEHIND_S = 10
_FIRST_5, _RIGHT, _RECALLS, _FREE_RETURNS = (5, 0, 0), (5, 3, 1), (5, 3, 2), (5, 5, 0)
_TESTED = ("5.5.0", "5.3.3")
_SHORTEST_OPEN_S = 60
_MOST_NAMED = 5
_version = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)").match

Told = Mapping[str, Any]


def broker_findings(brokers: Sequence[Told]) -> Iterator[Finding]:
    """Findings about brokers that answer, as `/api/cluster` tells of them."""
    yield from _versions(brokers)
    yield from _clocks(brokers)
    yield from _permissions(brokers)
    yield from _settings(brokers)
    yield from _copies(brokers)
    yield from _stores(brokers)


def broker_name(broker: Told) -> str:
    return f"{broker['role']} {broker['name']}" + (f" ({broker['number']})" if broker["number"] else "")


def named(names: Iterable[str]) -> str:
    all_names = list(names)
    more = f" and {len(all_names) - _MOST_NAMED} more" if len(all_names) > _MOST_NAMED else ""
    return ", ".join(all_names[:_MOST_NAMED]) + more


def _versions(brokers: Sequence[Told]) -> Iterator[Finding]:
    by_version: dict[str, list[str]] = {}
    for broker in brokers:
        by_version.setdefault(broker["version"] or "", []).append(broker_name(broker))
    for text, names in sorted(by_version.items()):
        who = named(names)
        matched = _version(text)
        if matched is None:
            yield Finding(
                "version", Level.WARNING, f"{who}: the version is not told", "look: mqadmin clusterList"
            )
            continue
        version = tuple(int(part) for part in matched.groups())
        if version < _FIRST_5:
            yield Finding(
                "version",
                Level.PROBLEM,
                f"{who}: RocketMQ {text} has no message types and no delays to the millisecond, and much that"
                " clients of version 5 rely on is missing",
                f"upgrade to {_TESTED[0]}",
            )
        elif version < _RIGHT:
            yield Finding(
                "version",
                Level.PROBLEM,
                f"{who}: RocketMQ {text} may lose, repeat or hold back messages that were not acknowledged"
                " (its issues 7724, 7914, 8479)",
                f"upgrade to {_TESTED[0]}, to 5.3.1 at least",
            )
        else:
            missing = [
                feature
                for since, feature in (
                    (_RECALLS, "delayed messages cannot be recalled"),
                    (_FREE_RETURNS, "what is given back undelivered counts as an attempt"),
                )
                if version < since
            ]
            note = f"; {', '.join(missing)}" if missing else ""
            tested = text in _TESTED
            yield Finding(
                "version",
                Level.OK,
                f"{who}: RocketMQ {text}{note}" + ("" if tested else f"; tested are {' and '.join(_TESTED)}"),
            )
    if len(by_version) > 1:
        yield Finding(
            "version",
            Level.WARNING,
            f"brokers are of {len(by_version)} versions: {', '.join(sorted(filter(None, by_version)))}",
            "bring all to the newest of them: what clients can do depends on where their messages lie",
        )


def _clocks(brokers: Sequence[Told]) -> Iterator[Finding]:
    known = [broker for broker in brokers if broker["clock_ahead_ms"] is not None]
    wrong = False
    for broker in known:
        low, high = broker["clock_ahead_ms"]
        if low > _SKEW_MS or high < -_SKEW_MS:
            wrong = True
            by = f"{(low if low > 0 else -high) / 1000:.0f} s {'ahead of' if low > 0 else 'behind'}"
            yield Finding(
                "broker-clock",
                Level.WARNING,
                f"the clock of {broker_name(broker)} is at least {by} the gateway's",
                "let NTP set both: delayed messages come at the wrong time, and open transactions are asked"
                " about too early or too late",
            )
    if known and not wrong:
        yield Finding("broker-clock", Level.OK, "the brokers' clocks agree with the gateway's")
    if len(known) < len(brokers):
        silent = named(broker_name(broker) for broker in brokers if broker["clock_ahead_ms"] is None)
        yield Finding("broker-clock", Level.SKIPPED, f"{silent}: no clock is told")


def _permissions(brokers: Sequence[Told]) -> Iterator[Finding]:
    hidden = [broker for broker in brokers if broker["settings_trouble"]]
    if hidden:
        yield Finding(
            "permission",
            Level.WARNING,
            f"{named(map(broker_name, hidden))}: settings are not shown: {hidden[0]['settings_trouble']}",
            "see that the brokers accept the gateway's account (remote.access_key), else this look knows"
            " nothing of filters, delays and permissions",
        )
    masters = [broker for broker in brokers if broker["role"] == "master" and broker["settings"]]
    for broker in masters:
        permission = _number(broker, "brokerPermission", _READ | _WRITE)
        if permission & _WRITE and permission & _READ:
            continue
        draining = bool(permission & _READ)
        yield Finding(
            "permission",
            Level.WARNING if draining else Level.PROBLEM,
            f"{broker_name(broker)} has permission {permission}: it takes no messages"
            + (", and gives out what it has" if draining else ", and gives none out"),
            f"if it is not being taken out of service: mqadmin updateBrokerConfig -b {broker['address']}"
            " -k brokerPermission -v 6",
        )
    if masters and not any(_number(broker, "brokerPermission", 6) & _WRITE for broker in masters):
        yield Finding(
            "permission", Level.PROBLEM, "no broker takes messages", "see above: one of them must have 6"
        )


def _settings(brokers: Sequence[Told]) -> Iterator[Finding]:
    """Features that clients may need and brokers may have disabled."""
    shown = [broker for broker in brokers if broker["role"] == "master" and broker["settings"]]
    for check, setting, wanted, without, advice in _SWITCHES:
        off = [broker for broker in shown if broker["settings"].get(setting, wanted) != wanted]
        if off:
            yield Finding(check, Level.WARNING, f"{named(map(broker_name, off))}: {without}", advice)
        elif setting not in _ONLY_TROUBLE and any(setting in broker["settings"] for broker in shown):
            yield Finding(check, Level.OK, f"{setting} is {wanted} on all brokers")
    delays = {_number(broker, "timerMaxDelaySec", 0) for broker in shown} - {0}
    if delays:
        yield Finding("delay", Level.OK, f"messages can be delayed by {duration_text(min(delays))} at most")
    for broker in shown:
        interval_s = _number(broker, "transactionCheckInterval", 30_000) / 1000
        most = _number(broker, "transactionCheckMax", 15)
        if interval_s * most < _SHORTEST_OPEN_S:
            yield Finding(
                "transaction",
                Level.WARNING,
                f"{broker_name(broker)} looks at open transactions every {interval_s:g} s, {most} times:"
                f" it gives them up after {interval_s * most:g} s",
                "raise transactionCheckInterval (30000 is RocketMQ's own)",
            )


_SWITCHES = (
    (
        "sql-filter",
        "enablePropertyFilter",
        "true",
        "consumers with an SQL filter get an error",
        "set enablePropertyFilter=true in broker.conf, or filter by tag",
    ),
    (
        "delay",
        "timerWheelEnable",
        "true",
        "messages with a delivery time are refused, or come by RocketMQ's 18 levels only",
        "set timerWheelEnable=true in broker.conf and start the broker anew",
    ),
    (
        "delay",
        "timerStopEnqueue",
        "false",
        "delayed messages are taken and stay away: the timer is stopped",
        "mqadmin updateBrokerConfig -k timerStopEnqueue -v false",
    ),
    (
        "delay",
        "timerStopDequeue",
        "false",
        "delayed messages are taken and not delivered: the timer is stopped",
        "mqadmin updateBrokerConfig -k timerStopDequeue -v false",
    ),
    (
        "recall",
        "recallMessageEnable",
        "true",
        "delayed messages cannot be recalled",
        "set recallMessageEnable=true in broker.conf (from RocketMQ 5.3.2 on) if clients recall messages",
    ),
    (
        "transaction",
        "rejectTransactionMessage",
        "false",
        "transactional messages are refused",
        "set rejectTransactionMessage=false in broker.conf",
    ),
)
"""Check, setting, required value, consequence, advice."""
_ONLY_TROUBLE = frozenset({"timerStopEnqueue", "timerStopDequeue"})
"""Settings that are reported only if they are wrong."""


def _copies(brokers: Sequence[Told]) -> Iterator[Finding]:
    """Whether acknowledged messages survive their master, if there are brokers that could keep them."""
    followed = {(broker["cluster"], broker["name"]) for broker in brokers if broker["role"] != "master"}
    for broker in brokers:
        settings = broker["settings"]
        role = settings.get("brokerRole", "")
        if broker["role"] != "master" or not role or (broker["cluster"], broker["name"]) not in followed:
            continue
        if settings.get("enableControllerMode") == "true":
            kept = settings.get("allAckInSyncStateSet") == "true" or _number(broker, "inSyncReplicas", 1) > 1
            advice = "set allAckInSyncStateSet=true in broker.conf"
        elif role == "SYNC_MASTER":
            # Its default is 1: itself. SYNC_MASTER alone waits for nobody.
            kept = _number(broker, "inSyncReplicas", 1) > 1
            advice = "set inSyncReplicas=2 in broker.conf: with 1 a SYNC_MASTER waits for nobody"
        else:
            kept = False
            advice = "set brokerRole=SYNC_MASTER and inSyncReplicas=2 in broker.conf, if none may be lost"
        if kept:
            yield Finding(
                "copies", Level.OK, f"{broker_name(broker)} answers when another broker has the message"
            )
        else:
            yield Finding(
                "copies",
                Level.WARNING,
                f"{broker_name(broker)} answers before another broker has the message: its death can lose"
                " what it answered",
                advice,
            )


def _stores(brokers: Sequence[Told]) -> Iterator[Finding]:
    for broker in brokers:
        share = _real(broker["figures"].get("commitLogDiskRatio", ""))
        if share >= _FULL:
            yield Finding(
                "broker-disk",
                Level.PROBLEM,
                f"the disk of {broker_name(broker)} is {share:.0%} full: messages are deleted before their"
                " time, and sends refused soon",
                "give it room, or lower fileReservedTime",
            )
        behind_s = _real(broker["figures"].get("timerReadBehind", ""))
        if behind_s > _TIMER_BEHIND_S:
            yield Finding(
                "delay",
                Level.WARNING,
                f"the timer of {broker_name(broker)} is {behind_s:.0f} s behind: delayed messages come late",
                "its disk or processor is too slow for what it has to do",
            )


def _number(broker: Told, setting: str, otherwise: int) -> int:
    text = broker["settings"].get(setting, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else otherwise


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
