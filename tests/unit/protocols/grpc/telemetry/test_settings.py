"""The settings a client gets back."""

from __future__ import annotations

import pytest

from popgate.context import Context
from popgate.errors import BadRequest, Fault, IllegalFilter, IllegalGroup, IllegalTopic
from popgate.model import CustomizedRetry, ExponentialRetry, GroupConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb.duration_pb2 import Duration
from processors.clients.client_registry import ClientKind
from processors.limits import Limits
from protocols.grpc.telemetry.settings import check_settings, kind_in, merged, retry_out, topics_in

LADDER = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
JAVA = Context(language="JAVA")


def producing(*topics: str) -> pb.Settings:
    return pb.Settings(
        client_type=pb.ClientType.PRODUCER,
        access_point=pb.Endpoints(
            scheme=pb.AddressScheme.DOMAIN_NAME, addresses=[pb.Address(host="gw", port=1)]
        ),
        request_timeout=Duration(seconds=3),
        publishing=pb.Publishing(
            topics=[pb.Resource(resource_namespace="ns", name=topic) for topic in topics]
        ),
        user_agent=pb.UA(language=pb.Language.JAVA, version="5.2.0", hostname="h"),
        client_properties={"team": "a"},
    )


def subscribing(kind: pb.ClientType = pb.ClientType.PUSH_CONSUMER, expression: str = "*") -> pb.Settings:
    entry = pb.SubscriptionEntry(
        topic=pb.Resource(resource_namespace="ns", name="t"),
        expression=pb.FilterExpression(type=pb.FilterType.TAG, expression=expression),
    )
    group = pb.Resource(resource_namespace="ns", name="g")
    return pb.Settings(
        client_type=kind, subscription=pb.Subscription(group=group, subscriptions=[entry], fifo=True)
    )


def test_a_producer_gets_its_own_words_and_what_we_decide() -> None:
    sent = producing("t1", "t2")
    answer = merged(sent, JAVA, Limits(), None)
    assert answer.publishing.max_body_size == 4_194_304
    assert answer.publishing.validate_message_type is True
    policy = answer.backoff_policy
    assert policy.max_attempts == 3
    assert policy.exponential_backoff.initial == Duration(nanos=10_000_000)
    assert policy.exponential_backoff.max == Duration(seconds=1)
    assert policy.exponential_backoff.multiplier == 2.0
    assert answer.HasField("metric")
    assert answer.metric.on is False
    for name in ("backoff_policy", "metric"):
        answer.ClearField(name)
    answer.publishing.max_body_size = 0
    answer.publishing.validate_message_type = False
    assert answer == sent
    assert not sent.HasField("metric")


@pytest.mark.parametrize("kind", [pb.ClientType.PUSH_CONSUMER, pb.ClientType.SIMPLE_CONSUMER])
def test_a_consumer_gets_its_groups_settings(kind: pb.ClientType) -> None:
    sent = subscribing(kind)
    answer = merged(sent, JAVA, Limits(), GroupConfig("g"))
    subscription = answer.subscription
    assert (subscription.fifo, subscription.receive_batch_size) == (False, 32)
    assert subscription.long_polling_timeout == Duration(seconds=20)
    assert subscription.group == sent.subscription.group
    assert subscription.subscriptions == sent.subscription.subscriptions
    assert answer.backoff_policy.max_attempts == 17
    assert list(answer.backoff_policy.customized_backoff.next) == [Duration(seconds=s) for s in LADDER]


def test_an_ordered_group_says_so() -> None:
    assert merged(subscribing(), JAVA, Limits(), GroupConfig("g", ordered=True)).subscription.fifo is True


@pytest.mark.parametrize("language", ["NODE_JS", "HTTP"])
def test_node_gets_the_exponential_form_which_is_the_one_it_reads(language: str) -> None:
    context = Context(language=language, door="grpc")
    policy = merged(subscribing(), context, Limits(), GroupConfig("g", max_attempts=4)).backoff_policy
    assert policy.WhichOneof("strategy") == "exponential_backoff"
    assert policy.max_attempts == 4
    assert policy.exponential_backoff.initial == Duration(seconds=10)
    assert policy.exponential_backoff.max == Duration(seconds=7200)


def test_an_exponential_group_is_told_as_a_list_of_whole_seconds_which_python_reads() -> None:
    retry = ExponentialRetry(initial_ms=1_500, max_ms=10_000, multiplier=2.0)
    config = GroupConfig("g", max_attempts=5, retry=retry)
    policy = merged(subscribing(), JAVA, Limits(), config).backoff_policy
    assert [step.seconds for step in policy.customized_backoff.next] == [2, 3, 6, 10, 10]
    assert all(step.nanos == 0 for step in policy.customized_backoff.next)
    node = merged(subscribing(), Context(language="NODE_JS"), Limits(), config).backoff_policy
    assert node.exponential_backoff.initial == Duration(seconds=1, nanos=500_000_000)


