"""Start a RocketMQ by hand, for as long as this program runs: `python -m popgate.testing.rocketmq --help`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys

from popgate.testing.made import Missing
from popgate.testing.rocketmq.cluster import RocketMQ
from popgate.testing.rocketmq.downloads import VERSIONS, chosen_version, jars
from popgate.testing.rocketmq.plans import BrokerPlan, pairs, replicas
from popgate.testing.rocketmq.servers import RocketMQDidNotStart
from popgate.testing.rocketmq.shared import host, shared_rocketmq

_KINDS = {
    "shared": "the name server and the broker that all tests on this machine share (it is kept from ending)",
    "one": "a name server and a broker of one's own",
    "pairs": "a name server, two masters, and a slave of each",
    "controller": "a name server with a controller, and two replicas under it",
    "fetch": "fetch the jars and end",
    "host": "what `shared` starts: ends when nobody uses it",
}


def main(words: list[str] | None = None) -> int:
    """The exit code: 0, or 1 when RocketMQ could not be had or did not start."""
    about = "\n".join(f"  {kind:<10} {text}" for kind, text in _KINDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m popgate.testing.rocketmq",
        description=f"Start a RocketMQ, say where it is, stop it at the end (Ctrl-C, SIGTERM).\n\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=_KINDS, nargs="?", default="shared", metavar="kind")
    parser.add_argument(
        "--version", choices=VERSIONS, help="of RocketMQ; else TEST_ROCKETMQ, else the newest"
    )
    parser.add_argument("--proxy", action="store_true", help="with the Java proxy before it")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a line of broker.conf"
    )
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, _end)
    try:
        version = given.version or chosen_version()
        settings = dict(line.split("=", 1) for line in given.set)
        with contextlib.suppress(KeyboardInterrupt):
            _run(given.kind, version, settings, given.proxy)
    except (Missing, RocketMQDidNotStart) as problem:
        print(problem, file=sys.stderr)  # noqa: T201 - a command line
        return 1
    return 0


def _run(kind: str, version: str, settings: dict[str, str], proxy: bool) -> None:
    if kind == "fetch":
        _say("jars", jars(version))
    elif kind == "host":
        host(version)
    elif kind == "shared":
        with shared_rocketmq(version) as shared:
            _say("broker", shared.broker)
            _say("name-server", shared.name_server)
            _say("url", shared.url)
            signal.pause()
    else:
        brokers = {
            "one": (BrokerPlan(),),
            "pairs": pairs("broker-a", "broker-b"),
            "controller": replicas("broker-a"),
        }[kind]
        controllers = kind == "controller"
        with RocketMQ(
            version=version, brokers=brokers, controllers=controllers, settings=settings
        ) as cluster:
            for broker in cluster.brokers.values():
                _say(broker.name, broker.address)
            if proxy:
                _say("proxy", cluster.start_proxy().address)
            _say("folder", cluster.folder)
            _say("name-servers", ",".join(cluster.addresses))
            _say("url", cluster.url)
            signal.pause()


def _say(name: str, value: object) -> None:
    print(f"{name:<14} {value}", flush=True)  # noqa: T201 - a command line


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
