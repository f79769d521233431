"""Numbers: protocol facts 4.10, 5.5, 5.10 and 6.6."""

import pytest

from popgate.wire.frames.codes import RequestCode, ResponseCode


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SEND_MESSAGE", 10),
        ("SEND_MESSAGE_V2", 310),
        ("SEND_BATCH_MESSAGE", 320),
        ("PULL_MESSAGE", 11),
        ("LITE_PULL_MESSAGE", 361),
        ("POP_MESSAGE", 200050),
        ("ACK_MESSAGE", 200051),
        ("BATCH_ACK_MESSAGE", 200151),
        ("CHANGE_MESSAGE_INVISIBLETIME", 200053),
        ("NOTIFICATION", 200054),
        ("POP_LITE_MESSAGE", 200070),
        ("TRIGGER_LITE_DISPATCH", 200079),
        ("QUERY_CONSUMER_OFFSET", 14),
        ("HEART_BEAT", 34),
        ("UNREGISTER_CLIENT", 35),
        ("CONSUMER_SEND_MSG_BACK", 36),
        ("END_TRANSACTION", 37),
        ("CHECK_TRANSACTION_STATE", 39),
        ("NOTIFY_CONSUMER_IDS_CHANGED", 40),
        ("GET_ROUTEINFO_BY_TOPIC", 105),
        ("GET_BROKER_CLUSTER_INFO", 106),
        ("REGISTER_BROKER", 103),
        ("GET_TOPIC_CONFIG", 351),
        ("GET_SUBSCRIPTIONGROUP_CONFIG", 352),
        ("RECALL_MESSAGE", 370),
        ("QUERY_ASSIGNMENT", 400),
        ("BROKER_HEARTBEAT", 904),
        ("PUSH_REPLY_MESSAGE_TO_CLIENT", 326),
        ("AUTH_GET_USER", 3004),
        ("AUTH_GET_ACL", 3009),
    ],
)
def test_a_request_has_its_number(name: str, number: int) -> None:
    assert RequestCode[name] == number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SUCCESS", 0),
        ("SYSTEM_BUSY", 2),
        ("SLAVE_NOT_AVAILABLE", 11),
        ("SERVICE_NOT_AVAILABLE", 14),
        ("NO_PERMISSION", 16),
        ("TOPIC_NOT_EXIST", 17),
        ("PULL_NOT_FOUND", 19),
        ("SUBSCRIPTION_GROUP_NOT_EXIST", 26),
        ("NO_MESSAGE", 208),
        ("POLLING_FULL", 209),
        ("POLLING_TIMEOUT", 210),
        ("NOT_LEADER_FOR_QUEUE", 501),
        ("ILLEGAL_OPERATION", 604),
        ("GO_AWAY", 1500),
        ("LMQ_QUOTA_EXCEEDED", 2017),
        ("LITE_SUBSCRIPTION_QUOTA_EXCEEDED", 2018),
        ("RPC_TIME_OUT", -1006),
    ],
)
def test_an_answer_has_its_number(name: str, number: int) -> None:
    assert ResponseCode[name] == number
