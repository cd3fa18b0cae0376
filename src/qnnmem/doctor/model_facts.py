"""Facts about the failing model: what it needs, compared with the limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from qnnmem.doctor.backend import ALL, HTP, LPAI, backend_of
from qnnmem.errors import NoCompiler, QnnMemError
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.incident import Incident, ModelNumbers, ModelPart
from qnnmem.targets.socs import tensor_count_words
from qnnmem.units import format_size

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.htp.compile import CompileFailure, CompileOptions
    from qnnmem.planner import MemoryPlan
    from qnnmem.results.footprint import Bill
    from qnnmem.targets.socs import Soc

_PLANNED = "plan of qnnmem"
_LPAI_ONLY = ("eaix", "csv")  # kinds of models that only LPAI has

# Comparisons to show for each cause; causes that are not listed concern the process domain.
_ASKED = {
    "mem_graph_limit": ("compile",),
    "mem_vtcm": ("VTCM",),
    "mem_tcm_pool": ("TCM",),
    "mem_tcm_slots": (),
    "mem_system_ram": (),
    "mem_buffer_cap": (),
    "mem_unknown": ("compile", "process domain", "VTCM", "TCM"),
    "unknown": ("compile", "process domain", "VTCM", "TCM"),
}


class Comparison(msgspec.Struct, frozen=True):
    """A model's need for a resource, as a lower and an upper bound, and the resource's limit."""

    resource: str
    made_of: tuple[tuple[str, int], ...]
    low: int
    high: int
    limit: int


class ModelFacts(msgspec.Struct, frozen=True):
    """All facts about a model that are known before the log is read."""

    parts: tuple[tuple[str, Sourced], ...]
    comparisons: tuple[Comparison, ...] = ()
    said: tuple[str, ...] = ()  # shown for any cause
    tensors: int | None = None  # of an uncompiled model, weights included


_NOTHING = ModelFacts(())


class FactsOfBackends(msgspec.Struct, frozen=True):
    """Facts about a model for each backend; the empty key is for incidents of unknown backends."""

    of: Mapping[str, ModelFacts]

    def add_to(self, incident: Incident) -> Incident:
        """Return the incident with the model's numbers for the failed backend, if there are any."""
        facts = self.of[backend_of(incident)]
        return add_facts(incident, facts) if facts != _NOTHING else incident


def gather(
    binary: Path | None, model: Path | None, soc: Soc | None, options: CompileOptions | None = None
) -> ModelFacts:
    """Return facts about a context binary, a model or a SoC, whichever are given.

    A binary is only read. A model is compiled if a SoC is given; otherwise its memory is planned.
    """
    found = [] if binary is None else [_of_binary(binary, soc)]
    if model is not None:
        found.append(_of_plan(model, options) if soc is None else _compiled(model, soc, options))
    if not found and soc is not None:
        found.append(_of_soc(soc))
    return _together(found)


def gather_possible(
    binary: Path | None,
    model: Path | None,
    soc: Soc | None,
    options: CompileOptions | None = None,
    backends: Collection[str] = ALL,
) -> tuple[FactsOfBackends, tuple[QnnMemError, ...]]:
    """Return facts for each of `backends`, and the errors of files that gave no facts.

    The diagnosis of a log does not depend on the model, so errors here must not prevent it.
    """
    failures: dict[str, QnnMemError] = {}

    def found(where: Path, look: Callable[[Path], ModelFacts]) -> ModelFacts:
        try:
            return look(where)
        except QnnMemError as exc:
            failures[str(exc)] = exc
        except (OSError, MemoryError) as exc:
            why = getattr(exc, "strerror", None) or "not enough memory"
            failures[why] = QnnMemError(f"cannot be examined ({why.lower()})", where=where)
        return _NOTHING

    def compiled(path: Path) -> ModelFacts:
        if soc is not None:
            try:
                return _compiled(path, soc, options)
            except NoCompiler as exc:
                failures[str(exc)] = exc
        return _uncompiled(path, soc, options)

    named = soc is not None or binary is not None  # only HTP has these
    wanted = {one or (HTP if named else LPAI) for one in backends}
    htp = [] if binary is None else [found(binary, lambda path: _of_binary(path, soc))]
    if model is not None and HTP in wanted:
        htp.append(found(model, compiled))
    if soc is not None and not any(one.parts for one in htp):
        htp = [_of_soc(soc)]
    lpai = []
    if model is not None and LPAI in wanted:
        lpai = [found(model, lambda path: _of_plan(path, options))]
    facts = {HTP: _together(htp), LPAI: _together(lpai)}
    return FactsOfBackends({**facts, "": facts[HTP if named else LPAI]}), (*failures.values(),)


