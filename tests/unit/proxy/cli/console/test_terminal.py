"""proxy.cli.console.terminal: nothing from elsewhere does anything on a terminal or breaks a line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.cli.console.terminal import Output, Printer, Progress, body_bytes, body_text, visible


@given(st.text())
def test_visible_text_is_printable_and_one_line(text: str) -> None:
    assert visible(text).isprintable()


@given(st.text(), st.text())
def test_visible_texts_are_different_where_texts_are(one: str, other: str) -> None:
    assert (visible(one) == visible(other)) == (one == other)


def test_an_escape_sequence_is_shown_and_not_done() -> None:
    assert visible("\x1b[2Jgone\n") == "\\x1b[2Jgone\\n"


def test_auto_is_plain_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(Output.AUTO)
    printer.table(("name", "n"), [("a\tb", 1), ("c", None)], [])
    assert capsys.readouterr().out == "a\\tb\t1\nc\t-\n"


def test_json_is_one_document_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(Output.JSON)
    printer.table(("name",), [("ä",)], [{"name": "ä\n"}])
    printer.facts({"name": "ä"}, {"name": "ä"})
    printer.item(("ä",), "", {"item": 1})
    printer.done("made", {"made": True})
    out = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in out] == [
        [{"name": "ä\n"}],
        {"name": "ä"},
        {"item": 1},
        {"made": True},
    ]


def test_a_table_has_its_heading_and_no_markup_of_strangers(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(Output.TABLE).table(("topic", "queues"), [("[red]orders", 8), ("x", 16)], [])
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["topic", "queues"]
    assert "[red]orders" in out


def test_facts_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(Output.PLAIN).facts({"ordered": True, "topics": ["a", "b"], "none": []}, None)
    assert capsys.readouterr().out == "ordered\tyes\ntopics\ta,b\nnone\t-\n"
    Printer(Output.TABLE).facts({"a": 1, "long name": 2}, None)
    assert capsys.readouterr().out == "a          1\nlong name  2\n"


def test_a_body_is_what_it_was_however_it_travelled() -> None:
    assert body_bytes({"body": "ä"}) == "ä".encode()
    assert body_bytes({"body_base64": "/w=="}) == b"\xff"
    assert body_text({"body": "ä"}) == "ä"
    assert body_text({"body_base64": "/w==", "size": 1}) == "<1 bytes, base64: /w==>"


def test_no_bar_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("sending", 10_000) as advance:
        advance(10_000)
    assert capsys.readouterr() == ("", "")
