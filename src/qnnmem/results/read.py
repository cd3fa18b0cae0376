"""Results from JSON, whoever wrote it: checked against their type before anything uses them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import msgspec

from qnnmem.errors import UsageError
from qnnmem.results.result import Result
from qnnmem.text import quote

# Modules are imported when a result of theirs is read.
_TYPES: Mapping[str, str] = {
    "qnnmem.error/1": "error.ErrorResult",
    "qnnmem.plan/1": "plan.PlanResult",
    "qnnmem.plans/1": "plan.PlansResult",
}


def result_types() -> tuple[type[Result], ...]:
    """Every result type."""
    return tuple(result_type(name) for name in _TYPES)


def result_type(name: str) -> type[Result]:
    """The type of a schema; KeyError for a name that is none."""
    module, _, kind = _TYPES[name].rpartition(".")
    found: type[Result] = getattr(import_module(f"qnnmem.results.{module}"), kind)
    return found


def read_result(values: Any, where: str) -> Result:
    """The result in values decoded from JSON; UsageError where they do not hold one."""
    name = values.get("schema") if isinstance(values, dict) else None
    if not isinstance(name, str) or name not in _TYPES:
        raise UsageError(f"{quote(name)} is not the schema of a result", where=where)
    try:
        return msgspec.convert(values, result_type(name))
    except UnicodeError as exc:  # half a surrogate pair as a key, which JSON can write
        raise UsageError(f"it is no {name}: a name in it is no text", where=where) from exc
    except msgspec.ValidationError as exc:
        raise UsageError(f"it is no {name}: {exc}", where=where) from exc
