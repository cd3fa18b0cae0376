"""Import ONNX Runtime without its telemetry, which would store a device id in the user's home.

The official builds start an uploader and write that id during the import, before any call can
prevent it. Only an environment variable takes effect early enough.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

SILENCE = MappingProxyType({"ORT_DISABLE_TELEMETRY": "1"})


def import_onnxruntime(part: str = "") -> Any:
    """Import `onnxruntime` or a part of it; all imports in this package use this function."""
    os.environ.update(SILENCE)
    module = import_module("onnxruntime")
    # For builds that ignore the variable, and for a module that was imported earlier.
    module.disable_telemetry_events()
    return import_module(f"onnxruntime.{part}") if part else module


def exact_session(
    model: bytes | str, *, folder: Path | None = None, without: Sequence[str] = (), **settings: Any
) -> Any:
    """Return a deterministic session for a serialised model or a path.

    It uses one thread and no optimisations, so that scheduling never changes the last bit. It has
    no memory arena, because the process has a memory limit. `folder` holds external data of a
    serialised model, `without` names optimisers to disable, and `settings` are attributes of the
    session options.
    """
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors arrive as exceptions
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in settings.items():
        setattr(options, name, value)
    if folder is not None:
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(folder))
    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=[*without]
    )


def optimised_model(
    model: bytes, *, folder: Path | None = None, without: Sequence[str] = ()
) -> bytes:
    """Return a serialised model after the optimiser's first level, which adds only standard ops.

    `folder` holds external data, and `without` names optimisers to disable.
    """
    from tempfile import TemporaryDirectory

    level = import_onnxruntime().GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory() as name:
        target = Path(name, "optimised.onnx")
        exact_session(
            model,
            folder=folder,
            without=without,
            graph_optimization_level=level,
            optimized_model_filepath=str(target),
        )
        return target.read_bytes()
