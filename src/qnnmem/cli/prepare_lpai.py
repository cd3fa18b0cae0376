"""`qnnmem prepare --backend lpai`: a context binary of our own with every offset fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qnnmem.errors import UsageError
from qnnmem.units import Align

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.loader.onnx.inputs import InputValue
    from qnnmem.lpai.prepare_options import PrepareOptions

F = TypeVar("F", bound=Callable[..., Any])

_VERSIONS = ["v4", "v5", "v5_1", "v6", "v7"]
_OPTIONS = (
    click.option(
        "--graph-name",
        "names",
        multiple=True,
        metavar="NAME",
        help="lpai: name of a graph, once per FILE.  [default: the file's name]",
    ),
    click.option(
        "--rnn-state", is_flag=True, help="lpai: keep the state of LSTM, GRU and RNN nodes, too."
    ),
    click.option(
        "--io",
        type=click.Choice(["inside", "outside"]),
        help="lpai: inputs and outputs inside scratch or in the application's buffers "
        "(exclude_io).  [default: as the config file says, else inside]",
    ),
    click.option(
        "--align",
        type=click.IntRange(1, 1 << 20),
        default=64,
        show_default=True,
        help="lpai: alignment of start and size in bytes.",
    ),
    click.option(
        "--inplace",
        is_flag=True,
        help="lpai: let element-wise ops write over an input that dies there.",
    ),
    click.option(
        "--reorder",
        is_flag=True,
        help="lpai: look for an operator order that needs less memory.",
    ),
    click.option(
        "--quantize",
        type=click.Choice(["int8", "int16"]),
        help="lpai: quantize a float model on the way.",
    ),
    click.option(
        "--weight-bits",
        type=click.Choice(["8", "16"]),
        default="8",
        show_default=True,
        help="lpai: width of quantized weights.",
    ),
    click.option(
        "--float",
        "allow_float",
        is_flag=True,
        help="lpai: allow floating point, which LPAI does not have, for experiments at the desk.",
    ),
    click.option(
        "--hw-ver",
        type=click.Choice(_VERSIONS),
        help="lpai: hardware version.  [default: as the config file says, else v6]",
    ),
    click.option(
        "--config",
        type=click.Path(),
        metavar="FILE",
        help="lpai: config or tool file; its prepare section and hardware version are used.",
    ),
)
# Names of the options above that only mean something here.
LPAI_ONLY = (
    *("names", "rnn_state", "io", "align", "inplace", "reorder", "quantize", "weight_bits"),
    *("allow_float", "hw_ver", "config"),
)


def lpai_options(command: F) -> F:
    """The options of `qnnmem prepare` that belong to LPAI."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def prepare_lpai(
    files: tuple[str, ...],
    output: str,
    *,
    force: bool,
    names: tuple[str, ...],
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    values: tuple[tuple[str, InputValue], ...],
    states: tuple[tuple[str, str], ...],
    rnn_state: bool,
    io: str | None,
    align: int,
    inplace: bool,
    reorder: bool,
    quantize: str | None,
    weight_bits: str,
    calibration: str | None,
    seed: int,
    trust: bool,
    allow_float: bool,
    hw_ver: str | None,
    config: str | None,
    as_json: bool,
    time_limit: float | None,
) -> int:
    """Prepare one graph for each file."""
    from pathlib import Path

    from qnnmem.cli.output import check_free, write
    from qnnmem.lpai.prepare_options import PrepareOptions

    target = Path(output)
    check_free(target, force)
    options = PrepareOptions(
        dims=dict(dims),
        shapes=dict(shapes),
        values=dict(values),
        states=states,
        rnn_state=rnn_state,
        align=Align(align),
        inplace=inplace,
        reorder=reorder,
        quantize=None if quantize is None else (8 if quantize == "int8" else 16),
        weight_bits=8 if weight_bits == "8" else 16,
        calibration=None if calibration is None else Path(calibration),
        seed=seed,
        trust=trust,
        allow_float=allow_float,
        time_limit_s=time_limit,
    )
    options, notes = with_config(options, config, io, hw_ver)
    if calibration is not None and quantize is None:
        raise UsageError("--calibration is for --quantize int8 or int16")
    if weight_bits != "8" and quantize is None:
        raise UsageError("--weight-bits is for --quantize int8 or int16; without it weights stay")
    told = _prepare(_named(files, names), options, target, notes, force, as_json=as_json)
    write(told, None, force)
    return 0


def _prepare(
    models: dict[str, Path],
    options: PrepareOptions,
    target: Path,
    notes: tuple[str, ...],
    force: bool,
    *,
    as_json: bool,
) -> str:
    """Write the binary and say what is in it."""
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.cli.stderr import note
    from qnnmem.lpai.binary import write
    from qnnmem.lpai.preparation import prepare
    from qnnmem.lpai.prepared_binary import prepared_binary
    from qnnmem.lpai.tcm import judge_binary
    from qnnmem.report.prepare import error_lines, next_commands, render_text
    from qnnmem.results.schema import encode

    with ProgressBar("preparing") as bar:
        prepared = prepare(models, options, bar.say, bar)
        size = write(prepared.context, target, force=force)
    tcm = judge_binary(prepared.context, size)
    if as_json:
        for line in error_lines(prepared.errors):  # a text begins with them
            note(line)
        steps = [command for _, command in next_commands(prepared.context, str(target))]
        return encode(
            prepared_binary(prepared, tcm, str(target), size, notes=notes, next_steps=steps)
        )
    return render_text(prepared, tcm, notes, str(target), size)


def _named(files: tuple[str, ...], names: tuple[str, ...]) -> dict[str, Path]:
    from pathlib import Path

    if names and len(names) != len(files):
        raise UsageError(f"{len(files)} files need {len(files)} --graph-name, {len(names)} given")
    chosen = names or tuple(Path(file).stem for file in files)
    if len(set(chosen)) < len(chosen):
        raise UsageError("two graphs have the same name; tell them apart with --graph-name")
    return dict(zip(chosen, map(Path, files), strict=True))


def with_config(
    options: PrepareOptions, config: str | None, io: str | None, hw_ver: str | None
) -> tuple[PrepareOptions, tuple[str, ...]]:
    """The options with what the config file says where the command line says nothing."""
    from dataclasses import fields, replace
    from pathlib import Path

    from qnnmem.lpai.config.read import LpaiConfig, PrepareSettings, read_lpai_config
    from qnnmem.planner import Io

    found = LpaiConfig() if config is None else read_lpai_config(Path(config))
    outside = found.prepare.exclude_io
    chosen = Io(io) if io is not None else (Io.OUTSIDE if outside else Io.INSIDE)
    usual = PrepareSettings()
    notes = tuple(
        f"{key.name}: noted, but without effect on this plan"
        for key in fields(PrepareSettings)
        if key.name != "exclude_io" and getattr(found.prepare, key.name) != getattr(usual, key.name)
    )
    return replace(options, io=chosen, hw_version=hw_ver or found.hw_version), notes
