"""`qnnmem place`: which context binaries can be resident together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import result_options, takes, verbose_option
from qnnmem.options.place import PlaceOptions

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.htp.place import Resident
    from qnnmem.results.place import Admission, PlaceResult
    from qnnmem.targets.socs import Soc


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@takes(PlaceOptions)
@verbose_option
@result_options("qnnmem.place/1")
def place(
    files: tuple[str, ...],
    options: PlaceOptions,
    verbose: bool,
    as_json: bool,
    output: str | None,
    force: bool,
) -> int:
    """Say whether the context binaries FILE can be loaded together, in this order.

    A context goes to the first process domain with room. The same file may be named more than once;
    a pattern or a folder stands for the context binaries in it, in the order of their names.

    Exit codes: 0 all fit, 1 they do not, 2 bad usage or unreadable input, 3 cannot tell.
    """
    from pathlib import Path

    from msgspec.structs import replace

    from qnnmem.cli.files import named_files
    from qnnmem.cli.output import check_free, say_verdict, write
    from qnnmem.errors import UsageError
    from qnnmem.htp.place import exact, plan_residency
    from qnnmem.provenance import Origin, Sourced
    from qnnmem.report.place import verdict
    from qnnmem.targets.socs import find_soc, pd_budget

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)
    if options.verify and options.budget is not None:
        raise UsageError("--verify asks the library, which has a budget of its own; leave --budget")
    chosen = None if options.soc is None else find_soc(options.soc)
    given = options.budget
    room = pd_budget() if given is None else Sourced(given, Origin.GIVEN, "--budget")
    found = named_files(files, _is_context, "HTP context", each_once=False)
    say_verdict("\n".join(found.left_out))
    paths = [Path(file) for file in found.files]
    residents, model_id = _residents(paths, chosen)
    checked: tuple[Admission, ...] | None = None
    if options.verify:
        checked = _verify(paths, residents, room.value, model_id)
        residents = exact(residents, checked)
    answer = replace(plan_residency(residents, room), verified=checked)
    text = _render(answer, as_json, verbose)
    write(text, target, force, verdict(answer))
    wrong = checked is not None and not all(one.agrees for one in checked)
    return 3 if answer.fits is None or wrong else 0 if answer.fits else 1


def _is_context(path: Path) -> bool:
    """Whether a file in a folder is a context binary of HTP, or a model that holds one."""
    from qnnmem.loader.file_kind import is_kind, kinds_for

    return is_kind(path, kinds_for("place"))


def _residents(paths: Sequence[Path], soc: Soc | None) -> tuple[tuple[Resident, ...], int | None]:
    """What placing needs of each file, and the SoC that all are for."""
    from qnnmem.errors import CannotTell, NotCompiled
    from qnnmem.htp.binary.read import read_context
    from qnnmem.htp.measure import stored_bill
    from qnnmem.htp.place import resident
    from qnnmem.loader.file_kind import KINDS, check_kind, kinds_for, wrong_kind

    found, models = [], set()
    for path in paths:
        # A context may stand far behind other nodes of a model: only reading it tells.
        check_kind(path, "place", takes=(*kinds_for("place"), "onnx"))
        try:
            context = read_context(path)
        except NotCompiled as exc:
            raise wrong_kind(path, KINDS["onnx"], "which qnnmem place does not read") from exc
        one = resident(str(path), stored_bill(path, soc, context))
        if one is None:
            raise CannotTell(f"{path} does not hold the sizes that its process domain needs")
        found.append(one)
        models.add(context.soc_model)
    model_id = soc.model_id if soc else models.pop() if len(models) == 1 else None
    return tuple(found), model_id


def _verify(
    paths: Sequence[Path], residents: tuple[Resident, ...], budget: int, model_id: int | None
) -> tuple[Admission, ...]:
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.errors import UsageError
    from qnnmem.htp.library import library_or
    from qnnmem.htp.place import admissions
    from qnnmem.htp.worker import Worker

    if model_id is None:
        raise UsageError("the files are not all for one SoC; say which to load them for with --soc")
    if any(path.suffix.lower() == ".onnx" for path in paths):
        raise UsageError("--verify is for context binaries themselves, not for models of them")
    library = library_or("without --verify the plan comes from the files themselves")
    with Worker(library=library) as worker, ProgressBar(f"loading {len(paths)} contexts"):
        return admissions(paths, residents, budget, model_id, worker)


def _render(answer: PlaceResult, as_json: bool, verbose: bool) -> str:
    from qnnmem.report.place import render_text
    from qnnmem.results.schema import encode

    return encode(answer) if as_json else render_text(answer, verbose=verbose)
