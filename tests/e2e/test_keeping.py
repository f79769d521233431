"""Backups, restores and redrives by command, against gateways as processes of their own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from popgate.testing import GatewayProcess
from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Failure
from tests.e2e.commands import Ended, run_command

ROOT = Path(__file__).parents[2]


def popgate(*arguments: object, admin: str = "") -> Ended:
    return run_command(*arguments, POPGATE_ADMIN=admin or "http://127.0.0.1:9")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path / "data", options=["--set", "limits.min_invisible_s=1"]) as gateway:
        yield gateway


def drained(admin: str, topic: str, group: str) -> list[str]:
    """All that the group can receive now; acknowledged."""
    found: list[str] = []
    with Gateway(admin) as api:
        while messages := api.post(
            "topics", topic, "receive", body={"group": group, "max_messages": 32, "invisible_ms": 60_000}
        )["messages"]:
            receipts = [one["receipt"] for one in messages]
            results = api.post("topics", topic, "ack", body={"group": group, "receipts": receipts})["results"]
            assert results == [None] * len(messages)
            found += [one["body"].strip() for one in messages]
    return found


def send(admin: str, topic: str, *bodies: str, **how: Any) -> list[str]:
    with Gateway(admin) as api:
        results = api.post(
            "topics", topic, "messages", body={"messages": [{"body": body, **how} for body in bodies]}
        )["results"]
    return [one["message_id"] for one in results]


class Producer:
    """Sends one message after the other, in one message group, and keeps what was answered."""

    def __init__(self, admin: str, topic: str) -> None:
        self.answered: list[str] = []
        self._admin, self._topic = admin, topic
        self._going = True
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_unused: object) -> None:
        self._going = False
        self._thread.join(60)

    def _run(self) -> None:
        try:
            while self._going:
                body = str(len(self.answered))
                send(self._admin, self._topic, body.ljust(2_000), message_group="line")
                self.answered.append(body)
        except Failure:
            return  # the gateway was killed

    def reaches(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.answered) < count:
            assert time.monotonic() < deadline, "the producer makes no progress"
            time.sleep(0.002)


def test_a_backup_under_load_restores_to_all_that_was_answered_before_it(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    popgate("group", "create", "g", "--ordered", admin=gateway.admin)
    with Producer(gateway.admin, "t") as producer:
        producer.reaches(60)
        with Gateway(gateway.admin) as api:
            acked = api.post(
                "topics", "t", "receive", body={"group": "g", "max_messages": 10, "invisible_ms": 60_000}
            )["messages"]
            api.post("topics", "t", "ack", body={"group": "g", "receipts": [one["receipt"] for one in acked]})
        before = len(producer.answered)
        taken = popgate("backup", "monday", "-o", "json", admin=gateway.admin)
        assert taken.code == 0, taken.err
        after = len(producer.answered)
        producer.reaches(after + 5)
    told = json.loads(taken.out)
    assert told["path"] == str(gateway.data / "backups" / "monday")
    assert popgate("backup", "--verify", told["path"]).code == 0
    listed = popgate("backup", "--list", admin=gateway.admin).out
    assert listed.startswith("monday\t")

    again = popgate("restore", told["path"], "--data", tmp_path / "again")
    assert (again.code, "restored to" in again.out) == (0, True), again.err
    with GatewayProcess(tmp_path / "again") as restored:
        found = drained(restored.admin, "t", "g")
    done = [one["body"].strip() for one in acked]
    # In order, without a gap: nothing of before is missing, nothing acknowledged comes again.
    assert found == [str(n) for n in range(len(done), len(done) + len(found))]
    assert before <= len(done) + len(found) <= len(producer.answered)


def test_a_kill_while_a_backup_is_taken_leaves_none_that_would_be_restored(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    with Producer(gateway.admin, "t") as producer:
        producer.reaches(20)
        asking = subprocess.Popen(
            [sys.executable, "-m", "popgate", "backup", "half"],
            env={"PYTHONPATH": str(ROOT), "POPGATE_ADMIN": gateway.admin},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        folder = gateway.data / "backups"
        deadline = time.monotonic() + 60
        while not (folder.exists() and list(folder.iterdir())):
            assert time.monotonic() < deadline, "the backup never began"
            time.sleep(0.0005)  # short beside a backup, and the gateway needs the core
        gateway.kill()
    asking.wait(60)
    left = list(folder.iterdir())
    for path in left:
        restored = popgate("restore", path, "--data", tmp_path / "again")
        if path.name == "half":  # it was complete before the kill
            assert restored.code == 0
            shutil.rmtree(tmp_path / "again")
        elif (path / "manifest.json").exists():
            assert popgate("backup", "--verify", path).code == 0, "a manifest is written last"
        else:
            assert restored.code == 1
            assert "it has no manifest.json" in restored.err
            assert not (tmp_path / "again" / "store").exists()
    with gateway.successor().start() as after:
        assert popgate("backup", "whole", admin=after.admin).code == 0
        assert {path.name for path in folder.iterdir()} - {"half"} == {"whole"}, "leftovers are cleared"


def test_a_backup_goes_nowhere_but_to_its_folder(gateway: GatewayProcess, tmp_path: Path) -> None:
    for name in ("../out", "/tmp/out", "a/b", ".hidden", "-x", "x" * 101, "a\nb"):
        refused = popgate("backup", "--", name, admin=gateway.admin)
        assert refused.code == 1, name
        assert "is no name of a backup" in refused.err
    assert not (gateway.data / "backups").exists()
    assert popgate("backup", "one", admin=gateway.admin).code == 0
    again = popgate("backup", "one", admin=gateway.admin)
    assert (again.code, "exists already" in again.err) == (1, True)
    unnamed = popgate("backup", admin=gateway.admin)
    assert re.match(r"backup \d{8}T\d{6}\.\d{3}Z taken: ", unnamed.out)


def test_the_folder_of_backups_is_a_setting(tmp_path: Path) -> None:
    with GatewayProcess(
        tmp_path / "data", options=["--set", f"embedded.backup_folder={tmp_path / 'far'}"]
    ) as gateway:
        assert popgate("backup", "one", admin=gateway.admin).code == 0
    assert popgate("backup", "--verify", tmp_path / "far" / "one").code == 0


def test_a_restore_refuses_what_would_harm(gateway: GatewayProcess, tmp_path: Path) -> None:
    popgate("backup", "one", admin=gateway.admin)
    backup = gateway.data / "backups" / "one"
    in_use = popgate("restore", backup, "--data", gateway.data)
    assert (in_use.code, "is in use by another process" in in_use.err) == (1, True)
    gateway.terminate()
    not_empty = popgate("restore", backup, "--data", gateway.data, "-o", "json")
    assert not_empty.code == 1
    assert "is not empty" in json.loads(not_empty.err)["message"]
    manifest = backup / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"messages": 0', '"messages": 9'))
    for refused in (
        popgate("restore", backup, "--data", tmp_path / "again"),
        popgate("backup", "--verify", backup),
    ):
        assert refused.code == 1
        assert str(manifest) in refused.err
    assert not (tmp_path / "again" / "store").exists()


def test_dead_letters_by_command(gateway: GatewayProcess) -> None:
    admin = gateway.admin
    popgate("group", "create", "g", "--max-attempts", 1, "--retry", "1s", admin=admin)
    ids = send(admin, "orders", *(f"order {n}" for n in range(5)))
    ids += send(admin, "bills", "bill")
    with Gateway(admin) as api:
        for topic in ("orders", "bills"):
            wanted = {"group": "g", "max_messages": 32, "invisible_ms": 1_000}
            api.post("topics", topic, "receive", body=wanted)
        deadline = time.monotonic() + 60
        while api.get("groups", "g", "dead-letters")["count"] < 6:
            assert time.monotonic() < deadline, "they do not die"
            time.sleep(0.05)
    listed = popgate("dead-letter", "list", "g", admin=admin)
    assert [line.split("\t")[:2] for line in listed.out.splitlines()] == [["bills", "1"], ["orders", "5"]]
    assert "order 2" in popgate("dead-letter", "show", "g", ids[2], admin=admin).out
    assert len(popgate("dead-letter", "show", "g", "--topic", "orders", admin=admin).out.splitlines()) == 5
    absent = popgate("dead-letter", "show", "g", "nothing-like-it", admin=admin)
    assert (absent.code, "has no dead letter" in absent.err) == (4, True)
    assert popgate("dead-letter", "list", "nobody", admin=admin).code == 4

    dry = popgate("dead-letter", "redrive", "g", "--dry-run", admin=admin)
    assert dry.out == "6 dead letters would be redriven to g: 1 of bills, 5 of orders\n"
    one = popgate("dead-letter", "redrive", "g", "-m", ids[2], admin=admin)
    assert one.out == "1 dead letter redriven to g: 1 of orders\n"
    again = popgate("dead-letter", "redrive", "g", "-m", ids[2], admin=admin)
    assert (again.code, again.out, "has no dead letter" in again.err) == (4, "", True)
    some = popgate("dead-letter", "redrive", "g", "--topic", "orders", "-n", 2, "--rate", "50/s", admin=admin)
    assert some.out == "2 dead letters redriven to g: 2 of orders\n"
    rest = popgate("dead-letter", "redrive", "g", "-o", "json", admin=admin)
    assert json.loads(rest.out) == {
        "group": "g",
        "moved": 3,
        "topics": {"orders": 2, "bills": 1},
        "refused": [],
        "dry_run": False,
        "finished": True,
    }
    assert popgate("dead-letter", "list", "g", admin=admin).out == ""
    assert Counter(drained(admin, "orders", "g")) == Counter(f"order {n}" for n in range(5))
    assert drained(admin, "bills", "g") == ["bill"]
    shown = popgate("group", "show", "g", "-o", "json", admin=admin)
    lags = {one["topic"]: one["lag"] for one in json.loads(shown.out)["progress"]}
    assert lags == {"bills": 0, "orders": 0}
    assert popgate("dead-letter", "redrive", "g", "--rate", "fast", admin=admin).code == 2
