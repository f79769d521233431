"""The faults of the gateway, defined once for all doors.

`Fault` is a closed enumeration: every door maps it in one exhaustive table. A `GatewayError`
carries the data of the failure and formats its own sentence, which names the cause and the limit.
`PeerWireError` and `LocalWireError` belong to the wires below the doors.
"""

from __future__ import annotations

from enum import Enum, auto, unique


@unique
class Fault(Enum):
    """Every way in which a request can fail, independent of the protocol it came by."""

    BAD_REQUEST = auto()
    ILLEGAL_TOPIC = auto()
    ILLEGAL_GROUP = auto()
    ILLEGAL_TAG = auto()
    ILLEGAL_KEY = auto()
    ILLEGAL_MESSAGE_GROUP = auto()
    ILLEGAL_PROPERTY_KEY = auto()
    ILLEGAL_MESSAGE_ID = auto()
    ILLEGAL_FILTER = auto()
    ILLEGAL_INVISIBLE_TIME = auto()
    ILLEGAL_DELIVERY_TIME = auto()
    ILLEGAL_POLLING_TIME = auto()
    ILLEGAL_OFFSET = auto()
    ILLEGAL_RECEIPT = auto()
    ILLEGAL_TRANSACTION_ID = auto()
    ILLEGAL_LITE_TOPIC = auto()
    LITE_TOPIC_QUOTA_EXCEEDED = auto()
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = auto()
    ILLEGAL_ACCESS_POINT = auto()
    MESSAGE_TYPE_MISMATCH = auto()
    MESSAGE_CORRUPTED = auto()
    BODY_TOO_LARGE = auto()
    BODY_EMPTY = auto()
    PROPERTIES_TOO_LARGE = auto()
    CLIENT_ID_REQUIRED = auto()
    CLIENT_TYPE_UNKNOWN = auto()
    ILLEGAL_CLIENT_PROPERTIES = auto()
    CLIENT_NOT_FOUND = auto()
    CLIENT_TIMEOUT = auto()
    TOPIC_NOT_FOUND = auto()
    GROUP_NOT_FOUND = auto()
    MESSAGE_NOT_FOUND = auto()
    OFFSET_NOT_FOUND = auto()
    ALREADY_EXISTS = auto()
    PRECONDITION_FAILED = auto()
    UNAUTHENTICATED = auto()
    FORBIDDEN = auto()
    TOO_MANY_REQUESTS = auto()
    BROKER_UNAVAILABLE = auto()
    BROKER_BUSY = auto()
    BROKER_TIMEOUT = auto()
    UNSUPPORTED = auto()
    INTERNAL = auto()


