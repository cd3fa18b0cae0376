"""`qnnmem prepare --backend htp`: from a model file to a real context binary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qnnmem.errors import UsageError
from qnnmem.text import printable
from qnnmem.units import Bytes, format_size, parse_size

if TYPE_CHECKING:
    from qnnmem.htp.compile import Compiled, CompileFailure

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
        help="htp: leave nodes that QNN cannot take to the CPU and compile the rest.",
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
    calibration: str | None = None,
    seed: int = 0,
    time_limit: float = 600.0,
) -> int:
    """Compile one model for one SoC with the real library; exit code 1 when it is refused."""
    from qnnmem.cli.output import check_free
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.htp.compile import Compiled, CompileOptions, HtpPrecision, compile_model
    from qnnmem.targets.socs import find_soc

    if len(files) != 1:
        raise UsageError(f"--backend htp compiles one file at a time, {len(files)} given")
    if soc is None:
        raise UsageError("--backend htp needs --soc, e.g. --soc SM8650; the binary depends on it")
    target, extra = Path(output), epcontext_path(Path(output))
    for path in (target, extra) if epcontext else (target,):
        check_free(path, force)
    options = CompileOptions(
        precision=HtpPrecision(precision or "fp16"),
        vtcm_mb=vtcm_mb,
        opt_level=opt_level,
        memhandle=io_mem_type == "memhandle",
        partition=partition,
        dims=dict(dims),
        shapes=dict(shapes),
        calibration=None if calibration is None else Path(calibration),
        seed=seed,
        log_file=None if log_file is None else Path(log_file),
        time_limit_s=time_limit,
        memory_limit=memory_limit,
    )
    with ProgressBar("preparing") as bar:
        result = compile_model(
            Path(files[0]), find_soc(soc), options, output=target, progress=bar.say
        )
    if not isinstance(result, Compiled):
        click.echo("\n".join(_failed(result)))
        return 1
    if epcontext:
        _write_epcontext(result, target, extra)
    click.echo("\n".join(_made(result, target, extra if epcontext else None)))
    return 0


def epcontext_path(binary: Path) -> Path:
    """Where the EPContext model of a binary goes: `out.bin` has `out_ctx.onnx` beside it."""
    return binary.with_name(f"{binary.stem}_ctx.onnx")


def _write_epcontext(result: Compiled, target: Path, extra: Path) -> None:
    from qnnmem.htp.compile.epcontext import rename_binary
    from qnnmem.whole_file import write_whole

    write_whole(extra, rename_binary(result.epcontext, result.binary_name, target.name))


def _made(result: Compiled, target: Path, extra: Path | None) -> Iterator[str]:
    context, soc, log = result.context, result.soc, result.log
    size = context.file_bytes
    yield f"{target}: {size:,} bytes for {soc.name}, compiled by {result.library}"
    for graph in context.graphs:
        parts = (
            *(("weights", graph.const), ("IO", graph.io), ("op data", graph.op_data)),
            *(("DDR tensors", graph.ddr_tensors), ("spill/fill", graph.spill_fill)),
        )
        shown = ", ".join(f"{name} {value:,}" for name, value in parts if value is not None)
        yield f"  graph {graph.name}: {shown}"
    hints = sorted({t.mem_type.name.lower() for g in context.graphs for t in g.inputs + g.outputs})
    yield f"  IO memory type in the file: {', '.join(hints)}"
    if log.read_total is not None and log.write_total is not None:
        yield f"  DDR per inference: {log.read_total:,} read, {log.write_total:,} written"
    peak = result.outcome.peak_rss
    if peak is not None:
        yield f"  host memory to compile: {format_size(peak)} in {result.outcome.seconds:.1f} s"
    for node in result.on_cpu:
        yield f"  on the CPU: {printable(node.name)} ({node.operator})"
    for note in result.notes:
        yield f"  note: {note}"
    if extra is not None:
        yield f"  for ONNX Runtime: {extra}"
    yield f"Next: qnnmem footprint {target} --soc {soc.name}"


def _failed(result: CompileFailure) -> Iterator[str]:
    yield f"No binary: {result.sentence}"
    for node in result.unsupported:
        yield f"  not for QNN: {printable(node.name)} ({node.operator})"
    if result.code is not None:
        from qnnmem.qnn.codes import code_name

        yield f"  code {result.code}, {code_name(result.code)}"
    if result.refusal is not None:
        yield f"  decisive line: {printable(result.refusal.line)}"
    if result.outcome.kind == "crashed":
        for line in result.outcome.tail[-5:]:
            yield f"  log: {printable(line)}"
