"""The Qmem table of a file: a binary as it is, a model compiled first."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from qnnmem.deadline import Deadline
from qnnmem.errors import NotCompiled, Setting, UsageError, Words, chain_words
from qnnmem.htp.bill.measure import measure
from qnnmem.htp.bill.stored import compile_target, load_target, stored_bill
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import CompileFailure, CompileOptions, Progress, given_or_own
from qnnmem.htp.library import library_or, library_there
from qnnmem.htp.qmem import qmem_of
from qnnmem.htp.qmem.misuse import obstacle_to_misuse, try_misuses
from qnnmem.htp.qmem.run import obstacle, run_rows
from qnnmem.htp.worker import Worker
from qnnmem.results.qmem import IoMode, MisuseAnswer, QmemResult
from qnnmem.targets.socs import Soc
from qnnmem.text import quote

_OF_BINARY = (Setting("run"), " is for the context binary itself, not for a model of it")


class QmemTable(NamedTuple):
    """The table with what became of carrying it out, and why it cannot be carried out here."""

    result: QmemResult
    no_run: Words = ""  # empty where the rows can be carried out, or were


def qmem_of_file(
    path: Path,
    soc: Soc | None,
    options: CompileOptions,
    *,
    run: bool = False,
    misuse: bool = False,
    worker: Worker | None = None,
    progress: Progress,
) -> QmemTable | CompileFailure:
    """The table of a binary or a model.

    `run` also carries out its rows, `misuse` makes every mistake with its first graph, and asks the
    library, too, where that is.
    """
    ends = Deadline.after(options.time_limit_s)
    try:
        context = read_context(path)
    except NotCompiled:
        target = compile_target(path, soc)
        return _of_model(path, target, options, run, misuse, worker, progress, ends)
    qmem = qmem_of(context, stored_bill(path, soc, context))
    made: tuple[MisuseAnswer, ...] = ()
    if misuse:
        made = _misuses(path, context, soc, worker, progress, ends)
    if not run:
        no_run = _no_run(path, context, soc)
        return QmemTable(structs.replace(qmem, misuses=made), no_run)
    if path.suffix.lower() == ".onnx":
        raise UsageError(chain_words(f"{path}: ", _OF_BINARY))
    model_id = load_target(path, context, soc)
    if worker is None:
        library_or(("without ", Setting("run"), " the table comes from the file itself"))
    with given_or_own(worker) as used:
        both = {IoMode.RAW: path, IoMode.MEMHANDLE: path}
        ran = run_rows(both, model_id, worker=used, deadline=ends, progress=progress)
    return QmemTable(structs.replace(qmem, run=ran, misuses=made))


def _misuses(
    path: Path,
    context: HtpContext,
    soc: Soc | None,
    worker: Worker | None,
    progress: Progress,
    ends: Deadline,
) -> tuple[MisuseAnswer, ...]:
    if path.suffix.lower() == ".onnx":
        itself = (Setting("misuse"), " is for the context binary itself, not for a model of it")
        raise UsageError(chain_words(f"{path}: ", itself))
    graph = context.graphs[0]
    if why := obstacle_to_misuse(graph):
        what = (f"graph {quote(graph.name)} {why}; ", Setting("misuse"), " needs another")
        raise UsageError(chain_words(f"{path}: ", what))
    target = context.soc_model if soc is None else soc.model_id
    if worker is None and (target is None or not library_there()):
        return try_misuses(path, graph, None, progress=progress)
    with given_or_own(worker) as used:
        return try_misuses(path, graph, target, worker=used, deadline=ends, progress=progress)


def _no_run(path: Path, context: HtpContext, soc: Soc | None) -> Words:
    """What stands against carrying out the rows of a binary, as far as that is seen before."""
    if path.suffix.lower() == ".onnx":
        return _OF_BINARY
    if why := obstacle(context.graphs):
        return chain_words("it ", why)
    if soc is None and context.soc_model is None:
        return "the four rows are carried out for a SoC: ", Setting("soc"), " says for which"
    if not library_there():
        return Setting("run"), " carries out the four rows with the real library, on Linux x86-64"
    return ""


def is_model(path: Path) -> bool:
    """Whether the table of a file needs a compile first."""
    try:
        read_context(path)
    except NotCompiled:
        return True
    return False


def _of_model(
    path: Path,
    soc: Soc,
    options: CompileOptions,
    run: bool,
    misuse: bool,
    worker: Worker | None,
    progress: Progress,
    ends: Deadline,
) -> QmemTable | CompileFailure:
    with given_or_own(worker) as used, tempfile.TemporaryDirectory(".qnnmem") as folder:
        binaries = {}
        for mode in IoMode if run else (IoMode.RAW,):
            binary = binaries[mode] = Path(folder, f"{mode.value}.bin")
            wanted = replace(options, memhandle=mode is IoMode.MEMHANDLE)
            made = measure(
                *(path, soc, wanted),
                output=binary,
                worker=used,
                progress=progress,
                deadline=ends,
                try_cures=True,
            )
            if isinstance(made, CompileFailure):
                return made
            if mode is IoMode.RAW:
                qmem = qmem_of(made.compiled.context, made.bill)
        ran = None
        mistakes: tuple[MisuseAnswer, ...] = ()
        if misuse:
            binary = binaries[IoMode.RAW]
            mistakes = _misuses(binary, read_context(binary), soc, used, progress, ends)
        if run:
            ran = run_rows(binaries, soc.model_id, worker=used, deadline=ends, progress=progress)
    return QmemTable(structs.replace(qmem, compiled=True, run=ran, misuses=mistakes))
