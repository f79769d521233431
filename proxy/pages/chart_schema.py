"""The schema of the Helm chart's values: its shape from `values.yaml`, `config` from `proxy.config.settings`.

`python -m proxy.pages.chart_schema` in a checkout rewrites it; a test proves it current. Helm refuses values
that it does not allow (https://helm.sh/docs/topics/charts/#schema-files).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from proxy.config.enums import TlsMode
from proxy.config.loader import is_secret, known_settings
from proxy.config.renamed import names_of
from proxy.config.settings import Settings
from proxy.pages.reference import entries

CHART: Final = Path("helm/popgate")
VALUES_FILE: Final = CHART / "values.yaml"
SCHEMA_FILE: Final = CHART / "values.schema.json"

OF_THE_CHART: Final = frozenset({"admin", "broker", "data", "listen", "workers", "stopping", "tls"})
"""Settings and groups of settings that the chart writes itself, from values of their own."""

_PORT: Final = {"type": "integer", "minimum": 1, "maximum": 65_535}
_NODE_PORT: Final = {"type": ["integer", "null"], "minimum": 1, "maximum": 65_535}
_DOOR_TLS: Final = {"enum": [mode.value for mode in TlsMode]}
_QUANTITY: Final = {"type": ["string", "integer"]}
_OBJECTS: Final = {"type": "array", "items": {"type": "object"}}
_HOST_PORT: Final = {"type": "string", "pattern": r"^$|^[^\s/?&#]+:[0-9]{1,5}$"}

_DOOR: Final[Mapping[str, Mapping[str, Any]]] = {
    "port": _PORT,
    "tls": _DOOR_TLS,
    "advertised": _HOST_PORT,
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.port": _PORT,
    "service.nodePort": _NODE_PORT,
    "service.externalTrafficPolicy": {"enum": ["", "Cluster", "Local"]},
}
_NARROWER: Final[Mapping[str, Mapping[str, Any]]] = {
    "mode": {"enum": ["cluster", "embedded"]},
    "image.digest": {"type": "string", "pattern": "^$|^sha256:[0-9a-f]{64}$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "imagePullSecrets": _OBJECTS,
    "replicas": {"type": "integer", "minimum": 0},
    "cluster.nameServers": {
        "type": "array",
        "items": {"type": "string", "pattern": r"^[^\s,;/?&#]+:[0-9]{1,5}$"},
    },
    "embedded.storage.size": _QUANTITY,
    "admin.port": _PORT,
    "stopping.lameDuckSeconds": {"type": "integer", "minimum": 0, "maximum": 1800},
    "stopping.drainSeconds": {"type": "integer", "minimum": 1, "maximum": 3600},
    "workers": {"type": "integer", "minimum": 0, "maximum": 256},
    "autoscaling.minReplicas": {"type": "integer", "minimum": 1},
    "autoscaling.maxReplicas": {"type": "integer", "minimum": 1},
    "autoscaling.targetCPUUtilizationPercentage": {"type": "integer", "minimum": 1},  # of what is requested
    "autoscaling.targetBytesUnderWay": _QUANTITY,
    "podDisruptionBudget.maxUnavailable": {"type": ["integer", "string"]},
    "tolerations": _OBJECTS,
    "extraEnv": _OBJECTS,
    "extraVolumes": _OBJECTS,
    "extraVolumeMounts": _OBJECTS,
    "networkPolicy.clientsFrom": _OBJECTS,
    "networkPolicy.adminFrom": _OBJECTS,
    "gatewayApi.grpcParents": _OBJECTS,
    "gatewayApi.remotingParents": _OBJECTS,
    "resources": {"type": "object"},
    "dashboard.labels": {"type": "object", "additionalProperties": {"type": "string"}},
    **{f"doors.{door}.{name}": rule for door in ("grpc", "remoting") for name, rule in _DOOR.items()},
}
"""Constraints that the defaults do not show, by the value's path."""

_KEYWORDS: Final = frozenset(
    {
        *("type", "enum", "pattern", "items", "minLength", "maxLength", "minItems", "maxItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
_KINDS: Final[Mapping[type, str]] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def schema_text(values: Mapping[str, Any]) -> str:
    """values.schema.json, for the defaults in `values.yaml`."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the popgate chart",
        **_shape(values, ""),
    }
    # Helm hands global values to every chart.
    schema["properties"] |= {"config": _config(), "global": {"type": "object"}}
    return json.dumps(schema, indent=2) + "\n"


def _shape(value: Any, path: str) -> dict[str, Any]:
    """The schema of a value with this default. An empty mapping may have any text under any name."""
    if narrower := _NARROWER.get(path):
        return dict(narrower)
    if isinstance(value, Mapping):
        if not value:
            return {"type": "object"}
        inner = {name: _shape(child, f"{path}.{name}".lstrip(".")) for name, child in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": inner}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": _KINDS[type(value)]}


def _config() -> dict[str, Any]:
    """The schema of `config`: every setting that is not the chart's own, nor a secret.

    Secrets would be readable in the ConfigMap; each has a twin that names a file.
    """
    shapes = Settings.model_json_schema()
    meanings = {setting.path: setting.meaning for _, _, settings in entries() for setting in settings}
    properties: dict[str, Any] = {}
    for path, field in known_settings():
        if path[0] in OF_THE_CHART or is_secret(field):
            continue
        rule = _setting(_at(shapes, path), shapes)
        rule["description"] = meanings[path]
        inner = properties
        for group in path[:-1]:
            inner = inner.setdefault(
                group, {"type": "object", "additionalProperties": False, "properties": {}}
            )["properties"]
        inner[path[-1]] = rule
        for former in (name for name in names_of(path) if name != path):
            inner[former[-1]] = {**rule, "description": f"Former name of {path[-1]}."}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _at(shapes: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    here: Mapping[str, Any] = shapes
    for name in path[:-1]:
        here = _resolved(here["properties"][name], shapes)
    shape: Mapping[str, Any] = here["properties"][path[-1]]
    return shape


def _resolved(rule: Mapping[str, Any], shapes: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rule, or the one that it refers to in pydantic's schema."""
    shape: Mapping[str, Any] = shapes["$defs"][rule["$ref"].rpartition("/")[2]] if "$ref" in rule else rule
    return shape


def _setting(rule: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """A setting may be text where it is a number or a list: `8MiB`, `1h30m`, `a,b`."""
    kept = {name: value for name, value in _resolved(rule, shapes).items() if name in _KEYWORDS}
    if "pattern" in kept:  # Go, which Helm is written in, counts to a thousand
        kept["pattern"] = re.sub(r"\{(\d+),\d{4,}\}", r"{\1,}", kept["pattern"])
    if kept.get("type") in ("number", "integer", "array"):  # bounds of numbers do not count for text
        kept["type"] = [kept["type"], "string"]
    return kept


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    values = yaml.safe_load((root / VALUES_FILE).read_text())
    (root / SCHEMA_FILE).write_text(schema_text(values))


if __name__ == "__main__":
    main()
