"""Answers of several brokers as one."""

from __future__ import annotations

import pytest

from popgate.wire.bodies.broker_stats import Rate, Rates
from popgate.wire.bodies.heartbeats import Connection
from protocols.remoting.codec.merged_responses import (
    MOST_FIGURES,
    alike,
    clients_of,
    figures_of,
    mean_rates,
    producers_of,
    settings_in,
)


def test_one_broker_tells_its_own_figures() -> None:
    told = {"putTps": "1.5 2 3", "commitLogDirCapacity": "Total : 1 GiB"}
    assert figures_of({"a": told}) == told


def test_figures_of_several_are_their_mean_and_each_has_its_own() -> None:
    found = figures_of(
        {
            "a": {
                "putTps": "1.0 2.0",
                "total": "10",
                "runtime": "[ 1 days ]",
                "bootTimestamp": "20",
                "x": "1",
            },
            "b": {"putTps": "3.0 4.0", "total": "13", "runtime": "[ 2 days ]", "bootTimestamp": "10"},
        }
    )
    assert (found["putTps"], found["total"], found["bootTimestamp"]) == ("2.0 3.0", "11", "10")
    assert "runtime" not in found
    assert "x" not in found
    assert (found["a.runtime"], found["b.runtime"], found["a.x"]) == ("[ 1 days ]", "[ 2 days ]", "1")


def test_what_is_alike_is_told_as_it_is() -> None:
    assert figures_of({"a": {"version": "V5"}, "b": {"version": "V5"}})["version"] == "V5"


def test_what_cannot_be_added_is_left_out() -> None:
    for words in (("1 2", "1"), ("1E999", "-1E999"), ("NaN", "1"), ("", "1"), ("1" * 30, "2")):
        found = figures_of({"a": {"n": words[0]}, "b": {"n": words[1]}})
        assert "n" not in found, words
        assert found["a.n"] == words[0]


def test_figures_are_bounded() -> None:
    found = figures_of({"a": {f"f{at}": "1" for at in range(MOST_FIGURES + 5)} | {"f0": "x" * 5_000}})
    assert len(found) == MOST_FIGURES
    assert len(found["f0"]) < 1_100


def test_settings_without_secrets_and_without_what_is_behind() -> None:
    body = b"\n".join(
        [
            b"fileReservedTime=72",
            b"aclFile=a=b",
            b"innerClientAuthenticationCredentials={...}",
            b"initAuthenticationUser={...}",
            b"tlsKeyPassword=x",
            b"accessKey=x",
            b"haListenPort=10912",
            b"no setting",
            b"colour=\x1b[31m",
        ]
    )
    assert settings_in(body) == {"fileReservedTime": "72", "aclFile": "a=b", "colour": "'\\x1b[31m'"}


def test_settings_that_all_have_alike() -> None:
    assert alike([{"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3"}]) == {"a": "1"}


def test_rates_are_the_mean() -> None:
    one, two = Rates(Rate(10, 1.0, 2.0), Rate(20, 2.0, 4.0)), Rates(Rate(20, 2.0, 4.0))
    assert mean_rates([one]) == one
    assert mean_rates([one, two]) == Rates(Rate(15, 1.5, 3.0), Rate(10, 1.0, 2.0), Rate())


def test_a_producer_is_told_once_with_the_last_time_it_was_heard_of() -> None:
    here, there = Connection("c@1", "10.0.0.1:1", "JAVA", 1), Connection("c@1", "10.0.0.2:1", "JAVA", 2)
    other = Connection("c@2")
    found = producers_of([{"g": [(here, 5)]}, {"g": [(there, 9), (other, 1)], "h": [(other, 2)]}])
    assert found == {"g": [(here, 9), (other, 1)], "h": [(other, 2)]}


@pytest.mark.parametrize("order", [1, -1])
def test_a_producer_is_told_as_who_heard_of_it_last_says(order: int) -> None:
    old, new = Connection("c@1", "10.0.0.1:1"), Connection("c@1", "10.0.0.2:1")
    assert producers_of([{"g": [(old, 5)]}, {"g": [(new, 9)]}][::order], newest=True) == {"g": [(new, 9)]}


def test_a_client_is_told_once_by_who_knows_its_address() -> None:
    bare, known, other = Connection("c@1"), Connection("c@1", "10.0.0.1:1"), Connection("c@2")
    assert clients_of([[bare, other], [known]]) == [known, other]
    assert clients_of([[known], [Connection("c@1", "10.0.0.9:9")]]) == [known]
