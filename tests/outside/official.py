"""The official Python client, once through everything that a proxy between could break; facts as JSON lines.

python official.py 127.0.0.1:8081 TLS TOPIC GROUP, where TLS is 0 or 1; its authorities are in
the file that GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.waiting import PATIENCE_S

POLL_S = 5
INVISIBLE_S = 600
"""Nothing comes again here, however long an acknowledgement takes."""
RECEIVE_S = 1.5 * PATIENCE_S
"""A poll that finds nothing takes `POLL_S`, and a proxy is between."""


def say(fact: str, **more: Any) -> None:
    print(json.dumps({"fact": fact, **more}), flush=True)


class Checker(TransactionChecker):  # type: ignore[misc]
    """Commits what it is asked about."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def check(self, message: Message) -> Any:
        say("asked", body=message.body.decode())
        self.asked.set()
        return TransactionResolution.COMMIT


def made(topic: str, body: str) -> Message:
    message = Message()
    message.topic, message.body = topic, body.encode()
    return message


def receive_one(consumer: SimpleConsumer) -> Message:
    deadline = time.monotonic() + RECEIVE_S
    while time.monotonic() < deadline:
        for message in consumer.receive(1, INVISIBLE_S):
            body = message.body.decode()
            say("received", size=len(body), begins=body[:10])
            return message
    raise TimeoutError("nothing came")


def main(endpoint: str, tls: str, topic: str, group: str) -> None:
    configuration = ClientConfiguration(endpoint, Credentials("key", "secret"), request_timeout=60)
    secured = tls == "1"
    checker = Checker()
    producer = Producer(configuration, (topic,), checker=checker, tls_enable=secured)
    producer.startup()
    consumer = SimpleConsumer(
        configuration, group, {topic: FilterExpression()}, await_duration=POLL_S, tls_enable=secured
    )
    consumer.startup()
    say("started", clients=[producer.client_id, consumer.client_id])
    begun = time.monotonic()
    found = consumer.receive(1, INVISIBLE_S)
    say("polled", found=len(found), waited_s=time.monotonic() - begun)
    for body in ("small", "large" * 200_000):
        producer.send(made(topic, body))
        message = receive_one(consumer)
        say("whole", whole=message.body.decode() == body)
        consumer.ack(message)
        say("acknowledged")
    # Its end is asked for over the Telemetry stream, which has said nothing for a while.
    producer.send(made(topic, "half"), producer.begin_transaction())
    if not checker.asked.wait(RECEIVE_S):
        raise TimeoutError("nobody asked")
    consumer.ack(receive_one(consumer))
    say("acknowledged")
    consumer.shutdown()
    producer.shutdown()
    say("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
