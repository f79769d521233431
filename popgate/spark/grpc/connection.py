"""One gRPC channel to one endpoint, used like a `popgate.blocking.BlockingConnection`.

A connection belongs to one thread, and to the process that made it. Many calls may be under way: `start`
begins one, `finish` waits for its answer. Every wait has a deadline; that of a stream counts from its start.
Failures are `GatewayError`; after BROKER_TIMEOUT and BROKER_UNAVAILABLE it is unknown whether the call was
done.
Sources: protocol facts 1.2, 1.3.
"""

from __future__ import annotations

import hmac
import os
import re
import socket
import ssl
import time
import uuid
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from popgate.blocking import Credentials, parse_endpoint
from popgate.errors import BadRequest, BrokerTimeout, BrokerUnavailable, GatewayError, Internal, shown
from popgate.naming import DEAD_LETTER_PREFIX, PERCENT_REFUSED, RETRY_PREFIX, split_namespace
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.queue_client import QueuePlace
from popgate.spark.grpc.statuses import error_of_call
from popgate.spark.options.gateway_options import Tls

_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_VERSION: Final = "5.0.3"
"""Of a client that knows all codes and message types. Source: protocol facts 2.3."""
_OPTIONS: Final = (
    # Answers are as large as a pull of the other transport; and connections as independent, and direct.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # Without it each answer of a stream goes through a thread of the library, which takes twice as long.
    ("SingleThreadedUnaryStream", 1),
)
_FITS_A_HEADER: Final = re.compile(r"[ -~]+\Z").match
_WITHOUT_ANSWER: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class _Call(NamedTuple):
    method: str
    request: Any
    began: float
    """The time of the monotonic clock."""
    call: Any


