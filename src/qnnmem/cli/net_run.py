"""`qnnmem net-run`: the flags of qnn-net-run, without a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from qnnmem.cli import options as texts
from qnnmem.cli.tool_flags import answered
from qnnmem.errors import UsageError
from qnnmem.options.sdk_tools import NetRunOptions

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.errors import QnnError
    from qnnmem.lpai.net_run import FileCount, RunReport
    from qnnmem.lpai.net_run.log import Console
    from qnnmem.lpai.net_run.options import RandomInputs, RunOptions, SampleInputs
    from qnnmem.qnn.enums import MemRegisterType

# Flags of the real tool that change nothing without a device: accepted, with a warning.
_IGNORED = {
    "op_packages": "operators come from the binary",
    "perf_profile": "it is for HTP and DSP; LPAI takes fps and ftrt_ratio from the config",
    "profiling_option": "LPAI has no such profiling",
    "platform_options": "there is no platform to set up",
    "device_options": "LPAI has no devices",
    "model_prefix": "a context binary has no symbols",
    "max_input_cache_tensor_sets": "input files are read when their turn comes",
    "max_input_cache_size_mb": "input files are read when their turn comes",
    "timeout": "LPAI takes no timeout signal",
    "retrieve_context_timeout": "LPAI takes no timeout signal",
}
# Flags that would change results, or cannot go with a context binary: refused.
_REFUSED = {
    "model": "needs a compiled model library; prepare the model with "
    "`qnnmem prepare MODEL --backend lpai -o model.bin` and pass --retrieve_context model.bin",
    "dlc_path": "needs a model, and this runs a context binary; prepare the DLC with "
    "`qnnmem prepare MODEL.dlc --backend lpai -o model.bin` and pass --retrieve_context model.bin",
    "binary_updates": "would change the weights; prepare the changed model again",
    "set_output_tensors": "cannot go with --retrieve_context: the outputs of a binary are fixed",
}


@click.command("net-run")
@click.argument("binary", required=False, metavar="[BINARY]")
@texts.takes(NetRunOptions)
@answered(_REFUSED, _IGNORED)
def net_run(binary: str | None, options: NetRunOptions, **foreign: str | None) -> int:
    """Run a context binary as qnn-net-run does: same flags, input lists, output tree and lines.

    BINARY is what `qnnmem prepare` wrote. Inputs come from --input_list, or are made here from
    random numbers or arrays; then they and their list lie in the output folder.

    Flags of the real tool that mean nothing without a device are ignored with a warning; those that
    would change results are refused.

    The program in the binary executes in a process of its own, which the limits end.

    Exit codes: 0 done, 1 the run failed or a rule was broken, 2 bad arguments, unreadable input, or
    a binary that is damaged, of another version or holds a program that cannot run, 134 the fatal
    limit of TCM allocations.
    """
    import os

    from qnnmem.cli.progress import ProgressBar
    from qnnmem.lpai.net_run import net_run as run
    from qnnmem.lpai.net_run.device_child import RunLimits
    from qnnmem.lpai.net_run.log import LEVELS, Console
    from qnnmem.version import __version__

    build = f"qnn-net-run build version: qnnmem-{__version__}"
    if options.version:
        click.echo(build)
        return 0
    level = LEVELS[options.log_level]
    console = Console(level, _line(err=False), _line(err=True))
    _answer_foreign(options, foreign, console)
    wanted = _run_options(binary, options)
    console.say(f"qnn-net-run pid:{os.getpid()}")
    console.say(build)
    console.say(f"qnn-net-run log level is : QNN_LOG_LEVEL_{level.name}")
    with ProgressBar("running") as bar:
        limits = RunLimits(options.time_limit, options.memory_limit)
        report = run(wanted, console, bar.say, limits)
    try:
        _explain(report, console)
    finally:
        _say_where(report.files, wanted, console)
    return 0 if report.passes else 2 if report.refused else 1


def _line(*, err: bool) -> Callable[[str], None]:
    from qnnmem.text import shorten

    return lambda text: click.echo(shorten(text, 4000), err=err)


def _say_where(files: FileCount, options: RunOptions, console: Console) -> None:
    """The last line: where everything is."""
    from qnnmem.atomic_file import shown

    if not files.total:
        return
    kinds = (("of results", files.results), ("of inputs", files.inputs))
    parts = [f"{count:,} {what}" for what, count in kinds if count]
    more = f" ({', '.join(parts)})" if parts else ""
    noun = "file" if files.total == 1 else "files"
    console.note(f"Wrote {files.total:,} {noun} to {shown(options.output_dir)}{more}")


def _explain(report: RunReport, console: Console) -> None:
    """What went wrong, and what only looks as if it had."""
    from qnnmem.errors import TcmFatal
    from qnnmem.flags import with_flags
    from qnnmem.report.tcm import shortage_lines

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
    for found in report.findings:
        console.explain(found)
    tally = report.tally
    if tally.early:
        console.note(
            f"{tally.early} of {tally.executions} executions returned 6038 (early termination): "
            "a window was waiting for more frames, so they have no result"
        )


def _hints(failure: QnnError) -> tuple[str, ...]:
    """What else to do about a failure, in the words of the command line."""
    rule, code = failure.finding.rule, failure.code
    if rule == "R10" and code == 5010:
        return (
            'add "context_configs": {"is_persistent_binary": true} to the file of '
            "--config_file, or write a correct pair with `qnnmem config --backend lpai -o direct`",
        )
    if rule == "R19" and code == 5008:
        return ("--hw_ver runs it as that hardware, e.g. --hw_ver v7",)
    return ()


def _run_options(binary: str | None, options: NetRunOptions) -> RunOptions:
    from pathlib import Path

    from qnnmem.lpai.net_run.options import RunOptions
    from qnnmem.version import __version__

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
        producer=f"qnnmem {__version__}",
    )


def _binary(binary: str | None, options: NetRunOptions) -> Path:
    from pathlib import Path

    given = [name for name in (binary, options.retrieve_context) if name]
    if not given:
        raise UsageError(
            "--retrieve_context is missing: name a context binary, which `qnnmem prepare` writes"
        )
    if len(given) > 1:
        raise UsageError("the context binary is named twice; --retrieve_context is the same")
    return Path(given[0])


def _made_inputs(context: Path, options: NetRunOptions) -> RandomInputs | SampleInputs | None:
    from qnnmem.loader.file_kind import check_kind
    from qnnmem.lpai.net_run.options import RandomInputs, SampleInputs

    ways = [
        w for w in ("--input_list", "--random-inputs", "--inputs") if getattr(options, _name(w))
    ]
    if not ways:
        check_kind(context, "net-run")  # inputs would not help what cannot be run
        raise UsageError(
            "--input_list is missing; --random-inputs 1 makes up the inputs of one inference, "
            "--inputs PATH takes .npy and .npz files"
        )
    if len(ways) > 1:
        raise UsageError(f"{ways[0]} and {ways[1]} cannot go together")
    if options.inputs:
        return SampleInputs(options.inputs)
    count = options.random_inputs
    return None if count is None else RandomInputs(count, options.seed)


def _name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _answer_foreign(
    options: NetRunOptions, foreign: Mapping[str, str | None], console: Console
) -> None:
    """Refuse what would change results; say what is ignored."""
    for name, reason in _REFUSED.items():
        if foreign[name] is not None:
            raise UsageError(f"--{name} {reason}")
    if options.debug:
        raise UsageError(
            "--debug cannot go with --retrieve_context: the outputs of a binary are fixed"
        )
    if options.batch_multiplier not in (None, 1):
        raise UsageError("--batch_multiplier: a prepared plan has one batch size; prepare another")
    if options.direct_mode not in (None, "adsp"):
        raise UsageError("--direct_mode: LPAI is beside the aDSP, so the only value is adsp")
    for name, reason in _IGNORED.items():
        if foreign[name] is not None:
            console.warn(f"--{name} is ignored: {reason}")
    _check_together(options, foreign)


def _check_together(options: NetRunOptions, foreign: Mapping[str, str | None]) -> None:
    given = {**asdict(options), **foreign}
    pairs = (
        ("use_native_input_files", "native_input_tensor_names"),
        ("synchronous", "asynchronous"),
        ("max_input_cache_tensor_sets", "max_input_cache_size_mb"),
    )
    for one, other in pairs:
        if given[one] and given[other]:
            raise UsageError(f"--{one} and --{other} cannot go together")


def _outputs(options: NetRunOptions) -> str:
    native = "native_only" if options.use_native_output_files else "float_only"
    return options.output_data_type or native


def _shared(options: NetRunOptions) -> MemRegisterType | None:
    from qnnmem.qnn.enums import MemRegisterType

    kind = options.io_tensor_mem_handle_type
    if kind is not None:
        return MemRegisterType[kind.upper()]
    return MemRegisterType.CUSTOM if options.shared_buffer else None
