"""The plan of faults: what is written is what happens, the same in every run, and nothing is guessed."""

from __future__ import annotations

import pytest

from popgate.faults import Faults


def struck(text: str, step: str, calls: int) -> list[int]:
    faults = Faults.parse(text)
    return [call for call in range(1, calls + 1) if faults.strike(step) is not None]


def test_the_same_seed_and_calls_meet_the_same_faults_and_another_seed_others() -> None:
    runs = [struck(f"seed={seed};drop=AckMessage:0.3", "AckMessage", 200) for seed in (7, 7, 8)]
    assert runs[0] == runs[1] != runs[2]
    assert 30 < len(runs[0]) < 90


def test_calls_of_other_steps_have_no_say() -> None:
    alone = struck("seed=7;drop=AckMessage:0.3", "AckMessage", 50)
    faults = Faults.parse("seed=7;drop=AckMessage:0.3;fail=commit:0.5")
    mixed = []
    for call in range(1, 51):
        for _ in range(call % 3):
            faults.strike("commit")
        if faults.strike("AckMessage"):
            mixed.append(call)
    assert mixed == alone


def test_a_rule_strikes_after_so_many_calls_and_so_many_times() -> None:
    assert struck("seed=1;fail=commit:after=3", "commit", 6) == [4, 5, 6]
    assert struck("seed=1;fail=commit:after=3:times=2", "commit", 9) == [4, 5]
    assert struck("seed=1;fail=commit:0", "commit", 9) == []


def test_the_first_rule_that_strikes_counts_and_every_fault_has_a_number() -> None:
    faults = Faults.parse("seed=1;fail=commit:times=1;delay=commit:50ms:times=1")
    first, second, third = (faults.strike("commit") for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is None
    assert (first.verb, second.verb, second.seconds) == ("fail", "delay", 0.05)
    assert [(one.number, one.rule, one.call) for one in faults.happened] == [
        (1, "fail=commit:times=1", 1),
        (2, "delay=commit:50ms:times=1", 2),
    ]


def test_what_was_parsed_tells_itself() -> None:
    text = "seed=7;drop=AckMessage:0.1;delay=SendMessage:50ms:0.2;kill=commit:after=37"
    assert Faults.parse(text).text == text


def test_to_kill_is_what_was_given() -> None:
    killed: list[bool] = []
    faults = Faults.parse("seed=1;kill=commit", kill=lambda: killed.append(True))
    faults.kill()
    assert killed == [True]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "drop=AckMessage",
        "seed=7",
        "seed=;drop=AckMessage",
        "seed=-1;drop=AckMessage",
        "SEED=7;drop=AckMessage",
        "seed=7;",
        "seed=7; drop=AckMessage",
        "seed=7;drop",
        "seed=7;drop=",
        "seed=7;drop=AckMessage:",
        "seed=7;drop=AckMessage:1.1",
        "seed=7;drop=AckMessage:-0.1",
        "seed=7;drop=AckMessage:.5",
        "seed=7;drop=AckMessage:often",
        "seed=7;drop=AckMessage:0.1:0.2",
        "seed=7;drop=AckMessage:after=x",
        "seed=7;drop=AckMessage:after=1:after=2",
        "seed=7;delay=AckMessage:50ms:60ms",
        "seed=7;delay=AckMessage:50 ms",
        "seed=7;seed=8",
        "seed=7;" + ";".join(["drop=AckMessage"] * 64),
    ],
)
def test_what_is_not_spelled_exactly_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"seed|fault|chance|said|twice|duration"):
        Faults.parse(text)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("drop=commit", "nothing here can drop at commit"),
        ("explode=AckMessage", "nothing here can explode at AckMessage"),
        ("drop=AckMessage:messages=3", "drop takes no messages="),
        ("drop=AckMessage:50ms", "takes no duration"),
        ("delay=AckMessage", "needs a duration"),
    ],
)
def test_a_rule_that_nobody_can_follow_is_refused(rule: str, told: str) -> None:
    def take() -> None:
        faults = Faults.parse(f"seed=7;{rule}")
        faults.claim({"drop": ("AckMessage",), "delay": ("AckMessage",)}, {"delay": ("duration",)})
        faults.refuse_unclaimed()

    with pytest.raises(ValueError, match=told):
        take()
