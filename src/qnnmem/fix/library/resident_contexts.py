"""Contexts that stay loaded next to a model, and the remedy that frees some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qnnmem.errors import CannotTell, LoadError, NotCompiled
from qnnmem.fix.library.compile_judge import MODEL, TOGETHER, CompileJudge, htp_bench
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Rounds, Step
from qnnmem.htp.bill import last_estimate
from qnnmem.htp.first_fit import best_order
from qnnmem.htp.measure import load_binaries, stored_bill
from qnnmem.htp.place import Resident, resident
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.footprint import SizeRange
from qnnmem.targets.socs import Soc
from qnnmem.text import quote


def read_resident_contexts(paths: Sequence[Path], soc: Soc, worker: Worker) -> tuple[Resident, ...]:
    """Return the resident size of each context file; a file that is given twice counts twice."""
    contexts: list[Resident] = []
    for path in paths:
        same = paths[: len(contexts)].count(path)
        # Add a dot to names without a suffix, because such names belong to the model and its parts.
        name = str(path) if path.suffix else f"{path}."
        name = f"{name} ({same + 1})" if same else name
        contexts.append(replace(_read(path, soc, worker), name=name))
    return tuple(contexts)


def _read(path: Path, soc: Soc, worker: Worker) -> Resident:
    try:
        context = resident(str(path), stored_bill(path, soc))
    except NotCompiled as exc:
        raise LoadError(path, "is a model, not a context binary; prepare it first") from exc
    if context is None:
        raise CannotTell(f"{path} does not show how much memory it needs in a process domain")
    if path.suffix.lower() == ".onnx":  # the binary is embedded, or a file next to the model
        return context
    estimate = last_estimate(load_binaries(worker, [path], soc.model_id).log)
    if estimate is None or estimate.total is None:
        return context
    source = "the library's estimate when it loaded the context"
    total = Sourced(estimate.total, Origin.MEASURED, source)
    return replace(context, need=SizeRange(total, total))


_MOST_NAMES = 1000


@dataclass(frozen=True, slots=True)
class PlacementRemedy:
    """Remedy that changes the load order of contexts and, if needed, frees some for the model."""

    name: str = "placement"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield the best load order, then the order that frees the fewest contexts."""
        own = htp_bench(bench)
        if base.need.what != TOGETHER or base.change.parts is not None:
            return
        contexts = own.library.residents(base.change)
        order = ordered(list(contexts.values()), own.library.domain_bytes)
        yield own.judged(self._with_rounds(base.change, (order,), "another load order"))
        rounds = in_turn(own.library, contexts[MODEL])
        if rounds is None:
            own.obstacles.append("the other contexts do not fit even without the model")
            return
        freed = [quote(name) for name in rounds[0] if name not in rounds[1]]
        words = f"{', '.join(freed)} freed while the model is loaded"
        yield own.judged(self._with_rounds(base.change, rounds, words))

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's load order; the judge checks that the contexts exist."""
        return self._with_rounds(base, read_rounds(step["rounds"]), "load order as in the recipe")

    def _with_rounds(self, base: Change, rounds: Rounds, words: str) -> Change:
        step = {"rounds": [list(names) for names in rounds]}
        return base.then(self.name, words, step, rounds=rounds)


def ordered(residents: list[Resident], budget: int) -> tuple[str, ...]:
    """Return context names in the load order that needs the fewest process domains."""
    best = best_order([resident.size for resident in residents], budget)
    return tuple(residents[index].name for index in best.order)


def in_turn(judge: CompileJudge, model: Resident) -> Rounds | None:
    """Return two load rounds: all other contexts, then the model and as many contexts as fit.

    Return None if the other contexts do not fit together, or if the model alone does not fit.
    """
    budget, others = judge.domain_bytes, sorted(judge.others, key=lambda context: context.size)
    if not best_order([context.size for context in others], budget).fits:
        return None
    for count in range(len(others) - 1, -1, -1):  # drop the largest contexts first
        beside = [*others[:count], model]
        if best_order([context.size for context in beside], budget).fits:
            return ordered(list(judge.others), budget), ordered(beside, budget)
    return None


def read_rounds(value: object) -> Rounds:
    """Read load rounds from a recipe; raise ValueError if the rounds are malformed."""
    if not isinstance(value, list) or not all(isinstance(names, list) for names in value):
        raise ValueError("rounds must be lists of names")
    rounds = tuple(map(tuple, value))
    names = [name for names in rounds for name in names]
    if len(names) > _MOST_NAMES or not all(isinstance(name, str) for name in names):
        raise ValueError("rounds must be lists of names")
    return rounds
