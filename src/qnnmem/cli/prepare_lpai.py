"""`qnnmem prepare --backend lpai`: a context binary of our own with every offset fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qnnmem.errors import UsageError
from qnnmem.units import Align

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.lpai.prepare_options import PrepareOptions
    from qnnmem.options.prepare import PreparationOptions


def prepare_lpai(
    files: tuple[str, ...],
    output: str,
    wanted: PreparationOptions,
    *,
    force: bool,
    as_json: bool,
) -> int:
    """Prepare one graph for each file."""
    from pathlib import Path

    from qnnmem.cli.output import check_free, write
    from qnnmem.lpai.prepare_options import PrepareOptions

    target = Path(output)
    check_free(target, force)
    options = PrepareOptions(
        states=wanted.states,
        rnn_state=wanted.rnn_state,
        align=Align(wanted.align),
        inplace=wanted.inplace,
        reorder=wanted.reorder,
        quantize=None if wanted.quantize is None else (8 if wanted.quantize == "int8" else 16),
        weight_bits=8 if wanted.weight_bits == 8 else 16,
        calibration=None if wanted.calibration is None else Path(wanted.calibration),
        seed=wanted.seed,
        trust=wanted.trust,
        allow_float=wanted.allow_float,
        time_limit_s=wanted.time_limit,
        **wanted.sizes,
    )
    options, notes = with_config(options, wanted.config, wanted.io, wanted.hw_ver)
    if wanted.calibration is not None and wanted.quantize is None:
        raise UsageError("--calibration is for --quantize int8 or int16")
    if wanted.weight_bits != 8 and wanted.quantize is None:
        raise UsageError("--weight-bits is for --quantize int8 or int16; without it weights stay")
    told = _prepare(_named(files, wanted.names), options, target, notes, force, as_json=as_json)
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
    from qnnmem.lpai.preparation import prepare, prepared_binary
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

    from qnnmem.lpai.config.settings import LpaiConfig, PrepareSettings, read_lpai_config
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
