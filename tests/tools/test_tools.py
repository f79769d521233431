"""Every command of mqadmin at the remoting door: it works, or says why not, as docs/tools.md tells it."""

from __future__ import annotations

import pytest

from tests.tools.conftest import CLUSTER, COMMANDS, DASHBOARD, EMBEDDED, Played, plays, spaced

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (kind, name)
        for kind in (EMBEDDED, CLUSTER)
        for name, row in COMMANDS.items()
        if any(plays(kind, row, step) for step in row.get("steps", ()))
    ],
)
def test_a_command_prints_what_the_table_says(played: Played, command: str) -> None:
    for printed in played.printed[command]:
        told = f"{command} {printed.step['run']} printed:\n{printed.text}"
        assert printed.ended, f"it did not end: {told}"
        for text in printed.shows:
            assert text in spaced(printed.text), f"no {text!r} in what {told}"
        for text in printed.never:
            assert text not in spaced(printed.text), f"{text!r} in what {told}"


@pytest.mark.parametrize("kind", [CLUSTER])
@pytest.mark.parametrize(
    "command",
    ["consumerConnection", "consumerStatus", "producerConnection", "producer", "queryMsgByUniqueKey"],
)
def test_scenario_14_clients_of_another_gateway_are_shown_and_asked(played: Played, command: str) -> None:
    """The tools ask one gateway, the clients are connected to another one."""
    assert played.asked != played.used
    printed = played.printed[command]
    assert printed
    for step in printed:
        assert step.shows
        assert all(text in spaced(step.text) for text in step.shows), step.text


@pytest.mark.parametrize("kind", [EMBEDDED, CLUSTER])
@pytest.mark.parametrize("request_name", DASHBOARD)
def test_the_dashboard_is_answered_as_the_table_says(played: Played, request_name: str) -> None:
    asked = played.dashboard[request_name]
    assert asked.code == asked.expected, f"{request_name}: {asked.text}"
    for text in asked.shows:
        assert text in asked.text, f"no {text!r} in the answer to {request_name}: {asked.text}"


@pytest.mark.parametrize("kind", [EMBEDDED, CLUSTER])
def test_the_table_has_all_commands_and_no_others(played: Played) -> None:
    assert {name for name in COMMANDS if not name.startswith("@")} == played.names


@pytest.mark.parametrize("kind", [EMBEDDED, CLUSTER])
def test_nothing_looks_like_an_error_of_the_gateway(played: Played) -> None:
    lines = played.log.splitlines()
    assert not [line for line in lines if '"level": "error"' in line or "Traceback" in line]
