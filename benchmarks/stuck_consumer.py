"""What piles up while one of four classic push consumers hangs: on true pull, and mapped onto pop.

    python benchmarks/stuck_consumer.py            # writes docs/performance/stuck-consumer.json and .svg
    python benchmarks/stuck_consumer.py --quick    # a few seconds, writes nothing; proves only that it runs

A gateway with the embedded broker and a Java client process with the four consumers, for each of both ways.
Messages are sent evenly, each to a queue that a seeded generator draws; what is drawn is the plot: messages
that were sent and that no member which does not hang has got, by seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from popgate.testing.client_programs import Driver
from popgate.testing.gateway import GatewayProcess

ROOT = Path(__file__).resolve().parent.parent
SEED = 7
VERSION = "5.5.0"
QUEUES = 4
WAYS = {"true pull": (), "mapped onto pop": ("--set", "remoting.mapped_groups=*")}
COLOURS = {"true pull": "#c0392b", "mapped onto pop": "#2471a3"}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 320, 70, 45, 30, 20


def classic() -> Any:
    """What the tests of classic clients have for starting them."""
    spec = importlib.util.spec_from_file_location("classic_clients", ROOT / "tests/classic/conftest.py")
    if spec is None or spec.loader is None:
        raise RuntimeError("tests/classic is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(way: str, seconds: int, rate: int) -> list[dict[str, int]]:
    """By tenths of a second: how much was sent, and how much of it nobody got who does not hang."""
    clients = classic()
    with tempfile.TemporaryDirectory() as folder:
        options = WAYS[way]
        with GatewayProcess(
            Path(folder) / "data", listen=("remoting://127.0.0.1:0",), options=options
        ) as process:
            place = clients.Gateway(process, None, {})
            topic, group = f"stuck-{uuid.uuid4().hex[:6]}", "readers"
            place.make_topic(topic)
            place.make_group(group)
            driver = Driver(clients.command_of(VERSION), process.endpoint, Path(folder) / "client")
            try:
                driver.wait("driver", lambda facts: bool(facts.of("ready")))
                params = {"producers": "senders", "topic": topic, "group": group, "seed": str(SEED)}
                params |= {"seconds": str(seconds), "rate": str(rate)}
                if options:
                    params["mapped"] = process.admin
                driver.run("stuck", "stuck", params)
                facts = driver.wait("stuck", lambda facts: bool(facts.of("finished")))
            finally:
                driver.close()
    if facts.of("crash") or not facts.of("finished"):
        raise RuntimeError(f"the run did not end well: {facts[-3:]}")
    return [{name: one[name] for name in ("ms", "sent", "missing")} for one in facts.of("level")]


def plot(results: dict[str, list[dict[str, int]]]) -> str:
    """An SVG with a line for each way."""
    points = [one for levels in results.values() for one in levels]
    longest = max(one["ms"] for one in points) or 1
    most = max(max(one["missing"] for one in points), 1)

    def x(ms: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ms / longest

    def y(count: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * count / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">Messages that wait for a consumer that hangs, one of four</text>',
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="black"/>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">seconds</text>',
    ]
    for part in range(5):
        count, ms = most * part / 4, longest * part / 4
        parts.append(f'<text x="{LEFT - 8}" y="{y(count) + 4:.0f}" text-anchor="end">{count:.0f}</text>')
        below = HEIGHT - BOTTOM + 16
        parts.append(f'<text x="{x(ms):.0f}" y="{below}" text-anchor="middle">{ms / 1000:.0f}</text>')
    for number, (way, levels) in enumerate(results.items()):
        line = " ".join(f"{x(one['ms']):.1f},{y(one['missing']):.1f}" for one in levels)
        colour = COLOURS[way]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 12}" y="{TOP + 18 + 18 * number}" fill="{colour}">{way}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="One of four classic push consumers hangs")
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    seconds, rate = (2, 100) if quick else (20, 200)
    results = {way: measured(way, seconds, rate) for way in WAYS}
    for way, levels in results.items():
        last = levels[-1]
        print(f"{way}: of {last['sent']} messages {last['missing']} wait after {last['ms'] / 1000:.1f} s")
    if not quick:
        told = {"seed": SEED, "client": VERSION, "queues": QUEUES, "consumers": 4, "messages_per_s": rate}
        folder = ROOT / "docs" / "performance"
        (folder / "stuck-consumer.json").write_text(json.dumps({**told, "results": results}) + "\n")
        (folder / "stuck-consumer.svg").write_text(plot(results))


if __name__ == "__main__":
    main()
