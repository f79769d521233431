"""What the chart says, as Helm renders it: the objects that pods run as processes are made from."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.outside import charts

Object = dict[str, Any]
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Manifests:
    """The Deployment of a rendered chart, its PodDisruptionBudget, and what its pods mount and read."""

    deployment: Object
    budget: Object
    config_maps: Mapping[str, Files]
    secrets: dict[str, Files] = field(default_factory=dict)
    """The chart's own; those that it expects to be there are added."""

    @property
    def template(self) -> Object:
        """The pod's."""
        return dict(self.deployment["spec"]["template"])

    @property
    def container(self) -> Object:
        """The pod's only one."""
        (found,) = self.template["spec"]["containers"]
        return dict(found)

    def port(self, name: str) -> int:
        """A port of the container by its name. Raises KeyError."""
        return {one["name"]: int(one["containerPort"]) for one in self.container["ports"]}[name]


def rendered(helm: Path, values: Mapping[str, Any], folder: Path) -> Manifests:
    """The chart with values for mode `cluster`. Raises ValueError with Helm's words where it refuses them."""
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    ended = charts.render(helm, "--values", str(file), home=folder)
    if ended.returncode:
        raise ValueError(f"Helm does not render the chart: {ended.stderr}")
    objects = list(charts.documents(ended.stdout))
    (deployment,) = [one for one in objects if one["kind"] == "Deployment"]
    (budget,) = [one for one in objects if one["kind"] == "PodDisruptionBudget"]
    maps: dict[str, Files] = {
        one["metadata"]["name"]: {name: text.encode() for name, text in one["data"].items()}
        for one in objects
        if one["kind"] == "ConfigMap"
    }
    secrets: dict[str, Files] = {
        one["metadata"]["name"]: {name: base64.b64decode(text) for name, text in one["data"].items()}
        for one in objects
        if one["kind"] == "Secret"
    }
    return Manifests(deployment, budget, maps, secrets)


def count_of(value: int | str, replicas: int, *, up: bool) -> int:
    """A number of pods, or a share of all of them as a text like 25%: `up` says which way it is rounded."""
    if isinstance(value, int):
        return value
    share = int(value.removesuffix("%")) * replicas / 100
    return math.ceil(share) if up else math.floor(share)
