"""Verbs `net-run` and `context-binary-generator`: the SDK's tools with their flags and output."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from qnnmem.atomic_file import check_replaceable, folder_for_output, shown
from qnnmem.errors import LoadError, TcmFatal, UsageError
from qnnmem.flags import with_flags
from qnnmem.htp.binary.context import LPAI_BACKEND
from qnnmem.htp.binary.read import describe_binary
from qnnmem.htp.compile import CompileFailure, CompileOptions, check_options, compile_model
from qnnmem.htp.requests import OWN_MARK
from qnnmem.htp.tool_config import HtpToolConfig, htp_target, read_htp_config
from qnnmem.loader.dlc import compose, compose_trusted
from qnnmem.loader.file_kind import KINDS, check_kind, is_kind, is_library
from qnnmem.loader.onnx.draft import NotTranslated
from qnnmem.lpai.binary import write
from qnnmem.lpai.net_run import net_run
from qnnmem.lpai.net_run.device_child import RunLimits
from qnnmem.lpai.net_run.log import LEVELS
from qnnmem.lpai.net_run.options import RandomInputs, RunOptions, SampleInputs
from qnnmem.lpai.preparation import prepare, prepare_composed
from qnnmem.lpai.prepare_options import PrepareOptions
from qnnmem.options.sdk_tools import (
    GENERATOR_IGNORED,
    GENERATOR_REFUSED,
    NET_RUN_IGNORED,
    NET_RUN_REFUSED,
    GeneratorOptions,
    NetRunOptions,
)
from qnnmem.qnn.enums import LogLevel, MemRegisterType
from qnnmem.report.tcm import shortage_lines
from qnnmem.text import counted, quote
from qnnmem.verbs.compiler import need_compiler
from qnnmem.verbs.htp_net_run import run_on_htp
from qnnmem.verbs.prepare import QUANTIZED, with_config
from qnnmem.verbs.refusal import failure_code, say_failure
from qnnmem.version import __version__

if TYPE_CHECKING:
    from qnnmem.errors import QnnError
    from qnnmem.htp.compile import Compiled
    from qnnmem.htp.requests import RequestOutcome
    from qnnmem.htp.tool_config import HtpTarget
    from qnnmem.lpai.net_run import FileCount, RunReport
    from qnnmem.lpai.net_run.log import Console
    from qnnmem.lpai.preparation import Prepared
    from qnnmem.verbs import ProgressListener, VerbCall

_HTP = re.compile(r"(?i)(lib)?QnnHtp\.(so|dll)\Z")
_LPAI = re.compile(r"(?i)(lib)?QnnLpai\.(so|dll)\Z")
_DLC_MODEL = re.compile(r"(?i)(?:^|[/\\])(lib)?QnnModelDlc\.(so|dll)\Z")
_LIBRARY = re.compile(r"(?i)\.(so|dll|cpp)\Z")
Foreign = Mapping[str, str | None]  # values of flags that are refused or ignored


def build_version(tool: str) -> str:
    """Return the version line in the format of the tools."""
    return f"{tool} build version: qnnmem-{__version__}"


def run_binary(
    binary: str | None,
    options: NetRunOptions,
    foreign: Foreign,
    console: Console,
    listener: ProgressListener,
) -> int:
    """Run a context binary the way qnn-net-run does; return the exit code."""
    tool = "qnn-net-run"
    _answer_foreign(options, foreign, console)
    backend = re.split(r"[/\\]", options.backend or "")[-1]
    if _HTP.match(backend):
        path = _binary(binary, options)
        _introduce(tool, options, console)
        return run_on_htp(path, options, console, listener)
    wanted = _run_options(binary, options)
    if _LPAI.match(backend):
        _refuse_vendor(wanted.retrieve_context)
    _introduce(tool, options, console)
    limits = RunLimits(options.time_limit, options.memory_limit)
    report = net_run(wanted, console, listener.say, limits)
    try:
        _explain(report, console)
    finally:
        _say_where(report.files, wanted, console)
    return 0 if report.passes else 2 if report.refused else 1


def _refuse_vendor(path: Path) -> None:
    """Raise LoadError for a binary of the SDK's generator; the error names the binary's backend."""
    if not is_kind(path, ("htp",)):
        return
    if describe_binary(path).backend_id != LPAI_BACKEND:
        mismatch = f"is {KINDS['htp'].words} for HTP, which runs with --backend libQnnHtp.so"
        raise LoadError(path, mismatch, cure=KINDS["htp"].readers)
    raise LoadError(
        path,
        "is a QNN context binary for LPAI, whose code has no public format and cannot run "
        "in qnnmem",
        cure="`qnnmem inspect` shows its inputs and outputs; "
        "prepare the model with `qnnmem prepare`",
    )


def _introduce(tool: str, options: NetRunOptions, console: Console) -> None:
    """Write the first lines of the tool's output."""
    console.say(f"{tool} pid:{os.getpid()}")
    console.say(build_version(tool))
    console.say(f"{tool} log level is : QNN_LOG_LEVEL_{LEVELS[options.log_level].name}")


