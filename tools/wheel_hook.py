"""What hatchling calls when it builds a wheel: objects of ours, compiled for one kind of machine.

Only where `QNNMEM_WHEEL` names the machine; every other wheel is the pure one, and editable
installations and source archives know nothing of it. `CC` names the compiler with its options.
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
    """Does nothing unless it is asked to."""

    def dependencies(self) -> list[str]:
        """What a build in an environment of its own needs more than the pure one."""
        return ["pyelftools>=0.31,<1"] if os.environ.get(ASKED) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile where a machine is named, and put the objects into the wheel."""
        machine = os.environ.get(ASKED)
        if not machine or version == "editable":
            return
        # Nothing of ours is installed here, nor what it depends on: these modules need nothing.
        sys.path[:0] = [str(Path(self.root, "tools")), str(Path(self.root, "src"))]
        from wheel_objects import PLACE, compiler_for, write_objects

        self.folder = tempfile.TemporaryDirectory()
        compiler = compiler_for(machine, os.environ.get("CC", ""))
        for path in write_objects(Path(self.folder.name), machine, compiler):
            build_data["force_include"][str(path)] = f"{PLACE}/{path.name}"
        build_data["pure_python"] = False
        # What is sure before anybody has looked: tools/wheels.py has it judged and renamed.
        build_data["tag"] = f"py3-none-linux_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: the tree stays as it was."""
        if folder := getattr(self, "folder", None):
            folder.cleanup()
