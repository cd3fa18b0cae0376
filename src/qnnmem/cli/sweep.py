"""`qnnmem sweep`: many real compiles of one model in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli import options as texts
from qnnmem.cli.recorded_args import verb_call
from qnnmem.options.htp import SweepOptions

if TYPE_CHECKING:
    from qnnmem.verbs.listener import VerbCall
    from qnnmem.verbs.sweep import SweepRun, SweepTask


@click.command()
@click.argument("model", type=click.Path())
@texts.takes(SweepOptions)
@texts.verbose_option
@texts.result_options("qnnmem.sweep/1")
def sweep(
    model: str,
    options: SweepOptions,
    verbose: bool,
    as_json: bool,
    output: str | None,
    force: bool,
) -> int:
    """Compile MODEL for SOC with every combination of settings and show what each needs.

    Finished results are kept, so a sweep that was broken off goes on where it was; a compile that
    crashed, hung or ran out of memory is marked, and tried again next time. They are spread over
    the workers that QNNMEM_HTP_WORKER names; what one of them leaves undone, another does.

    Exit codes: 0 a setting fits, 1 none does, 2 bad usage or unreadable input, 3 cannot tell, 4 no
    compile was finished within the time limit. 130 after Ctrl-C, which shows the rows so far.
    """
    from pathlib import Path

    from qnnmem.errors import MissingSoc

    if options.soc is None:
        raise MissingSoc(model)
    from qnnmem.cli.output import check_free, write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.report.sweep import verdict
    from qnnmem.verbs.sweep import run_sweep, sweep_exit_code, sweep_task

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)
    task = sweep_task(model, options)
    with ProgressBar(f"reading {Path(model).name}") as bar:
        call = verb_call(bar)
        ran = run_sweep(task, call)
    text = _render(task, ran, call, as_json=as_json, verbose=verbose)
    if ran.interrupted is not None:
        write(text, None, force)
        raise ran.interrupted
    write(text, target, force, verdict(ran.rows, ran.largest, task.soc.name))
    return sweep_exit_code(ran.rows, task.question)


def _render(task: SweepTask, ran: SweepRun, call: VerbCall, *, as_json: bool, verbose: bool) -> str:
    """The rows in either form, with options that this verb has."""
    from functools import partial

    from qnnmem.htp.sweep import sweep_result
    from qnnmem.report.sweep import render_text
    from qnnmem.results.schema import encode
    from qnnmem.verbs.refusal import explained_row

    explain = partial(explained_row, path=task.path, soc=task.soc, base=task.base, flags=call.flags)
    soc, broken = task.soc.name, ran.interrupted is not None
    if as_json:
        result = sweep_result(
            *(map(explain, ran.rows), ran.largest),
            file=task.model,
            soc=soc,
            library=ran.library,
            interrupted=broken,
        )
        return encode(result)
    return render_text(
        *(ran.rows, ran.largest, task.model, soc),
        verbose=verbose,
        say=lambda row: explain(row).result.reason,
        interrupted=broken,
    )