def _uncompiled(path: Path, soc: Soc | None, options: CompileOptions | None) -> ModelFacts:
    """Return the facts about an uncompiled model on HTP."""
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.htp.compile.preflight import known_uncompiled
    from qnnmem.loader import kind_of
    from qnnmem.loader.onnx import tensor_count

    if soc is None and kind_of(path) in _LPAI_ONLY:
        return _of_plan(path, options)
    socs = () if soc is None else (soc,)
    known = known_uncompiled(path, socs, options or CompileOptions())
    return ModelFacts(known, tensors=tensor_count(path))


def _together(found: list[ModelFacts]) -> ModelFacts:
    return ModelFacts(
        tuple(part for one in found for part in one.parts),
        tuple(comparison for one in found for comparison in one.comparisons),
        tuple(sentence for one in found for sentence in one.said),
        next((one.tensors for one in found if one.tensors is not None), None),
    )


def add_facts(incident: Incident, facts: ModelFacts) -> Incident:
    """Return the incident with the model's numbers, unless its cause is not memory."""
    if incident.decided_memory is False:
        return incident
    wanted = _ASKED.get(incident.cause, ("process domain",))
    said = incident.quantities.get("in_use_bytes")
    in_use = said if isinstance(said, int) else 0
    parts = tuple(
        ModelPart(name, part.value, part.origin.value, part.source) for name, part in facts.parts
    )
    compared = [_sentence(one, in_use) for one in facts.comparisons if one.resource in wanted]
    if facts.tensors is not None and "compile" in wanted:
        compared.append(tensor_count_words(facts.tensors))
    numbers = ModelNumbers(parts, (*compared, *facts.said))
    return msgspec.structs.replace(incident, model_numbers=numbers)


def _sentence(one: Comparison, in_use: int) -> str:
    """Return e.g. `process domain: weights 1.90 GiB + spill/fill 0.30 GiB > 1.00 GiB left`."""
    shared = one.resource == "process domain" and 0 < in_use <= one.limit
    left = one.limit - in_use if shared else one.limit
    sign = ">" if one.low > left else "<=" if one.high <= left else "may exceed"
    known = [(name, size) for name, size in one.made_of if size]
    words = " + ".join(f"{name} {_unlike(size, left)}" for name, size in known)
    if len(known) != 1:
        bounds = dict.fromkeys((_unlike(one.low, left), _unlike(one.high, left)))
        words += f"{' = ' if words else ''}{' to '.join(bounds)}"
    room = f"{_unlike(left, one.low)} {'left' if shared else 'at most'}"
    why = f" of {format_size(one.limit)}, {format_size(in_use)} in use (from log)" if shared else ""
    over = f"; {one.low - left:,} bytes over the limit" if one.low > left else ""
    return f"{one.resource}: {words} {sign} {room}{why}{over}"


def _unlike(size: int, other: int) -> str:
    """Return a size as text, with its number of bytes if `other` rounds to the same text."""
    words = format_size(size)
    same = size != other and words == format_size(other)
    return f"{words} ({size:,} bytes)" if same else words


def _of_binary(path: Path, soc: Soc | None) -> ModelFacts:
    from qnnmem.htp.measure import stored_bill

    return of_bill(stored_bill(path, soc))