class GatewayError(Exception):
    """A failure that is reported to a client.

    `fault` is its kind, `retryable` whether the same request may succeed later,
    `sentence` is the text for a person: cause and limit, never data of other users.
    `known_as` is the message of RocketMQ's own proxy in the same case: users and test suites search for it,
    so gRPC clients receive both. Empty if that proxy has no fixed message, or if it would be wrong here.
    """

    fault: Fault = Fault.INTERNAL
    retryable: bool = False
    known_as: str = ""

    def __init__(self, sentence: str, known_as: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        if known_as:
            self.known_as = known_as


class BadRequest(GatewayError):
    """The request itself cannot be right, now or later. `fault` may be narrowed by the raiser."""

    fault = Fault.BAD_REQUEST

    def __init__(self, sentence: str, fault: Fault = Fault.BAD_REQUEST, known_as: str = "") -> None:
        super().__init__(sentence, known_as)
        self.fault = fault


class IllegalTopic(BadRequest):
    """A topic name that breaks a naming rule."""

    def __init__(self, name: str, rule: str, known_as: str = "") -> None:
        super().__init__(f"illegal topic name {shown(name)}: {rule}", Fault.ILLEGAL_TOPIC, known_as)
        self.name = name
        self.rule = rule


class IllegalGroup(BadRequest):
    """A consumer group name that breaks a naming rule."""

    def __init__(self, name: str, rule: str, known_as: str = "") -> None:
        super().__init__(f"illegal consumer group name {shown(name)}: {rule}", Fault.ILLEGAL_GROUP, known_as)
        self.name = name
        self.rule = rule


class IllegalReceipt(BadRequest):
    """A receipt handle that no broker can have given out, or one for something else."""

    known_as = "INVALID_RECEIPT_HANDLE"

    def __init__(self, handle: str, why: str, known_as: str = "") -> None:
        super().__init__(f"invalid receipt handle {shown(handle)}: {why}", Fault.ILLEGAL_RECEIPT, known_as)
        self.handle = handle
        self.why = why


class ReceiptExpired(IllegalReceipt):
    """A receipt handle whose message is visible again, or was delivered to another consumer since."""

    known_as = "INVALID_RECEIPT_HANDLE: receipt handle is expired"

    def __init__(self, handle: str, why: str = "its invisible time is over") -> None:
        super().__init__(handle, why)


class IllegalOffset(BadRequest):
    """An offset that its queue does not have; reading can go on at `nearest`."""

    def __init__(self, offset: int, minimum: int, maximum: int) -> None:
        super().__init__(f"offset {offset} is outside of {minimum} to {maximum}", Fault.ILLEGAL_OFFSET)
        self.offset = offset
        self.nearest = min(max(offset, minimum), maximum)


class IllegalFilter(BadRequest):
    """A filter expression that cannot be parsed; `position` is the 0-based character."""

    known_as = "expression format is not correct"

    def __init__(self, expression: str, why: str, position: int = -1) -> None:
        place = f" at character {position}" if position >= 0 else ""
        super().__init__(f"illegal filter expression {shown(expression)}: {why}{place}", Fault.ILLEGAL_FILTER)
        self.expression = expression
        self.why = why
        self.position = position


class BodyTooLarge(BadRequest):
    """A message body above the limit; both in bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the message body has {size} bytes, the limit is {limit}",
            Fault.BODY_TOO_LARGE,
            f"message body cannot exceed the max {limit}",
        )
        self.size = size
        self.limit = limit


class PropertiesTooLarge(BadRequest):
    """Too many user properties, or too many bytes of them, as `unit` says."""

    def __init__(self, size: int, limit: int, unit: str) -> None:
        number = unit == "user properties"
        many = "too many user properties" if number else "the total size of user property is too large"
        super().__init__(
            f"the message has {size} {unit}, the limit is {limit}",
            Fault.PROPERTIES_TOO_LARGE,
            f"{many}, max is {limit}",
        )
        self.size = size
        self.limit = limit


class DelayTooLong(BadRequest):
    """A delivery time too far ahead; both in milliseconds."""

    def __init__(self, delay_ms: int, limit_ms: int) -> None:
        super().__init__(
            f"the delivery time is {delay_ms} ms ahead, the longest delay is {limit_ms} ms"
            f" ({limit_ms // 1000} s)",
            Fault.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {limit_ms}",
        )
        self.delay_ms = delay_ms
        self.limit_ms = limit_ms


class IllegalTransactionId(BadRequest):
    """A transaction id that this cluster did not give out, or one that ended the other way."""

    def __init__(self, why: str, known_as: str = "") -> None:
        super().__init__(f"invalid transaction id: {why}", Fault.ILLEGAL_TRANSACTION_ID, known_as)
        self.why = why


class MessageTypeMismatch(BadRequest):
    """A message of a type that its topic does not take."""

    def __init__(self, topic: str, accepts: str, got: str) -> None:
        super().__init__(
            f"topic {topic} takes {accepts} messages, this one is {got}",
            Fault.MESSAGE_TYPE_MISMATCH,
            f"TopicMessageType validate failed, the expected type is {accepts}, but actual type is {got}",
        )
        self.topic = topic
        self.accepts = accepts
        self.got = got


class PropertyConflict(BadRequest):
    """A message with two properties of which only one can decide its way."""

    def __init__(self, present: str, other: str) -> None:
        super().__init__(f"a message with {present} cannot have {other}", Fault.MESSAGE_TYPE_MISMATCH)
        self.one = present
        self.other = other


class IllegalLiteTopic(BadRequest):
    """A name of a lite topic that breaks a naming rule."""

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(f"illegal lite topic name {shown(name)}: {rule}", Fault.ILLEGAL_LITE_TOPIC)
        self.name = name
        self.rule = rule


class LiteTopicQuotaExceeded(GatewayError):
    """A topic has as many lite topics as it may have."""

    fault = Fault.LITE_TOPIC_QUOTA_EXCEEDED

    def __init__(self, topic: str, limit: int) -> None:
        super().__init__(f"topic {topic} has {limit} lite topics, which is the limit")
        self.topic = topic
        self.limit = limit


class LiteSubscriptionQuotaExceeded(GatewayError):
    """More lite topics would be subscribed to than `limit`, by a client or by all together."""

    fault = Fault.LITE_SUBSCRIPTION_QUOTA_EXCEEDED

    def __init__(self, who: str, limit: int) -> None:
        super().__init__(f"{who} may subscribe to at most {limit} lite topics")
        self.limit = limit


class NotFound(GatewayError):
    """Something named in the request is not there."""

    fault = Fault.MESSAGE_NOT_FOUND

    def __init__(self, sentence: str, fault: Fault = Fault.MESSAGE_NOT_FOUND) -> None:
        super().__init__(sentence)
        self.fault = fault


class TopicNotFound(NotFound):
    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic} does not exist", Fault.TOPIC_NOT_FOUND)
        self.known_as = f"No topic route info in name server for the topic: {topic}"
        self.topic = topic


class GroupNotFound(NotFound):
    def __init__(self, group: str) -> None:
        super().__init__(f"consumer group {group} does not exist", Fault.GROUP_NOT_FOUND)
        self.group = group


class ClientNotFound(NotFound):
    """No client of that id is known to this replica, or it left."""

    def __init__(self, client_id: str, why: str = "is not known here") -> None:
        super().__init__(f"client {shown(client_id)} {why}", Fault.CLIENT_NOT_FOUND)
        self.client_id = client_id


class ClientTimeout(GatewayError):
    """A client was asked and did not answer in time."""

    fault = Fault.CLIENT_TIMEOUT
    retryable = True

    def __init__(self, client_id: str, seconds: float) -> None:
        super().__init__(f"client {shown(client_id)} did not answer within {seconds:g} s")
        self.client_id = client_id
        self.seconds = seconds


class AlreadyExists(GatewayError):
    """A topic or group of that name is there already."""

    fault = Fault.ALREADY_EXISTS

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} exists already")
        self.kind = kind
        self.name = name


class PreconditionFailed(GatewayError):
    """A precondition of the request is not met; the sentence names it."""

    fault = Fault.PRECONDITION_FAILED


class Unauthenticated(GatewayError):
    """The caller is not authenticated."""

    fault = Fault.UNAUTHENTICATED


class Forbidden(GatewayError):
    """The caller, or the setting of the resource, does not allow this."""

    fault = Fault.FORBIDDEN


class TooManyRequests(GatewayError):
    """A bound is reached; `retry_after` is in seconds.

    `alone`: it is the bound of one connection, so that another one may ask for the same with success.
    """

    fault = Fault.TOO_MANY_REQUESTS
    retryable = True
    known_as = "flow limit"

    def __init__(
        self, sentence: str, retry_after: float = 1.0, *, alone: bool = False, known_as: str = ""
    ) -> None:
        super().__init__(sentence, known_as)
        self.retry_after = retry_after
        self.alone = alone


class BrokerUnavailable(GatewayError):
    """No broker can serve this now; the outcome of a write is known to be 'not done'."""

    fault = Fault.BROKER_UNAVAILABLE
    retryable = True


class BrokerBusy(GatewayError):
    """The broker asked for a pause."""

    fault = Fault.BROKER_BUSY
    retryable = True


class BrokerTimeout(GatewayError):
    """No answer in time; the outcome of a write is unknown."""

    fault = Fault.BROKER_TIMEOUT
    retryable = True


class Unsupported(GatewayError):
    """A feature that this gateway, or this kind of broker, does not have.

    `instead`: the reason and the alternative, as the end of the sentence.
    """

    fault = Fault.UNSUPPORTED

    def __init__(self, feature: str, instead: str = "") -> None:
        super().__init__(f"{feature} is not supported" + (f": {instead}" if instead else ""))
        self.what = feature


class Internal(GatewayError):
    """A bug of the gateway, reported without details; the log has the traceback."""

    fault = Fault.INTERNAL


class WireError(Exception):
    """Base of the errors of sans-IO machines."""


class PeerWireError(WireError):
    """The other side sent bytes that the protocol forbids: answer if there is a way, then close."""


class LocalWireError(WireError):
    """We used the machine against its rules: a bug of ours."""


def shown(text: str, limit: int = 80) -> str:
    """Quote text that came from outside for an error sentence: escaped, and cut at `limit` characters."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return ascii(cut) if not cut.isprintable() else f"'{cut}'"