def _say_where(files: FileCount, options: RunOptions, console: Console) -> None:
    """Write the last line of the output, which names the output folder."""
    if not files.total:
        return
    kinds = (("of results", files.results), ("of inputs", files.inputs))
    parts = [f"{count:,} {kind}" for kind, count in kinds if count]
    more = f" ({', '.join(parts)})" if parts else ""
    total = counted(files.total, "file")
    console.note(f"Wrote {total} to {shown(options.output_dir)}{more}")


def _explain(report: RunReport, console: Console) -> None:
    """Write an explanation of the failure, and of lines that only look like errors."""
    failure = report.failure
    if failure is not None and not isinstance(failure, TcmFatal):
        console.explain(failure.finding)
        for hint in _hints(failure):
            console.note(hint)
    if report.cure:
        console.note(with_flags(report.cure))
    for line in () if report.tcm is None else shortage_lines(report.tcm):
        console.note(line)
    if isinstance(failure, TcmFatal):
        raise failure
    for finding in report.findings:
        console.explain(finding)
    tally = report.tally
    if tally.early:
        console.note(
            f"{tally.early} of {tally.executions} executions returned 6038 (early termination): "
            "the window was not full, so they have no result"
        )


def _hints(failure: QnnError) -> tuple[str, ...]:
    """Return changes of options or config files that prevent a failure; empty if none is known."""
    rule, code = failure.finding.rule, failure.code
    if rule == "R10" and code == 5010:
        return (
            'add "context_configs": {"is_persistent_binary": true} to the file of '
            "--config_file, or write a correct pair of files with `qnnmem config --backend lpai "
            "-o direct`",
        )
    if rule == "R19" and code == 5008:
        return ("choose the hardware, e.g. --hw_ver v7",)
    return ()


def _run_options(binary: str | None, options: NetRunOptions) -> RunOptions:
    if not options.backend:
        raise UsageError("--backend is missing")
    context, outputs = _binary(binary, options), _outputs(options)
    level = options.profiling_level
    return RunOptions(
        retrieve_context=context,
        input_lists=tuple(options.input_list.split(",")) if options.input_list else (),
        made_inputs=_made_inputs(context, options),
        force=options.force,
        backend=options.backend,
        output_dir=Path(options.output_dir),
        config_file=None if options.config_file is None else Path(options.config_file),
        direct=options.direct_mode is not None,
        native_inputs=options.use_native_input_files or options.input_data_type == "native",
        native_names=options.native_input_tensor_names or "",
        float_outputs=outputs != "native_only",
        native_outputs=outputs != "float_only",
        num_inferences=options.num_inferences,
        duration_s=options.duration,
        keep_num_outputs=options.keep_num_outputs,
        shared=_shared(options),
        asynchronous=options.asynchronous,
        use_mmap=options.use_mmap,
        profiling="detailed" if level in ("detailed", "backend") else level and "basic",
        hw_version=options.hw_ver,
        alignment=options.alignment,
        lenient_scratch=options.lenient_scratch,
        sanitize=not options.no_sanitize,
        one_scratch=options.one_scratch,
        producer=f"qnnmem {__version__}",
    )


