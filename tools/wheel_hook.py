"""Build hook of hatchling: adds compiled objects to a wheel for one kind of machine.

The hook acts only if `QNNMEM_WHEEL` names the machine; every other wheel is pure Python, as are
editable installations and source archives. `CC` is the compiler with its options.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASKED = "QNNMEM_WHEEL"


class WheelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Build hook that does nothing unless `QNNMEM_WHEEL` is set."""

    def dependencies(self) -> list[str]:
        """Return additional requirements of the isolated build."""
        return ["pyelftools>=0.31,<1"] if os.environ.get(ASKED) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the objects if a machine is named, and add them to the wheel."""
        machine = os.environ.get(ASKED)
        if not machine or version == "editable":
            return
        # The isolated build has neither this package nor its dependencies; these modules need none.
        sys.path[:0] = [str(Path(self.root, "tools")), str(Path(self.root, "src"))]
        from wheel_objects import PLACE, compiler_for, write_objects

        self.folder = tempfile.TemporaryDirectory()
        compiler = compiler_for(machine, os.environ.get("CC", ""))
        for path in write_objects(Path(self.folder.name), machine, compiler):
            build_data["force_include"][str(path)] = f"{PLACE}/{path.name}"
        build_data["pure_python"] = False
        # The tag is only provisional: tools/wheels.py checks and renames the wheel.
        build_data["tag"] = f"py3-none-linux_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled objects, so that the source tree stays unchanged."""
        if folder := getattr(self, "folder", None):
            folder.cleanup()
