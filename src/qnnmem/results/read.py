"""Read results from untrusted JSON and check them against their type."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

import msgspec

from qnnmem.errors import UsageError
from qnnmem.results.result import Result, SchemaDocument
from qnnmem.results.schema import schema_name
from qnnmem.text import quote
from qnnmem.wire import ready

Kind = TypeVar("Kind", bound=SchemaDocument)
Decoded = TypeVar("Decoded", bound=msgspec.Struct)

# A module is imported when one of its results is read.
_TYPES: Mapping[str, str] = {
    "qnnmem.baseline/1": "check.Baseline",
    "qnnmem.carrier/1": "carrier.CarrierResult",
    "qnnmem.chain/1": "chain.Chain",
    "qnnmem.check-client/1": "programs.ClientResult",
    "qnnmem.check/1": "check.CheckResult",
    "qnnmem.diff/1": "diff.DiffResult",
    "qnnmem.doctor/1": "doctor.DoctorResult",
    "qnnmem.error/1": "result.ErrorResult",
    "qnnmem.explain/1": "kb.ExplainResult",
    "qnnmem.fail-each/1": "programs.FailEachResult",
    "qnnmem.fit/1": "fit.FitResult",
    "qnnmem.fits/1": "fit.FitsResult",
    "qnnmem.fix-recipe/1": "fix.FixRecipe",
    "qnnmem.fix/1": "fix.FixedModel",
    "qnnmem.fixes/1": "fix.FixedModels",
    "qnnmem.footprint/1": "footprint.Bill",
    "qnnmem.host/1": "host.HostResult",
    "qnnmem.inspect-dlc/1": "inspect.DlcResult",
    "qnnmem.inspect-htp/1": "context.InspectedContext",
    "qnnmem.inspect/1": "inspect.InspectedBinary",
    "qnnmem.kb-check/1": "kb.KbCheckResult",
    "qnnmem.kb/1": "kb.KbResult",
    "qnnmem.lint/1": "lint.LintResult",
    "qnnmem.llm/1": "llm.LlmResult",
    "qnnmem.lpai-choices/1": "lpai.ChoicesResult",
    "qnnmem.lpai-rules/1": "lpai.RulesResult",
    "qnnmem.lpai-selftest/1": "lpai.SelftestResult",
    "qnnmem.place/1": "place.PlaceResult",
    "qnnmem.plan/1": "plan.PlanResult",
    "qnnmem.plans/1": "plan.PlansResult",
    "qnnmem.prepared/1": "prepared.PreparedBinary",
    "qnnmem.provoked/1": "provoked.ProvokedResult",
    "qnnmem.qmem/1": "qmem.QmemResult",
    "qnnmem.socs/1": "socs.SocsResult",
    "qnnmem.sweep/1": "sweep.SweepResult",
    "qnnmem.together/1": "together.TogetherResult",
    "qnnmem.validate/1": "validate.ValidateResult",
    "qnnmem.watch/1": "programs.WatchResult",
    "qnnmem.written/1": "files.WrittenResult",
}
# Results in a vendor's nesting: the fields of qnnmem are under the key `qnnmem`.
_DOCUMENTS: Mapping[str, str] = {
    "qnnmem.inspect/1": "inspect.InspectDocument",
    "qnnmem.inspect-htp/1": "context.ContextDocument",
}


def result_types() -> tuple[type[SchemaDocument], ...]:
    """Return every result type."""
    return tuple(result_type(name) for name in _TYPES)


def result_type(name: str) -> type[SchemaDocument]:
    """Return the result type of a schema; raise KeyError for an unknown schema."""
    kind: type[SchemaDocument] = _imported(_TYPES[name])
    return kind


def document_type(name: str) -> type[msgspec.Struct]:
    """Return the type of the whole JSON text: the result's own type, or the vendor's nesting."""
    kind: type[msgspec.Struct] = _imported(_DOCUMENTS.get(name) or _TYPES[name])
    return kind


def _imported(place: str) -> Any:
    module, _, kind = place.rpartition(".")
    return getattr(import_module(f"qnnmem.results.{module}"), kind)


def schema_in(values: Any) -> str | None:
    """Return the schema named in decoded JSON, also in the vendor's nesting; else None."""
    ours = _ours(values)
    name = ours.get("schema") if isinstance(ours, Mapping) else None
    return name if isinstance(name, str) else None


def _ours(values: Any) -> Any:
    inner = values.get("qnnmem") if isinstance(values, Mapping) else None
    return inner if isinstance(inner, Mapping) else values


def read_result(values: Any, where: str) -> SchemaDocument:
    """Return the result in decoded JSON; raise UsageError if there is no result."""
    name = schema_in(values)
    if name is None or name not in _TYPES:
        raise UsageError(f"{quote(name)} is not the schema of a result", where=where)
    return read_as(_ours(values), where, result_type(name))


def read_document(values: Any, where: str) -> msgspec.Struct:
    """Return decoded JSON as a result, or as the vendor's document that contains the result."""
    name = schema_in(values)
    if name is None or name not in _DOCUMENTS:
        return read_result(values, where)
    return _converted(values, where, document_type(name), name)


def read_as(values: Any, where: str, kind: type[Kind]) -> Kind:
    """Return decoded JSON as a result of a known type; raise UsageError if it does not match."""
    name = schema_name(kind)
    if isinstance(values, Mapping) and issubclass(kind, Result):
        # The type's default would name this version, which did not write the result.
        values = {"tool": "", **values}
    return _converted(values, where, kind, name)


def _converted(values: Any, where: str, kind: type[Decoded], name: str) -> Decoded:
    try:
        return msgspec.convert(values, ready(kind))
    except UnicodeError as exc:  # half a surrogate pair as a key, which JSON can contain
        raise UsageError(
            f"it is not a {name}: one of its keys is not valid text", where=where
        ) from exc
    except msgspec.ValidationError as exc:
        raise UsageError(f"it is not a {name}: {exc}", where=where) from exc
