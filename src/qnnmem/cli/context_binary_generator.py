"""`qnnmem context-binary-generator`: the flags of qnn-context-binary-generator, without the SDK."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import click

from qnnmem.cli import options as texts
from qnnmem.cli.tool_flags import answered
from qnnmem.errors import UsageError
from qnnmem.options.sdk_tools import GeneratorOptions
from qnnmem.text import quote

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.htp.compile import Compiled, CompileFailure, CompileOptions
    from qnnmem.htp.requests import RequestOutcome
    from qnnmem.htp.tool_config import HtpTarget
    from qnnmem.lpai.net_run.log import Console
    from qnnmem.lpai.preparation import Prepared
    from qnnmem.lpai.prepare_options import PrepareOptions
    from qnnmem.verbs.listener import VerbCall

_TOOL = "qnn-context-binary-generator"
_HTP = re.compile(r"(?i)(lib)?QnnHtp\.(so|dll)\Z")
_LPAI = re.compile(r"(?i)(lib)?QnnLpai\.(so|dll)\Z")
_DLC_MODEL = re.compile(r"(?i)(?:^|[/\\])(lib)?QnnModelDlc\.(so|dll)\Z")
_LIBRARY = re.compile(r"(?i)\.(so|dll|cpp)\Z")
# Flags of the real tool that change no byte of the binary: accepted, with a warning.
_IGNORED = {
    "model_prefix": "an ONNX file has no symbols",
    "platform_options": "there is no platform to set up",
}
# Flags that would change the result, or ask for another file: refused.
_REFUSED = {
    "backend_binary": "asks for a file of the backend alone, which is not written here; "
    "--binary_file names the context binary",
    "op_packages": "needs compiled operators, which are not loaded here",
    "data_format_config": "would change the layout of tensors, which is not possible here",
    "adapter_weight_config": "is for LoRA adapters, which are not read here",
    "set_output_tensors": "would change the outputs; cut the ONNX file instead",
    "profiling_level": "asks for profiling data, which is not written here",
    "profiling_option": "asks for profiling data, which is not written here",
    "dlbc_override": "has no counterpart in the compiler's interface here",
    "htp_socs": "changes the name of the file in a way that is not public; name soc_model in the "
    "config file instead",
}
_BITS: dict[str | None, Literal[8, 16] | None] = {None: None, "int8": 8, "int16": 16}


@click.command("context-binary-generator")
@texts.takes(GeneratorOptions)
@answered(_REFUSED, _IGNORED)
def context_binary_generator(options: GeneratorOptions, **foreign: str | None) -> int:
    """Make a context binary as qnn-context-binary-generator does: same flags, file names and lines.

    A model is an ONNX file here, as there is no converter between, or a DLC. For HTP it is compiled
    by the real library, which needs the extra `htp`; for LPAI it is planned as `qnnmem prepare`
    does.

    Flags that mean nothing here are ignored with a warning; those that would change the result are
    refused. A binary of the same name is replaced, as by the real tool.

    Exit codes: 0 the binary was written, 1 the library refuses the model, 2 bad usage, an
    unreadable model or config file, or a float model for LPAI, 3 a library or a SoC is missing, 4
    not finished within the time limit.
    """
    import os

    from qnnmem.lpai.net_run.log import LEVELS, Console
    from qnnmem.version import __version__

    build = f"{_TOOL} build version: qnnmem-{__version__}"
    if options.version:
        click.echo(build)
        return 0
    level = LEVELS[options.log_level or "error"]
    console = Console(level, _line(err=False), _line(err=True))
    is_htp, models, target = _checked(options, foreign)
    _check_backend_flags(options, is_htp=is_htp)
    for name, reason in _IGNORED.items():
        if foreign[name] is not None:
            console.warn(f"--{name} is ignored: {reason}")
    console.say(f"{_TOOL} pid:{os.getpid()}")
    if options.log_level:
        console.say(build)
        console.say(f"{_TOOL} log level is : QNN_LOG_LEVEL_{level.name}")
    make = _make_htp if is_htp else _make_lpai
    return make(models, target, options, console)


def _line(*, err: bool) -> Callable[[str], None]:
    from qnnmem.text import shorten

    return lambda text: click.echo(shorten(text, 4000), err=err)


def _checked(
    options: GeneratorOptions, foreign: Mapping[str, str | None]
) -> tuple[bool, list[Path], Path]:
    """Which backend, the model files, and the file to write; everything else is refused."""
    from pathlib import Path

    from qnnmem.loader.file_kind import check_kind

    for name, reason in _REFUSED.items():
        if foreign[name] is not None:
            raise UsageError(f"--{name} {reason}")
    if options.enable_intermediate_outputs:
        what = "would make every tensor an output, which is not possible here"
        raise UsageError(f"--enable_intermediate_outputs {what}")
    if not options.backend:
        raise UsageError("--backend is missing")
    option, kind = _model_option(options)
    if not options.binary_file:
        raise UsageError("--binary_file is missing")
    is_htp = _is_htp(options.backend)
    names = getattr(options, option).split(",")
    for name in names:
        if _LIBRARY.search(name) and not options.trust:
            what = "a model library, whose code is executed only with --trust"
            raise UsageError(f"--{option} {quote(name)} is {what}")
        check_kind(Path(name), "prepare", takes=(kind,), said=f"--{option}")
    if is_htp and len(names) > 1:
        raise UsageError(
            f"--{option}: several graphs of several files are not possible for HTP here"
        )
    return is_htp, [Path(name) for name in names], _target(options)


def _model_option(options: GeneratorOptions) -> tuple[str, str]:
    """The option that names the models, and of which kind they are."""
    if not options.dlc_path:
        if not options.model:
            raise UsageError("--model is missing")
        return "model", "elf" if options.trust else "onnx"
    if options.model and not _DLC_MODEL.search(options.model):
        raise UsageError("--model and --dlc_path exclude each other; with a DLC, leave --model out")
    return "dlc_path", "dlc"


def _check_backend_flags(options: GeneratorOptions, *, is_htp: bool) -> None:
    """Refuse what belongs to the other backend."""
    foreign = {
        True: {"quantize": "--quantize", "allow_float": "--float"},
        False: {
            "optimization_level_override": "--optimization_level_override",
            "vtcm_override": "--vtcm_override",
            "memory_limit": "--memory-limit",
        },
    }
    for name, said in foreign[is_htp].items():
        if getattr(options, name):
            raise UsageError(f"{said} is for {'LPAI' if is_htp else 'HTP'}")
    if not is_htp and options.input_output_tensor_mem_type != "raw":
        raise UsageError("--input_output_tensor_mem_type memhandle is for HTP: LPAI stores no hint")


def _is_htp(backend: str) -> bool:
    name = re.split(r"[/\\]", backend)[-1]
    if not (_HTP.match(name) or _LPAI.match(name)):
        here = "libQnnHtp.so and libQnnLpai.so are"
        raise UsageError(f"--backend {quote(name)} is not possible here: {here}")
    return _HTP.match(name) is not None


def _target(options: GeneratorOptions) -> Path:
    """`DIR/NAME.bin`; a name that ends so is left as it is."""
    from pathlib import Path

    name = Path(options.binary_file or "")
    if name.is_absolute() or ".." in name.parts or not name.name or "\0" in str(name):
        what = "is the name of a file in the folder of --output_dir"
        raise UsageError(f"--binary_file {what}, not {quote(options.binary_file)}")
    whole = name if name.suffix == ".bin" else name.with_name(f"{name.name}.bin")
    return Path(options.output_dir) / whole


def _make_htp(models: list[Path], target: Path, options: GeneratorOptions, console: Console) -> int:
    from pathlib import Path

    from qnnmem.atomic_file import check_replaceable, folder_for_output
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.cli.recorded_args import verb_call
    from qnnmem.htp.compile import CompileFailure, check_options, compile_model
    from qnnmem.htp.tool_config import HtpToolConfig, htp_target, read_htp_config
    from qnnmem.verbs.compiler import need_compiler

    model, given = models[0], options.config_file
    config = HtpToolConfig() if given is None else read_htp_config(Path(given))
    wanted = htp_target(config, model.stem)
    for note in wanted.notes:
        console.warn(note)
    compiled = _compile_options(options, wanted)
    check_options(wanted.soc, compiled)
    progress = ProgressBar("compiling")
    call = verb_call(progress)
    need_compiler(model, (wanted.soc,), compiled, call)
    with folder_for_output(target.parent), progress as bar:
        check_replaceable(target, force=True)
        made = compile_model(model, wanted.soc, compiled, output=target, progress=bar.say)
    if options.log_level:
        _show_log(made.outcome, console)
    if isinstance(made, CompileFailure):
        return _failed(made, console, call, logged=bool(options.log_level))
    _done(made, model, target, console)
    return 0


def _compile_options(options: GeneratorOptions, wanted: HtpTarget) -> CompileOptions:
    from qnnmem.htp.compile import CompileOptions

    vtcm, level = options.vtcm_override, options.optimization_level_override
    if vtcm == 0:
        vtcm = wanted.soc.vtcm_mb
    return CompileOptions(
        vtcm_mb=wanted.vtcm_mb if vtcm is None else vtcm,
        opt_level=wanted.opt_level if level is None else level,
        trust=options.trust,
        memhandle=options.input_output_tensor_mem_type == "memhandle",
        time_limit_s=options.time_limit,
        memory_limit=options.memory_limit,
        **options.sizes,
    )


def _show_log(outcome: RequestOutcome, console: Console) -> None:
    """What the library said, as far as that matters and the level allows."""
    from qnnmem.htp.requests import OWN_MARK
    from qnnmem.qnn.enums import LogLevel

    levels = {level.name[0]: level for level in LogLevel}
    for line in outcome.log:
        if not line.text.startswith(OWN_MARK):
            console.log(levels.get(line.level, LogLevel.VERBOSE), line.text)


def _failed(failure: CompileFailure, console: Console, call: VerbCall, *, logged: bool) -> int:
    """The lines that the real tool shows of a failure, then our explanation."""
    from qnnmem.qnn.enums import LogLevel
    from qnnmem.verbs.refusal import failure_code, say_failure

    if failure.refusal is not None and not logged:
        console.log(LogLevel.ERROR, failure.refusal.line)
    if failure.code is not None:
        text = f"Finalize Graph for Idx = 0 failed with error = {failure.code}"
        console.log(LogLevel.ERROR, text)
    console.note(say_failure(failure, "binary", call.flags).rstrip("\n"))
    return failure_code(failure)


def _done(made: Compiled, model: Path, target: Path, console: Console) -> None:
    """Say on the side what was written, and what the binary calls its graph."""
    from qnnmem.atomic_file import shown

    for note in made.notes:
        console.note(f"note: {note}")
    (graph,) = made.context.graphs[:1]
    console.note(f"note: graph {quote(model.stem)} is called {quote(graph.name)} in the binary")
    console.note(f"Wrote {shown(target)}")


def _prepare_trusted(models: list[Path], options: PrepareOptions) -> Prepared:
    """Graphs of model libraries, planned."""
    from qnnmem.loader.dlc import compose_trusted
    from qnnmem.loader.dlc.draft import NotTranslated
    from qnnmem.lpai.preparation import prepare_composed

    graphs = [graph for path in models for graph in compose_trusted(path)]
    try:
        return prepare_composed(graphs, options)
    except NotTranslated as exc:
        raise UsageError(f"{exc}, so it cannot be executed here", where=models[0]) from exc


def _make_lpai(
    models: list[Path], target: Path, options: GeneratorOptions, console: Console
) -> int:
    from qnnmem.atomic_file import check_replaceable, folder_for_output, shown
    from qnnmem.cli.prepare_lpai import with_config
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.lpai.binary import write
    from qnnmem.lpai.preparation import prepare
    from qnnmem.lpai.prepare_options import PrepareOptions

    chosen = {path.stem: path for path in models}
    if len(chosen) < len(models):
        raise UsageError("--model: two files have the same name, which their graphs would have")
    wanted = PrepareOptions(
        quantize=_BITS[options.quantize], allow_float=options.allow_float, **options.sizes
    )
    wanted, notes = with_config(wanted, options.config_file, None, None)
    for note in notes:
        console.warn(note)
    with folder_for_output(target.parent), ProgressBar("preparing") as bar:
        check_replaceable(target, force=True)
        if options.trust:
            made = _prepare_trusted(models, wanted)
        else:
            made = prepare(chosen, wanted, bar.say, bar)
        write(made.context, target, force=True)
    console.note(f"Wrote {shown(target)}")
    return 0
