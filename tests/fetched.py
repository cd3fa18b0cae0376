"""The real models, by the script that fetches them, which is no part of the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def _tool() -> Any:
    # By its path: a folder of tests has the same name.
    path = Path(__file__).parents[1] / "tools" / "models.py"
    spec = importlib.util.spec_from_file_location("fetch_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
ENTRIES = {entry.id: entry for entry in TOOL.read_entries()}
