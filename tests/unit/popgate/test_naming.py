import pytest

from popgate.errors import Fault, IllegalGroup, IllegalTopic
from popgate.naming import (
    GROUP_LONGEST,
    TOPIC_LONGEST,
    check_group,
    check_topic,
    dead_letter_topic,
    is_derived_topic,
    is_system_topic,
    pop_retry_origin,
    pop_retry_topic_v1,
    pop_retry_topic_v2,
    retry_topic,
    split_namespace,
    with_namespace,
    without_namespace,
)


@pytest.mark.parametrize("name", ["T", "a-b_c", "%RETRY%g", "ns%topic", "a|b", "0", "x" * TOPIC_LONGEST])
def test_a_legal_topic_is_returned(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "blank"),
        (" \t", "blank"),
        ("x" * (TOPIC_LONGEST + 1), f"{TOPIC_LONGEST + 1} characters, the limit is {TOPIC_LONGEST}"),
        ("a b", "only letters"),
        ("a.b", "only letters"),
        ("主题", "only letters"),
        ("a\n", "only letters"),
        ("TBW102", "system"),
        ("rmq_sys_x", "system"),
        ("SCHEDULE_TOPIC_XXXX", "system"),
    ],
)
def test_an_illegal_topic_is_refused_with_the_rule(name: str, rule: str) -> None:
    with pytest.raises(IllegalTopic, match=rule) as caught:
        check_topic(name)
    assert caught.value.fault is Fault.ILLEGAL_TOPIC


def test_groups_have_their_own_limit_and_prefix() -> None:
    assert check_group("g" * GROUP_LONGEST)
    for name, rule in (
        ("g" * (GROUP_LONGEST + 1), f"the limit is {GROUP_LONGEST}"),
        ("CID_RMQ_SYS_x", "system"),
        ("a/b", "only letters"),
        (" ", "blank"),
    ):
        with pytest.raises(IllegalGroup, match=rule):
            check_group(name)


def test_derived_topics_are_named_after_group_and_topic() -> None:
    assert dead_letter_topic("g") == "%DLQ%g"
    assert retry_topic("g") == "%RETRY%g"
    assert pop_retry_topic_v1("g", "t") == "%RETRY%g_t"
    assert pop_retry_topic_v2("g", "t") == "%RETRY%g+t"
    assert [pop_retry_origin("g", f"%RETRY%g{rest}") for rest in ("_t", "+t", "_", "t", "")] == [
        *("t", "t", "", None, None)
    ]
    assert is_derived_topic("%DLQ%g")
    assert not is_derived_topic("DLQ")
    assert is_system_topic("TRANS_CHECK_MAX_TIME_TOPIC")
    assert not is_system_topic("trans")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("t", ("", "t")),
        ("ns%t", ("ns", "t")),
        ("ns%t%u", ("ns", "t%u")),
        ("%RETRY%g", ("", "%RETRY%g")),
        ("%t", ("", "%t")),
        ("ns%", ("", "ns%")),
    ],
)
def test_a_namespace_stands_before_the_first_percent(name: str, parts: tuple[str, str]) -> None:
    assert split_namespace(name) == parts


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("orders", "ns%orders"),
        ("ns", "ns%ns"),
        ("ns2%orders", "ns%ns2%orders"),
        ("%RETRY%readers", "%RETRY%ns%readers"),
        ("%DLQ%readers", "%DLQ%ns%readers"),
        ("%other", "ns%%other"),
    ],
)
def test_a_namespace_is_put_before_a_name_and_taken_away_again(name: str, full: str) -> None:
    assert with_namespace("ns", name) == with_namespace("ns", full) == full
    assert without_namespace("ns", full) == name
    assert with_namespace("", name) == without_namespace("", name) == name


@pytest.mark.parametrize("name", ["TBW102", "rmq_sys_wheel_timer", "CID_RMQ_SYS_TRANS", "", "ns%orders"])
def test_what_no_namespace_is_put_before_stays(name: str) -> None:
    assert with_namespace("ns", name) == name


@pytest.mark.parametrize("name", ["orders", "ns2%orders", "ns%", "ns%ns%orders", "ns%TBW102", "%RETRY%g"])
def test_a_name_that_would_be_another_one_keeps_its_namespace(name: str) -> None:
    """Or it has none, or another one."""
    assert without_namespace("ns", name) == name
