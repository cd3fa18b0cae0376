"""The Qmem table of a file: a binary as it is, a model compiled first."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from qnnmem.errors import CannotTell, NotCompiled, UsageError
from qnnmem.htp.bill import bill_of
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import CompileFailure, CompileOptions, compile_model
from qnnmem.htp.qmem import Qmem, qmem_of
from qnnmem.htp.qmem.layer import IoMode
from qnnmem.htp.qmem.run import QmemRun, run_rows
from qnnmem.htp.worker import Worker
from qnnmem.targets.socs import Soc

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class QmemResult:
    """The table, and with it what became of carrying it out."""

    qmem: Qmem
    compiled: bool  # the file is a model that was compiled for this table
    run: QmemRun | None = None


def qmem_of_file(
    path: Path, soc: Soc | None, options: CompileOptions, *, run: bool = False, say: Say
) -> QmemResult | CompileFailure:
    """The table of a binary or a model; `run` also carries out its rows."""
    try:
        context = read_context(path)
    except NotCompiled:
        return _of_model(path, soc, options, run, say)
    qmem = qmem_of(context, bill_of(context, soc))
    if not run:
        return QmemResult(qmem, compiled=False)
    if path.suffix.lower() == ".onnx":
        raise UsageError(f"{path}: --run is for the context binary itself, not for a model of it")
    target = context.soc_model if soc is None else soc.model_id
    if target is None:
        raise CannotTell(f"{path} names no SoC; say which one is meant, e.g. --soc SM8650")
    with Worker() as worker:
        both = {IoMode.RAW: path, IoMode.MEMHANDLE: path}
        ran = run_rows(both, target, worker=worker, time_limit_s=options.time_limit_s, say=say)
    return QmemResult(qmem, compiled=False, run=ran)


def _of_model(
    path: Path, soc: Soc | None, options: CompileOptions, run: bool, say: Say
) -> QmemResult | CompileFailure:
    if soc is None:
        raise UsageError(f"{path} has to be compiled, and --soc says for what, e.g. --soc SM8650")
    with Worker(warm=True) as worker, tempfile.TemporaryDirectory(".qnnmem") as folder:
        binaries = {}
        for mode in IoMode if run else (IoMode.RAW,):
            target = binaries[mode] = Path(folder, f"{mode.value}.bin")
            wanted = replace(options, memhandle=mode is IoMode.MEMHANDLE)
            made = compile_model(path, soc, wanted, output=target, worker=worker, progress=say)
            if isinstance(made, CompileFailure):
                return made
            if mode is IoMode.RAW:
                qmem = qmem_of(made.context, bill_of(made.context, soc, made.log))
        ran = None
        if run:
            limit = options.time_limit_s
            ran = run_rows(binaries, soc.model_id, worker=worker, time_limit_s=limit, say=say)
    return QmemResult(qmem, compiled=True, run=ran)
