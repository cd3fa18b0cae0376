"""Verb `prepare`: make one context binary from models, planned for LPAI or compiled for HTP."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from qnnmem.atomic_file import check_replaceable, put_together, write_whole
from qnnmem.errors import MissingSoc, UsageError
from qnnmem.htp.carriers.pte_file import write_pte
from qnnmem.htp.compile import CompileFailure, CompileOptions, HtpPrecision
from qnnmem.htp.compile.compiled import rename_binary
from qnnmem.htp.measure import measure, prepared_context
from qnnmem.htp.worker import TIME_LIMIT_S
from qnnmem.loader.file_kind import check_kind, is_library, kind_of_file
from qnnmem.lpai.binary import write
from qnnmem.lpai.config.settings import LpaiConfig, PrepareSettings, read_lpai_config
from qnnmem.lpai.preparation import prepare, prepared_binary
from qnnmem.lpai.prepare_options import PrepareOptions
from qnnmem.lpai.tcm import judge_binary
from qnnmem.planner import Io
from qnnmem.report.prepare import next_commands
from qnnmem.targets.socs import find_soc
from qnnmem.units import Align
from qnnmem.verbs.compiler import need_compiler

if TYPE_CHECKING:
    from qnnmem.htp.compile import Compiled
    from qnnmem.htp.measure import MeasuredModel
    from qnnmem.htp.worker import Worker
    from qnnmem.lpai.preparation import Prepared
    from qnnmem.lpai.tcm import BinaryTcm
    from qnnmem.options.prepare import PreparationOptions
    from qnnmem.results.footprint import Bill, PreparedContext
    from qnnmem.results.prepared import PreparedBinary
    from qnnmem.verbs import ProgressListener, VerbCall

QUANTIZED: dict[str | None, Literal[8, 16] | None] = {None: None, "int8": 8, "int16": 16}  # bits


class LpaiBinary(NamedTuple):
    """Context binary written by qnnmem for LPAI, with all facts about it."""

    prepared: Prepared
    tcm: BinaryTcm
    notes: tuple[str, ...]  # about the config file
    path: Path
    size: int

    def as_result(self) -> PreparedBinary:
        """Return the JSON result."""
        path = str(self.path)
        steps = [command for _, command in next_commands(self.prepared.context, path)]
        return prepared_binary(
            self.prepared, self.tcm, path, self.size, notes=self.notes, next_steps=steps
        )


def prepare_lpai(
    files: tuple[str, ...], options: PreparationOptions, listener: ProgressListener
) -> LpaiBinary:
    """Plan a graph for each file, and write the binary."""
    path = Path(options.output)
    check_replaceable(path, force=options.force)  # before the work starts
    wanted = PrepareOptions(
        states=options.states,
        rnn_state=options.rnn_state,
        align=Align(options.align),
        inplace=options.inplace,
        reorder=options.reorder,
        quantize=QUANTIZED[options.quantize],
        weight_bits=8 if options.weight_bits == 8 else 16,
        calibration=options.calibration,
        seed=options.seed,
        trust=options.trust,
        allow_float=options.allow_float,
        time_limit_s=options.time_limit,
        **options.sizes,
    )
    wanted, notes = with_config(wanted, options.config, options.io, options.hw_ver)
    if options.calibration is not None and options.quantize is None:
        raise UsageError("--calibration is for --quantize int8 or int16")
    if options.weight_bits != 8 and options.quantize is None:
        raise UsageError("--weight-bits is for --quantize int8 or int16")
    prepared = prepare(_named(files, options.names), wanted, listener.say, listener)
    size = write(prepared.context, path, force=options.force)
    return LpaiBinary(prepared, judge_binary(prepared.context, size), notes, path, size)


def _named(files: tuple[str, ...], names: tuple[str, ...]) -> dict[str, Path]:
    """Return the file of each graph, by the graph's name."""
    if names and len(names) != len(files):
        raise UsageError(
            f"{len(files)} files need {len(files)} --graph-name options, not {len(names)}"
        )
    chosen = names or tuple(Path(file).stem for file in files)
    if len(set(chosen)) < len(chosen):
        raise UsageError("two graphs have the same name; tell them apart with --graph-name")
    return dict(zip(chosen, map(Path, files), strict=True))


def with_config(
    options: PrepareOptions, config: str | None, io: str | None, hw_ver: str | None
) -> tuple[PrepareOptions, tuple[str, ...]]:
    """Return the options completed from the config file, and notes on keys without effect.

    Options that the user typed take precedence over the config file.
    """
    from dataclasses import replace

    settings = LpaiConfig() if config is None else read_lpai_config(Path(config))
    outside = settings.prepare.exclude_io
    chosen = Io(io) if io is not None else (Io.OUTSIDE if outside else Io.INSIDE)
    usual = PrepareSettings()
    notes = tuple(
        f"{key.name} in the config file has no effect on this plan"
        for key in fields(PrepareSettings)
        if key.name != "exclude_io"
        and getattr(settings.prepare, key.name) != getattr(usual, key.name)
    )
    return replace(options, io=chosen, hw_version=hw_ver or settings.hw_version), notes