def _binary(binary: str | None, options: NetRunOptions) -> Path:
    names = [name for name in (binary, options.retrieve_context) if name]
    if not names:
        raise UsageError(
            "--retrieve_context is missing: name a context binary, which `qnnmem prepare` writes"
        )
    if len(names) > 1:
        raise UsageError(
            "the context binary is named twice, as an argument and by "
            "--retrieve_context; name it once"
        )
    return Path(names[0])


def _made_inputs(context: Path, options: NetRunOptions) -> RandomInputs | SampleInputs | None:
    ways = [
        w for w in ("--input_list", "--random-inputs", "--inputs") if getattr(options, _name(w))
    ]
    if not ways:
        check_kind(context, "net-run")  # inputs do not matter if the file cannot run
        raise UsageError(
            "--input_list is missing; --random-inputs 1 generates the inputs of one "
            "inference, and --inputs PATH takes .npy and .npz files"
        )
    if len(ways) > 1:
        raise UsageError(f"{ways[0]} and {ways[1]} cannot be combined")
    if options.inputs:
        return SampleInputs(options.inputs)
    count = options.random_inputs
    return None if count is None else RandomInputs(count, options.seed)


def _name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _answer_foreign(options: NetRunOptions, foreign: Foreign, console: Console) -> None:
    """Raise UsageError for flags that would change results; warn about ignored flags."""
    for name, reason in NET_RUN_REFUSED.items():
        if foreign[name] is not None:
            raise UsageError(f"--{name} {reason}")
    if options.debug:
        raise UsageError(
            "--debug cannot be combined with --retrieve_context: the outputs of a binary are fixed"
        )
    if options.batch_multiplier not in (None, 1):
        raise UsageError(
            "--batch_multiplier must be 1: a binary has one batch size; prepare another binary"
        )
    if options.direct_mode not in (None, "adsp"):
        raise UsageError("--direct_mode must be adsp, the DSP next to LPAI")
    for name, reason in NET_RUN_IGNORED.items():
        if foreign[name] is not None:
            console.warn(f"--{name} is ignored: {reason}")
    _check_together(options, foreign)


def _check_together(options: NetRunOptions, foreign: Foreign) -> None:
    values = {**asdict(options), **foreign}
    pairs = (
        ("use_native_input_files", "native_input_tensor_names"),
        ("synchronous", "asynchronous"),
        ("max_input_cache_tensor_sets", "max_input_cache_size_mb"),
    )
    for name, other in pairs:
        if values[name] and values[other]:
            raise UsageError(f"--{name} and --{other} cannot be combined")


def _outputs(options: NetRunOptions) -> str:
    native = "native_only" if options.use_native_output_files else "float_only"
    return options.output_data_type or native


def _shared(options: NetRunOptions) -> MemRegisterType | None:
    kind = options.io_tensor_mem_handle_type
    if kind is not None:
        return MemRegisterType[kind.upper()]
    return MemRegisterType.CUSTOM if options.shared_buffer else None


def generate_binary(
    options: GeneratorOptions, foreign: Foreign, console: Console, call: VerbCall
) -> int:
    """Make a context binary the way qnn-context-binary-generator does; return the exit code."""
    tool = "qnn-context-binary-generator"
    is_htp, models, target = _checked(options, foreign)
    _check_backend_flags(options, is_htp=is_htp)
    for name, reason in GENERATOR_IGNORED.items():
        if foreign[name] is not None:
            console.warn(f"--{name} is ignored: {reason}")
    if _is_native(options) and not options.dlc_path:
        console.note("note: a model library is native code; it runs in a child process with limits")
    console.say(f"{tool} pid:{os.getpid()}")
    if options.log_level:
        console.say(build_version(tool))
        console.say(f"{tool} log level is : QNN_LOG_LEVEL_{LEVELS[options.log_level].name}")
    make = _make_htp if is_htp else _make_lpai
    return make(models, target, options, console, call)


