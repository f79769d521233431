"""The notebook in docs/examples in a real Spark, before a whole gateway: as it stands there, cell by cell."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from popgate.spark.session import session_settings
from popgate.testing.gateway import GatewayProcess
from tests.spark.conftest import LONGEST_S, started

pytestmark = [pytest.mark.timeout(LONGEST_S)]
NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/examples/spark_orders.py"
CITIES = {"Oslo", "Lima", "Pune", "Graz"}


def cells() -> list[tuple[bool, str]]:
    """Whether it is text, and what stands in it."""
    begin, *found = re.split(r"^# %%(.*)\n", NOTEBOOK.read_text(), flags=re.MULTILINE)
    assert begin == ""
    return [(kind == " [markdown]", text) for kind, text in zip(found[::2], found[1::2], strict=True)]


@pytest.fixture
def session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One of its own in the JVM that is there, with the settings that can be made in it."""
    made = spark.newSession()
    for name, value in session_settings(local_checkpoints=True).items():
        if name.startswith("spark.sql."):
            made.conf.set(name, value)
    monkeypatch.setattr("popgate.spark.session.rocketmq_session", lambda _name: made)
    return made


def test_texts_are_comments_and_the_rest_is_python() -> None:
    assert len(cells()) >= 10
    for is_text, text in cells():
        if is_text:
            assert all(line.startswith("#") for line in text.splitlines() if line)
        else:
            compile(text, str(NOTEBOOK), "exec")


def test_the_notebook_does_what_it_says(
    session: Any,
    gateway: GatewayProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for is_text, text in cells():
        if not is_text:
            program = compile(text.replace("127.0.0.1:8080", gateway.endpoint), str(NOTEBOOK), "exec")
            # What a cell of a stream is run for again goes on where it was.
            started(lambda _, program=program: exec(program, names))
    told = capsys.readouterr().out
    assert "250 orders of Oslo" in told
    assert re.findall(r"batch \d+: (\d+) orders", told)[:3] == ["400", "400", "200"]

    # Of 1000 seconds with a watermark of a minute three windows are over, each with 75 orders of each city.
    found = {row.begin: row.asDict() for row in names["table"].collect()}
    assert sorted(begin.astimezone(UTC) for begin in found) == [
        datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in (0, 5, 10)
    ]
    for row in found.values():
        assert {city: row[city] for city in CITIES} == dict.fromkeys(CITIES, 75)
    assert (tmp_path / "example-checkpoint").is_dir()
    # Nothing is counted twice when it is started again.
    again = names["writer"].trigger(availableNow=True).start()
    assert again.awaitTermination(LONGEST_S / 5)
    assert names["result"].count() == 12