@pytest.mark.parametrize(
    "retry",
    [
        CustomizedRetry(),
        CustomizedRetry((1_000, 5_000, 60_000), 0),
        CustomizedRetry((1_000, 1_000, 1_000, 5_000, 60_000), 2),
        CustomizedRetry((1_000, 5_000), 9),
        ExponentialRetry(),
        ExponentialRetry(3_000, 20_000, 3.0),
    ],
)
def test_clients_rest_as_the_gateway_does_and_as_is_shown(retry: CustomizedRetry | ExponentialRetry) -> None:
    """Clients take the first of the list after the first failure, and the last one from then on."""
    config = GroupConfig("g", max_attempts=30, retry=retry)
    told = [step.seconds * 1000 for step in retry_out(config, exponential=False).customized_backoff.next]
    for attempt in range(1, 30):
        assert told[min(attempt, len(told)) - 1] == retry.delay_ms(attempt)
    exponential = retry_out(config, exponential=True).exponential_backoff
    assert exponential.initial.seconds * 1000 == retry.delay_ms(1)


def test_no_list_of_rests_is_empty_and_no_rest_is_zero() -> None:
    config = GroupConfig("g", max_attempts=1, retry=CustomizedRetry((100,)))
    policy = merged(subscribing(), JAVA, Limits(), config).backoff_policy
    assert policy.max_attempts == 1
    assert list(policy.customized_backoff.next) == [Duration(seconds=1)]


def test_the_limits_are_those_of_the_gateway() -> None:
    limits = Limits(max_body_bytes=1000, max_receive_messages=5, max_wait_s=7.5, check_message_types=False)
    publishing = merged(producing("t"), JAVA, limits, None).publishing
    assert (publishing.max_body_size, publishing.validate_message_type) == (1000, False)
    subscription = merged(subscribing(), JAVA, limits, GroupConfig("g")).subscription
    assert subscription.receive_batch_size == 5
    assert subscription.long_polling_timeout == Duration(seconds=7, nanos=500_000_000)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (producing(), ClientKind.PRODUCER),
        (subscribing(pb.ClientType.PUSH_CONSUMER), ClientKind.PUSH_CONSUMER),
        (subscribing(pb.ClientType.SIMPLE_CONSUMER), ClientKind.SIMPLE_CONSUMER),
        (subscribing(pb.ClientType.PULL_CONSUMER), ClientKind.PULL_CONSUMER),
        (subscribing(pb.ClientType.LITE_PUSH_CONSUMER), ClientKind.PUSH_CONSUMER),
        (subscribing(pb.ClientType.CLIENT_TYPE_UNSPECIFIED), ClientKind.SIMPLE_CONSUMER),
        (pb.Settings(publishing=pb.Publishing()), ClientKind.PRODUCER),
    ],
)
def test_the_kind_of_client(settings: pb.Settings, kind: ClientKind) -> None:
    assert kind_in(settings) is kind


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (pb.Settings(client_type=pb.ClientType.PRODUCER), Fault.BAD_REQUEST),
        (subscribing(pb.ClientType.PRODUCER), Fault.BAD_REQUEST),
        (
            pb.Settings(client_type=pb.ClientType.PUSH_CONSUMER, publishing=pb.Publishing()),
            Fault.BAD_REQUEST,
        ),
        (pb.Settings(client_type=99, publishing=pb.Publishing()), Fault.CLIENT_TYPE_UNKNOWN),
    ],
)
def test_settings_that_fit_no_kind_are_refused(settings: pb.Settings, fault: Fault) -> None:
    with pytest.raises(BadRequest) as caught:
        kind_in(settings)
    assert caught.value.fault is fault


def test_settings_are_checked_before_anything_is_kept() -> None:
    check_settings(producing("t1"), Limits())
    check_settings(subscribing(), Limits())
    with pytest.raises(IllegalTopic):
        check_settings(producing("t1", "a b"), Limits())
    with pytest.raises(IllegalFilter):
        check_settings(subscribing(expression="||"), Limits())
    check_settings(subscribing(pb.ClientType.SIMPLE_CONSUMER, "||"), Limits())
    nameless = subscribing()
    nameless.subscription.group.name = ""
    with pytest.raises(IllegalGroup):
        check_settings(nameless, Limits())
    with pytest.raises(BadRequest, match="2 topics, the limit is 1"):
        check_settings(producing("t1", "t2"), Limits(max_topics_per_client=1))


def test_topics_are_those_published_or_subscribed_to() -> None:
    assert topics_in(producing("a", "b")) == {"a", "b"}
    assert topics_in(subscribing()) == {"t"}


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({f"k{number}": "v" for number in range(33)}, "there are 33, the limit is 32"),
        ({"": "v"}, "must be 1 to 64 letters"),
        ({"k" * 65: "v"}, "must be 1 to 64 letters"),
        ({"1k": "v"}, "must be 1 to 64 letters"),
        ({"k\n": "v"}, "must be 1 to 64 letters"),
        ({"rocketmq.x": "v"}, "is reserved"),
        ({"k": "v" * 257}, "has 257 characters"),
        ({f"k{number}": "v" * 250 for number in range(17)}, "the limit is 4096"),
    ],
)
def test_client_properties_have_bounds(properties: dict[str, str], why: str) -> None:
    settings = pb.Settings(publishing=pb.Publishing(), client_properties=properties)
    with pytest.raises(BadRequest, match=why) as caught:
        check_settings(settings, Limits())
    assert caught.value.fault is Fault.ILLEGAL_CLIENT_PROPERTIES


def test_client_properties_within_bounds_are_fine() -> None:
    fine = {"k" * 64: "v" * 256, "team.name_1-x": ""}
    check_settings(pb.Settings(publishing=pb.Publishing(), client_properties=fine), Limits())