class GrpcConnection:
    """`timeout_s` is the time of each call."""

    def __init__(
        self,
        channel: grpc.Channel,
        endpoint: str,
        *,
        timeout_s: float,
        credentials: Credentials | None = None,
    ) -> None:
        """The channel is ours from now on. `endpoint`: "host:port"."""
        self.endpoint, self.timeout_s = endpoint, timeout_s
        self.is_silent = False
        """Whether the last wait for an answer ended without one."""
        host, port = parse_endpoint(endpoint)
        self.access_point = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host=host, port=port)])
        """How the gateway was reached, which a request for a route tells."""
        self.seen: dict[str, QueuePlace] = {}
        """A queue of each topic whose queues were asked for here."""
        self.keeps_groups = True
        """Whether the messages of one send stay in the order of their groups: RocketMQ's own proxy, which has
        no health check, gives them to queues in turn."""
        self._channel, self._process = channel, os.getpid()
        self._credentials = credentials
        self._client_id = f"spark@{socket.gethostname()}@{os.getpid()}@{uuid.uuid4().hex[:12]}"
        self._methods: dict[str, Any] = {}
        self._under_way: dict[int, _Call] = {}
        self._number = 0
        self._failure: GatewayError | None = None
        self._has_namespaces = False

    @classmethod
    def connect(
        cls,
        endpoint: str,
        *,
        timeout_s: float,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        namespace: str = "",
    ) -> GrpcConnection:
        """Connect within the time, the handshake of TLS included. `namespace`: names begin with it.

        Raises BadRequest (ILLEGAL_ACCESS_POINT) for another form than "host:port", and for an access key that
        no header can have; BrokerUnavailable, BrokerTimeout, SparkSourceError for unusable settings of TLS.
        """
        parse_endpoint(endpoint)
        if credentials is not None and not _FITS_A_HEADER(credentials.access_key):
            raise BadRequest(
                f"over gRPC an access key is printable ASCII, not {shown(credentials.access_key)}"
            )
        if tls is None:
            channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
        else:
            name = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
            channel = grpc.secure_channel(endpoint, _channel_credentials(tls), options=(*_OPTIONS, *name))
        connection = cls(channel, endpoint, timeout_s=timeout_s, credentials=credentials)
        try:
            # Whatever the answer is: also that such a call is not known there, or not allowed, is one.
            channel.unary_unary(_HEALTH, None, None)(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() in _WITHOUT_ANSWER:
                channel.close()
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise BrokerTimeout(
                        f"{endpoint} did not take a connection within {timeout_s:g} s"
                    ) from error
                raise BrokerUnavailable(f"no connection to {endpoint}: {error.details()}") from error
            connection.keeps_groups = False
        try:
            if namespace:
                connection._look_for_namespaces(namespace)
        except GatewayError:
            connection.close()
            raise
        return connection

    def __repr__(self) -> str:
        state = "open" if self._failure is None else "over"
        return f"<GrpcConnection {self.endpoint} {state}, under way {len(self._under_way)}>"

    @property
    def is_open(self) -> bool:
        """Whether it can be asked, as far as is known."""
        return self._failure is None

    def is_quiet(self) -> bool:
        """Whether it is open and nothing is under way. A channel whose other side has gone connects again."""
        return self._failure is None and not self._under_way

    def close(self) -> None:
        """Idempotent. Waiting calls raise BrokerUnavailable."""
        self._fail(BrokerUnavailable(f"the connection to {self.endpoint} was closed"))

    def resource(self, name: str) -> pb.Resource:
        """A topic or a group in the words of the gateway, which may have namespaces of its own."""
        if not self._has_namespaces:
            return pb.Resource(name=name)
        prefix = next((each for each in (RETRY_PREFIX, DEAD_LETTER_PREFIX) if name.startswith(each)), "")
        namespace, rest = split_namespace(name.removeprefix(prefix))
        return pb.Resource(resource_namespace=namespace, name=prefix + rest)

    # -- asking -----------------------------------------------------------------------------------

    def start(self, method: str, request: Any) -> int:
        """Begin a call; returns the number for `finish` or `forget`. Raises BrokerUnavailable."""
        # It may have to wait for those before it: `finish` counts its own time.
        within = self.timeout_s * (len(self._under_way) + 1)
        return self._start(method, request, self._method(method, "unary_unary").future, within)

    def start_stream(self, method: str, request: Any) -> int:
        """As `start`, of a call with many answers, for `finish_stream`."""
        return self._start(method, request, self._method(method, "unary_stream"), self.timeout_s)

    def request_of(self, number: int) -> Any:
        """The request of a call that is under way. Raises BrokerUnavailable, BadRequest (there is none)."""
        if number not in self._under_way:
            self._check()
            raise BadRequest(f"no call {number} is under way")
        return self._under_way[number].request

    def finish(self, number: int, *, timeout_s: float | None = None) -> Any:
        """Wait for the answer. Raises the fault of the call.

        BrokerTimeout: the connection stays, and an answer that comes late is dropped.
        """
        under_way, within = self._taken(number), self.timeout_s if timeout_s is None else timeout_s
        return self._waited(under_way, lambda: under_way.call.result(timeout=within))

    def finish_stream(self, number: int, *, most: int) -> list[Any]:
        """All answers, to the end of the stream. Raises as `finish`, also for a stream that breaks off, and
        Internal for one with more answers than `most`.

        What has waited for long to be read is asked again, as its deadline nears: it only reads.
        """
        under_way = self._taken(number)
        if time.monotonic() - under_way.began > self.timeout_s / 2:
            under_way.call.cancel()
            under_way = self._taken(self.start_stream(under_way.method, under_way.request))
        answers: list[Any] = self._waited(under_way, lambda: [*islice(under_way.call, most + 1)])
        if len(answers) > most:
            under_way.call.cancel()
            raise Internal(f"{self.endpoint} answered {under_way.method} with more than {most} elements")
        return answers

    def call(self, method: str, request: Any) -> Any:
        """Ask and wait. Raises as `start` and `finish`."""
        return self.finish(self.start(method, request))

    def forget(self, number: int) -> None:
        """Discard the answer to this call."""
        under_way = self._under_way.pop(number, None)
        if under_way is not None:
            under_way.call.cancel()

    # -- inside -----------------------------------------------------------------------------------

    def _look_for_namespaces(self, namespace: str) -> None:
        """Find out whether the gateway has them, and then refuses names that begin with one; as by default
        it has none, and takes these names as they are. Neither makes a topic of what is only asked for.

        Raises the fault of the call.
        """
        queue = pb.MessageQueue(topic=pb.Resource(name=f"{namespace}%-"))
        answer = self.call("QueryOffset", rpc.QueryOffsetRequest(message_queue=queue))
        self._has_namespaces = (
            answer.status.code == pb.ILLEGAL_TOPIC and PERCENT_REFUSED in answer.status.message
        )

    def _check(self) -> None:
        if self._failure is not None:
            raise BrokerUnavailable(self._failure.sentence)

    def _fail(self, error: GatewayError) -> None:
        if self._failure is None:
            self._failure = error
            if os.getpid() == self._process:  # a fork has the library's state, and none of its threads
                self._channel.close()

    def _method(self, name: str, kind: str) -> Any:
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = getattr(self._channel, kind)(
                _SERVICE + name,
                request_serializer=getattr(rpc, f"{name}Request").SerializeToString,
                response_deserializer=getattr(rpc, f"{name}Response").FromString,
            )
        return method

    def _start(self, method: str, request: Any, begin: Callable[..., Any], within_s: float) -> int:
        self._check()
        call = begin(request, timeout=within_s, metadata=self._metadata())
        self._number += 1
        self._under_way[self._number] = _Call(method, request, time.monotonic(), call)
        return self._number

    def _taken(self, number: int) -> _Call:
        self.request_of(number)
        return self._under_way.pop(number)

    def _waited(self, under_way: _Call, wait: Callable[[], Any]) -> Any:
        try:
            answer = wait()
        except grpc.FutureTimeoutError as error:
            under_way.call.cancel()
            self.is_silent = True
            raise BrokerTimeout(f"{self.endpoint} did not answer {under_way.method} in time") from error
        except grpc.FutureCancelledError as error:
            self._check()
            raise BrokerUnavailable(f"{under_way.method} at {self.endpoint} was cancelled") from error
        except grpc.RpcError as error:
            self._check()
            failed = error_of_call(error, endpoint=self.endpoint, method=under_way.method)
            self.is_silent = isinstance(failed, BrokerTimeout)
            if isinstance(failed, BrokerUnavailable):
                # The next connection chooses among the endpoints anew, and waits for no pause of the library.
                self._fail(failed)
            raise failed from error
        self.is_silent = False
        return answer

    def _metadata(self) -> list[tuple[str, str]]:
        headers = [
            ("x-mq-client-id", self._client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-version", _VERSION),
        ]
        mine = self._credentials
        if mine is not None:
            now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            signature = hmac.digest(mine.secret_key.encode(), now.encode(), "sha1").hex().upper()
            proof = f"Credential={mine.access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
            headers += [("x-mq-date-time", now), ("authorization", f"MQv2-HMAC-SHA1 {proof}")]
            if mine.security_token:
                headers.append(("x-mq-session-token", mine.security_token))
        return headers


def _channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Raises SparkSourceError for files that cannot be read, or hold something else.

    gRPC always verifies; the options refuse the opposite.
    """
    context = tls.context()
    return grpc.ssl_channel_credentials(
        Path(tls.ca).read_bytes() if tls.ca else _authorities_of(context),
        Path(tls.key or tls.certificate).read_bytes() if tls.certificate else None,
        Path(tls.certificate).read_bytes() if tls.certificate else None,
    )


def _authorities_of(context: ssl.SSLContext) -> bytes | None:
    """Those that this machine trusts, as the other transport does; None: those that gRPC brings along."""
    authorities = context.get_ca_certs(binary_form=True)
    if authorities:
        return "".join(map(ssl.DER_cert_to_PEM_cert, authorities)).encode()
    # Where there is no file of all, as in Debian 12, OpenSSL looks into a folder when it needs one of them.
    folder = ssl.get_default_verify_paths().capath
    files = sorted(Path(folder).glob("*.[0-9]")) if folder else []
    return b"".join(each.read_bytes() for each in files if each.is_file()) or None
