"""Verb `place`: check which context binaries can be resident together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from qnnmem.errors import CannotTell, NotCompiled, UsageError
from qnnmem.htp.bill import UNJUDGED
from qnnmem.htp.binary.read import binary_at
from qnnmem.htp.carriers import is_carrier
from qnnmem.htp.carriers.carrier_bill import binaries_of
from qnnmem.htp.library import library_or
from qnnmem.htp.measure import stored_bill
from qnnmem.htp.place import admissions, exact, plan_residency, residents_of
from qnnmem.htp.worker import Worker
from qnnmem.loader.file_kind import KINDS, check_kind, kinds_for, wrong_kind
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import find_soc, pd_budget

if TYPE_CHECKING:
    from qnnmem.htp.place import Resident
    from qnnmem.options.htp import PlaceOptions
    from qnnmem.results.place import Admission, PlaceResult
    from qnnmem.results.together import TogetherResult
    from qnnmem.targets.socs import Soc
    from qnnmem.verbs import ProgressListener


def place_files(
    paths: Sequence[Path], options: PlaceOptions, listener: ProgressListener
) -> PlaceResult:
    """Place context binaries in process domains, in this order."""
    budget = options.budget
    soc = None if options.soc is None else find_soc(options.soc)
    room = pd_budget() if budget is None else Sourced(budget, Origin.GIVEN, "--budget")
    residents, model_id, unjudged = _residents(paths, soc)
    checked: tuple[Admission, ...] | None = None
    if options.verify:
        listener.say(f"loading {len(paths)} contexts")
        checked = _verify(paths, residents, room.value, model_id)
        residents = exact(residents, checked)
    return replace(plan_residency(residents, room, unjudged), verified=checked)


def arrange_binaries(paths: Sequence[Path], options: PlaceOptions) -> TogetherResult:
    """Arrange the graphs of LPAI binaries in one scratch, one persistent and one TCM pool."""
    from qnnmem.lpai.binary import read_binary
    from qnnmem.lpai.tcm import judge_binaries
    from qnnmem.planner.together import SharingModel, checked_names, share_pools

    foreign = {"--soc": options.soc, "--budget": options.budget, "--verify": options.verify or None}
    for name in (name for name, value in foreign.items() if value is not None):
        raise UsageError(f"{name} is for contexts of HTP, not for binaries of LPAI")
    read = [read_binary(path) for path in paths]
    graphs = [
        (path, graph)
        for path, (context, _) in zip(paths, read, strict=True)
        for graph in context.graphs
    ]
    names = [graph.name for _, graph in graphs]
    if len(set(names)) < len(names):
        names = [f"{path.stem}/{graph.name}" for path, graph in graphs]
    models = [
        SharingModel(
            name,
            *(graph.scratch_bytes, graph.persistent_bytes, graph.io_bytes),
            sum(constant.size for constant in graph.constants),
            int(graph.align),
        )
        for name, (_, graph) in zip(checked_names(names), graphs, strict=True)
    ]
    sizes = [(path.name, size) for path, (_, size) in zip(paths, read, strict=True)]
    tcm = judge_binaries(sizes, [graph for _, graph in graphs])
    arranged = share_pools(models, options.concurrent, tcm)
    constants = sum(len(context.constants) for context, _ in read)
    code = 0 if tcm.fits else 1
    return replace(arranged, constant_bytes=constants, fits=tcm.fits, exit_code=code)


def place_exit_code(answer: PlaceResult) -> int:
    """Return the exit code: 0 if all contexts fit, 1 if not, 3 if undecided.

    The exit code is also 3 if a decision of the library differs from the prediction.
    """
    wrong = answer.verified is not None and not all(check.agrees for check in answer.verified)
    return 3 if answer.fits is None or wrong else 0 if answer.fits else 1


def _residents(
    paths: Sequence[Path], soc: Soc | None
) -> tuple[tuple[Resident, ...], int | None, tuple[str, ...]]:
    """Return the contexts in the files, their common SoC, and sentences about unjudged files.

    A binary named by several models counts as one context.
    """
    residents: list[Resident] = []
    models: set[int | None] = set()
    unjudged: list[str] = []
    named: dict[object, Path] = {}
    for path in paths:
        # Accept every ONNX model at first: only reading the whole file finds its context node.
        check_kind(path, "place", takes=(*kinds_for("place"), "onnx"))
        try:
            place = path if is_carrier(path) else binary_at(path)
            bill = stored_bill(path, soc)
        except NotCompiled as exc:
            raise wrong_kind(path, KINDS["onnx"], "which qnnmem place does not read") from exc
        if named.setdefault(place, path) != path:
            continue
        contexts = residents_of(str(path), bill)
        if contexts is None:
            raise CannotTell(f"{path} does not show how much memory it needs in a process domain")
        residents += contexts
        models.add(bill.made_for_soc_model)
        if bill.carrier is not UNSET:
            unjudged += [f"{path}: {trap.sentence}" for trap in bill.traps if trap.id in UNJUDGED]
    model_id = soc.model_id if soc else models.pop() if len(models) == 1 else None
    return tuple(residents), model_id, tuple(unjudged)


def _verify(
    paths: Sequence[Path], residents: tuple[Resident, ...], budget: int, model_id: int | None
) -> tuple[Admission, ...]:
    if model_id is None:
        raise UsageError("the files are for different SoCs; choose one with --soc")
    if any(path.suffix.lower() == ".onnx" for path in paths):
        raise UsageError("--verify is for context binaries, not for models")
    library = library_or("without --verify, the sizes are computed from the files")
    with Worker(library=library) as worker, ExitStack() as stack:
        files = [file for path in paths for file in stack.enter_context(binaries_of(path))]
        return admissions(files, residents, budget, model_id, worker)
