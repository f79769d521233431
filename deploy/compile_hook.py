"""Hatchling's build hook of the compiled wheel: see deploy/compile.py.

It runs where HATCH_BUILD_HOOK_ENABLE_CUSTOM is true; without it a wheel is the plain one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUNDLED = ("brokers", "processors", "protocols", "proxy")
"""Packages that lie in `popgate/_app` in a wheel (ADR 1)."""


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put what is made beside the sources in the wheel."""
        sys.path.insert(0, self.root)
        from deploy import compile as compiling

        if version != "standard":  # an editable install has the sources
            return
        kept = os.environ.get("POPGATE_COMPILE_KEEP")
        work = Path(kept or tempfile.mkdtemp(prefix="popgate-compile-"))
        work.mkdir(parents=True, exist_ok=True)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for file, place in compiling.build(Path(self.root), work):
            inside = f"popgate/_app/{place}" if place.partition("/")[0] in BUNDLED else place
            build_data["force_include"][str(file)] = inside