class HtpBinary(NamedTuple):
    """Real context binary with its bill, and the other files for deployment."""

    made: MeasuredModel
    file: str
    path: Path
    epcontext: Path | None
    pte: Path | None

    def as_result(self) -> Bill:
        """Return the JSON result: the bill, and the written files."""
        from msgspec.structs import replace

        return replace(self.made.bill, file=self.file, prepared=self.written)

    @property
    def written(self) -> PreparedContext:
        """Written files."""
        return prepared_context(self.made.compiled, self.path, self.epcontext, self.pte)

    @property
    def io_mem_types(self) -> list[str]:
        """Memory types of the tensors in the binary, sorted."""
        graphs = self.made.compiled.context.graphs
        tensors = (tensor for graph in graphs for tensor in graph.tensors)
        return sorted({tensor.mem_type.name.lower() for tensor in tensors})

    @property
    def exit_code(self) -> int:
        """Exit code: 3 if the binary lacks outputs of the model, else 0."""
        # With --partition, the user asked for a part only.
        is_part = self.made.compiled.options.partition
        return 3 if self.made.bill.missing_outputs and not is_part else 0


def prepare_htp(
    files: tuple[str, ...],
    options: PreparationOptions,
    call: VerbCall,
    worker: Worker | None = None,
) -> HtpBinary | CompileFailure:
    """Compile one model for one SoC with the real library; return the binary and its bill."""
    if len(files) != 1:
        raise UsageError(f"--backend htp compiles one file at a time, not {len(files)}")
    model, path = Path(files[0]), Path(options.output)
    epcontext = epcontext_path(path) if options.for_onnx_runtime else None
    pte = path.with_suffix(".pte") if options.to == "pte" else None
    if pte is not None and options.partition:
        raise UsageError("--partition leaves nodes on the CPU, which a .pte file cannot contain")
    if pte == path:
        raise UsageError(
            "-o must not end in .pte: it names the context binary, and the .pte file is written "
            "next to it"
        )
    if options.soc is None:
        if model.exists():  # a missing file has its own error
            _is_library(model, options)
        raise MissingSoc(model)
    from tempfile import TemporaryDirectory

    log_file = None if options.log_file is None else Path(options.log_file)
    for written in filter(None, (path, epcontext, pte, log_file)):
        check_replaceable(written, force=options.force)
    wanted = _compile_options(options, log_file, trust=_is_library(model, options))
    soc = find_soc(options.soc)
    if worker is None:
        need_compiler(model, (soc,), wanted, call)
    with TemporaryDirectory(".qnnmem", dir=path.parent) as name:
        measured = measure(
            model,
            soc,
            wanted,
            output=Path(name, path.name),
            name_weights=True,
            worker=worker,
            progress=call.listener.say,
            try_cures=True,
        )
        if isinstance(measured, CompileFailure):
            return measured
        _place(measured.compiled, Path(name), path, (epcontext, pte), options.force)
    return HtpBinary(measured, files[0], path, epcontext, pte)


def _compile_options(
    options: PreparationOptions, log_file: Path | None, *, trust: bool
) -> CompileOptions:
    return CompileOptions(
        precision=HtpPrecision(options.precision or "fp16"),
        vtcm_mb=options.vtcm_mb,
        opt_level=options.opt_level,
        memhandle=options.io_mem_type == "memhandle",
        partition=options.partition,
        trust=trust,
        calibration=None if options.calibration is None else Path(options.calibration),
        seed=options.seed,
        log_file=log_file,
        time_limit_s=TIME_LIMIT_S if options.time_limit is None else options.time_limit,
        memory_limit=options.memory_limit,
        **options.sizes,
    )


def _is_library(path: Path, options: PreparationOptions) -> bool:
    """Return True for a model library, False for ONNX or DLC; raise an error for other files."""
    for_onnx = options.for_onnx_runtime
    if is_library(path, trust=options.trust):
        if for_onnx:
            mismatch = f"{path} is a model library; only ONNX models can become an EPContext model"
            raise UsageError(mismatch)
        return True
    takes = ("onnx", "dlc")
    check_kind(path, "prepare", takes=takes, said="qnnmem prepare --backend htp")
    if for_onnx and kind_of_file(path).name == "dlc":
        raise UsageError(f"{path} is a DLC; only ONNX models can become an EPContext model")
    return False


def epcontext_path(binary: Path) -> Path:
    """Return the path of the EPContext model: `out_ctx.onnx` next to `out.bin`."""
    return binary.with_name(f"{binary.stem}_ctx.onnx")


def _place(
    result: Compiled,
    scratch: Path,
    target: Path,
    deployed: tuple[Path | None, Path | None],
    force: bool,
) -> None:
    """Move the binary and the other files for deployment into place, all or none."""
    new, (epcontext, pte) = {target: scratch / target.name}, deployed
    if pte is not None:
        new[pte] = scratch / pte.name
        write_pte(new[target], result.context, new[pte])
    if epcontext is not None and result.epcontext is not None:
        new[epcontext] = scratch / epcontext.name
        named = rename_binary(result.epcontext, result.binary_name, target.name)
        write_whole(new[epcontext], named)
    put_together(new, force=force)
