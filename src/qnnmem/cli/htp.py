"""HTP verbs: fit, footprint, qmem, sweep, place, llm, socs, provoke, htp-worker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import detailed, printed, shows, takes
from qnnmem.cli.output import say_refused, say_verdict
from qnnmem.cli.progress import ProgressBar
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args, verb_call
from qnnmem.cli.streams import note
from qnnmem.errors import CannotTell, MissingSoc, OutOfTime, QnnMemError, UsageError
from qnnmem.options.htp import (
    FitOptions,
    FootprintOptions,
    LlmOptions,
    PlaceOptions,
    ProvokeOptions,
    QmemOptions,
    SocsOptions,
    SweepOptions,
    ValidateOptions,
    WorkerOptions,
)

if TYPE_CHECKING:
    from qnnmem.cli.output import Output
    from qnnmem.htp.provoke import Provoked
    from qnnmem.report.fit import FitRow
    from qnnmem.results.footprint import Bill

_KEPT = "taken from the cache; to compile again, pass an empty folder with --cache"
_FAILURES = ("graph-limit", "op-over-vtcm", "pd-full", "host-memory", "bad-binary")


@click.command(cls=RecordingCommand)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@takes(FitOptions)
@detailed("qnnmem.fit/1")
def fit(files: tuple[str, ...], options: FitOptions, output: Output) -> int:
    """Check whether FILE fits a SoC's compile limit, process domain and VTCM; show the bytes.

    FILE is an HTP context binary (which is only read), or an ONNX model or a DLC (which the real
    library compiles and loads). Compiling needs the extra `htp`. For several files, a pattern or a
    folder, the result is a table; compiling many models takes time.

    Exit codes: 0 fits, 1 does not fit, 2 bad usage or unreadable input, 3 cannot tell, 4 not
    finished within the time limit. With several files, the worst result counts: 2, then 1, then 4,
    then 3.
    """
    from qnnmem.verbs.fit import check_fit, fit_file
    from qnnmem.verbs.named_files import named_files, read_by

    check_fit(options)
    named = named_files(files, read_by("fit"), "HTP model")
    say_verdict("\n".join(named.left_out))
    if len(files) > 1 or files != named.files:
        from qnnmem.report.fit import render_all, verdict_on_files
        from qnnmem.results.files import worst_code
        from qnnmem.results.fit import FitsResult

        rows = _fit_all(named.files, options)
        text = partial(render_all, rows, verbose=output.verbose)
        output.show(FitsResult.of(rows), text, verdict_on_files(rows))
        say_refused(rows)
        return worst_code(row.exit_code for row in rows)
    with ProgressBar(f"reading {Path(files[0]).name}") as bar:
        result = fit_file(files[0], options, verb_call(bar))
    from qnnmem.report.fit import render_text, verdict_on_all

    text = partial(render_text, result, verbose=output.verbose, options=recorded_args("fix"))
    output.show(result, text, verdict_on_all(result))
    return result.exit_code


def _fit_all(files: Sequence[str], options: FitOptions) -> list[FitRow]:
    """Return a table row with the verdicts for each file."""
    from qnnmem.verbs.fit import fit_file
    from qnnmem.verbs.named_files import refused

    rows: list[FitRow] = []
    for file in files:
        try:
            with ProgressBar(f"reading {Path(file).name}") as bar:
                rows.append(fit_file(file, options, verb_call(bar), one_of_many=True))
        except (CannotTell, OutOfTime) as exc:
            rows.append(refused(file, exc, exc.exit_code))
        except QnnMemError as exc:
            rows.append(refused(file, exc))
    return rows


@click.command(cls=RecordingCommand)
@click.argument("file", type=click.Path())
@takes(FootprintOptions)
@detailed("qnnmem.footprint/1")
def footprint(file: str, options: FootprintOptions, output: Output) -> int:
    """Show what FILE costs on HTP: weights, IO, spill/fill, VTCM, process domain.

    FILE is an HTP context binary (.bin, .serialized.bin) or an ONNX model that contains or names
    one. Such a file is only read, and no library is needed. Any other ONNX model, or a DLC, is
    compiled for SOC with the real library, which needs the extra `htp`. The result is cached for
    this file and these settings.

    An ExecuTorch program (.pte), a LiteRT model for an NPU, a Genie or GenAI folder, an app or a
    zip gets one bill for all its parts. Each distinct context counts once. Parts without a bill are
    named.

    Exit codes: 0 shown, 1 the model cannot be compiled, 2 it cannot be read, 3 no library is
    available, the SoC has no HTP, or the file lacks its SoC, a size or a model output, 4 not
    finished within the time limit.
    """
    from qnnmem.verbs.footprint import bill_exit_code, bill_file

    with ProgressBar(f"reading {Path(file).name}") as bar:
        call = verb_call(bar)
        outcome = bill_file(file, options, call)
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.report.bill import verdict

    if isinstance(outcome, CompileFailure):
        return output.show_failure(outcome, "bill", call)
    bill, is_compiled = outcome
    output.show(bill, lambda: _render_bill(bill, output, compiled=is_compiled), verdict(bill))
    return bill_exit_code(bill)


def _render_bill(bill: Bill, output: Output, *, compiled: bool) -> str:
    from qnnmem.report import bill as report

    if compiled:
        following = report.next_prepare(bill, recorded_args("prepare"))
    else:
        following = report.next_look(bill, recorded_args())
    following = f"{_KEPT}\n\n{following}" if bill.from_cache is True else following
    return report.render_text(bill, compiled=compiled, next_step=following, verbose=output.verbose)


@click.command(cls=RecordingCommand)
@click.argument("file", type=click.Path())
@takes(QmemOptions)
@detailed("qnnmem.qmem/1")
def qmem(file: str, options: QmemOptions, output: Output) -> int:
    """Show what raw and memhandle inputs and outputs of FILE cost, and which to choose.

    FILE is an HTP context binary (which is only read), or an ONNX model or a DLC (which the real
    library compiles for SOC).

    The IO layer is emulated, because the x86 library registers no memory. With --run, the results
    come from the real library, which is slow: use a small model. With --misuse, a client makes
    every mistake under the emulated contract and, if the library is installed, also with the
    library.

    Exit codes: 0 shown, 1 the model cannot be compiled or the results of --run differ, 2 it cannot
    be read, 3 no library is available, the SoC has no HTP, or the file lacks its SoC or a size, 4
    not finished within the time limit.
    """
    from qnnmem.verbs.footprint import compare_io, qmem_exit_code

    with ProgressBar(f"reading {Path(file).name}") as bar:
        call = verb_call(bar)
        table = compare_io(file, options, call)
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.report.qmem import render_text, verdict

    if isinstance(table, CompileFailure):
        return output.show_failure(table, "table", call)
    result = table.result
    text = partial(render_text, result, recorded_args, no_run=table.no_run, verbose=output.verbose)
    output.show(result, text, verdict(result))
    return qmem_exit_code(table)


@click.command()
@click.argument("model", type=click.Path())
@takes(SweepOptions)
@detailed("qnnmem.sweep/1")
def sweep(model: str, options: SweepOptions, output: Output) -> int:
    """Compile MODEL for SOC with several precisions, batch or VTCM sizes; show what each needs.

    Results are cached, so an interrupted sweep resumes where it stopped. A compile that crashed,
    hung or ran out of memory is marked, and the next run tries it again. The workers in
    QNNMEM_HTP_WORKER share the compiles; if one worker is lost, another does its work.

    Exit codes: 0 at least one setting fits, 1 no setting fits, 2 bad usage or unreadable input, 3
    cannot tell, 4 no compile was finished within the time limit. 130 after Ctrl-C, which shows the
    rows so far.
    """
    from qnnmem.verbs.sweep import run_sweep, sweep_task

    task = sweep_task(model, options)
    from qnnmem.report.sweep import render_text, verdict

    with ProgressBar(f"reading {Path(model).name}") as bar:
        call = verb_call(bar)
        ran = run_sweep(task, call)
    soc = task.soc.name
    if output.is_json:
        from qnnmem.results.schema import encode

        text = encode(ran.as_result(call.flags))
    else:
        text = render_text(
            *(ran.rows, ran.largest, model, soc),
            verbose=output.verbose,
            say=lambda row: ran.explained(row, call.flags).result.reason,
            interrupted=ran.signal is not None,
        )
    if ran.signal is not None:
        output.to_terminal().write(text)
        raise ran.signal
    output.write(text, verdict(ran.rows, ran.largest, soc))
    return ran.exit_code


@click.command()
@click.argument("model", type=click.Path())
@takes(ValidateOptions)
@detailed("qnnmem.validate/1")
def validate(model: str, options: ValidateOptions, output: Output) -> int:
    """Run MODEL on the CPU and on HTP, to tell wrong results from a shortage of memory.

    MODEL is an ONNX file. The CPU and HTP each run it once with the same random inputs. Every float
    tensor is compared in the order of the graph, and the first difference is named. On x86 the real
    library emulates HTP. With --results nothing is compiled: the saved outputs of a device are
    compared with the CPU's outputs for the inputs in --data.

    Exit codes: 0 the results agree, 1 a tensor differs, or HTP refuses a model that the CPU runs, 2
    bad usage or unreadable input, 3 cannot tell.
    """
    from qnnmem.report.place import render_validated
    from qnnmem.verbs.validate import validate_model

    with ProgressBar(f"reading {Path(model).name}") as bar:
        result = validate_model(model, options, verb_call(bar))
    text = partial(render_validated, result, verbose=output.verbose)
    output.show(result, text, result.summary)
    return result.exit_code


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@takes(PlaceOptions)
@detailed("qnnmem.place/1")
def place(files: tuple[str, ...], options: PlaceOptions, output: Output) -> int:
    """Check whether the context binaries FILE can be loaded together, in this order.

    A context is placed in the first process domain that has room for it. The same file can be given
    several times; a pattern or a folder stands for its context binaries, ordered by name.

    LPAI binaries of `qnnmem prepare` share one scratch, one persistent and one TCM pool. Graphs
    named with --concurrent can execute at the same time; other graphs never do.

    Exit codes: 0 all fit, 1 not all fit, 2 bad usage or unreadable input, 3 cannot tell.
    """
    from qnnmem.loader.file_kind import is_kind
    from qnnmem.report.place import render_text, verdict
    from qnnmem.verbs.named_files import named_files, read_by
    from qnnmem.verbs.place import arrange_binaries, place_exit_code, place_files

    if options.verify and options.budget is not None:
        raise UsageError("remove --budget: --verify uses the library's own budget")
    named = named_files(files, read_by("place"), "context binary", each_once=False)
    say_verdict("\n".join(named.left_out))
    if any(is_kind(Path(file), ("lpai",)) for file in named.files):
        if not all(is_kind(Path(file), ("lpai",)) for file in named.files):
            raise UsageError(
                "LPAI binaries and HTP contexts cannot be placed together; pass files for only "
                "one backend"
            )
        from qnnmem.report.together import render_together, verdict_lines

        arranged = arrange_binaries([Path(file) for file in named.files], options)
        verdicts = "\n".join(verdict_lines(arranged))
        output.show(arranged, lambda: render_together(arranged), verdicts)
        return arranged.exit_code
    if options.concurrent:
        raise UsageError("--concurrent is only for LPAI binaries")
    with ProgressBar("reading") as bar:
        answer = place_files([Path(file) for file in named.files], options, bar)
    text = partial(render_text, answer, verbose=output.verbose)
    output.show(answer, text, verdict(answer))
    return place_exit_code(answer)


@click.command(cls=RecordingCommand)
@click.argument("model", type=click.Path())
@takes(LlmOptions)
@detailed("qnnmem.llm/1")
def llm(model: str, options: LlmOptions, output: Output) -> int:
    """Predict whether an LLM fits a SoC, in how many shards, with what context.

    MODEL is a config.json, a folder with a config.json, a GGUF file (only its header is read) or
    a known name such as llama-3.2-3b. Nothing is downloaded or exported. Sizes come from
    rules that were measured with the real library, so this works anywhere; --compile needs the
    extra `htp`.

    Exit codes: 0 fits, 1 does not fit, 2 bad usage or unreadable input, 3 cannot tell. For a table,
    0 if at least one row fits.
    """
    from qnnmem.report.llm import render_text
    from qnnmem.verbs.llm import plan_model

    with ProgressBar("reading") as bar:
        result = plan_model(model, options, verb_call(bar))
    text = partial(render_text, result, verbose=output.verbose)
    output.show(result, text, result.summary)
    return result.exit_code


@click.command()
@click.argument("name", required=False)
@takes(SocsOptions)
@shows("qnnmem.socs/1")
def socs(name: str | None, options: SocsOptions, output: Output) -> int:
    """List the SoCs of the HTP backend, or show the SoC called NAME.

    NAME is a name (SM8650), an id (57) or a marketing name ("Snapdragon 8 Gen 3"). A Hexagon
    version (v75) lists all SoCs of that version.

    Exit codes: 0 listed, 2 no such SoC, 3 NAME has no HTP.
    """
    from qnnmem.report.socs import render_text
    from qnnmem.results.socs import SocsResult
    from qnnmem.targets.socs import any_soc, with_hexagon
    from qnnmem.targets.socs import socs as known

    if name is not None:
        chosen = with_hexagon(name) or (any_soc(name),)
    else:
        chosen = tuple(soc for soc in known() if options.everything or soc.has_htp)
    shown = render_text(chosen)
    verdict = "" if name is None else shown.partition("\n")[0]
    output.show(SocsResult(socs=tuple(chosen)), lambda: shown, verdict)
    return 0 if name is None or any(soc.has_htp for soc in chosen) else 3


@click.command(no_args_is_help=True)
@click.argument("kind", type=click.Choice(_FAILURES), metavar="KIND")
@takes(ProvokeOptions)
@printed("qnnmem.provoked/1")
def provoke(kind: str, options: ProvokeOptions, output: Output) -> int:
    """Make the real HTP library fail on a small crafted input, and store its log.

    \b
    KIND          cost             what happens
    graph-limit   2 s, 130 MiB     inputs just above the SoC's limit for one graph
    op-over-vtcm  1 s, 130 MiB     a softmax longer than VTCM
    pd-full       2 s, 130 MiB     contexts of 1 GiB until the process domain is full
    host-memory   5 s, 130 MiB     a compile with too little address space
    bad-binary    2 s, 130 MiB     damaged context binaries are loaded

    If the library does not fail, nothing is stored. Needs the
    extra `htp` on Linux x86-64.

    Exit codes: 0 the library failed as expected, 1 it did not fail (nothing is stored), 2 bad
    usage, 3 it failed for another reason (stored), or the library is missing.
    """  # noqa: D301  click wants the character itself
    if options.soc is None:
        raise MissingSoc(what="the failure depends on the SoC")
    from qnnmem.atomic_file import check_replaceable, folder_for_output
    from qnnmem.htp.provoke import FailureKind
    from qnnmem.htp.provoke import provoke as provoke_failure
    from qnnmem.report.provoke import render_text
    from qnnmem.targets.socs import find_soc

    soc, wanted, folder = find_soc(options.soc), FailureKind(kind), Path(options.output)
    stem, limit = f"{kind}-{soc.name}", options.time_limit
    with folder_for_output(folder):
        for ending in ("json", "log", "onnx", "bin"):
            check_replaceable(folder / f"{stem}.{ending}", force=options.force)
        with ProgressBar(f"provoking {kind}") as bar:
            provoked = provoke_failure(wanted, soc, time_limit_s=limit, progress=bar.say)
        record = provoked.record
        if record.failed:
            _store(provoked, folder / f"{stem}.json", options.force)
    output.show(record, lambda: render_text(record))
    if not record.failed:
        return 1
    return 0 if record.as_expected else 3


def _store(provoked: Provoked, place: Path, force: bool) -> None:
    """Write the record, the log and the input, or none of them."""
    from qnnmem.atomic_file import shown, write_together
    from qnnmem.results.schema import encode

    record, folder = provoked.record, place.parent
    contents = {
        folder / record.log_file: provoked.log_text,
        folder / record.input_file: provoked.input_bytes,
        place: encode(record).encode("utf-8", "backslashreplace"),
    }
    write_together(contents, force=force)
    note(f"Wrote {shown(place)}")


@click.command()
@takes(WorkerOptions)
def htp_worker(options: WorkerOptions) -> int:
    """Compile, load and run with the real library for qnnmem on another machine.

    The command in QNNMEM_HTP_WORKER on that machine starts the worker, over ssh, in a container or
    under qemu-user. The worker talks through standard input and output and ends when they close. It
    caches models and binaries by content.

    Exit codes: 0 the client disconnected, 2 bad usage or no space for files.
    """
    import sys

    from qnnmem.cache import NOWHERE, cache_folder
    from qnnmem.htp.remote.server import run_server, server_limits

    if sys.stdin.isatty():
        misuse = "htp-worker is started by the command in QNNMEM_HTP_WORKER, not by hand"
        raise UsageError(misuse, cure="docs/how-to/htp-anywhere.md has examples")
    folder = cache_folder() if options.cache is None else Path(options.cache).absolute()
    if folder == NOWHERE:
        raise UsageError(
            "there is no home folder to store files in", cure="choose a folder with --cache"
        )
    limits = server_limits(options.time_limit, options.memory_limit)
    return run_server(folder / "htp-worker", options.cache_size, limits)
