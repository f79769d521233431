"""The command line against a running gateway, both as processes of their own, as users meet them."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from popgate.testing import GatewayProcess
from tests.e2e.commands import run_command

ROOT = Path(__file__).parents[2]
OK, FAILED, USAGE, UNREACHABLE, NOTHING, NOT_STARTED = range(6)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POPGATE_")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


class Ran:
    """How a command ended."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.raw = out
        self.out = out.decode(errors="replace")
        self.err = err.decode(errors="replace")
        assert "Traceback" not in self.err, self.err

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def popgate(*arguments: str, stdin: bytes = b"", **variables: str) -> Ran:
    ended = run_command(*arguments, stdin=stdin, **variables)
    return Ran(ended.code, ended.raw, ended.err.encode())


def process(*arguments: str, stdin: bytes = b"", **variables: str) -> Ran:
    """Run a command as a user does."""
    command = [sys.executable, "-m", "popgate", *arguments]
    done = subprocess.run(
        command, input=stdin, capture_output=True, timeout=240, env=environment(**variables), check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with GatewayProcess(options=["--set", "limits.min_invisible_s=1"]) as gateway:
        yield gateway


@pytest.fixture
def run(gateway: GatewayProcess) -> Callable[..., Ran]:
    def run(*arguments: str, **more: Any) -> Ran:
        return popgate(*arguments, POPGATE_ADMIN=gateway.admin, **more)

    return run


def test_a_topic_from_its_making_to_its_end(run: Callable[..., Ran]) -> None:
    made = run("topic", "create", "t-life", "--type", "FIFO,normal", "--queues", "3", "--retention", "3d")
    assert (made.code, made.out) == (OK, "topic t-life created: 3 queues, FIFO,NORMAL\n")
    assert "t-life\tFIFO,NORMAL\t3\tread-write\t3d" in run("topic", "list").lines
    shown = run("topic", "show", "t-life")
    assert "retention\t3d" in shown.lines
    assert "queue popgate:2\t0 to 0" in shown.lines
    again = run("topic", "create", "t-life")
    assert (again.code, again.out) == (FAILED, "")
    assert again.err == "popgate: topic t-life exists already\n"
    assert run("topic", "delete", "t-life", "--yes").out == "topic t-life deleted\n"
    gone = run("topic", "show", "t-life")
    assert (gone.code, gone.err) == (NOTHING, "popgate: topic t-life does not exist\n")


def test_a_compacted_topic_tells_so_and_wants_keys(run: Callable[..., Ran]) -> None:
    run("topic", "create", "t-keys", "--queues", "1", "--attribute", "cleanup.policy=COMPACTION")
    keyless = run("send", "t-keys", "body")
    assert keyless.code == FAILED
    assert keyless.err.startswith("popgate: the message has no key, and topic t-keys keeps the newest")
    assert run("send", "t-keys", "body", "--key", "k").code == OK
    shown = run("topic", "show", "t-keys").lines
    assert {"retention\tthe newest of each key", "messages\tat most 1"} <= set(shown)
    assert "attribute cleanup.policy\tCOMPACTION" in shown


def test_types_may_be_repeated_and_default_to_all(run: Callable[..., Ran]) -> None:
    run("topic", "create", "t-types", "-t", "DELAY", "-t", "TRANSACTION")
    assert run("topic", "show", "t-types", "-o", "json").json["types"] == ["DELAY", "TRANSACTION"]
    assert run("topic", "create", "t-any", "-o", "json").json["types"] == []


def test_a_topic_may_have_a_permission_and_attributes(run: Callable[..., Ran]) -> None:
    run("topic", "create", "t-read", "--permission", "read", "--attribute", "owner=billing")
    shown = run("topic", "show", "t-read")
    assert {"permission\tread", "attribute owner\tbilling"} <= set(shown.lines)
    refused = run("send", "t-read", "x")
    assert (refused.code, "t-read" in refused.err) == (FAILED, True)
    assert run("topic", "create", "t", "--permission", "all").code == FAILED
    assert run("topic", "create", "t", "--attribute", "owner").code == USAGE


def test_a_group_from_its_making_to_its_end(run: Callable[..., Ran]) -> None:
    made = run(
        *("group", "create", "g-life", "--ordered", "--max-attempts", "3", "--from", "last"),
        *("--retry", "1s,5s,1m", "--consume-timeout", "2m"),
    )
    assert made.out == "group g-life created: ordered, 3 attempts, from the last message\n"
    assert "g-life\tyes\tno\t3\tlast\t1s,5s,1m" in run("group", "list").lines
    shown = run("group", "show", "g-life")
    assert "true pull: the setting remoting.mapped_groups does not name it" in shown.out
    assert {"ordered\tyes", "max attempts\t3", "consume timeout\t2m", "clients\t0"} <= set(shown.lines)
    assert run("group", "delete", "g-life", "-y").code == OK
    assert run("group", "show", "g-life").code == NOTHING


def test_a_group_may_take_lite_topics(run: Callable[..., Ran]) -> None:
    run("topic", "create", "t-rooms", "--type", "LITE")
    made = run("group", "create", "g-rooms", "--lite", "t-rooms", "--attribute", "lite.sub.client.quota=7")
    assert made.out.endswith("from the first message, lite topics of t-rooms\n"), made.err
    attributes = run("group", "show", "g-rooms", "-o", "json").json["attributes"]
    assert attributes == {"lite.bind.topic": "t-rooms", "lite.sub.client.quota": "7"}


def test_group_create_makes_what_apply_can(run: Callable[..., Ran]) -> None:
    """Each key of a declaration has an option: nothing differs when the same is applied."""
    declared = {
        "ordered": True,
        "broadcast": False,
        "max_attempts": 5,
        "start_from": "last",
        "retry": {"kind": "customized", "delays": ["1s", "5s", "1m"], "first_step": 1},
        "consume_timeout": "2m",
        "consume_enabled": False,
        "attributes": {"lite.bind.topic": "t-rooms", "owner": "shop"},
    }
    made = run(
        *("group", "create", "g-all", "--ordered", "--max-attempts", "5", "--from", "last", "--no-consume"),
        *("--retry", "1s,5s,1m", "--retry-from", "1", "--consume-timeout", "2m"),
        *("--attribute", "owner=shop", "--lite", "t-rooms"),
    )
    assert made.code == OK, made.err
    assert made.out.endswith(", nothing is delivered to it\n")
    compared = run("apply", "-", "--dry-run", stdin=json.dumps({"groups": {"g-all": declared}}).encode())
    assert (compared.code, compared.out) == (OK, ""), compared.err
    assert set(run("export", "-f", "json").json["groups"]["g-all"]) == set(declared)


def test_an_exponential_retry_policy(run: Callable[..., Ran]) -> None:
    run("group", "create", "g-exp", "--retry", "exponential:2s:1h:1.5")
    retry = run("group", "show", "g-exp", "--output", "json").json["retry"]
    assert retry == {"kind": "exponential", "initial_ms": 2000, "max_ms": 3_600_000, "multiplier": 1.5}
    assert "exponential:2s:1h:1.5" in run("group", "show", "g-exp").out


def test_what_is_sent_is_received_once(run: Callable[..., Ran]) -> None:
    sent = run("send", "m-once", "hello", "--key", "k1", "--tag", "new", "--property", "colour=red")
    assert sent.code == OK
    message_id, queue, offset = sent.out.rstrip("\n").split("\t")
    got = run("receive", "m-once", "--group", "g1")
    assert got.code == OK
    assert got.out.rstrip("\n").split("\t") == [message_id, queue, offset, "1", "new", "k1", "hello"]
    empty = run("receive", "m-once", "--group", "g1", "--wait", "0s")
    assert (empty.code, empty.out) == (NOTHING, "")
    assert empty.err == "popgate: no message for group g1 on topic m-once in 0s\n"


def test_commands_are_processes_with_exit_codes(gateway: GatewayProcess) -> None:
    assert process("send", "m-process", "-", stdin=b"hello", POPGATE_ADMIN=gateway.admin).code == OK
    got = process("receive", "m-process", "-g", "g", "--body", POPGATE_ADMIN=gateway.admin)
    assert (got.code, got.out) == (OK, "hello\n")
    assert process("topic", "show", "nowhere", POPGATE_ADMIN=gateway.admin).code == NOTHING
    assert process("topic", "show").code == USAGE


def test_json_is_a_line_for_each_message(run: Callable[..., Ran]) -> None:
    sent = run("send", "m-json", "-", "--lines", "-o", "json", stdin="eins\nzwei\n\ndrei ä\n".encode())
    ids = [json.loads(line)["message_id"] for line in sent.lines]
    got = run("receive", "m-json", "-g", "g", "-n", "0", "--wait", "0s", "-o", "json")
    messages = [json.loads(line) for line in got.lines]
    assert sorted(message["message_id"] for message in messages) == sorted(ids)
    assert sorted(message["body"] for message in messages) == ["drei ä", "eins", "zwei"]


def test_a_body_from_standard_input_may_be_anything(run: Callable[..., Ran]) -> None:
    body = bytes(range(256)) * 16
    sent = run("send", "m-raw", "-", "-o", "json", stdin=body)
    assert sent.code == OK
    shown = run("message", "show", "m-raw", sent.json["message_id"], "--body")
    assert shown.raw == body + b"\n"
    assert run("receive", "m-raw", "-g", "g", "--body").raw == body + b"\n"


def test_a_line_is_sent_as_soon_as_it_comes(gateway: GatewayProcess) -> None:
    command = [sys.executable, "-m", "popgate", "send", "m-lines", "-", "--lines", "--admin", gateway.admin]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    assert started.stdin is not None
    assert started.stdout is not None
    for line in (b"one\n", b"two\n"):
        started.stdin.write(line)
        started.stdin.flush()
        # Before the next line comes, and before the input ends.
        assert select.select([started.stdout], [], [], 240)[0]
        assert started.stdout.readline().count(b"\t") == 2
    started.communicate(b"\r\n\nthree", timeout=240)
    got = popgate("receive", "m-lines", "-g", "g", "-n", "3", "--wait", "0s", "--admin", gateway.admin)
    assert sorted(line.split("\t")[-1] for line in got.lines) == ["one", "three", "two"]


def test_long_lines_come_whole(run: Callable[..., Ran]) -> None:
    lines = [bytes([65 + n]) * (150_000 + n) for n in range(5)]
    sent = run("send", "m-long", "-", "--lines", stdin=b"\n".join(lines))
    assert (sent.code, len(sent.lines)) == (OK, 5)
    got = run("receive", "m-long", "-g", "g", "-n", "5", "--body", "--wait", "0s")
    assert sorted(got.raw.split()) == lines


def test_many_are_sent_and_all_are_received(run: Callable[..., Ran]) -> None:
    sent = run("send", "m-many", "x", "--count", "250")
    assert (sent.code, len(sent.lines)) == (OK, 250)
    got = run("receive", "m-many", "-g", "g", "--count", "250")
    assert (got.code, len(got.lines)) == (OK, 250)
    assert {line.split("\t")[0] for line in got.lines} == {line.split("\t")[0] for line in sent.lines}
    progress = run("group", "show", "g", "--output", "json").json["progress"]
    assert [one["lag"] for one in progress if one["topic"] == "m-many"] == [0]


def test_kept_messages_come_back(run: Callable[..., Ran]) -> None:
    run("send", "m-keep", "x")
    first = run("receive", "m-keep", "-g", "g", "--keep", "--invisible", "1s", "-o", "json").json
    again = run("receive", "m-keep", "-g", "g", "--wait", "20s", "-o", "json").json
    assert (again["message_id"], first["attempt"], again["attempt"]) == (first["message_id"], 1, 2)


def test_filters_choose(run: Callable[..., Ran]) -> None:
    run("send", "m-filter", "one", "--tag", "a", "-p", "n=1")
    run("send", "m-filter", "two", "--tag", "b", "-p", "n=2")
    assert run("receive", "m-filter", "-g", "g1", "--tag", "b", "--body").out == "two\n"
    assert run("receive", "m-filter", "-g", "g2", "--sql", "n = 1", "--body").out == "one\n"
    bad = run("receive", "m-filter", "-g", "g3", "--sql", "n =")
    assert bad.code == FAILED
    assert "illegal filter expression 'n ='" in bad.err


def test_a_message_is_found_by_key_and_shown_by_id(run: Callable[..., Ran]) -> None:
    message_id = run("send", "m-find", "found", "--key", "order-7", "-o", "json").json["message_id"]
    assert run("message", "find", "m-find", "--key", "order-7").lines[0].startswith(f"{message_id}\t")
    assert run("message", "find", "m-find", "-k", "order-7", "--from", "1h ago", "--to", "now").code == OK
    late = run("message", "find", "m-find", "-k", "order-7", "--to", "2h ago")
    assert (late.code, late.err) == (NOTHING, "popgate: no message with key order-7 on topic m-find\n")
    shown = run("message", "show", "m-find", message_id)
    assert {"body\tfound", "keys\torder-7", "bytes\t5"} <= set(shown.lines)
    assert run("message", "show", "m-find", "0" * 34).code == NOTHING


def test_a_delayed_message_comes_later(run: Callable[..., Ran]) -> None:
    run("topic", "create", "m-delay", "--type", "DELAY")
    assert run("send", "m-delay", "later", "--delay", "1h").code == OK
    assert run("receive", "m-delay", "-g", "g", "--wait", "0s").code == NOTHING
    began = time.monotonic()
    assert run("send", "m-delay", "late", "--delay", "2s").code == OK
    assert run("receive", "m-delay", "-g", "g", "--wait", "30s", "--body").out == "late\n"
    assert time.monotonic() - began >= 2, "not before its time"
    far = run("send", "m-delay", "x", "--delay", "30d")
    assert far.code == FAILED
    assert "86400000 ms" in far.err


def test_a_group_is_reset(run: Callable[..., Ran]) -> None:
    run("send", "m-reset", "x", "--count", "3")
    assert len(run("receive", "m-reset", "-g", "g-reset", "-n", "3").lines) == 3
    told = run("group", "reset", "g-reset", "--to", "first", "--yes")
    assert told.out == "group g-reset reset to first on m-reset\n"
    assert len(run("receive", "m-reset", "-g", "g-reset", "-n", "3").lines) == 3
    run("group", "reset", "g-reset", "--to", "1h ago", "--topic", "m-reset", "--yes")
    assert len(run("receive", "m-reset", "-g", "g-reset", "-n", "3").lines) == 3
    assert run("group", "reset", "g-reset", "--to", "soon").code == USAGE
    assert run("group", "reset", "nobody", "--to", "last", "--yes").code == NOTHING


def test_errors_are_json_where_json_was_asked_for(run: Callable[..., Ran]) -> None:
    told = run("topic", "show", "nowhere", "--output", "json")
    assert json.loads(told.err) == {"fault": "TOPIC_NOT_FOUND", "message": "topic nowhere does not exist"}
    told = run("topic", "show", "nowhere", POPGATE_OUTPUT="json")
    assert json.loads(told.err)["fault"] == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing",),
        ("topic", "create"),
        ("topic", "create", "t", "--retention", "soon"),
        ("topic", "create", "t", "--retention-bytes", "much"),
        ("topic", "list", "--output", "xml"),
        ("topic", "list", "--admin", "nonsense"),
        ("topic", "list", "--admin", "http://[::1"),
        ("group", "create", "g", "--retry", "soon"),
        ("group", "create", "g", "--from", "middle"),
        ("group", "create", "g", "--retry", "1s,5s", "--retry-from", "2"),
        ("group", "create", "g", "--retry", "exponential:1s", "--retry-from", "0"),
        ("group", "create", "g", "--attribute", "owner"),
        ("group", "create", "g", "--lite", ""),
        ("group", "create", "g", "--lite", "t", "--attribute", "lite.bind.topic=u"),
        ("group", "create", "g", "--retry", "exponential:1s:2s:x"),
        ("group", "create", "g", "--retry", "exponential:1s:2s:2:3"),
        ("send", "t", "x", "--property", "novalue"),
        ("send", "t", "x", "--delay", "soon"),
        ("send", "t", "x", "--lines"),
        ("send", "t", "x", "--count", "0"),
        ("receive", "t"),
        ("receive", "t", "-g", "g", "--tag", "a", "--sql", "b"),
        ("message", "find", "t", "-k", "k", "--from", "soon"),
        ("serve", "--set", "novalue"),
        ("serve", "--set", "limits.max_body=1"),
        ("serve", "--durability", "odd"),
        ("serve", "--listen", "odd://127.0.0.1:1"),
        ("serve", "--broker", "rocketmq://"),
        ("serve", "--config", "/nowhere/popgate.toml"),
    ],
)
def test_wrong_usage_is_told_on_standard_error(arguments: tuple[str, ...]) -> None:
    told = popgate(*arguments)
    assert (told.code, told.out) == (USAGE, "")
    assert told.err.strip()


