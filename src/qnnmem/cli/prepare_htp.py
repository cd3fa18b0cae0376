"""`qnnmem prepare --backend htp`: from a model file to a real context binary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qnnmem.errors import MissingSoc, UsageError
from qnnmem.units import Bytes, parse_size

if TYPE_CHECKING:
    from qnnmem.htp.compile import Compiled, CompileOptions
    from qnnmem.htp.worker import Worker
    from qnnmem.loader.onnx.inputs import InputValue
    from qnnmem.targets.socs import Soc

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--soc", metavar="SOC", help="htp: SoC by name or id, e.g. SM8650."),
    click.option(
        "--precision",
        type=click.Choice(["fp16", "int8", "w8a16"]),
        help="htp: what floats become; int8 and w8a16 quantize on the way.  [default: fp16]",
    ),
    click.option(
        "--vtcm-mb",
        type=click.IntRange(1, 64),
        metavar="N",
        help="htp: VTCM of the graph in MiB.  [default: all that the SoC has]",
    ),
    click.option(
        "--opt-level",
        type=click.IntRange(1, 3),
        metavar="N",
        help="htp: optimisation level 1 to 3.  [default: the library's own]",
    ),
    click.option(
        "--io-mem-type",
        type=click.Choice(["raw", "memhandle"]),
        help="htp: the Qmem hint that inputs and outputs carry.  [default: raw]",
    ),
    click.option(
        "--epcontext",
        is_flag=True,
        help="htp: write the EPContext model for ONNX Runtime beside the binary.",
    ),
    click.option(
        "--partition",
        is_flag=True,
        help="htp: leave nodes that QNN cannot take to the CPU, compile the rest, run both once.",
    ),
    click.option(
        "--memory-limit",
        type=parse_size,
        metavar="SIZE",
        help="htp: address space of the compiler.  [default: 3/4 of the machine]",
    ),
    click.option(
        "--log-file",
        type=click.Path(),
        metavar="FILE",
        help="htp: keep the library's whole log, up to 256 MiB.",
    ),
)
# Names of the options above that only mean something here.
HTP_ONLY = (
    *("soc", "precision", "vtcm_mb", "opt_level", "io_mem_type", "epcontext", "partition"),
    *("memory_limit", "log_file"),
)


def htp_options(command: F) -> F:
    """The options of `qnnmem prepare` that belong to HTP."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def prepare_htp(
    files: tuple[str, ...],
    output: str,
    *,
    force: bool,
    soc: str | None,
    precision: str | None = None,
    vtcm_mb: int | None = None,
    opt_level: int | None = None,
    io_mem_type: str | None = None,
    epcontext: bool = False,
    partition: bool = False,
    memory_limit: Bytes | None = None,
    log_file: str | None = None,
    dims: tuple[tuple[str, int], ...] = (),
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = (),
    values: tuple[tuple[str, InputValue], ...] = (),
    calibration: str | None = None,
    seed: int = 0,
    trust: bool = False,
    time_limit: float = 600.0,
    as_json: bool = False,
    worker: Worker | None = None,
) -> int:
    """Compile one model for one SoC with the real library, and bill it as `footprint` does.

    Exit code 1 when the library refuses the model, 3 when outputs of it are not in the binary.
    """
    if len(files) != 1:
        raise UsageError(f"--backend htp compiles one file at a time, {len(files)} given")
    epcontext = epcontext or partition  # nodes on the CPU are in the EPContext model alone
    model = Path(files[0])
    if soc is None:
        raise _missing_soc(model, epcontext=epcontext, trust=trust)
    from qnnmem.cli.output import check_free
    from qnnmem.htp.compile import CompileOptions, HtpPrecision
    from qnnmem.targets.socs import find_soc

    target, kept = Path(output), None if log_file is None else Path(log_file)
    beside = epcontext_path(target) if epcontext else None
    for path in filter(None, (target, beside, kept)):
        check_free(path, force)
    library = _is_library(model, epcontext=epcontext, trust=trust)
    options = CompileOptions(
        precision=HtpPrecision(precision or "fp16"),
        vtcm_mb=vtcm_mb,
        opt_level=opt_level,
        memhandle=io_mem_type == "memhandle",
        partition=partition,
        trust=library,
        dims=dict(dims),
        shapes=dict(shapes),
        values=dict(values),
        calibration=None if calibration is None else Path(calibration),
        seed=seed,
        log_file=kept,
        time_limit_s=time_limit,
        memory_limit=memory_limit,
    )
    return _prepare(files[0], find_soc(soc), options, target, beside, force, as_json, worker)


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

    from qnnmem.cli.compiler import need_compiler
    from qnnmem.cli.output import write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.cli.refusal import failure_code, say_failure
    from qnnmem.htp.bill.measure import measure
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.report import compiled as report
    from qnnmem.results.result import TOOL

    if worker is None:
        need_compiler(Path(file), (soc,), options)
    with TemporaryDirectory(".qnnmem", dir=target.parent) as name, ProgressBar("preparing") as bar:
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
        write(say_failure(made, "binary", as_json=as_json), None, force)
        return failure_code(made)
    if as_json:
        text = report.render_json(made, file, target, TOOL, epcontext)
    else:
        text = report.render_text(made, file, target, epcontext)
    write(text, None, force)
    # With --partition a part is what was asked for.
    return 3 if made.bill.missing is not None and not options.partition else 0


def epcontext_path(binary: Path) -> Path:
    """Where the EPContext model of a binary goes: `out.bin` has `out_ctx.onnx` beside it."""
    return binary.with_name(f"{binary.stem}_ctx.onnx")


def _place(
    result: Compiled, scratch: Path, target: Path, epcontext: Path | None, force: bool
) -> None:
    """The binary and the model beside it get their names, both or none."""
    from qnnmem.atomic_file import put_together, write_whole
    from qnnmem.htp.compile.epcontext import rename_binary

    new = {target: scratch / target.name}
    if epcontext is not None and result.epcontext is not None:
        new[epcontext] = scratch / epcontext.name
        named = rename_binary(result.epcontext, result.binary_name, target.name)
        write_whole(new[epcontext], named)
    put_together(new, force=force)
