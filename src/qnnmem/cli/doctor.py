"""`qnnmem doctor`: from a failing log to the stage, the cause and the missing bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from qnnmem.cli.host import Machine, check_form, look_beside, show_alone, sort_out
from qnnmem.cli.options import result_options, takes, verbose_option
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args
from qnnmem.errors import NoCompiler, QnnMemError, UsageError
from qnnmem.options.doctor import DoctorOptions

if TYPE_CHECKING:
    from qnnmem.doctor.diagnose import Diagnosis
    from qnnmem.doctor.kb.knowledge import Knowledge
    from qnnmem.doctor.logs.source import Stream
    from qnnmem.doctor.model_facts import FactsOfBackends
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.report.doctor_remedies import Guide
    from qnnmem.results.host import HostResult
    from qnnmem.results.incident import Incident, ReadingStats
    from qnnmem.targets.socs import Soc

FORMATS = ("text", "json", "markdown", "sarif")

_NO_SOC = (
    "--soc SOC adds what bounds this model on HTP: the compile limit and the VTCM of that SoC, and "
    "what its compiler says where it is installed"
)
_OF_MODEL = ("--dim", "--shape", "--value")
_SHOWN_LIVE = ("text", "markdown")  # the others are one object, which has to end


class Request(NamedTuple):
    """What was asked for, once its options are known to go together."""

    paths: tuple[str, ...]
    form: str
    output: Path | None
    force: bool
    kb: tuple[Path, ...]
    follow: bool
    jobs: int
    cluster: str | None
    group_by: str | None
    find_facts: Callable[[Collection[str]], FoundFacts] | None
    verbose: bool
    host: str | None
    guide: Guide


class FoundFacts(NamedTuple):
    """What is known of the model, and a sentence about everything that is not."""

    facts: FactsOfBackends
    missing: tuple[str, ...]


@click.command(cls=RecordingCommand)
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option(
    "--host",
    type=Machine(),
    is_flag=False,
    flag_value="local",
    metavar="[MACHINE]",
    help="Check the machine itself, too, or alone: local (the default), adb or adb:SERIAL.",
)
@takes(DoctorOptions)
@verbose_option
@result_options("qnnmem.doctor/1", FORMATS)
def doctor(
    paths: tuple[str, ...],
    host: str | None,
    options: DoctorOptions,
    verbose: bool,
    form: str,
    output: str | None,
    force: bool,
) -> int:
    """Say from logs which stage failed, why, and how many bytes are missing.

    PATH is a log, a folder or an archive of logs, a pattern such as 'logs/*.txt', a URL, or - for
    standard input; plain or compressed.

    Exit codes: 0 healthy, 1 an incident was found, 2 a log cannot be read or an option is wrong,
    3 the lines do not decide what failed, or there is nothing of QNN in them. With --host and no
    log: 0 no problem, 1 a problem, 2 the machine cannot be looked at, 3 nothing of QNN or a DSP is
    on it.
    """
    if any(options.sizes.values()) and options.model is None:
        raise UsageError("--dim, --shape and --value are for --model")
    host, paths = sort_out(host, paths)
    from qnnmem.doctor import known_codes
    from qnnmem.doctor.kept_patterns import kept_patterns

    with kept_patterns():  # which most of the imports below need
        if not paths:
            _check_alone(host, options)
            return show_alone(host or "", form, _path(output), force, verbose)
        from qnnmem.cli.log_names import log_names

        request = Request(
            log_names(paths),
            form,
            _path(output),
            force,
            tuple(map(Path, options.kb)),
            options.follow,
            options.jobs,
            options.cluster,
            options.group_by,
            _facts_finder(options),
            verbose,
            host,
            _guide(options),
        )
        _check(request)
        code = _run(request)
    known_codes.keep()
    return code


def _check_alone(host: str | None, options: DoctorOptions) -> None:
    """Refuse options about logs where no log is named."""
    if host is None or options != DoctorOptions():
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])


def _guide(options: DoctorOptions) -> Guide:
    """What the user named, for the commands that are recommended."""
    from qnnmem.report.doctor_remedies import Guide

    split = (word.partition("=") for word in recorded_args())
    settings = [(name, value) for name, _, value in split if name in _OF_MODEL]
    own = tuple(map(Path, options.kb))
    return Guide(options.model, options.binary, options.soc, settings, own)


def _check(request: Request) -> None:
    """Refuses options that contradict each other."""
    alone = request.cluster is None and request.jobs == 1
    if request.cluster is not None and request.jobs != 1:
        raise UsageError("--cluster and --jobs exclude each other")
    if request.follow and not (alone and request.group_by is None):
        raise UsageError("--follow reads one log; not with --jobs, --cluster or --group-by")
    if request.host is not None:
        check_form(request.form)
        if request.follow:
            raise UsageError("--follow and --host exclude each other: a look is of one moment")
    if request.group_by is not None and request.form not in ("text", "json"):
        raise UsageError(f"--group-by gives text or json, not {request.form}")


def _facts_finder(
    options: DoctorOptions,
) -> Callable[[Collection[str]], FoundFacts] | None:
    """How to find the facts about the model, once logs and options are known to be good."""
    binary, model, soc = options.binary, options.model, options.soc
    if binary is None and model is None and soc is None:
        return None
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.targets.socs import find_soc

    compiled = CompileOptions(**options.sizes) if model is not None else None
    chosen = None if soc is None else find_soc(soc)
    return lambda backends: _find_facts(_path(binary), _path(model), chosen, compiled, backends)


def _find_facts(
    binary: Path | None,
    model: Path | None,
    soc: Soc | None,
    options: CompileOptions | None,
    backends: Collection[str],
) -> FoundFacts:
    from qnnmem.doctor.backend import HTP
    from qnnmem.doctor.model_facts import gather_possible
    from qnnmem.flags import flag

    facts, failures = gather_possible(binary, model, soc, options, backends)
    notes = [_not_known(failure.sentence(flag), failure) for failure in failures]
    if model is not None and soc is None and HTP in backends:
        notes.append(_NO_SOC)
    return FoundFacts(facts, tuple(notes))


def _not_known(sentence: str, failure: QnnMemError) -> str:
    what = "not compiled here" if isinstance(failure, NoCompiler) else "nothing about the model"
    return f"{what}: {sentence}"


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def _run(request: Request) -> int:
    """Diagnose logs and show the result; return the exit code."""
    from qnnmem.cli.output import check_free, say_verdict, write_stream
    from qnnmem.verbs.doctor import diagnose_streams, known_causes, read_logs

    if request.output is not None:
        check_free(request.output, request.force)  # says so before the work, not after
    logs = read_logs(request.paths, request.kb, follow=request.follow)
    streams, knowledge = logs.found.streams, logs.knowledge
    with known_causes(knowledge, request.guide):
        live = _LiveOutput(request) if request.follow and request.output is None else None
        if request.follow:
            diagnosis = _follow(streams, knowledge, live)
        else:
            diagnosis = diagnose_streams(streams, knowledge, request.jobs, request.cluster)
        try:
            logs.complete(diagnosis)
            if live is not None and live.shown:
                diagnosis.notes += live.missing
                write_stream(live.end(diagnosis.stats(streams)), None, False)
                return diagnosis.exit_code
            # Compiling a model takes minutes: not for logs in which nothing failed.
            model = _facts_for(request, diagnosis)
            diagnosis.notes += model.missing if model else ()
            facts = model.facts if model else None
            machine = look_beside(request.host, diagnosis) if request.host else None
            stats = diagnosis.stats(streams)
            pieces = _render(diagnosis, stats, request, facts, machine)
            write_stream(pieces, request.output, request.force)
            if request.output is not None:
                say_verdict(_verdict(diagnosis, stats, facts))
            return diagnosis.exit_code
        finally:
            diagnosis.close()


def _facts_for(request: Request, diagnosis: Diagnosis) -> FoundFacts | None:
    """The facts about the model on the backends that failed."""
    if request.find_facts is None or not len(diagnosis):
        return None
    from qnnmem.doctor.backend import LPAI, backend_of

    short = (one for one in diagnosis.incidents() if one.is_memory is not False)
    # Where memory is not short, a wrong name is still said, and nothing is compiled for it.
    return request.find_facts({backend_of(one) for one in short} or {LPAI})


def _follow(streams: Sequence[Stream], knowledge: Knowledge, live: _LiveOutput | None) -> Diagnosis:
    from qnnmem.doctor.follow import follow

    if len(streams) != 1 or len(streams[0].parts) != 1:
        raise UsageError("--follow watches one log, a file or -")
    return follow(streams[0].parts[0], knowledge, live.report if live else _show_nothing)


def _show_nothing(_incident: Incident) -> None:
    """Where the result goes to a file, nothing is shown on the way."""


class _LiveOutput:
    """Shows incidents of a log that is still being written."""

    def __init__(self, request: Request) -> None:
        from qnnmem.doctor.backend import ALL

        self.shown = 0
        self._form, self._verbose, self._guide = request.form, request.verbose, request.guide
        # Before the log is watched: an incident is not to wait for a compile.
        wanted = request.find_facts if request.form in _SHOWN_LIVE else None
        found = wanted(ALL) if wanted else None
        self._facts = found.facts if found else None
        self.missing = found.missing if found else ()

    def report(self, incident: Incident) -> None:
        """Shows one incident at once; JSON and SARIF are one object, shown at the end."""
        from qnnmem.cli.output import write
        from qnnmem.report import doctor as report
        from qnnmem.report import doctor_formats

        if self._form not in _SHOWN_LIVE:
            return
        self.shown += 1
        known = _with_facts(incident, self._facts)
        if self._form == "markdown":
            text = doctor_formats.render_live(known, self.shown, self._guide)
        else:
            text = report.render_live(known, self.shown, verbose=self._verbose, guide=self._guide)
        write(text, None, False)

    def end(self, stats: ReadingStats) -> Iterator[str]:
        """What is left to say when the log has ended."""
        from qnnmem.report.doctor import notes
        from qnnmem.report.doctor_words import amount

        yield f"read {amount(stats)}; incidents: {stats.incidents:,}\n"
        yield from notes(stats)


def _render(
    diagnosis: Diagnosis,
    stats: ReadingStats,
    request: Request,
    facts: FactsOfBackends | None,
    machine: HostResult | None,
) -> Iterable[str]:
    if machine is not None and request.form == "text":
        from qnnmem.report.host import render_beside

        pieces = _render(diagnosis, stats, request, facts, None)
        return chain(pieces, (render_beside(machine, verbose=request.verbose),))
    if request.group_by is not None:
        return _render_groups(diagnosis, stats, request, facts, machine)
    incidents = (_with_facts(one, facts) for one in diagnosis.incidents())
    if request.form == "sarif":
        from qnnmem.report.doctor_formats import render_sarif
        from qnnmem.version import __version__

        return render_sarif(incidents, stats, __version__, request.guide)
    if request.form == "markdown":
        from qnnmem.report.doctor_formats import render_markdown

        return render_markdown(incidents, stats, request.guide)
    from qnnmem.report import doctor as report

    if request.form == "json":
        rows = diagnosis.rows() if facts is None else incidents
        return report.render_json(rows, stats, machine=machine, guide=request.guide)
    return report.render_text(incidents, stats, verbose=request.verbose, guide=request.guide)


def _render_groups(
    diagnosis: Diagnosis,
    stats: ReadingStats,
    request: Request,
    facts: FactsOfBackends | None,
    machine: HostResult | None,
) -> Iterable[str]:
    from qnnmem.doctor.fleet.summary import group
    from qnnmem.report.doctor import notes, render_fleet, render_json
    from qnnmem.report.doctor_words import amount

    summary = group(diagnosis, request.group_by or "")
    if request.form == "json":
        incidents = (_with_facts(one, facts) for one in diagnosis.incidents())
        return render_json(incidents, stats, summary, machine, request.guide)
    return (render_fleet(summary), f"read {amount(stats)}\n", *notes(stats))


def _verdict(diagnosis: Diagnosis, stats: ReadingStats, facts: FactsOfBackends | None) -> str:
    """The first line of the report, for those who do not see it."""
    from qnnmem.report.doctor_words import healthy, summary

    first = next(iter(diagnosis.incidents()), None)
    return healthy(stats) if first is None else summary(stats, _with_facts(first, facts))


def _with_facts(incident: Incident, facts: FactsOfBackends | None) -> Incident:
    return incident if facts is None else facts.add_to(incident)