@pytest.mark.parametrize("host", ["a" * 70, ".", "a b", "a\x7f"])
def test_an_admin_address_that_cannot_be_one_is_a_sentence(host: str) -> None:
    ran = popgate("topic", "list", "-ojson", "--admin", f"http://{host}")
    assert ran.code in (USAGE, UNREACHABLE)
    assert host in json.loads(ran.err)["message"] or host == "a\x7f"


def test_arguments_that_are_no_text_are_refused_with_a_sentence(run: Callable[..., Ran]) -> None:
    odd = os.fsdecode(b"\xff")
    assert run("topic", "show", odd).code == NOTHING
    run("topic", "create", "t-odd")
    assert run("message", "find", "t-odd", "-k", odd).code == NOTHING
    assert run("send", "t-odd", "x", "-k", odd).err == "popgate: keys in a message is no Unicode text\n"


def test_a_locale_without_unicode_is_no_accident(run: Callable[..., Ran], gateway: GatewayProcess) -> None:
    run("send", "t-ascii", "grüße ☺")
    receive = ("receive", "t-ascii", "--admin", gateway.admin)
    shown = process(*receive, "-g", "g1", PYTHONIOENCODING="ascii")
    assert (shown.code, shown.lines[0].split("\t")[-1]) == (OK, r"gr\xfc\xdfe \u263a")
    told = process(*receive, "-g", "g2", "-o", "json", PYTHONIOENCODING="ascii")
    assert told.json["body"] == "grüße ☺"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_output_without_room_is_a_sentence() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "popgate", "settings"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=240, env=environment(), check=False
        )
    assert (done.returncode, done.stderr.decode()) == (
        FAILED,
        "popgate: the output cannot be written: no space left on device\n",
    )


