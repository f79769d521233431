"""Runs named scenarios with the official Python client and tells what it saw, one JSON line per fact.

By hand:        python driver.py 127.0.0.1:8081 normal topic=T group=G
By the tests:   python driver.py 127.0.0.1:8081, then on standard input lines of
                `run ID SCENARIO key=value …` and `go ID`; the end of input ends the process after the runs.

Every line out is an object with `run` (the ID), `fact` and what belongs to it; the last one of a run
is `end`, or `crash` when the scenario itself broke. The client is used as its users use it: public
names of the package `rocketmq` and nothing else. It runs with every published version of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
)
from rocketmq.grpc_protocol import Code

try:
    from rocketmq import ConsumeResult, MessageListener, PushConsumer
except ImportError:  # the oldest versions have no push consumer; their scenarios need none
    MessageListener = object

PATIENCE_S = 240.0
"""How long a scenario waits for something that must come."""

HOLD_S = 600
"""How long a consumer holds what it acknowledges. Longer than any scenario: when the time is over a
RocketMQ that stood still gives out again what was acknowledged in time, before it reads that it was."""

REQUEST_S = 45
"""A client repeats a send that is not answered in time (as shipped 3 s); not every broker knows repeats."""

_out = threading.Lock()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def error_facts(error: BaseException) -> dict[str, str]:
    """An error as a fact: its class, the name of its status code (empty: the client's own), its text."""
    code = getattr(error, "code", None)
    told = re.match(r"response code:\s*(\d+)", str(error))
    if code is None and told:  # the oldest versions have it in the text only
        code = int(told[1])
    if callable(code):  # a gRPC error
        name = f"GRPC_{code().name}"
    elif isinstance(code, int) and code in Code.values():
        name = Code.Name(code)
    else:
        name = ""
    return {"type": type(error).__name__, "code": name, "text": str(error)}


def whole_id(message: Message) -> str:
    """The id of a received message. The oldest version leaves out its first two digits, the id's version."""
    found = message.message_id
    return f"01{found}" if len(found) == 32 else found


class Listener(MessageListener):
    """Hands every message to a function of (message) -> bool: whether it was consumed."""

    def __init__(self, consume: Callable[[Message], bool]) -> None:
        self._consume = consume

    def consume(self, message: Message) -> ConsumeResult:
        return ConsumeResult.SUCCESS if self._consume(message) else ConsumeResult.FAILURE


class Checker(TransactionChecker):
    """Answers a transaction check by a function of (message) -> resolution."""

    def __init__(self, check: Callable[[Message], Any]) -> None:
        self._check = check

    def check(self, message: Message) -> Any:
        return self._check(message)


class Run:
    """One run of one scenario: its parameters, its clients, its voice."""

    def __init__(self, run_id: str, endpoint: str, params: dict[str, str]) -> None:
        self.id = run_id
        self.endpoint = endpoint
        self.params = params
        self.go = threading.Semaphore(0)
        self._clients: list[Any] = []

    def __getitem__(self, name: str) -> str:
        return self.params[name]

    # telling

    def say(self, fact: str, **data: Any) -> None:
        line = json.dumps({"run": self.id, "fact": fact, "at": now_ms(), **data})
        with _out:
            print(line, flush=True)

    def saw(self, message: Message, by: str = "", **data: Any) -> None:
        """Tell a received message in full; a long body by its size and digest."""
        body = message.body
        self.say(
            "received",
            by=by,
            id=whole_id(message),
            topic=message.topic,
            size=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
            body=body.decode() if len(body) <= 200 else "",
            tag=message.tag or "",
            keys=sorted(message.keys),
            properties=dict(message.properties),
            group=message.message_group or "",
            attempt=message.delivery_attempt,
            corrupted=getattr(message, "corrupted", False),  # not in the oldest versions
            **data,
        )

    def try_to(self, step: str, action: Callable[[], Any]) -> Any:
        """Do something that may be refused: tells `done` or `refused` with the error."""
        try:
            result = action()
        except Exception as error:
            self.say("refused", step=step, error=error_facts(error))
            return None
        self.say("done", step=step)
        return result

    # clients

    def configuration(self, endpoint: str = "") -> ClientConfiguration:
        # The oldest versions want some; the gateway asks for none.
        return ClientConfiguration(
            endpoint or self.endpoint, Credentials("key", "secret"), request_timeout=REQUEST_S
        )

    def _security(self) -> dict[str, bool]:
        # The oldest versions do not know the argument.
        return {"tls_enable": True} if "tls" in self.params else {}

    def producer(
        self, *topics: str, check: Callable[[Message], Any] | None = None, endpoint: str = ""
    ) -> Producer:
        checker = Checker(check) if check else None
        producer = Producer(self.configuration(endpoint), topics, checker=checker, **self._security())
        return self._started(producer)

    def simple(
        self,
        group: str,
        topics: dict[str, FilterExpression | None],
        await_s: int = 3,
        endpoint: str = "",
        started: bool = True,
    ) -> SimpleConsumer:
        subscription = {topic: expression or FilterExpression() for topic, expression in topics.items()}
        await_s = max(await_s, int(self.params.get("shortest_poll_s", "0")))  # RocketMQ's own proxy: 5
        consumer = SimpleConsumer(
            self.configuration(endpoint), group, subscription, await_duration=await_s, **self._security()
        )
        return self._started(consumer) if started else consumer

    def push(
        self,
        group: str,
        topics: dict[str, FilterExpression | None],
        consume: Callable[[Message], bool],
        **options: Any,
    ) -> PushConsumer:
        subscription = {topic: expression or FilterExpression() for topic, expression in topics.items()}
        options |= self._security()
        consumer = PushConsumer(self.configuration(), group, Listener(consume), subscription, **options)
        return self._started(consumer)

    def lite(self, group: str, topic: str, consume: Callable[[Message], bool]) -> Any:
        from rocketmq import LitePushConsumer  # not in the oldest versions

        consumer = LitePushConsumer(self.configuration(), group, topic, Listener(consume), **self._security())
        return self._started(consumer)

    def _started(self, client: Any) -> Any:
        client.startup()
        self._clients.append(client)
        return client

    def close(self, client: Any) -> None:
        self._clients.remove(client)
        client.shutdown()

    def close_all(self) -> None:
        while self._clients:
            client = self._clients.pop()
            try:
                client.shutdown()
            except Exception as error:
                self.say("not closed", client=type(client).__name__, error=error_facts(error))

    # doing

    def message(
        self,
        topic: str,
        body: str | bytes,
        *,
        tag: str = "",
        keys: Iterable[str] = (),
        properties: dict[str, str] | None = None,
        group: str = "",
        due_s: int = 0,
    ) -> Message:
        message = Message()
        message.topic = topic
        message.body = body.encode() if isinstance(body, str) else body
        if tag:
            message.tag = tag
        for key in keys:
            message.keys = key  # the setter adds one
        for name, value in (properties or {}).items():
            message.add_property(name, value)
        if group:
            message.message_group = group
        if due_s:
            message.delivery_timestamp = due_s
        return message

    def sent(self, producer: Producer, message: Message, transaction: Any = None, **data: Any) -> Any:
        """Send and tell the receipt. Raises what the client raises."""
        receipt = producer.send(message, transaction)
        return self.sent_as(message, receipt, **data)

    def sent_as(self, message: Message, receipt: Any, **data: Any) -> Any:
        body = message.body
        self.say(
            "sent",
            id=receipt.message_id,
            size=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
            body=body.decode() if len(body) <= 200 else "",
            group=message.message_group or "",
            recall=getattr(receipt, "recall_handle", "") or "",  # not in the oldest versions
            **data,
        )
        return receipt

    def receive(
        self, consumer: SimpleConsumer, maximum: int = 16, invisible_s: int = HOLD_S, by: str = ""
    ) -> list[Message]:
        messages = consumer.receive(maximum, invisible_s)
        self.say("batch", by=by, count=len(messages))
        for message in messages:
            self.saw(message, by)
        return list(messages)

    def acked(self, consumer: SimpleConsumer, message: Message) -> None:
        consumer.ack(message)
        self.say("acked", id=whole_id(message), attempt=message.delivery_attempt)

    def receive_until(
        self,
        consumer: SimpleConsumer,
        count: int,
        *,
        maximum: int = 16,
        invisible_s: int = HOLD_S,
        ack: bool = True,
        by: str = "",
    ) -> list[Message]:
        """Receive `count` messages, acknowledging each unless told otherwise; fewer when patience ends."""
        found: list[Message] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            for message in self.receive(consumer, maximum, invisible_s, by):
                found.append(message)
                if ack:
                    self.acked(consumer, message)
        return found

    def quiet(self, consumer: SimpleConsumer, until_ms: int = 0, by: str = "quiet") -> None:
        """Receive once more, and on until a wall time: what comes is told under `by`, and it should not."""
        while True:
            for message in self.receive(consumer, by=by):
                self.acked(consumer, message)
            if now_ms() >= until_ms:
                return

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait until it is so; False, and a fact, when patience ends first."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                self.say("gave up waiting")
                return False
            time.sleep(0.02)
        return True


def perform(run: Run, scenario: Callable[[Run], None]) -> None:
    try:
        scenario(run)
        run.say("finished")
        run.close_all()
    except BaseException as error:
        run.say("crash", error=error_facts(error), trace=traceback.format_exc())
    else:
        run.say("end")


def main() -> None:
    from scenarios import SCENARIOS

    endpoint, *rest = sys.argv[1:]
    if rest:
        name, *pairs = rest
        perform(Run("1", endpoint, dict(pair.split("=", 1) for pair in pairs)), SCENARIOS[name])
    else:
        _serve(endpoint, SCENARIOS)
    sys.stdout.flush()
    os._exit(0)  # the client leaves threads behind that would hold the process


def _serve(endpoint: str, scenarios: dict[str, Callable[[Run], None]]) -> None:
    """Runs one after another, in the main thread.

    In another thread the client's start fails now and then, when an answer comes so soon that its
    callback runs in the caller's thread, which then has no event loop.
    """
    runs: dict[str, Run] = {}
    waiting: queue.SimpleQueue[tuple[Run, str] | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            verb, run_id, *words = line.split()
            if verb == "go":
                runs[run_id].go.release()
            else:
                name, *pairs = words
                runs[run_id] = Run(run_id, endpoint, dict(pair.split("=", 1) for pair in pairs))
                waiting.put((runs[run_id], name))
        waiting.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while (item := waiting.get()) is not None:
        run, name = item
        perform(run, scenarios[name])


if __name__ == "__main__":
    main()
