"""`footprint`: the bill of a context binary, or of a model that is compiled first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from qnnmem.htp.compile import CompileFailure, CompileOptions
    from qnnmem.options.htp import FootprintOptions
    from qnnmem.results.footprint import Bill
    from qnnmem.targets.socs import Soc
    from qnnmem.verbs.listener import VerbCall


class FileBill(NamedTuple):
    """What a file costs, and how that was found."""

    bill: Bill | CompileFailure
    is_compiled: bool = False
    is_kept: bool = False  # from an earlier run


def bill_file(path: Path, options: FootprintOptions, call: VerbCall) -> FileBill:
    """Return the bill of a file, or why the library made none."""
    from qnnmem.htp.compile.compiled import compile_options
    from qnnmem.loader.file_kind import check_kind
    from qnnmem.targets.socs import find_soc

    check_kind(path, "footprint")
    soc = None if options.soc is None else find_soc(options.soc)
    stored = _stored_bill(path, soc, options.load, options.time_limit)
    if stored is not None:
        return FileBill(stored)
    folder = None if options.cache is None else Path(options.cache)
    made, is_kept = _compiled_bill(path, soc, compile_options(options), folder, call)
    return FileBill(made, True, is_kept)


def bill_exit_code(bill: Bill) -> int:
    """Return 3 where a size or an output is missing."""
    return 0 if bill.total is not None and not bill.missing_outputs else 3


def _stored_bill(path: Path, soc: Soc | None, load: bool, time_limit: float) -> Bill | None:
    """The bill of a context binary; None for a model that has to be compiled first."""
    from qnnmem.errors import NotCompiled
    from qnnmem.htp.measure import stored_bill

    try:
        bill = stored_bill(path, soc)
    except NotCompiled:
        return None
    if not load:
        return bill
    from qnnmem.htp.measure import bill_of_loaded

    return bill_of_loaded(path, soc, time_limit)


def _compiled_bill(
    path: Path, soc: Soc | None, options: CompileOptions, folder: Path | None, call: VerbCall
) -> tuple[Bill | CompileFailure, bool]:
    """The bill of a model, or why the library made none; and whether it was kept."""
    from qnnmem.htp.kept import KeptAnswers
    from qnnmem.htp.measure import MeasuredModel, compile_target, measure
    from qnnmem.results.footprint import Bill
    from qnnmem.verbs.compiler import need_compiler

    target = compile_target(path, soc)
    library = need_compiler(path, (target,), options, call)
    answers = KeptAnswers(Bill, path, library.name, "footprint", folder)
    key = answers.key(target, options)
    kept = answers.get(key)
    if kept is not None:
        return kept, True
    call.listener.say(f"compiling {path.name}")
    made = measure(
        path, target, options, name_weights=True, progress=call.listener.say, try_cures=True
    )
    if not isinstance(made, MeasuredModel):
        return made, False
    if not made.no_estimate:  # another run may load it
        answers.put(key, made.bill)
    return made.bill, False
