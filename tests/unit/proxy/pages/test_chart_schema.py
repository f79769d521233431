"""proxy.pages.chart_schema: the schema in the tree is the one of today's values and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config.loader import is_secret, known_settings
from proxy.config.renamed import FORMER_NAMES
from proxy.pages.chart_schema import OF_THE_CHART, SCHEMA_FILE, VALUES_FILE, schema_text

ROOT = Path(__file__).parents[4]


@pytest.fixture
def schema() -> Any:
    return json.loads((ROOT / SCHEMA_FILE).read_text())


def test_the_schema_is_current() -> None:
    values = yaml.safe_load((ROOT / VALUES_FILE).read_text())
    assert (ROOT / SCHEMA_FILE).read_text() == schema_text(values), "run `make docs`"


def test_config_has_every_setting_but_secrets_and_the_charts_own(schema: Any) -> None:
    config = schema["properties"]["config"]["properties"]
    expected = {
        path for path, field in known_settings() if path[0] not in OF_THE_CHART and not is_secret(field)
    } | FORMER_NAMES.keys()
    groups = {name for name, rule in config.items() if "properties" in rule}
    found = {(name,) for name in config if name not in groups}
    found |= {(group, name) for group in groups for name in config[group]["properties"]}
    assert found == expected
    assert ("remote", "secret_key") not in found
    assert ("remote", "secret_key_file") in found


def test_numbers_with_a_unit_may_be_text(schema: Any) -> None:
    limits = schema["properties"]["config"]["properties"]["limits"]["properties"]
    assert limits["max_body_bytes"] == {
        "type": ["integer", "string"],
        "minimum": 1,
        "maximum": 1 << 30,
        "description": "Largest message body.",
    }


def test_values_that_the_chart_does_not_know_are_refused(schema: Any) -> None:
    assert schema["additionalProperties"] is False
    assert schema["properties"]["doors"]["properties"]["grpc"]["additionalProperties"] is False
