"""`qmem`: raw and memhandle inputs and outputs of a file, with its own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.htp.compile import CompileFailure
    from qnnmem.htp.qmem.table import QmemTable
    from qnnmem.options.htp import QmemOptions
    from qnnmem.verbs.listener import VerbCall


def compare_io(path: Path, options: QmemOptions, call: VerbCall) -> QmemTable | CompileFailure:
    """Return what each way to pass inputs and outputs costs; a model is compiled first."""
    from qnnmem.htp.compile.compiled import compile_options
    from qnnmem.htp.qmem.table import is_model, qmem_of_file
    from qnnmem.loader.file_kind import check_kind
    from qnnmem.targets.socs import find_soc
    from qnnmem.verbs.compiler import need_compiler

    check_kind(path, "qmem")
    soc = None if options.soc is None else find_soc(options.soc)
    wanted = compile_options(options)
    if soc is not None and is_model(path):
        need_compiler(path, (soc,), wanted, call)
    return qmem_of_file(
        path, soc, wanted, run=options.run, misuse=options.misuse, progress=call.listener.say
    )


def qmem_exit_code(table: QmemTable) -> int:
    """Return 1 where the rows that were carried out differ."""
    run = table.result.run
    return 0 if run is None or run.agrees else 1
