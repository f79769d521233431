"""`popgate apply` and `popgate export` against a running gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from popgate.testing import GatewayProcess
from proxy.cli.console.admin_client import Gateway
from proxy.cli.domain import apply
from tests.e2e.commands import Ended, run_command


def popgate(*arguments: object, admin: str, stdin: str = "") -> Ended:
    return run_command(*arguments, stdin=stdin.encode(), POPGATE_ADMIN=admin)


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with GatewayProcess() as gateway:
        yield gateway


@pytest.fixture
def admin(gateway: GatewayProcess) -> Iterator[str]:
    """Every test finds it empty."""
    yield gateway.admin
    assert popgate("apply", "-", "--prune", "--yes", admin=gateway.admin).code == 0


ORDERS = '[topics.orders]\ntypes = ["FIFO"]\nqueues = 4\n[groups.billing]\nordered = true\n'


def test_a_file_is_made_so_and_then_there_is_nothing_to_do(admin: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(ORDERS)
    looked = popgate("apply", file, "--dry-run", admin=admin)
    assert looked.code == 1
    assert f"--- /dev/null\n+++ {file}/topics/orders\n" in looked.out
    assert '+types = ["FIFO"]\n+queues = 4\n' in looked.out
    assert looked.err == "would be: 2 created, 0 as they should be\n"
    assert popgate("topic", "list", admin=admin).out == ""
    made = popgate("apply", file, admin=admin)
    assert (made.code, made.out, made.err) == (0, looked.out, "2 created, 0 as they should be\n")
    for arguments in ((), ("--dry-run",)):
        again = popgate("apply", file, *arguments, admin=admin)
        assert (again.code, again.out, again.err) == (0, "", "2 as they should be\n")
    file.write_text(ORDERS.replace("queues = 4", "queues = 8"))
    changed = popgate("apply", file, admin=admin)
    assert (changed.code, changed.err) == (0, "1 changed, 1 as they should be\n")
    assert [line for line in changed.out.splitlines() if line[:1] in "+-"][2:] == [
        "-queues = 4",
        "+queues = 8",
    ]


def test_only_what_is_named_is_touched(admin: str) -> None:
    popgate("topic", "create", "mine", "--retention", "3d", "--queues", 5, admin=admin)
    ran = popgate("apply", "-", admin=admin, stdin="topics:\n  mine:\n    permission: read\n  new:\n")
    assert ran.err == "1 created, 1 changed, 0 as they should be\n"
    shown = json.loads(popgate("topic", "show", "mine", "-o", "json", admin=admin).out)
    assert (shown["queues"], shown["retention_ms"], shown["permission"]) == (5, 259_200_000, "read")
    back = popgate("apply", "-", admin=admin, stdin='{"topics": {"mine": {"retention": "default"}}}')
    assert back.code == 0
    assert json.loads(popgate("topic", "show", "mine", "-o", "json", admin=admin).out)["retention_ms"] is None


def test_prune_deletes_what_is_not_named_and_asks_before(admin: str) -> None:
    popgate("apply", "-", admin=admin, stdin=ORDERS + "[topics.stray]\n[groups.stray]\n")
    popgate("send", "stray", "hello", admin=admin)
    unasked = popgate("apply", "-", "--prune", admin=admin, stdin=ORDERS)
    assert unasked.code == 2
    assert "would delete topic stray, group stray: say --yes" in unasked.err
    looked = popgate("apply", "-", "--prune", "--dry-run", admin=admin, stdin=ORDERS)
    assert (looked.code, "+++ /dev/null" in looked.out) == (1, True)
    done = popgate("apply", "-", "--prune", "--yes", admin=admin, stdin=ORDERS)
    assert done.err == "2 deleted, 2 as they should be\n"
    assert popgate("topic", "show", "stray", admin=admin).code == 4


def test_prune_deletes_nothing_that_came_after_it_was_asked_for(admin: str) -> None:
    popgate("apply", "-", admin=admin, stdin=ORDERS + "[topics.stray]\n")

    class Slow(Gateway):
        def post(self, *path: str, body: Any, **how: Any) -> Any:
            found = super().post(*path, body=body, **how)
            if body.get("dry_run"):
                # While a person reads what would be deleted, a client makes a topic.
                super().post("topics", body={"name": "fresh"})
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "Gateway", Slow)
        done = popgate("apply", "-", "--prune", "--yes", admin=admin, stdin=ORDERS)
    assert (done.code, done.err) == (0, "1 deleted, 2 as they should be\n")
    assert popgate("topic", "show", "stray", admin=admin).code == 4
    assert popgate("topic", "show", "fresh", admin=admin).code == 0


def test_topics_of_the_system_are_never_pruned(admin: str) -> None:
    popgate("apply", "-", admin=admin, stdin="[topics.t]\n[groups.g]\nmax_attempts = 1\n")
    popgate("topic", "create", "%DLQ%g", admin=admin)
    assert popgate("apply", "-", "--prune", "--yes", admin=admin, stdin="[topics.t]\n[groups.g]\n").code == 0
    assert popgate("topic", "show", "%DLQ%g", admin=admin).code == 0
    assert "DLQ" not in popgate("export", admin=admin).out
    refused = popgate("apply", "-", admin=admin, stdin="topics: {'%DLQ%g': {queues: 2}}")
    assert (refused.code, "belongs to a group" in refused.err) == (2, True)
    popgate("topic", "delete", "%DLQ%g", admin=admin)


def test_with_one_thing_wrong_nothing_is_done(admin: str, tmp_path: Path) -> None:
    popgate("topic", "create", "wide", "--queues", 8, admin=admin)
    file = tmp_path / "shop.yaml"
    file.write_text("topics:\n  fine: {}\n  wide: {queues: 2}\ngroups:\n  g: {max_attempts: 2000000}\n")
    refused = popgate("apply", file, admin=admin)
    assert refused.code == 2
    assert f"{file}:3: topics.wide: the topic has 8 queues, they cannot become 2: only more\n" in refused.err
    assert f"{file}:5: groups.g: the group has 2000000 attempts" in refused.err
    assert popgate("topic", "show", "fine", admin=admin).code == 4
    file.write_text("topics:\n  fine: {quues: 2}\n")
    assert popgate("apply", file, admin=admin).err == (
        f"popgate: {file}:2: topics.fine.quues is not known; did you mean queues?\n"
    )
    for name in ("nowhere.toml", "notes.txt"):
        assert popgate("apply", tmp_path / name, admin=admin).code == 2


@pytest.mark.parametrize("kind", ["toml", "yaml", "json"])
def test_what_is_exported_can_be_applied_again(admin: str, tmp_path: Path, kind: str) -> None:
    popgate(
        "apply",
        "-",
        admin=admin,
        stdin=ORDERS
        + '[topics.kept]\nretention = "1d12h"\nattributes = { owner = "ü" }\n'
        + '[groups.slow]\nretry = "exponential:1s:1m:1.5"\n[groups.all]\nbroadcast = true\n',
    )
    exported = popgate("export", "--format", kind, admin=admin)
    assert exported.code == 0
    file = tmp_path / f"all.{kind}"
    file.write_text(exported.out)
    same = popgate("apply", file, "--prune", "--dry-run", admin=admin)
    assert (same.code, same.out, same.err) == (0, "", "5 as they should be\n")
    assert popgate("apply", "-", "--prune", "--yes", admin=admin).code == 0
    assert popgate("export", "--format", kind, admin=admin).out != exported.out
    assert popgate("apply", "-", admin=admin, stdin=exported.out).err == "5 created, 0 as they should be\n"
    assert popgate("export", "--format", kind, admin=admin).out == exported.out


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_a_thousand_are_applied_by_one_command(admin: str, kind: str, tmp_path: Path) -> None:
    if kind == "toml":
        text = "".join(f"[topics.t{n}]\nqueues = 2\n[groups.g{n}]\nmax_attempts = 3\n" for n in range(500))
    else:
        text = "topics:\n" + "".join(f"  t{n}: {{queues: 2}}\n" for n in range(500))
        text += "groups:\n" + "".join(f"  g{n}: {{max_attempts: 3}}\n" for n in range(500))
    file = tmp_path / f"many.{kind}"
    file.write_text(text)
    began = time.perf_counter()
    made = popgate("apply", file, admin=admin)
    took = time.perf_counter() - began
    assert (made.code, made.err) == (0, "1000 created, 0 as they should be\n")
    print(f"1000 things of {kind} made in {took:.2f} s")
    assert popgate("apply", file, "--dry-run", admin=admin).err == "1000 as they should be\n"


def test_json_tells_each_change(admin: str) -> None:
    told = json.loads(popgate("apply", "-", "-o", "json", admin=admin, stdin=ORDERS).out)
    assert [(one["kind"], one["name"], one["action"], one["error"]) for one in told["changes"]] == [
        ("topic", "orders", "create", None),
        ("group", "billing", "create", None),
    ]
    assert told["changes"][0]["after"]["queues"] == 4
