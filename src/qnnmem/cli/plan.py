"""`qnnmem plan`: from a model file to a certified memory plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli import options as texts
from qnnmem.errors import UsageError
from qnnmem.units import Align, Bytes, parse_size

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.load.onnx.fixed import InputValue
    from qnnmem.plan import MemoryPlan, Pool, PoolOptions
    from qnnmem.report.plan import PlanReport


@click.command()
@click.argument("file", type=click.Path())
@texts.model_options
@click.option(
    "--io",
    type=click.Choice(["inside", "outside"]),
    default="inside",
    show_default=True,
    help="Inputs and outputs inside scratch or in the application's buffers.",
)
@click.option(
    "--align",
    type=click.IntRange(1, 1 << 20),
    help="Alignment of start and size in bytes.  [default: 64; for a CSV as the file says]",
)
@click.option(
    "--bits",
    type=click.Choice(["8", "16"]),
    help="Width of floating-point elements once quantized.  [default: as in the model]",
)
@click.option(
    "--inplace", is_flag=True, help="Let element-wise ops write over an input that dies there."
)
@click.option("--reorder", is_flag=True, help="Look for an operator order that needs less memory.")
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    type=texts.budget,
    metavar="POOL=SIZE",
    help="Bytes a pool may take, e.g. scratch=256K; exit code 1 if it does not fit.",
)
@click.option(
    "--capacity",
    type=parse_size,
    metavar="SIZE",
    help="For a CSV: does everything fit this many bytes?",
)
@click.option(
    "--time-limit",
    type=texts.seconds,
    metavar="S",
    default=10.0,
    show_default=True,
    help="Seconds to search for a lower plan.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 1 << 31),
    default=0,
    show_default=True,
    help="Varies the search; the same seed gives the same plan.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="csv: the scratch buffers with offsets.",
)
@click.option(
    "-o",
    "--output",
    type=texts.OutputPath(),
    help="Write to this file instead of the terminal.",
)
@click.option("--force", is_flag=True, help="Replace the output file if it exists.")
def plan(
    file: str,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    values: tuple[tuple[str, InputValue], ...],
    states: tuple[tuple[str, str], ...],
    io: str,
    align: int | None,
    bits: str | None,
    inplace: bool,
    reorder: bool,
    budgets: tuple[tuple[str, Bytes], ...],
    capacity: Bytes | None,
    time_limit: float,
    seed: int,
    form: str,
    output: str | None,
    force: bool,
) -> int:
    """Plan the memory of FILE: how many bytes, why, and the proof that fewer are impossible.

    FILE is an ONNX or TFLite model, an eAI compiler report (.eaix) or a buffer list (.csv with
    id,lower,upper,size[,alignment][,offset]).
    """
    from pathlib import Path

    from qnnmem import load
    from qnnmem.cli.output import check_free, write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.plan import Io, PoolOptions, plan_model

    path, target = Path(file), None if output is None else Path(output)
    if target is not None:
        check_free(target, force)  # says so before the work, not after
    options = PoolOptions(
        io=Io(io),
        align=None if align is None else Align(align),
        bits=None if bits is None else int(bits),
        states=states,
        inplace=inplace,
        reorder=reorder,
    )
    with ProgressBar(f"reading {path.name}") as bar:
        model = load(path, dims=dict(dims), shapes=dict(shapes), values=dict(values))
        chosen = _budgets(budgets, capacity)
        if capacity is not None and model.format != "csv":
            raise UsageError(
                "--capacity is for a buffer CSV; for a model use --budget scratch=SIZE"
            )
        bar.say("planning")
        started = _now()
        result = plan_model(
            model, options, budget=chosen, time_limit=time_limit, seed=seed, watch=bar
        )
        seconds = _now() - started
    given = _given(dims, shapes, values, options)
    write(_render(_report(result, path, seconds, given), form), target, force)
    return _exit_code(result)


def _given(
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    values: tuple[tuple[str, InputValue], ...],
    options: PoolOptions,
) -> tuple[str, ...]:
    """The options that say what is planned, so that a suggested command plans the same thing."""
    words = texts.shape_words(dims, shapes, values)
    words += [f"--state={old}={new}" for old, new in options.states]
    words += [] if options.align is None else [f"--align={options.align}"]
    words += [] if options.bits is None else [f"--bits={options.bits}"]
    words += [] if options.io.value == "inside" else ["--io=outside"]
    words += ["--inplace"] * options.inplace + ["--reorder"] * options.reorder
    return tuple(words)


def _now() -> float:
    import time

    return time.perf_counter()


def _budgets(given: tuple[tuple[str, Bytes], ...], capacity: Bytes | None) -> dict[Pool, Bytes]:
    from qnnmem.plan import Pool

    pools = {pool.value: pool for pool in Pool}
    for name, _ in given:
        if name not in pools:
            raise UsageError(f"'{name}' is not a pool; pools are {', '.join(pools)}")
    chosen = {pools[name]: size for name, size in given}
    if capacity is not None:
        chosen[Pool.SCRATCH] = capacity
    if len(chosen) != len(given) + (capacity is not None):
        raise UsageError("a pool has two budgets; give one")
    return chosen


def _report(result: MemoryPlan, file: Path, seconds: float, given: tuple[str, ...]) -> PlanReport:
    from qnnmem.lpai.tcm import judge_plan
    from qnnmem.report.plan import PlanReport
    from qnnmem.version import __version__

    tcm = judge_plan(result)
    return PlanReport(result, tcm, str(file), f"qnnmem {__version__}", seconds, given)


def _render(report: PlanReport, form: str) -> str:
    from qnnmem.report.plan import render_json, render_text

    if form == "csv":
        return _csv(report.plan)
    return render_json(report) if form == "json" else render_text(report)


def _csv(result: MemoryPlan) -> str:
    from dataclasses import replace

    from qnnmem.ir import FixedBuffer
    from qnnmem.load.csv import write
    from qnnmem.plan import Pool

    if result.model.format == "csv":
        offsets = {buffer.name: buffer.offset for buffer in result.buffers}
        return write(replace(b, offset=offsets[b.name]) for b in result.model.buffers)
    return write(
        FixedBuffer(b.name, b.size, b.live, result.align, b.offset)
        for b in result.buffers
        if b.pool is Pool.SCRATCH
    )


def _exit_code(result: MemoryPlan) -> int:
    verdicts = {budget.fits for budget in result.budgets}
    if False in verdicts:
        return 1
    return 3 if None in verdicts else 0
