"""Plan, measure and debug the memory of neural networks on Qualcomm QNN."""

from __future__ import annotations

from qnnmem.version import __version__ as __version__

# `typing` is not imported: a slower import would delay the handling of Ctrl-C.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from qnnmem import lpai
    from qnnmem.errors import (
        CannotTell,
        FreeDimensions,
        LoadError,
        OutputError,
        QnnError,
        QnnMemError,
        UsageError,
    )
    from qnnmem.finding import Finding
    from qnnmem.htp.llm.plan import llm
    from qnnmem.ir import DType, Effect, FixedBuffer, Model, Op, Span, Tensor
    from qnnmem.loader import load
    from qnnmem.planner import (
        Buffer,
        Infeasible,
        Io,
        MemoryPlan,
        PlacedBuffer,
        Plan,
        Pool,
        PoolOptions,
        Problem,
        plan,
        verify,
    )
    from qnnmem.planner.tcm_pool import TcmVerdict, judge_tcm
    from qnnmem.provenance import Origin, Sourced

__all__ = [
    "Buffer",
    "CannotTell",
    "DType",
    "Effect",
    "Finding",
    "FixedBuffer",
    "FreeDimensions",
    "Infeasible",
    "Io",
    "LoadError",
    "MemoryPlan",
    "Model",
    "Op",
    "Origin",
    "OutputError",
    "PlacedBuffer",
    "Plan",
    "Pool",
    "PoolOptions",
    "Problem",
    "QnnError",
    "QnnMemError",
    "Sourced",
    "Span",
    "TcmVerdict",
    "Tensor",
    "UsageError",
    "judge_tcm",
    "llm",
    "load",
    "lpai",
    "plan",
    "verify",
]

# Imported on first use, so that the command line starts fast. No module may be named `load` or
# `plan`: importing it would replace the function of that name.
_HOMES = {
    "qnnmem.errors": (
        "CannotTell",
        "FreeDimensions",
        "LoadError",
        "OutputError",
        "QnnMemError",
        "UsageError",
        "QnnError",
    ),
    "qnnmem.ir": (
        "DType",
        "Effect",
        "FixedBuffer",
        "Model",
        "Op",
        "Span",
        "Tensor",
    ),
    "qnnmem.htp.llm.plan": ("llm",),
    "qnnmem.loader": ("load",),
    "qnnmem.lpai": ("lpai",),
    "qnnmem.planner.tcm_pool": ("TcmVerdict", "judge_tcm"),
    "qnnmem.planner": (
        "Buffer",
        "Infeasible",
        "Io",
        "MemoryPlan",
        "PlacedBuffer",
        "Plan",
        "Pool",
        "PoolOptions",
        "Problem",
        "plan",
        "verify",
    ),
    "qnnmem.provenance": (
        "Origin",
        "Sourced",
    ),
    "qnnmem.finding": ("Finding",),
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            module = import_module(home)
            return module if home == f"{__name__}.{name}" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
