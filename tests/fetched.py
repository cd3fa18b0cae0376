"""The real models, through the fetch script, which is not part of the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def _tool() -> Any:
    # Loaded by path, since a test folder has the same name.
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
