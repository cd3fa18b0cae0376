"""`qnnmem doctor`: from a failing log to the stage, the cause and the missing bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli import options as texts
from qnnmem.cli.door import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from qnnmem.doctor.model_facts import Numbers

GROUPS = ("cause", "stage", "entry", "device", "build", "file")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="How the result is written; markdown is for a ticket.  [default: text]",
)
@click.option(
    "--kb",
    multiple=True,
    type=click.Path(),
    metavar="PATH",
    help="Entries of your own, a file or a folder; may be repeated.",
)
@click.option("--follow", is_flag=True, help="Watch one log that is still being written.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    metavar="N",
    default=1,
    show_default=True,
    help="Read with this many processes or threads.",
)
@click.option("--cluster", metavar="ADDRESS", help="Read on a Dask cluster, e.g. tcp://host:8786.")
@click.option(
    "--group-by",
    type=click.Choice(GROUPS),
    help="Count incidents over all logs instead of showing each.",
)
@click.option("--binary", type=click.Path(), metavar="FILE", help="Context binary that failed.")
@click.option(
    "--model",
    type=click.Path(),
    metavar="FILE",
    help="Model that failed: compiled where --soc is given, else planned for LPAI.",
)
@click.option("--soc", metavar="SOC", help="Name, id or marketing name as in `qnnmem socs`.")
@texts.shape_options
@texts.result_options("qnnmem.doctor/1")
def doctor(
    paths: tuple[str, ...],
    form: str | None,
    kb: tuple[str, ...],
    follow: bool,
    jobs: int,
    cluster: str | None,
    group_by: str | None,
    binary: str | None,
    model: str | None,
    soc: str | None,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    as_json: bool,
    output: str | None,
    force: bool,
) -> int:
    """Say from logs which stage failed, why, and how many bytes are missing.

    PATH is a log, a folder of logs, a URL, or - for standard input; plain or compressed.

    Exit codes: 0 healthy, 1 an incident was found, 2 a log cannot be read or an option is wrong,
    3 something failed and the lines do not decide what.
    """
    from pathlib import Path

    from qnnmem.cli.doctor_run import run_doctor
    from qnnmem.errors import UsageError

    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} exclude each other")
    chosen = "json" if as_json else form or "text"
    if cluster is not None and jobs != 1:
        raise UsageError("--cluster and --jobs exclude each other")
    if follow and (cluster is not None or jobs != 1 or group_by is not None):
        raise UsageError("--follow reads one log; not with --jobs, --cluster or --group-by")
    if group_by is not None and chosen not in ("text", "json"):
        raise UsageError(f"--group-by gives text or json, not {chosen}")
    if (dims or shapes) and model is None:
        raise UsageError("--dim and --shape are for --model")
    return run_doctor(
        paths,
        chosen,
        output=None if output is None else Path(output),
        force=force,
        kb=tuple(map(Path, kb)),
        follow=follow,
        jobs=jobs,
        cluster=cluster,
        group_by=group_by,
        find_numbers=_numbers(binary, model, soc, dims, shapes),
    )


def _numbers(
    binary: str | None,
    model: str | None,
    soc: str | None,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
) -> Callable[[], Numbers] | None:
    """How to find the model's own numbers, once logs and options are known to be good."""
    if binary is None and model is None and soc is None:
        return None
    from pathlib import Path

    from qnnmem.doctor.model_facts import gather
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.targets.socs import find_soc

    options = CompileOptions(dims=dict(dims), shapes=dict(shapes)) if model is not None else None
    chosen = None if soc is None else find_soc(soc)

    def find() -> Numbers:
        return gather(_path(binary), _path(model), chosen, options)

    def _path(name: str | None) -> Path | None:
        return None if name is None else Path(name)

    return find
