"""`qnnmem prepare --backend htp`: from a model file to a real context binary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import MissingSoc, UsageError

if TYPE_CHECKING:
    from qnnmem.htp.compile import Compiled, CompileOptions
    from qnnmem.htp.worker import Worker
    from qnnmem.options.prepare import PreparationOptions
    from qnnmem.targets.socs import Soc


def prepare_htp(
    files: tuple[str, ...],
    output: str,
    wanted: PreparationOptions,
    *,
    force: bool,
    as_json: bool = False,
    worker: Worker | None = None,
) -> int:
    """Compile one model for one SoC with the real library, and bill it as `footprint` does.

    Exit code 1 when the library refuses the model, 3 when outputs of it are not in the binary.
    """
    if len(files) != 1:
        raise UsageError(f"--backend htp compiles one file at a time, {len(files)} given")
    # Nodes on the CPU are in the EPContext model alone.
    epcontext = wanted.epcontext or wanted.partition
    model = Path(files[0])
    if wanted.soc is None:
        raise _missing_soc(model, epcontext=epcontext, trust=wanted.trust)
    from qnnmem.cli.output import check_free
    from qnnmem.htp.compile import CompileOptions, HtpPrecision
    from qnnmem.htp.worker import TIME_LIMIT_S
    from qnnmem.targets.socs import find_soc

    target, kept = Path(output), None if wanted.log_file is None else Path(wanted.log_file)
    beside = epcontext_path(target) if epcontext else None
    for path in filter(None, (target, beside, kept)):
        check_free(path, force)
    library = _is_library(model, epcontext=epcontext, trust=wanted.trust)
    options = CompileOptions(
        precision=HtpPrecision(wanted.precision or "fp16"),
        vtcm_mb=wanted.vtcm_mb,
        opt_level=wanted.opt_level,
        memhandle=wanted.io_mem_type == "memhandle",
        partition=wanted.partition,
        trust=library,
        calibration=None if wanted.calibration is None else Path(wanted.calibration),
        seed=wanted.seed,
        log_file=kept,
        time_limit_s=TIME_LIMIT_S if wanted.time_limit is None else wanted.time_limit,
        memory_limit=wanted.memory_limit,
        **wanted.sizes,
    )
    return _prepare(files[0], find_soc(wanted.soc), options, target, beside, force, as_json, worker)


def _missing_soc(path: Path, *, epcontext: bool, trust: bool) -> MissingSoc:
    """The error about a SoC; another one for a file that no SoC would help."""
    if path.exists():
        _is_library(path, epcontext=epcontext, trust=trust)
    return MissingSoc(path)


def _is_library(path: Path, *, epcontext: bool, trust: bool) -> bool:
    """Whether native code composes the graphs; refuses what is no model."""
    from qnnmem.loader.file_kind import check_kind, is_library, kind_of_file

    if is_library(path, trust=trust):
        if epcontext:
            raise UsageError(f"{path} is a model library; --epcontext is for ONNX models")
        return True
    takes = ("onnx", "dlc")
    check_kind(path, "prepare", takes=takes, said="qnnmem prepare --backend htp")
    if epcontext and kind_of_file(path).name == "dlc":
        raise UsageError(f"{path} is a DLC; --epcontext is for ONNX models")
    return False


def _prepare(
    file: str,
    soc: Soc,
    options: CompileOptions,
    target: Path,
    epcontext: Path | None,
    force: bool,
    as_json: bool,
    worker: Worker | None,
) -> int:
    from tempfile import TemporaryDirectory

    from msgspec.structs import replace

    from qnnmem.cli.output import write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.cli.recorded_args import verb_call
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.htp.measure import measure, prepared_context
    from qnnmem.report.bill import render_prepared
    from qnnmem.results.schema import encode
    from qnnmem.verbs.compiler import need_compiler
    from qnnmem.verbs.refusal import failure_code, say_failure

    progress = ProgressBar("preparing")
    call = verb_call(progress)
    if worker is None:
        need_compiler(Path(file), (soc,), options, call)
    with TemporaryDirectory(".qnnmem", dir=target.parent) as name, progress as bar:
        made = measure(
            Path(file),
            soc,
            options,
            output=Path(name, target.name),
            name_weights=True,
            worker=worker,
            progress=bar.say,
            try_cures=True,
        )
        if not isinstance(made, CompileFailure):
            _place(made.compiled, Path(name), target, epcontext, force)
    if isinstance(made, CompileFailure):
        write(say_failure(made, "binary", call.flags, as_json=as_json), None, force)
        return failure_code(made)
    bill, written = (
        replace(made.bill, file=file),
        prepared_context(made.compiled, target, epcontext),
    )
    if as_json:
        text = encode(replace(bill, prepared=written))
    else:
        graphs = made.compiled.context.graphs
        types = {tensor.mem_type.name.lower() for graph in graphs for tensor in graph.tensors}
        text = render_prepared(bill, written, sorted(types))
    write(text, None, force)
    # With --partition a part is what was asked for.
    return 3 if made.bill.missing_outputs and not options.partition else 0


def epcontext_path(binary: Path) -> Path:
    """Where the EPContext model of a binary goes: `out.bin` has `out_ctx.onnx` beside it."""
    return binary.with_name(f"{binary.stem}_ctx.onnx")


def _place(
    result: Compiled, scratch: Path, target: Path, epcontext: Path | None, force: bool
) -> None:
    """The binary and the model beside it get their names, both or none."""
    from qnnmem.atomic_file import put_together, write_whole
    from qnnmem.htp.compile.compiled import rename_binary

    new = {target: scratch / target.name}
    if epcontext is not None and result.epcontext is not None:
        new[epcontext] = scratch / epcontext.name
        named = rename_binary(result.epcontext, result.binary_name, target.name)
        write_whole(new[epcontext], named)
    put_together(new, force=force)