def test_a_person_is_asked_before_a_topic_goes_also_when_the_output_is_piped(
    run: Callable[..., Ran], gateway: GatewayProcess
) -> None:
    run("topic", "create", "t-asked")
    for answer, code in (b"n\n", FAILED), (b"y\n", OK):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "popgate", "topic", "delete", "t-asked", "-o", "json"]
        started = subprocess.Popen(
            [*command, "--admin", gateway.admin],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        os.write(ours, answer)
        out, err = started.communicate(timeout=240)
        os.close(ours)
        os.close(theirs)
        assert (started.returncode, b"Delete topic t-asked" in err) == (code, True)
        assert out in (b"", b'{"name": "t-asked", "deleted": true}\n')


def test_where_nobody_can_be_asked_nothing_is_deleted_or_reset(run: Callable[..., Ran]) -> None:
    run("topic", "create", "t-kept")
    run("group", "create", "g-kept")
    for command in (
        ("topic", "delete", "t-kept"),
        ("group", "delete", "g-kept"),
        ("group", "reset", "g-kept", "--to", "first"),
    ):
        refused = run(*command)
        assert (refused.code, refused.out) == (USAGE, "")
        assert "Nobody can be asked here: say --yes" in refused.err
    assert run("topic", "show", "t-kept").code == OK
    assert run("group", "show", "g-kept").code == OK


def test_the_settings_are_told_as_json_too() -> None:
    told = popgate("settings", "--set", "metrics.max_topics=7", "--output", "json")
    assert (told.code, told.json["metrics"]["max_topics"]) == (OK, 7)
    assert told.json["listen"] == ["grpc://127.0.0.1:8081", "remoting://127.0.0.1:8080"]
    plain = popgate("settings", "--set", "metrics.max_topics=7")
    assert "max_topics = 7" in plain.lines


def test_scenario_02_a_stuck_group_is_explained_and_freed(run: Callable[..., Ran]) -> None:
    """The head of a message group is held on purpose: the command names it, and frees it."""
    run("topic", "create", "t-stuck", "--queues", "1")
    run("group", "create", "g-stuck", "--ordered")
    for body in ("A1", "A2", "B1"):
        assert run("send", "t-stuck", body, "--message-group", body[0], "--key", body).code == OK
    idle = run("stuck", "g-stuck", "--topic", "t-stuck")
    assert idle.code == OK
    assert idle.lines[0].startswith("reason\t3 messages of topic t-stuck can be given out")
    held = run("receive", "t-stuck", "--group", "g-stuck", "--count", "1", "--keep", "-o", "json").json
    told = run("stuck", "g-stuck")
    columns = told.lines[0].split("\t")
    assert columns[:3] == ["held", held["message_id"], "t-stuck"]
    assert columns[5:7] == ["A", "admin@127.0.0.1"]
    assert columns[11] == "1"
    as_json = run("stuck", "g-stuck", "-o", "json").json
    assert as_json["held"][0]["receipt"] == columns[12]
    table = run("stuck", "g-stuck", "-o", "table").out
    assert "waiting behind" in table
    assert "To give one to somebody else now: popgate stuck g-stuck --free" in table
    assert run("stuck", "g-stuck", held["message_id"]).code == USAGE
    freed = run("stuck", "g-stuck", "--free", held["message_id"])
    assert freed.code == OK
    assert freed.out.startswith(f"message {held['message_id']} of topic t-stuck was freed after attempt 1")
    again = run("receive", "t-stuck", "--group", "g-stuck", "--count", "3", "-o", "json")
    attempts = {one["body"]: one["attempt"] for one in map(json.loads, again.lines)}
    assert attempts["A1"] == 2
    assert run("stuck", "g-stuck", "--free").code == NOTHING
    assert run("stuck", "nobody").code == NOTHING


def test_no_gateway_is_a_code_of_its_own() -> None:
    # Held, and not listened at: nobody else is given the port meanwhile.
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        told = popgate("topic", "list", "--admin", f"http://127.0.0.1:{port}")
    assert told.code == UNREACHABLE
    assert told.err.startswith(f"popgate: no gateway answers at http://127.0.0.1:{port}: connection refused")
    assert popgate("topic", "list", "--admin", "http://no-such-host.invalid:1").code == UNREACHABLE


def test_something_else_at_the_address_is_not_taken_for_a_gateway(gateway: GatewayProcess) -> None:
    told = popgate("topic", "list", "--admin", f"http://{gateway.endpoint}")
    assert told.code == UNREACHABLE
    assert "is not the admin port of a popgate" in told.err or "no gateway answers" in told.err


def test_an_unknown_variable_is_refused_with_the_nearest() -> None:
    told = popgate("serve", POPGATE_DURABILTY="sync")
    assert told.code == USAGE
    assert told.err == (
        "popgate: the environment variable POPGATE_DURABILTY is no setting;"
        " did you mean POPGATE_DURABILITY?\n"
    )


def test_an_empty_choice_is_told_and_is_not_the_default() -> None:
    """A variable that nobody set must not put messages into a broker that nobody chose."""
    told = popgate("settings", "--broker", "")
    assert told.code == 2
    assert "'' is no broker" in told.err


def test_settings_are_checked_and_printed_without_serving(tmp_path: Path) -> None:
    (tmp_path / "popgate.toml").write_text("[limits]\nmax_body_bytes = '8MiB'\n")
    told = popgate("settings", "--config", str(tmp_path / "popgate.toml"), "--data", str(tmp_path / "data"))
    assert told.code == OK
    assert 'max_body_bytes = "8MiB"' in told.lines
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("serve",),
        ("settings",),
        ("stuck",),
        ("send",),
        ("receive",),
        ("clients",),
        *(("clients", one) for one in ("stack", "verify", "reconnect")),
        *(("topic", one) for one in ("create", "list", "show", "delete")),
        *(("group", one) for one in ("create", "list", "show", "delete", "reset")),
        *(("message", one) for one in ("show", "find")),
    ],
)
def test_every_command_has_help(command: tuple[str, ...]) -> None:
    told = popgate(*command, "--help")
    assert told.code == OK
    assert told.out.startswith(f"Usage: {' '.join(('popgate', *command))}")


