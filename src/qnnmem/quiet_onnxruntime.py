"""ONNX Runtime without telemetry: importing it otherwise leaves a device id in the user's home.

Its official builds open an uploader and write that id as soon as they are imported, before any
call can forbid it. Only the environment variable comes early enough.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import MappingProxyType
from typing import Any

SILENCE = MappingProxyType({"ORT_DISABLE_TELEMETRY": "1"})


def import_onnxruntime(part: str = "") -> Any:
    """The module `onnxruntime`, or a part of it; nothing else in this package imports it."""
    os.environ.update(SILENCE)
    module = import_module("onnxruntime")
    # For builds that do not know the variable, and for a module that was imported before us.
    module.disable_telemetry_events()
    return import_module(f"onnxruntime.{part}") if part else module
