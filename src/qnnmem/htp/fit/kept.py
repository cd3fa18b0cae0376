"""An answer to "does it fit" as it is kept on disk, and back; nothing that is read is trusted.

Values are written field by field and read by the types of the fields, so a new field needs nothing
here, and a file of another shape counts as missing.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from qnnmem.errors import QnnMemError
from qnnmem.htp.bill.measure import MeasuredModel
from qnnmem.htp.compile import CompileFailure, CompileOptions
from qnnmem.htp.fit.value import Fit
from qnnmem.provenance import Sourced
from qnnmem.targets.socs import Soc, find_soc

_MOST = 1 << 63


def to_kept(fit: Fit) -> dict[str, Any]:
    """An answer as values for JSON."""
    written: dict[str, Any] = _written(fit)
    return written


def from_kept(values: Mapping[str, Any] | None) -> Fit | None:
    """A kept answer; None when a file holds something else."""
    if values is None:
        return None
    try:
        found = _read(Fit, dict(values))
    except (TypeError, ValueError, KeyError, RecursionError, QnnMemError):
        return None
    return found if isinstance(found, Fit) else None


def is_final(made: MeasuredModel | CompileFailure) -> bool:
    """Whether another run would say the same: a crash or a time limit may not come again."""
    if isinstance(made, CompileFailure):
        return made.outcome.kind == "refused"
    return not made.no_estimate


def settings_of(options: CompileOptions, budgets: Mapping[str, Sourced]) -> dict[str, str]:
    """What an answer depends on besides model, SoC and library, by name."""
    flags = {"memhandle": options.memhandle, "partition": options.partition}
    limits = {f"budget {pool}": limit.value for pool, limit in sorted(budgets.items())}
    return {name: str(value) for name, value in {**flags, **limits, "code": _code()}.items()}


def _code() -> str:
    """What tells two states of this program apart, which words its answers differently."""
    top = Path(__file__).parents[1]
    states = sorted((str(path), path.stat().st_mtime_ns) for path in top.rglob("*.py"))
    return hashlib.sha256(repr(states).encode()).hexdigest()


def _written(value: Any) -> Any:
    if isinstance(value, Soc):
        return value.name
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {one.name: _written(getattr(value, one.name)) for one in fields(value)}
    return [_written(one) for one in value] if isinstance(value, tuple) else value


def _read(wanted: Any, value: Any) -> Any:
    """A value of a type; ValueError or TypeError for anything else."""
    if get_origin(wanted) in (Union, types.UnionType):
        return _read_one_of(get_args(wanted), value)
    if get_origin(wanted) is tuple:
        if not isinstance(value, list):
            raise TypeError("no list")
        return tuple(_read(get_args(wanted)[0], one) for one in value)
    if wanted is Soc:
        return find_soc(_read(str, value))
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return wanted(value)
    if is_dataclass(wanted):
        return _read_fields(wanted, value)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted or (wanted is int and abs(value) >= _MOST):
        raise TypeError("another type")
    return value


def _read_one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        try:
            return _read(kind, value)
        except (TypeError, ValueError, KeyError):
            continue
    raise TypeError("none of the types")


def _read_fields(wanted: Any, value: Any) -> Any:
    names = {one.name for one in fields(wanted)}
    if not isinstance(value, dict) or set(value) != names:
        raise TypeError("other fields")
    hints = get_type_hints(wanted)
    return wanted(**{name: _read(hints[name], one) for name, one in value.items()})
