"""`qnnmem fix`: from a model that does not fit to one that does, with the proof."""

from __future__ import annotations

from typing import Any

import click

from qnnmem.cli import options as texts
from qnnmem.cli.fix_htp import htp_options, htp_wish
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args
from qnnmem.options import parsers

_NO_CHANGE = ("--cache", "--jobs", "--cluster")  # options that no answer depends on


@click.command(cls=RecordingCommand)
@click.argument("models", nargs=-1, type=click.Path(), metavar="[MODEL...]")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(),
    metavar="LOG",
    help="Start from what failed: backend, budget and, where it is named, MODEL come from the log.",
)
@click.option(
    "--backend",
    type=click.Choice(["lpai", "htp"]),
    default="lpai",
    show_default=True,
    help="Whose memory the model is to fit.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    type=parsers.budgets,
    metavar="POOL=SIZE",
    help="Bytes that scratch, persistent, io, constants or tcm may take, e.g. scratch=256K; "
    "without one, scratch is made as small as it gets. For htp: compile, pd, vtcm, ram, weights, "
    "io, spill-fill or host-ram, beside the limits of the SoC.",
)
@htp_options
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
    help="Alignment of start and size in bytes.  [default: 64]",
)
@click.option(
    "--bits",
    type=click.Choice(["8", "16"]),
    help="Width of floating-point elements once quantized.  [default: as in the model]",
)
@click.option(
    "--keep",
    multiple=True,
    type=click.Choice(["order", "settings", "one-file"]),
    help="What is not to change: the order of ops, how it is compiled for HTP, that it is one "
    "model.",
)
@click.option(
    "--allow",
    multiple=True,
    type=parsers.word_list,
    metavar="WORD",
    help="What may change results: rounding, operators, batch, int16, w8a16, int8 (fp16 for htp), "
    "resolution, or all.",
)
@click.option(
    "--data",
    type=click.Path(),
    metavar="DIR",
    help="Sample inputs (.npy, .npz, .raw) to compare results on, and to quantize with.  "
    "[default: random data]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 1 << 31),
    default=0,
    show_default=True,
    help="Of the random data, and of the plans.",
)
@click.option(
    "--time-limit",
    type=parsers.seconds,
    metavar="S",
    default=120.0,
    show_default=True,
    help="Seconds to search; what is under way then ends within 10 s.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Models at the same time.",
)
@click.option("--cluster", metavar="ADDRESS", help="On a Dask cluster that sees the same files.")
@click.option(
    "--cache",
    type=click.Path(),
    metavar="DIR",
    help="Folder of what was found before.  [default: qnnmem in the user's cache folder]",
)
@click.option(
    "--apply",
    "recipe",
    type=click.Path(),
    metavar="RECIPE",
    help="Do again what a recipe of an earlier run says, without a search.",
)
@click.option(
    "--validate",
    is_flag=True,
    help="Run the result on the CPU and in planned memory, and say how far every output is off.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    required=True,
    metavar="DIR",
    help="Folder for the changed model or its parts, recipe and report; of several, one for each.",
)
@click.option("--force", is_flag=True, help="Replace files of an earlier run.")
@texts.form_options("qnnmem.fix/1")
def fix(
    models: tuple[str, ...],
    logs: tuple[str, ...],
    backend: str,
    recipe: str | None,
    jobs: int,
    cluster: str | None,
    cache: str | None,
    validate: bool,
    output: str,
    force: bool,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Change MODEL so that it needs less memory and computes the same, bit by bit.

    Tries what changes least first: element-wise ops in place and another order of ops, then
    regions of convolutions, pooling and element-wise ops computed in bands of rows, then a cut into
    parts that run one after the other. For HTP: VTCM size and optimisation level, the order of
    loading, parts. A change counts after it was planned, or compiled and loaded by the real library
    for HTP, run, and compared with the model as it was. What it becomes, a recipe and a report go
    to the folder of -o. Fewer bits, smaller batches and smaller pictures change results: they are
    tried only where --allow says so, and the difference is measured. Several models, a pattern or a
    folder give a table. What was found is kept: a run that was killed goes on where it was.

    Exit codes: 0 it fits, or without a budget is as small as was found; 1 nothing helps enough;
    2 bad usage or an unreadable model; 3 cannot tell, or a log that no change of a model helps. Of
    several models the worst counts: 2, then 1, then 3. 130 after Ctrl-C, which keeps what is known.
    1 also where --validate found a fault.
    """
    from qnnmem.cli import fix_log, fix_many, fix_shapes
    from qnnmem.cli.fix_task import FixTask, FixWish, show_fixed

    asked = fix_log.asked_by(logs, models, recipe) if logs else None
    if asked is not None:
        backend = fix_log.backend_for(asked, backend)
        chosen["soc"] = chosen["soc"] or (asked.soc if backend == "htp" else None)
    htp = htp_wish(backend, chosen)
    task = FixTask("", backend, FixWish(**chosen), htp, recipe, output, force, cache)
    typed = tuple(word for word in recorded_args() if word.partition("=")[0] not in _NO_CHANGE)
    task = task._replace(given=recorded_args("prepare"), typed=typed, validate=validate)
    if asked is not None:
        return show_fixed(fix_log.task_for(asked, models, task), as_json)
    if not models:
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    found = fix_many.named_models(models)
    if len(models) == 1 and models == found and (htp is None or len(htp.socs) == 1):
        if fix_shapes.is_for_several(task):
            return fix_shapes.run(task._replace(model=models[0]), as_json)
        return show_fixed(task._replace(model=models[0]), as_json)
    return fix_many.run(found, task, jobs, cluster, as_json)
