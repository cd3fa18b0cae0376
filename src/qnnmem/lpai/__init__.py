"""A runtime that follows the LPAI memory contract: planned addresses and real execution.

`open` returns a session that makes all QNN calls for a model. To make the calls one by one, use the
classes that are named after QNN's own objects.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qnnmem.errors import TcmFatal

if TYPE_CHECKING:
    from qnnmem.contract.leaks import leaks
    from qnnmem.contract.regions import release
    from qnnmem.lpai.preparation import Prepared, prepare
    from qnnmem.lpai.prepare_options import PrepareOptions
    from qnnmem.lpai.profiles import Mode, Profile, profile
    from qnnmem.lpai.runtime.backend import Backend
    from qnnmem.lpai.runtime.composed_context import ComposedContext
    from qnnmem.lpai.runtime.context import Context
    from qnnmem.lpai.runtime.descriptors import (
        AlignmentReq,
        Config,
        CoreAffinityCfg,
        HwInfo,
        Mem,
        MemDescriptor,
        MemInfoCustom,
        PerfCfg,
        Property,
        custom,
        custom_property,
    )
    from qnnmem.lpai.runtime.graph import EARLY_TERMINATION, SUCCESS, Graph
    from qnnmem.lpai.runtime.heap import Heap, HeapBuffer
    from qnnmem.lpai.runtime.queue import Signal
    from qnnmem.lpai.runtime.session import Session
    from qnnmem.lpai.runtime.system_context import SystemContext, get_binary_info

# Importing this package must not import numpy, so names are resolved at their first use.
_HOMES = {
    "Backend": "lpai.runtime.backend",
    "ComposedContext": "lpai.runtime.composed_context",
    "Context": "lpai.runtime.context",
    **dict.fromkeys(
        (
            *("AlignmentReq", "Config", "CoreAffinityCfg", "HwInfo", "Mem", "MemDescriptor"),
            *("MemInfoCustom", "PerfCfg", "Property", "custom", "custom_property"),
        ),
        "lpai.runtime.descriptors",
    ),
    **dict.fromkeys(("EARLY_TERMINATION", "SUCCESS", "Graph"), "lpai.runtime.graph"),
    **dict.fromkeys(("Heap", "HeapBuffer"), "lpai.runtime.heap"),
    **dict.fromkeys(("Prepared", "prepare"), "lpai.preparation"),
    **dict.fromkeys(("Mode", "Profile", "profile"), "lpai.profiles"),
    "PrepareOptions": "lpai.prepare_options",
    "Signal": "lpai.runtime.queue",
    "Session": "lpai.runtime.session",
    **dict.fromkeys(("SystemContext", "get_binary_info"), "lpai.runtime.system_context"),
    "leaks": "contract.leaks",
    "release": "contract.regions",
}

__all__ = [
    "EARLY_TERMINATION",
    "SUCCESS",
    "AlignmentReq",
    "Backend",
    "ComposedContext",
    "Config",
    "Context",
    "CoreAffinityCfg",
    "Graph",
    "Heap",
    "HeapBuffer",
    "HwInfo",
    "Mem",
    "MemDescriptor",
    "MemInfoCustom",
    "Mode",
    "PerfCfg",
    "PrepareOptions",
    "Prepared",
    "Profile",
    "Property",
    "Session",
    "Signal",
    "SystemContext",
    "TcmFatal",
    "custom",
    "custom_property",
    "get_binary_info",
    "leaks",
    "open",
    "prepare",
    "profile",
    "release",
]


def open(path: Any, **options: Any) -> Session:
    """Return a session that executes a prepared model; see `Session` for the options."""
    from qnnmem.lpai.runtime.session import Session

    return Session(path, **options)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"qnnmem.{_HOMES[name]}"), name)
