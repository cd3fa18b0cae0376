"""Verbs `footprint` and `qmem`: the memory of a context binary, or of a compiled model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from qnnmem.errors import NotCompiled
from qnnmem.loader.file_kind import check_kind
from qnnmem.results.footprint import Bill

if TYPE_CHECKING:
    from qnnmem.htp.compile import CompileFailure, CompileOptions
    from qnnmem.htp.qmem.table import QmemTable
    from qnnmem.options.htp import FootprintOptions, QmemOptions
    from qnnmem.targets.socs import Soc
    from qnnmem.verbs import VerbCall


class FileBill(NamedTuple):
    """Bill of a file; `is_compiled` is true if the file was a model that had to be compiled."""

    bill: Bill
    is_compiled: bool


def bill_file(file: str, options: FootprintOptions, call: VerbCall) -> FileBill | CompileFailure:
    """Return the bill of a file, or the reason why the library refused the model."""
    from qnnmem.verbs.compiler import need_soc

    path = Path(file)
    need_soc(path, options.soc)

    from qnnmem.htp.compile import CompileFailure
    from qnnmem.htp.compile.compiled import compile_options
    from qnnmem.targets.socs import find_soc

    check_kind(path, "footprint")
    soc = None if options.soc is None else find_soc(options.soc)
    stored = _stored_bill(path, soc, options.load, options.time_limit)
    if stored is not None:
        return FileBill(replace(stored, file=file, from_cache=False), is_compiled=False)
    folder = None if options.cache is None else Path(options.cache)
    bill, is_kept = compiled_bill(path, soc, compile_options(options), folder, call)
    if isinstance(bill, CompileFailure):
        return bill
    return FileBill(replace(bill, file=file, from_cache=is_kept), is_compiled=True)


def bill_exit_code(bill: Bill) -> int:
    """Return the exit code: 3 if a size or an output is missing, else 0."""
    return 0 if bill.total is not None and not bill.missing_outputs else 3


def _stored_bill(path: Path, soc: Soc | None, load: bool, time_limit: float) -> Bill | None:
    """Return the bill of a context binary; None for a model that must be compiled.

    `load` adds the size of the process domain as the real library estimates it.
    """
    from qnnmem.htp.measure import stored_bill

    try:
        bill = stored_bill(path, soc)
    except NotCompiled:
        return None
    if not load:
        return bill
    from qnnmem.htp.measure import bill_of_loaded

    return bill_of_loaded(path, soc, time_limit)


def compiled_bill(
    path: Path, soc: Soc | None, options: CompileOptions, folder: Path | None, call: VerbCall
) -> tuple[Bill | CompileFailure, bool]:
    """Return a model's bill or compile failure, and whether this answer came from the cache."""
    from qnnmem.htp.compile_cache import CompileCache
    from qnnmem.htp.measure import MeasuredModel, compile_target, measure
    from qnnmem.verbs.compiler import need_compiler

    target = compile_target(path, soc)
    library = need_compiler(path, (target,), options, call)
    answers = CompileCache(Bill, path, library.name, "footprint", folder)
    key = answers.key(target, options)
    kept = answers.get(key)
    if kept is not None:
        return kept, True
    call.listener.say(f"compiling {path.name}")
    measured = measure(
        path, target, options, name_weights=True, progress=call.listener.say, try_cures=True
    )
    if not isinstance(measured, MeasuredModel):
        return measured, False
    if not measured.no_estimate:  # another run may get an estimate
        answers.put(key, measured.bill)
    return measured.bill, False


def compare_io(file: str, options: QmemOptions, call: VerbCall) -> QmemTable | CompileFailure:
    """Return the cost of each way to pass inputs and outputs; a model is compiled first."""
    from qnnmem.verbs.compiler import need_compiler, need_soc

    path = Path(file)
    need_soc(path, options.soc)

    from qnnmem.htp.compile import CompileFailure
    from qnnmem.htp.compile.compiled import compile_options
    from qnnmem.htp.qmem.table import is_model, qmem_of_file
    from qnnmem.targets.socs import find_soc

    check_kind(path, "qmem")
    soc = None if options.soc is None else find_soc(options.soc)
    wanted = compile_options(options)
    if soc is not None and is_model(path):
        need_compiler(path, (soc,), wanted, call)
    table = qmem_of_file(
        path, soc, wanted, run=options.run, misuse=options.misuse, progress=call.listener.say
    )
    if isinstance(table, CompileFailure):
        return table
    return table._replace(result=replace(table.result, file=file))


def qmem_exit_code(table: QmemTable) -> int:
    """Return the exit code: 1 if executions returned different output bytes, else 0."""
    run = table.result.run
    return 0 if run is None or run.agrees else 1