def _compiled(path: Path, soc: Soc, options: CompileOptions | None) -> ModelFacts:
    from qnnmem.errors import NotCompiled
    from qnnmem.htp.measure import bill_of_model
    from qnnmem.loader.onnx import tensor_count
    from qnnmem.results.footprint import Bill

    if path.suffix.lower() == ".onnx":
        try:
            return _of_binary(path, soc)
        except NotCompiled:
            pass  # an ordinary model: the library reports its cost
    made = bill_of_model(path, soc, options)
    facts = of_bill(made) if isinstance(made, Bill) else of_failure(made)
    return msgspec.structs.replace(facts, tensors=tensor_count(path))


def of_failure(failure: CompileFailure) -> ModelFacts:
    """Return the facts from a failed compilation: the library's reason and any exceeded limit."""
    from qnnmem.htp.bill import log_source
    from qnnmem.htp.log import Cause

    said = (f"compiling the model here for {failure.soc.name} also fails: {failure.sentence}",)
    refusal = failure.refusal
    limits = _of_soc(failure.soc).parts
    if refusal is None or refusal.need is None:
        return ModelFacts(limits, said=said)
    over_limit = refusal.cause is Cause.GRAPH_LIMIT
    name = "compile estimate" if over_limit else f"needed, {refusal.cause.value}"
    need = Sourced(refusal.need, Origin.MEASURED, log_source(failure.log))
    compared: tuple[Comparison, ...] = ()
    if over_limit and refusal.limit is not None:
        size = refusal.need
        compared = (Comparison("compile", (("estimate", size),), size, size, refusal.limit),)
    return ModelFacts(((name, need), *limits), compared, said)


def of_bill(bill: Bill) -> ModelFacts:
    """Return the facts that a memory bill contains."""
    from qnnmem.targets.socs import find_soc

    domain, budget = bill.process_domain, bill.process_domain_budget
    vtcm = None if bill.soc is None else find_soc(bill.soc).vtcm_bytes
    named = [
        *bill.named_parts,
        ("total", bill.total),
        ("compile estimate", bill.compile_estimate),
        ("compile limit", bill.compile_limit),
        ("process domain at least", domain.low if domain else None),
        ("process domain at most", domain.high if domain else None),
        ("process domain budget", budget),
        ("largest VTCM of the SoC", vtcm),
        ("peak memory of the compiling process", bill.host_ram),
    ]
    comparisons = []
    if bill.compile_estimate is not None and bill.compile_limit is not None:
        size = bill.compile_estimate.value
        limit = bill.compile_limit.value
        comparisons.append(Comparison("compile", (("estimate", size),), size, size, limit))
    if domain is not None:
        made_of = tuple((name, part.value) for name, part in bill.named_parts if part is not None)
        low, high = domain.low.value, domain.high.value
        comparisons.append(Comparison("process domain", made_of, low, high, budget.value))
    if bill.vtcm is not None and vtcm is not None:
        used = bill.vtcm.value
        comparisons.append(Comparison("VTCM", (("a graph", used),), used, used, vtcm.value))
    return ModelFacts(
        tuple((name, part) for name, part in named if part is not None), tuple(comparisons)
    )


def _of_soc(soc: Soc) -> ModelFacts:
    from qnnmem.targets.socs import limits_of

    return ModelFacts(limits_of(soc))


def _of_plan(path: Path, options: CompileOptions | None) -> ModelFacts:
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.loader import load
    from qnnmem.planner import plan_model

    given = options or CompileOptions()
    model = load(path, dims=given.dims, shapes=given.shapes, values=given.values)
    return of_plan(plan_model(model, time_limit=1.0))


def of_plan(plan: MemoryPlan) -> ModelFacts:
    """Return the facts that a memory plan for LPAI contains."""
    from qnnmem.planner import Pool
    from qnnmem.planner.model_plan import judge_plan

    parts = tuple(
        (pool.value, Sourced(plan.pool_bytes(pool), Origin.COMPUTED, _PLANNED)) for pool in Pool
    )
    tcm = judge_plan(plan)
    if tcm is None:
        return ModelFacts(parts)
    io = sum(size for _, size in plan.io_sizes)
    made_of = (("constants", int(plan.constant_bytes)), ("IO", int(io)))
    compared = Comparison("TCM", made_of, tcm.need, tcm.need, tcm.limit.value)
    return ModelFacts((*parts, ("TCM pool", tcm.limit)), (compared,))
