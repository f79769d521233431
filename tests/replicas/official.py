"""One official Python client in a process of its own: works until its input ends, and tells what it sees.

    python official.py 127.0.0.1:8081 producer TOPIC NAME
    python official.py 127.0.0.1:8081 simple|push TOPIC GROUP [SECONDS]

SECONDS is the invisible time of a simple consumer.

One JSON line per fact; `at` is of the machine's monotonic clock. What the client's own methods do not tell,
such as how each attempt to send ended, is seen at its public `rpc_client`.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)

REQUEST_TIMEOUT_S = 20
"""Its own of 3 s is over when the machine stands still, and then its user sees what no gateway did."""
STARTUP_S = 10
"""For so long a client waits for its settings: on a machine that stands still it gives up, too."""
OK = 20000
ended = threading.Event()
_out = threading.Lock()


def say(fact: str, **more: Any) -> None:
    line = json.dumps({"fact": fact, "at": time.monotonic(), **more})
    with _out:
        print(line, flush=True)


def started(make: Callable[[], Any]) -> Any:
    """The client, started: its replica may be killed just now."""
    while not ended.is_set():
        client = make()
        watch(client)
        began = time.monotonic()
        try:
            client.startup()
        except Exception as error:
            in_time = time.monotonic() - began < STARTUP_S
            say("not started" if in_time else "started too slowly", why=repr(error))
            ended.wait(0.2)
        else:
            say("started", id=client.client_id)
            return client
    raise SystemExit(0)


def watch(client: Any) -> None:
    """Tell how each attempt to send and to acknowledge ends."""
    calls = client.rpc_client
    send, ack = calls.send_message_async, calls.ack_message_async

    def sending(endpoints: Any, request: Any, *rest: Any, **more: Any) -> Any:
        bodies = [message.body.decode() for message in request.messages]
        say("attempt", bodies=bodies)
        future = send(endpoints, request, *rest, **more)

        def done(result: Any) -> None:
            try:
                code = result.result().status.code
            except BaseException as error:
                say("attempt lost", bodies=bodies, why=repr(error)[:300])
            else:
                if code != OK:
                    say("attempt refused", bodies=bodies, code=code)

        future.add_done_callback(done)
        return future

    def acking(endpoints: Any, request: Any, *rest: Any, **more: Any) -> Any:
        handles = [entry.receipt_handle for entry in request.entries]
        say("acking", handles=handles)
        future = ack(endpoints, request, *rest, **more)

        def done(result: Any) -> None:
            try:
                answer = result.result()
            except BaseException as error:
                say("ack lost", handles=handles, why=repr(error)[:300])
                return
            codes = {entry.receipt_handle: entry.status.code for entry in answer.entries}
            for handle in handles:
                code = codes.get(handle, answer.status.code)
                say("acked" if code == OK else "refused", handle=handle, code=code)

        future.add_done_callback(done)
        return future

    calls.send_message_async, calls.ack_message_async = sending, acking


def got(message: Message, **more: Any) -> None:
    say(
        "got",
        body=message.body.decode(),
        attempt=message.delivery_attempt,
        handle=message.receipt_handle,
        **more,
    )


def produce(configuration: ClientConfiguration, topic: str, name: str) -> None:
    producer = started(lambda: Producer(configuration, (topic,)))
    for number in itertools.count():
        if ended.is_set():
            break
        message, body = Message(), f"{name}/{number}"
        message.topic, message.body = topic, body.encode()
        say("trying", body=body)
        try:
            receipt = producer.send(message)
        except Exception as error:
            say("failed", body=body, why=f"{type(error).__name__}: {error}")
            ended.wait(0.2)
        else:
            say("sent", body=body, id=receipt.message_id)
        ended.wait(0.03)
    producer.shutdown()


def consume(configuration: ClientConfiguration, topic: str, group: str) -> None:
    invisible_s = int(sys.argv[5])
    consumer = started(
        lambda: SimpleConsumer(configuration, group, {topic: FilterExpression()}, await_duration=3)
    )
    while not ended.is_set():
        asked = time.monotonic()
        try:
            messages = consumer.receive(8, invisible_s)
        except Exception as error:
            say("receive failed", why=f"{type(error).__name__}: {error}")
            ended.wait(0.1)
            continue
        answer = f"{group}/{asked}"
        for place, message in enumerate(messages or ()):
            got(message, asked=asked, answer=answer, place=place)
        for message in messages or ():
            try:
                consumer.ack(message)
            except Exception as error:
                say("ack failed", why=f"{type(error).__name__}: {error}")
    consumer.shutdown()


class Listener(MessageListener):
    def consume(self, message: Message) -> ConsumeResult:
        now = time.monotonic()
        got(message, asked=now, answer=f"{message.receipt_handle}/{now}", place=0)
        return ConsumeResult.SUCCESS


def push(configuration: ClientConfiguration, topic: str, group: str) -> None:
    consumer = started(lambda: PushConsumer(configuration, group, Listener(), {topic: FilterExpression()}))
    ended.wait()
    consumer.shutdown()


def main() -> None:
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    endpoint, role, topic, name = sys.argv[1:5]
    configuration = ClientConfiguration(endpoint, Credentials(), request_timeout=REQUEST_TIMEOUT_S)
    {"producer": produce, "simple": consume, "push": push}[role](configuration, topic, name)
    say("over")


if __name__ == "__main__":
    main()
