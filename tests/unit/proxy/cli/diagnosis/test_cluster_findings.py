"""What the doctor makes of a cluster: every finding that is not right says what to do."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from protocols.probing import Finding, Level
from proxy.cli.diagnosis.cluster_findings import cluster_findings

_SETTINGS = {
    "brokerPermission": "6",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "rejectTransactionMessage": "false",
    "timerMaxDelaySec": "259200",
    "timerStopDequeue": "false",
    "timerStopEnqueue": "false",
    "timerWheelEnable": "true",
    "transactionCheckInterval": "30000",
    "transactionCheckMax": "15",
}


def broker(name: str, address: str, **more: Any) -> dict[str, Any]:
    told = {
        "cluster": "DefaultCluster",
        "name": name,
        "number": 0,
        "address": address,
        "role": "master",
        "links": 1,
        "trouble": "",
        "answer_ms": 1.5,
        "version": "5.5.0",
        "clock_ahead_ms": [-900, 100],
        "settings": dict(_SETTINGS),
        "settings_trouble": "",
        "figures": {"commitLogDiskRatio": "0.3", "timerReadBehind": "0"},
    }
    return {**told, **more}


def name_server(address: str, **more: Any) -> dict[str, Any]:
    brokers = {"broker-a": "10.0.0.3:10911", "broker-b": "10.0.0.4:10911"}
    told = {"address": address, "trouble": "", "answer_ms": 0.7, "in_use": False, "brokers": brokers}
    return {**told, **more}


@pytest.fixture
def told() -> dict[str, Any]:
    """A cluster in which all is well."""
    return {
        "name_servers": [name_server("10.0.0.1:9876", in_use=True), name_server("10.0.0.2:9876")],
        "brokers": [broker("broker-a", "10.0.0.3:10911"), broker("broker-b", "10.0.0.4:10911")],
        "not_asked": 0,
        "refusals": {},
        "unserved": [],
        "gateway": {
            "transactions_bound": False,
            "clients_merged": 0,
            "clients_registered": 3,
            "name_servers_silent_s": 0.4,
            "numbers_unkept": 0.0,
        },
    }


def wrong(told: dict[str, Any], **more: Any) -> list[Finding]:
    """The findings that are not fine; each says what to do."""
    found = [one for one in cluster_findings(told, **more) if one.level in (Level.WARNING, Level.PROBLEM)]
    assert all(one.advice for one in found)
    return found


def only(told: dict[str, Any], **more: Any) -> Finding:
    (finding,) = wrong(told, **more)
    return finding


def test_where_all_is_well_nothing_is_wrong(told: dict[str, Any]) -> None:
    topics = [{"name": "orders", "types": ["FIFO"], "permission": "read-write"}]
    found = cluster_findings(told, topics)
    assert {one.level for one in found} == {Level.OK}
    assert {one.check for one in found} == {
        *("name-server", "broker", "version", "broker-clock", "sql-filter", "delay", "recall"),
        *("transaction", "transactions", "clients", "topic-types"),
    }


def test_a_name_server_that_is_silent_is_a_warning_and_all_of_them_a_problem(told: dict[str, Any]) -> None:
    told["name_servers"][1] = name_server("10.0.0.2:9876", trouble="connection refused", brokers=None)
    finding = only(told)
    assert (finding.check, finding.level) == ("name-server", Level.WARNING)
    told["name_servers"][0] = name_server("10.0.0.1:9876", trouble="connection refused", brokers=None)
    told["gateway"]["name_servers_silent_s"] = 400.0
    assert [(one.check, one.level) for one in wrong(told)] == [
        ("name-server", Level.PROBLEM),
        ("name-server", Level.PROBLEM),
        ("routes", Level.PROBLEM),
    ]


def test_numbers_that_are_not_kept_are_a_warning_with_the_right_that_may_be_missing(
    told: dict[str, Any],
) -> None:
    told["gateway"]["numbers_unkept"] = 1.0
    finding = only(told)
    assert (finding.check, finding.level) == ("numbers", Level.WARNING)
    assert "1 topic " in finding.what
    assert "`numbers of queues`" in finding.advice


def test_name_servers_that_do_not_agree_are_told_with_what_each_says(told: dict[str, Any]) -> None:
    told["name_servers"][1]["brokers"] = {"broker-a": "10.0.0.3:10911"}
    finding = only(told)
    assert "do not agree on broker broker-b" in finding.what
    assert "nothing says 10.0.0.2:9876" in finding.what


def test_one_name_server_alone_is_a_warning(told: dict[str, Any]) -> None:
    del told["name_servers"][1]
    assert "one name server only" in only(told).what


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [
        ("4.9.8", Level.PROBLEM, "no message types"),
        ("5.1.0", Level.PROBLEM, "7724"),
        ("5.3.0", Level.PROBLEM, "8479"),
        (None, Level.WARNING, "version is not told"),
    ],
)
def test_versions_known_to_be_bad_are_named(
    told: dict[str, Any], version: str | None, level: Level, words: str
) -> None:
    for one in told["brokers"]:
        one["version"] = version
    finding = only(told)
    assert (finding.check, finding.level) == ("version", level)
    assert words in finding.what


def test_what_an_older_version_cannot_do_is_said(told: dict[str, Any]) -> None:
    for one in told["brokers"]:
        one["version"] = "5.3.1"
    (finding,) = [one for one in cluster_findings(told) if one.check == "version"]
    assert finding.level is Level.OK
    for words in ("recalled", "counts as an attempt", "tested are 5.5.0 and 5.3.3"):
        assert words in finding.what


def test_brokers_of_several_versions_are_a_warning(told: dict[str, Any]) -> None:
    told["brokers"][1]["version"] = "5.3.3"
    assert "2 versions: 5.3.3, 5.5.0" in only(told).what


@pytest.mark.parametrize(
    ("ahead", "words"), [([9_000, 10_000], "9 s ahead"), ([-70_000, -69_000], "69 s behind")]
)
def test_a_clock_that_is_wrong_is_told(told: dict[str, Any], ahead: list[int], words: str) -> None:
    told["brokers"][0]["clock_ahead_ms"] = ahead
    finding = only(told)
    assert finding.check == "broker-clock"
    assert words in finding.what


def test_a_clock_that_may_be_right_is_not_complained_about(told: dict[str, Any]) -> None:
    told["brokers"][0]["clock_ahead_ms"] = [-6_000, 1_000]
    assert wrong(told) == []


@pytest.mark.parametrize(("permission", "level"), [("4", Level.WARNING), ("0", Level.PROBLEM)])
def test_a_broker_that_takes_no_messages_is_told(told: dict[str, Any], permission: str, level: Level) -> None:
    told["brokers"][0]["settings"]["brokerPermission"] = permission
    finding = only(told)
    assert (finding.check, finding.level) == ("permission", level)
    told["brokers"][1]["settings"]["brokerPermission"] = permission
    assert wrong(told)[-1].what == "no broker takes messages"


@pytest.mark.parametrize(
    ("setting", "value", "check"),
    [
        ("enablePropertyFilter", "false", "sql-filter"),
        ("timerWheelEnable", "false", "delay"),
        ("timerStopEnqueue", "true", "delay"),
        ("timerStopDequeue", "true", "delay"),
        ("recallMessageEnable", "false", "recall"),
        ("rejectTransactionMessage", "true", "transaction"),
        ("transactionCheckInterval", "1000", "transaction"),
    ],
)
def test_what_a_broker_has_switched_off_is_told(
    told: dict[str, Any], setting: str, value: str, check: str
) -> None:
    told["brokers"][1]["settings"][setting] = value
    finding = only(told)
    assert (finding.check, finding.level) == (check, Level.WARNING)
    assert "broker-b" in finding.what


@pytest.mark.parametrize(
    ("settings", "kept", "advice"),
    [
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}, False, "inSyncReplicas=2"),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}, True, ""),
        ({"brokerRole": "ASYNC_MASTER", "inSyncReplicas": "2"}, False, "brokerRole=SYNC_MASTER"),
        ({"brokerRole": "SYNC_MASTER", "enableControllerMode": "true"}, False, "allAckInSyncStateSet=true"),
        (
            {"brokerRole": "X", "enableControllerMode": "true", "allAckInSyncStateSet": "true"},
            True,
            "",
        ),
    ],
)
def test_a_master_that_answers_before_its_slave_has_the_message_is_told(
    told: dict[str, Any], settings: dict[str, str], kept: bool, advice: str
) -> None:
    told["brokers"][1]["settings"].update(settings)
    assert not [one for one in cluster_findings(told) if one.check == "copies"]  # nobody could have it
    told["brokers"].append(broker("broker-b", "10.0.0.5:10911", role="slave", number=1))
    if kept:
        assert wrong(told) == []
        assert [one.level for one in cluster_findings(told) if one.check == "copies"] == [Level.OK]
    else:
        finding = only(told)
        assert (finding.check, finding.level) == ("copies", Level.WARNING)
        assert "broker-b" in finding.what
        assert advice in finding.advice


def test_a_broker_that_gives_a_group_nothing_is_a_problem(told: dict[str, Any]) -> None:
    told["unserved"] = [{"group": "G", "broker": "broker-b", "why": "consumer group G is not there"}]
    finding = only(told)
    assert (finding.check, finding.level) == ("group", Level.PROBLEM)
    assert "broker broker-b gives group G nothing" in finding.what


def test_settings_that_are_not_shown_are_told_and_nothing_is_made_up_of_them(told: dict[str, Any]) -> None:
    for one in told["brokers"]:
        one.update(settings={}, settings_trouble="broker broker-a answered NO_PERMISSION: no")
    assert only(told).check == "permission"
    assert not [one for one in cluster_findings(told) if one.check in ("sql-filter", "delay", "recall")]


def test_a_broker_that_is_not_reached_is_a_problem_and_its_slave_a_warning(told: dict[str, Any]) -> None:
    silent = {"trouble": "connection refused", "answer_ms": None, "version": None, "settings": {}}
    told["brokers"][0].update(silent)
    finding = only(told)
    assert (finding.check, finding.level) == ("broker", Level.PROBLEM)
    assert "brokerIP1" in finding.advice
    told["brokers"][0].update(role="slave", number=1)
    assert [(one.check, one.level) for one in wrong(told)] == [
        ("broker", Level.WARNING),
        ("broker", Level.PROBLEM),
    ]
    assert "has no master" in wrong(told)[1].what


def test_a_broker_that_tells_a_loopback_address_to_everybody_is_told(told: dict[str, Any]) -> None:
    told["brokers"][0]["address"] = "127.0.0.1:10911"
    assert "brokerIP1" in only(told).advice
    told["name_servers"] = [name_server("127.0.0.1:9876"), name_server("localhost:9877")]
    assert wrong(told) == []


def test_a_slave_that_stands_in_is_told(told: dict[str, Any]) -> None:
    told["brokers"][1].update(role="acting master", number=1)
    assert "ends no transactions" in only(told).what


def test_full_disks_and_late_timers_are_told(told: dict[str, Any]) -> None:
    told["brokers"][0]["figures"] = {"commitLogDiskRatio": "0.91", "timerReadBehind": "44"}
    assert [(one.check, one.level) for one in wrong(told)] == [
        ("broker-disk", Level.PROBLEM),
        ("delay", Level.WARNING),
    ]
    told["brokers"][0]["figures"] = {"commitLogDiskRatio": "what?", "timerReadBehind": ""}
    assert wrong(told) == []


def test_the_gateways_own_part_is_told(told: dict[str, Any]) -> None:
    before = deepcopy(told)
    told["gateway"]["transactions_bound"] = True
    assert "remote.transaction_key" in only(told).advice
    told = deepcopy(before)
    told["gateway"]["clients_merged"] = 2
    assert "remote.max_links" in only(told).advice
    told = deepcopy(before)
    told["refusals"] = {"10.0.0.3:10911": "no right"}
    assert "no right" in only(told).what


def test_topics_are_looked_at_without_dead_letters_and_retries(told: dict[str, Any]) -> None:
    topics = [
        {"name": "orders", "types": [], "permission": "read-write"},
        {"name": "closed", "types": ["FIFO"], "permission": "read"},
        {"name": "%DLQ%g", "types": [], "permission": "write"},
    ]
    finding = only(told, topics=topics)
    assert finding.what == "1 topic cannot be both written and read: closed"
    (types,) = [one for one in cluster_findings(told, topics) if one.check == "topic-types"]
    assert "1 of 2 topics declare no message type" in types.what


def test_a_cluster_without_brokers_is_a_problem(told: dict[str, Any]) -> None:
    told["brokers"] = []
    assert [(one.check, one.level) for one in wrong(told)] == [("broker", Level.PROBLEM)]