def _checked(options: GeneratorOptions, foreign: Foreign) -> tuple[bool, list[Path], Path]:
    """Return three facts: whether the backend is HTP, the model files, and the output file."""
    for name, reason in GENERATOR_REFUSED.items():
        if foreign[name] is not None:
            raise UsageError(f"--{name} {reason}")
    if options.enable_intermediate_outputs:
        effect = "would make every tensor an output, which qnnmem does not support"
        raise UsageError(f"--enable_intermediate_outputs {effect}")
    if not options.backend:
        raise UsageError("--backend is missing")
    option, kind = _model_option(options)
    if not options.binary_file:
        raise UsageError("--binary_file is missing")
    is_htp = _is_htp(options.backend)
    names = getattr(options, option).split(",")
    for name in names:
        if option == "model":
            is_library(Path(name), trust=_is_native(options))  # raises an error that names --trust
        check_kind(Path(name), "prepare", takes=(kind,), said=f"--{option}")
    if is_htp and len(names) > 1:
        raise UsageError(f"--{option} takes only one file for HTP, not {len(names)}")
    return is_htp, [Path(name) for name in names], _target(options)


def _model_option(options: GeneratorOptions) -> tuple[str, str]:
    """Return the name of the option that gives the models, and their kind."""
    if not options.dlc_path:
        if not options.model:
            raise UsageError("--model is missing")
        return "model", "elf" if _is_native(options) else "onnx"
    if options.model and not _DLC_MODEL.search(options.model):
        raise UsageError("--model and --dlc_path cannot be combined; for a DLC, leave --model out")
    return "dlc_path", "dlc"


def _is_native(options: GeneratorOptions) -> bool:
    """Return True if the models are libraries; naming a library is consent to run its code.

    A library named with a DLC is the vendor's reader of DLC files, not a model.
    """
    named = [] if options.dlc_path else (options.model or "").split(",")
    return options.trust or any(_LIBRARY.search(name) for name in named)


def _check_backend_flags(options: GeneratorOptions, *, is_htp: bool) -> None:
    """Raise UsageError for LPAI flags if the backend is HTP, and for HTP flags if it is LPAI."""
    foreign = {
        True: {"quantize": "--quantize", "allow_float": "--float"},
        False: {
            "optimization_level_override": "--optimization_level_override",
            "vtcm_override": "--vtcm_override",
            "memory_limit": "--memory-limit",
        },
    }
    for name, flag in foreign[is_htp].items():
        if getattr(options, name):
            raise UsageError(f"{flag} is for {'LPAI' if is_htp else 'HTP'}")
    if not is_htp and options.input_output_tensor_mem_type != "raw":
        raise UsageError(
            "--input_output_tensor_mem_type memhandle is for HTP: LPAI binaries store no Qmem hint"
        )


def _is_htp(backend: str) -> bool:
    name = re.split(r"[/\\]", backend)[-1]
    if not (_HTP.match(name) or _LPAI.match(name)):
        here = "libQnnHtp.so or libQnnLpai.so"
        raise UsageError(f"--backend must be {here}, not {quote(name)}")
    return _HTP.match(name) is not None


def _target(options: GeneratorOptions) -> Path:
    """Return `DIR/NAME.bin`; NAME can already end in .bin. Raise UsageError if NAME leaves DIR."""
    name = Path(options.binary_file or "")
    if name.is_absolute() or ".." in name.parts or not name.name or "\0" in str(name):
        rule = "must be the name of a file in the folder of --output_dir"
        raise UsageError(f"--binary_file {rule}, not {quote(options.binary_file)}")
    whole = name if name.suffix == ".bin" else name.with_name(f"{name.name}.bin")
    return Path(options.output_dir) / whole


def _make_htp(
    models: list[Path], target: Path, options: GeneratorOptions, console: Console, call: VerbCall
) -> int:
    model, config_file = models[0], options.config_file
    config = HtpToolConfig() if config_file is None else read_htp_config(Path(config_file))
    wanted = htp_target(config, _graph_name(model, options) if config.graphs else model.stem)
    for note in wanted.notes:
        console.warn(note)
    compiled = _compile_options(options, wanted)
    check_options(wanted.soc, compiled)
    need_compiler(model, (wanted.soc,), compiled, call)
    with folder_for_output(target.parent):
        check_replaceable(target, force=True)
        say = call.listener.say
        outcome = compile_model(model, wanted.soc, compiled, output=target, progress=say)
    if options.log_level:
        _show_log(outcome.outcome, console)
    if isinstance(outcome, CompileFailure):
        return _failed(outcome, console, call, logged=bool(options.log_level))
    _done(outcome, model, target, console)
    return 0


