"""A producer of the official Python client: sends until its standard input ends, and tells what it is told.

    python official.py 127.0.0.1:8081

One JSON line per fact: `trying`, then `sent` with the message id, or `failed` after the client's own
attempts, which all carry the same message id.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer

REQUEST_TIMEOUT_S = 20
"""Its own of 3 s is over when the machine stands still: then it sends again what was stored."""


def say(fact: str, body: str, **more: str) -> None:
    print(json.dumps({"fact": fact, "body": body, **more}), flush=True)


def main() -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    configuration = ClientConfiguration(sys.argv[1], Credentials(), request_timeout=REQUEST_TIMEOUT_S)
    producer = Producer(configuration, ("official",))
    while True:  # it may be killed just now
        try:
            producer.startup()
            break
        except Exception:
            if ended.wait(0.2):
                return
    for number in itertools.count():
        if ended.is_set():
            break
        message, body = Message(), f"official/{number}"
        message.topic, message.body = "official", body.encode()
        say("trying", body)
        try:
            receipt = producer.send(message)
        except Exception as error:
            say("failed", body, why=f"{type(error).__name__}: {error}")
            time.sleep(0.1)
        else:
            say("sent", body, id=receipt.message_id)
        time.sleep(0.005)
    producer.shutdown()


if __name__ == "__main__":
    main()