def test_the_version_is_told() -> None:
    from popgate import __version__
    from popgate.build import version_text

    assert popgate("--version").out == f"popgate {version_text(__version__)}\n"


def test_no_client_is_an_empty_list(run: Callable[..., Ran]) -> None:
    told = run("clients", "-o", "json")
    assert (told.code, told.json) == (OK, [])


def on_a_terminal(*arguments: str, **variables: str) -> str:
    """What a command writes where standard output is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "popgate", *arguments]
    child = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**variables)
    )
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and select.select([ours], [], [], 240)[0]:
        try:
            written += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    assert child.wait(240) == OK, written
    os.close(ours)
    return written.decode()


def test_a_terminal_gets_tables_and_colours_and_nothing_that_a_message_says(
    run: Callable[..., Ran], gateway: GatewayProcess
) -> None:
    run("topic", "create", "t-terminal")
    table = on_a_terminal("topic", "list", POPGATE_ADMIN=gateway.admin, TERM="xterm", COLUMNS="200")
    assert "permission" in table
    assert "t-terminal" in table
    run("send", "t-terminal", "evil \x1b]0;title\x07")
    shown = on_a_terminal("receive", "t-terminal", "-g", "g", POPGATE_ADMIN=gateway.admin, TERM="xterm")
    assert "evil \\x1b]0;title\\x07" in shown
    assert "\x1b[1;36m" in shown
    plain = on_a_terminal(
        "group", "show", "g", POPGATE_ADMIN=gateway.admin, TERM="xterm", NO_COLOR="1", POPGATE_OUTPUT="table"
    )
    assert "\x1b[" not in plain


def test_a_reader_that_leaves_early_is_no_accident(run: Callable[..., Ran], gateway: GatewayProcess) -> None:
    run("send", "m-pipe", "x" * 1000, "--count", "500")
    command = [sys.executable, "-m", "popgate", "receive", "m-pipe", "-g", "g", "-n", "0", "--wait", "0s"]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(POPGATE_ADMIN=gateway.admin),
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    told = child.stderr.read().decode()
    child.stderr.close()
    assert child.wait(240) == FAILED
    assert told == ""


# the life of `serve`


def served(*arguments: str, **variables: str) -> Ran:
    return process("serve", "--listen", "grpc://127.0.0.1:0", "--admin", "off", *arguments, **variables)


def test_a_port_in_use_is_a_sentence(gateway: GatewayProcess, tmp_path: Path) -> None:
    told = served("--data", str(tmp_path), "--listen", gateway.addresses[0])
    assert (told.code, told.out) == (NOT_STARTED, "")
    assert gateway.addresses[0] in told.err
    assert "in use" in told.err


def test_a_data_folder_in_use_is_a_sentence(gateway: GatewayProcess) -> None:
    told = served("--data", str(gateway.data))
    assert (told.code, told.out) == (NOT_STARTED, "")
    assert "in use by another process" in told.err


def test_a_data_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = served("--data", str(tmp_path / "file" / "data"))
    assert (told.code, told.out) == (NOT_STARTED, "")
    assert str(tmp_path / "file") in told.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(number: signal.Signals) -> None:
    with GatewayProcess() as gateway:
        gateway.signal(number)
        assert gateway.wait() == OK
        *_, ready, summary = gateway.output.splitlines()
        assert (ready, summary.startswith("stopped connections=0 ")) == ("ready", True)
        assert "Traceback" not in gateway.log
        assert json.loads(gateway.log.splitlines()[-1])["event"] == "stopped"


def test_several_doors_are_printed_with_their_ports() -> None:
    with GatewayProcess(listen=["grpc://127.0.0.1:0", "grpc://127.0.0.1:0"]) as gateway:
        assert len(set(gateway.addresses)) == 2
        assert gateway.output.splitlines() == [
            *(f"listening {address}" for address in gateway.addresses),
            f"admin {gateway.admin}",
            "ready",
        ]


def test_what_was_answered_is_there_after_a_kill_and_what_was_acknowledged_stays_away() -> None:
    with GatewayProcess() as first:
        popgate("send", "orders", "one", POPGATE_ADMIN=first.admin)
        popgate("send", "orders", "two", POPGATE_ADMIN=first.admin)
        acked = popgate("receive", "orders", "-g", "g", "--body", POPGATE_ADMIN=first.admin).out
        first.kill()
        with first.successor() as second:
            assert (second.addresses, second.admin) == (first.addresses, first.admin)
            left = popgate(
                "receive", "orders", "-g", "g", "-n", "2", "--body", POPGATE_ADMIN=second.admin
            ).out
            assert sorted([acked, left]) == ["one\n", "two\n"]


def test_the_configuration_file_may_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "popgate.toml").write_text("[topics]\nauto_create = false\n")
    with GatewayProcess(environment={"POPGATE_CONFIG": str(tmp_path / "popgate.toml")}) as gateway:
        told = popgate("send", "unknown", "x", POPGATE_ADMIN=gateway.admin)
        assert (told.code, told.err) == (NOTHING, "popgate: topic unknown does not exist\n")


def test_scenario_18_bodies_are_not_in_the_log() -> None:
    with GatewayProcess(options=["--log-level", "debug"]) as gateway:
        popgate(
            "send", "orders", "very-secret-body", "-p", "token=secret-property", POPGATE_ADMIN=gateway.admin
        )
        popgate("receive", "orders", "-g", "g", POPGATE_ADMIN=gateway.admin)
        gateway.terminate()
        assert "secret" not in gateway.log
