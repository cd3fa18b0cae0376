"""`qnnmem watch`: any program that uses QNN, watched while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import output_options
from qnnmem.errors import UsageError
from qnnmem.options.parsers import seconds

if TYPE_CHECKING:
    from qnnmem.programs.watch.watch_run import WatchOptions
    from qnnmem.results.programs import FailedRun, WatchResult

_FORMS = ("text", "json", "perfetto")


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
@click.option(
    "--fail",
    multiple=True,
    metavar="FUNCTION[#N][>SIZE]=CODE",
    help="Let calls fail: all, the Nth, or those about more than SIZE bytes.",
)
@click.option(
    "--fail-each",
    metavar="FUNCTION[=CODE]",
    help="Run the program once for each call of FUNCTION, failing that one.",
)
@click.option(
    "--most-runs",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="How many calls --fail-each fails at most.",
)
@click.option(
    "--time-limit",
    type=seconds,
    metavar="SECONDS",
    help="End the program after so long.  [default: never; with --fail-each 5 times the usual]",
)
@click.option("--read", type=click.Path(), metavar="TRACE", help="Show a trace; run nothing.")
@click.option(  # as the others have it, but that -o may keep the trace itself
    "--format",
    "form",
    type=click.Choice(_FORMS),
    help="How the result is written.  [default: text, or as the file of -o ends]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Short for --format json; its schema is qnnmem.watch/1."
)
@output_options
def watch(
    command: tuple[str, ...],
    fail: tuple[str, ...],
    fail_each: str | None,
    most_runs: int,
    time_limit: float | None,
    read: str | None,
    form: str | None,
    as_json: bool,
    output: str | None,
    force: bool,
) -> int:
    """Run a program that uses QNN, and show what it does with it.

    COMMAND is any program with its words, behind `--`: one with ONNX Runtime, ExecuTorch, the
    vendor's tools or your own, with the real library. It is neither changed nor compiled again.
    Shown are contexts, graphs and registered memory over time, what was never released and where it
    was made, every failed call with QNN's log lines and the doctor's reading of them, and the time
    in each function.

    -o with a name that ends in .jsonl keeps the trace, which --read shows again.

    Needs Linux and a C compiler.

    Exit codes: 0 no problems found, 1 findings, 2 cannot be run or never called QNN, 3 calls that
    were not watched, else the program's own.
    """
    form = _form(form, as_json, output)
    _check(command, fail, fail_each, read, form)
    if read is not None:
        return _show(Path(read), form, output, force, is_run=False)
    from qnnmem.cli.output import check_free
    from qnnmem.programs.watch.injections import read_injection
    from qnnmem.programs.watch.watch_run import WatchOptions

    if output is not None:
        check_free(Path(output), force)
    injections = tuple(map(read_injection, fail))
    options = WatchOptions(command, injections, time_limit, output is None and form != "text")
    if fail_each is not None:
        return _fail_each(options, fail_each, most_runs, form, output, force)
    return _watch(options, form, output, force)


def _form(form: str | None, as_json: bool, output: str | None) -> str:
    from qnnmem.cli.options import form_of

    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} exclude each other")
    if as_json or form is not None:
        return "json" if as_json else str(form)
    if output is not None and output.endswith(".jsonl"):
        return "trace"
    said = None if output is None else form_of(output)
    return said if said in _FORMS else "text"


def _check(
    command: tuple[str, ...],
    fail: tuple[str, ...],
    fail_each: str | None,
    read: str | None,
    form: str,
) -> None:
    """Refuses options that do not go together."""
    if read is not None and (command or fail or fail_each):
        raise UsageError("--read runs no program, so there is nothing to run or to fail")
    if read is not None and form == "trace":
        raise UsageError("--read shows a trace; copy the file to have it twice")
    if read is None and not command:
        raise UsageError("no program is given; write it behind --, or --read a trace")
    if fail_each is not None and form in ("perfetto", "trace"):
        raise UsageError("--fail-each runs the program many times, and gives text or JSON")


def _watch(options: WatchOptions, form: str, output: str | None, force: bool) -> int:
    from qnnmem.atomic_file import shown, write_pieces
    from qnnmem.cli.stderr import note
    from qnnmem.programs.watch.watch_run import record
    from qnnmem.temporary_folder import temporary_folder

    with temporary_folder() as folder:
        lines = record(options, Path(folder))
        if form == "trace" and output is not None:
            write_pieces(Path(output), lines, force=force)
            note(f"Wrote {shown(Path(output))}")
            return _show(Path(output), "text", None, force, is_run=True)
        with temporary_folder() as own:  # of which the program was told nothing
            trace = Path(own, "trace.jsonl")
            with trace.open("wb") as file:
                file.writelines(lines)
            return _show(trace, form, output, force, is_run=True)


def _show(trace: Path, form: str, output: str | None, force: bool, *, is_run: bool) -> int:
    from qnnmem.cli.output import say_verdict, write_stream
    from qnnmem.verbs.watch import read_watched, watch_exit_code

    report = read_watched(trace)
    target = None if output is None else Path(output)
    write_stream(_rendered(report, form, trace), target, force)
    if target is not None:
        say_verdict(report.verdict)
    return watch_exit_code(report, is_run=is_run)


def _rendered(report: WatchResult, form: str, trace: Path) -> Iterator[str]:
    from qnnmem.programs.watch.trace import read_trace
    from qnnmem.report import watch as written
    from qnnmem.report.perfetto import render_watch
    from qnnmem.results.schema import encode

    if form == "perfetto":
        yield from render_watch(report, read_trace(trace))
    elif form == "json":
        yield encode(report.bounded())
    else:
        yield written.render_text(report)


def _fail_each(
    options: WatchOptions, meant: str, most_runs: int, form: str, output: str | None, force: bool
) -> int:
    from qnnmem.cli.output import write
    from qnnmem.programs.functions import number_of
    from qnnmem.programs.watch.injections import read_code
    from qnnmem.programs.watch.watch_run import fail_each
    from qnnmem.report.watch import render_fail_each
    from qnnmem.results.schema import encode

    name, _, code = meant.partition("=")
    report = fail_each(options, number_of(name), read_code(code or "1002"), most_runs, _say)
    text = encode(report) if form == "json" else render_fail_each(report)
    write(text, None if output is None else Path(output), force, report.verdict)
    return report.verb_code


def _say(run: FailedRun) -> None:
    from qnnmem.cli.stderr import note
    from qnnmem.report.watch import run_headline

    note(f"qnnmem: {run_headline(run)}")