def _graph_name(model: Path, options: GeneratorOptions) -> str:
    """Return the graph's name for config files: a library and a DLC define it themselves."""
    if options.dlc_path:
        return compose(model)[0].name
    return compose_trusted(model)[0].name if _is_native(options) else model.stem


def _compile_options(options: GeneratorOptions, wanted: HtpTarget) -> CompileOptions:
    vtcm, level = options.vtcm_override, options.optimization_level_override
    if vtcm == 0:
        vtcm = wanted.soc.vtcm_mb
    return CompileOptions(
        vtcm_mb=wanted.vtcm_mb if vtcm is None else vtcm,
        opt_level=wanted.opt_level if level is None else level,
        trust=_is_native(options),
        memhandle=options.input_output_tensor_mem_type == "memhandle",
        time_limit_s=options.time_limit,
        memory_limit=options.memory_limit,
        **options.sizes,
    )


def _show_log(outcome: RequestOutcome, console: Console) -> None:
    """Write the log lines of the library that the log level allows."""
    levels = {level.name[0]: level for level in LogLevel}
    for line in outcome.log:
        if not line.text.startswith(OWN_MARK):
            console.log(levels.get(line.level, LogLevel.VERBOSE), line.text)


def _failed(failure: CompileFailure, console: Console, call: VerbCall, *, logged: bool) -> int:
    """Write the real tool's lines about a failure, then an explanation; return the exit code."""
    if failure.refusal is not None and not logged:
        console.log(LogLevel.ERROR, failure.refusal.line)
    if failure.code is not None:
        text = f"Finalize Graph for Idx = 0 failed with error = {failure.code}"
        console.log(LogLevel.ERROR, text)
    for line in say_failure(failure, "binary", call.flags).splitlines():
        console.note(line)
    return failure_code(failure)


def _done(compiled: Compiled, model: Path, target: Path, console: Console) -> None:
    """Print the path of the written binary, and the name of the graph in the binary."""
    for note in compiled.notes:
        console.note(f"note: {note}")
    if model.suffix == ".onnx":  # other formats keep the name of their graph
        name = compiled.context.graphs[0].name
        console.note(f"note: graph {quote(model.stem)} is called {quote(name)} in the binary")
    hints = {tensor.mem_type.name for graph in compiled.context.graphs for tensor in graph.tensors}
    if "MEMHANDLE" in hints and not compiled.options.memhandle:
        console.note(
            "note: the model itself requests memhandle for inputs and outputs; this setting is kept"
        )
    console.note(f"Wrote {shown(target)}")


def _prepare_trusted(models: list[Path], options: PrepareOptions) -> Prepared:
    """Plan the graphs of model libraries."""
    graphs = [graph for path in models for graph in compose_trusted(path)]
    try:
        return prepare_composed(graphs, options)
    except NotTranslated as exc:
        raise UsageError(f"{exc}, so qnnmem cannot execute the model", where=models[0]) from exc


def _make_lpai(
    models: list[Path], target: Path, options: GeneratorOptions, console: Console, call: VerbCall
) -> int:
    chosen = {path.stem: path for path in models}
    if len(chosen) < len(models):
        raise UsageError(
            "--model: two files have the same name, but the graphs of a binary need different names"
        )
    wanted = PrepareOptions(
        quantize=QUANTIZED[options.quantize], allow_float=options.allow_float, **options.sizes
    )
    wanted, notes = with_config(wanted, options.config_file, None, None)
    for note in notes:
        console.warn(note)
    with folder_for_output(target.parent):
        check_replaceable(target, force=True)
        if _is_native(options):
            prepared = _prepare_trusted(models, wanted)
        else:
            prepared = prepare(chosen, wanted, call.listener.say, call.listener)
        write(prepared.context, target, force=True)
    console.note(f"Wrote {shown(target)}")
    return 0
