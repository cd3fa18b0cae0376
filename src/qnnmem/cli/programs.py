"""`qnnmem check-client` and `watch`: run programs that use QNN, and report their problems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.atomic_file import shown, write_pieces
from qnnmem.cli.options import shows, takes
from qnnmem.cli.output import Output, say_verdict, write_stream
from qnnmem.cli.streams import note
from qnnmem.errors import UsageError
from qnnmem.options.programs import CheckClientOptions, WatchProgramOptions
from qnnmem.results.schema import encode

if TYPE_CHECKING:
    from qnnmem.programs.watch.watch_run import WatchOptions
    from qnnmem.results.programs import ClientFinding, ClientResult, FailedRun, WatchResult

_TRACE = "trace"  # the format of a .jsonl file


@click.command("check-client", context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@takes(CheckClientOptions)
@shows("qnnmem.check-client/1", ("text", "json", "sarif", "junit"))
def check_client(command: tuple[str, ...], options: CheckClientOptions, output: Output) -> int:
    """Run a program with qnnmem's libQnnLpai.so and libQnnSystem.so, and report broken rules.

    COMMAND is the program with its arguments, after `--`. It runs unchanged. If it was compiled
    with -g, findings name files and lines. Its context binary must come from `qnnmem prepare`.
    Graphs are executed the way `qnnmem net-run` does.

    Each broken rule is printed immediately on standard error, and appears with call stacks in the
    result. The program's own output passes through. If JSON, SARIF or JUnit is printed to the
    terminal, the program's output goes to standard error.

    Needs Linux and a C compiler.

    Exit codes: 0 clean, 1 findings, 2 the program cannot run or never called QNN, 3 some calls were
    not checked. Instead of 0, the program's own exit code is given; if it is not 0, the last line
    and `passes` in the JSON show that nothing was found.
    """
    from qnnmem.verbs.programs import check_program

    to_stderr = output.path is None and output.form != "text"
    report = check_program(command, options, _say_finding, to_stderr=to_stderr)
    output.write(_render_client(report, output.form), report.verdict)
    return report.verb_code


def _say_finding(finding: ClientFinding) -> None:
    from qnnmem.report.check_client import headline

    note(f"qnnmem: {headline(finding)}")


def _render_client(report: ClientResult, form: str) -> str:
    from qnnmem.report import check_client

    if form == "json":
        return encode(report)
    if form == "sarif":
        return check_client.render_sarif(report)
    if form == "junit":
        return check_client.render_junit(report)
    return check_client.render_text(report)


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
@takes(WatchProgramOptions)
@shows("qnnmem.watch/1", ("text", "json", "perfetto"), suffixes={".jsonl": _TRACE})
def watch(command: tuple[str, ...], options: WatchProgramOptions, output: Output) -> int:
    """Run a program that uses QNN; show its calls, memory, failures and leaks.

    COMMAND is any program with its arguments, after `--`, such as one with ONNX Runtime,
    ExecuTorch, the vendor's tools or your own code. It runs unchanged, with the real library. The
    output shows contexts, graphs and registered memory over time; what was never released and where
    it was created; every failed call with QNN's log lines and a diagnosis; and the time spent in
    each function.

    -o with a name that ends in .jsonl saves the trace, which --read shows again.

    Needs Linux and a C compiler.

    Exit codes: 0 no findings, 1 findings, 2 the program cannot run or never called QNN, 3 some
    calls were not watched. Instead of 0, the program's own exit code is given.
    """
    _check_together(command, options, output.form)
    if options.read is not None:
        return _show_trace(Path(options.read), output, is_run=False)
    from qnnmem.programs.watch.injections import read_injection
    from qnnmem.programs.watch.watch_run import WatchOptions
    from qnnmem.verbs.programs import binary_tensors

    injections = tuple(map(read_injection, options.fail))
    to_stderr = output.path is None and output.form != "text"
    program = WatchOptions(
        *(command, injections, options.time_limit, to_stderr),
        one_at_a_time=options.serialise,
        read_binary=binary_tensors,
    )
    if options.fail_each is not None:
        return _fail_each(program, options.fail_each, options.most_runs, output)
    return _watch(program, output)


def _check_together(command: tuple[str, ...], options: WatchProgramOptions, form: str) -> None:
    """Raise UsageError for contradictory options."""
    read, fail_each = options.read, options.fail_each
    if read is not None and (command or options.fail or fail_each or options.serialise):
        raise UsageError(
            "--read runs no program; remove the command, --fail, --fail-each and --serialise"
        )
    if options.serialise and (options.fail or fail_each):
        raise UsageError(
            "--serialise looks for failures of the program itself; remove "
            f"{'--fail-each' if fail_each else '--fail'}"
        )
    if read is not None and form == _TRACE:
        raise UsageError(
            "--read only shows a trace and does not write one; to keep the trace, copy its file"
        )
    if read is None and not command:
        raise UsageError(
            "no program is given; write its command after --, or show a trace with --read"
        )
    if fail_each is not None and form in ("perfetto", _TRACE):
        raise UsageError("--fail-each runs the program many times and supports only text and JSON")


def _watch(program: WatchOptions, output: Output) -> int:
    from qnnmem.programs.watch.watch_run import record
    from qnnmem.temporary_folder import temporary_folder

    with temporary_folder() as folder:
        lines = record(program, Path(folder))
        if output.form == _TRACE and output.path is not None:
            write_pieces(output.path, lines, force=output.force)
            note(f"Wrote {shown(output.path)}")
            return _show_trace(output.path, Output(), is_run=True)
        with temporary_folder() as own:  # a folder that the program does not know
            trace = Path(own, "trace.jsonl")
            with trace.open("wb") as file:
                file.writelines(lines)
            return _show_trace(trace, output, is_run=True)


def _show_trace(trace: Path, output: Output, *, is_run: bool) -> int:
    from qnnmem.verbs.programs import read_watched, watch_exit_code

    report = read_watched(trace)
    write_stream(_render_watched(report, output.form, trace), output.path, output.force)
    if output.path is not None:
        say_verdict(report.verdict)
    return watch_exit_code(report, is_run=is_run)


def _render_watched(report: WatchResult, form: str, trace: Path) -> Iterator[str]:
    from qnnmem.programs.watch.trace import read_trace
    from qnnmem.report import watch as written
    from qnnmem.report.perfetto import render_watch

    if form == "perfetto":
        yield from render_watch(report, read_trace(trace))
    elif form == "json":
        yield encode(report.bounded())
    else:
        yield written.render_text(report)


def _fail_each(program: WatchOptions, meant: str, most_runs: int, output: Output) -> int:
    from qnnmem.programs.functions import number_of
    from qnnmem.programs.watch.injections import read_code
    from qnnmem.programs.watch.watch_run import fail_each
    from qnnmem.report.watch import render_fail_each

    name, _, code = meant.partition("=")
    report = fail_each(program, number_of(name), read_code(code or "1002"), most_runs, _say_run)
    output.show(report, lambda: render_fail_each(report), report.verdict)
    return report.verb_code


def _say_run(run: FailedRun) -> None:
    from qnnmem.report.watch import run_headline

    note(f"qnnmem: {run_headline(run)}")
