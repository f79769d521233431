"""The chart, rendered by Helm itself: what tests and `python -m tests.outside.charts` share.

python -m tests.outside.charts      # write the golden files anew; read the difference before it is kept
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from proxy.pages.chart_schema import CHART
from tests.outside.go_programs import go_program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHART_FOLDER = ROOT / CHART
GOLDEN = HERE / "golden"
PACKAGE = "helm.sh/helm/v3/cmd/helm"
RELEASE: Final = "mq"
NAMESPACE: Final = "messaging"
KUBERNETES: Final = "1.31.0"
"""What Helm takes the cluster for: it decides nothing but whether the chart's `kubeVersion` holds."""

VALUES = {
    path.name.removesuffix("-values.yaml"): path for path in sorted(CHART_FOLDER.glob("ci/*-values.yaml"))
}
"""The value sets by their names."""

_RANDOM_KEY = re.compile(r"^(  transaction-key: )[A-Za-z0-9+/=]{64}$", re.MULTILINE)


def helm() -> Path:
    """Helm, compiled once. Raises Missing."""
    return go_program("helm", PACKAGE)


def run(program: Path, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Helm with these arguments, and with `home` for everything that it keeps."""
    environment = {
        **os.environ,
        "HOME": str(home),
        "HELM_CACHE_HOME": str(home),
        "HELM_CONFIG_HOME": str(home),
    }
    return subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, check=False, timeout=120, env=environment
    )


def render(program: Path, *options: str, home: Path) -> subprocess.CompletedProcess[str]:
    """`helm template` of the chart, tests of the release included."""
    return run(
        *(program, "template", RELEASE, str(CHART_FOLDER), "--namespace", NAMESPACE),
        *("--kube-version", KUBERNETES, *options),
        home=home,
    )


def rendered(program: Path, name: str, home: Path) -> str:
    """The manifests of a value set; the key that is new each time is left out."""
    ended = render(program, "--values", str(VALUES[name]), home=home)
    assert ended.returncode == 0, ended.stderr
    return _RANDOM_KEY.sub(r"\g<1>bmV3IGVhY2ggdGltZQ==", ended.stdout)


def documents(text: str) -> Iterator[dict[str, Any]]:
    """The objects of manifests."""
    return (document for document in yaml.safe_load_all(text) if document)


def main() -> None:
    import tempfile

    GOLDEN.mkdir(exist_ok=True)
    program = helm()
    with tempfile.TemporaryDirectory() as home:
        for name in VALUES:
            (GOLDEN / f"{name}.yaml").write_text(rendered(program, name, Path(home)))


if __name__ == "__main__":
    main()
