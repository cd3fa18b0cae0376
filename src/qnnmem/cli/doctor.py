"""`qnnmem doctor`: find the stage, the cause and the missing bytes of a failure in its log.

With `--host` the machine itself is checked, alone or in addition to a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from qnnmem.cli.options import detailed, takes
from qnnmem.cli.output import say_verdict, write, write_stream
from qnnmem.cli.recorded_args import RecordingCommand, recorded_args
from qnnmem.errors import UsageError
from qnnmem.options.doctor import DoctorOptions
from qnnmem.text import quote
from qnnmem.verbs.doctor import check_facts, check_machine, facts_for, find_facts
from qnnmem.version import __version__

if TYPE_CHECKING:
    from qnnmem.cli.output import Output
    from qnnmem.doctor.diagnose import Diagnosis
    from qnnmem.doctor.kb.knowledge import Knowledge
    from qnnmem.doctor.logs.source import Stream
    from qnnmem.doctor.model_facts import FactsOfBackends
    from qnnmem.report.doctor_remedies import Guide
    from qnnmem.results.host import HostResult
    from qnnmem.results.incident import Incident, ReadingStats

_OF_MODEL = ("--dim", "--shape", "--value")
_SHOWN_LIVE = ("text", "markdown")  # the other formats are a single object, which must end


class _Request(NamedTuple):
    """The user's request, as the renderers need it."""

    options: DoctorOptions
    output: Output
    host: str | None
    guide: Guide

    @property
    def form(self) -> str:
        """Format of the result."""
        return self.output.form


@click.command(cls=RecordingCommand)
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@takes(DoctorOptions)
@detailed("qnnmem.doctor/1", ("text", "json", "markdown", "sarif"))
def doctor(paths: tuple[str, ...], options: DoctorOptions, output: Output) -> int:
    """Find in logs which stage failed, why, and how many bytes are missing.

    PATH is a log, a folder or an archive of logs, a pattern such as 'logs/*.txt', a URL, or - for
    standard input. Logs can be compressed.

    Exit codes: 0 healthy, 1 a failure was diagnosed, 2 a log cannot be read or an option is wrong,
    3 the log does not show the cause, or does not concern QNN. With --host and no log: 0 no
    problem, 1 a problem, 2 the machine cannot be reached, 3 it shows neither QNN nor a DSP.
    """
    if any(options.sizes.values()) and options.model is None:
        raise UsageError("--dim, --shape and --value need --model")
    host, paths = _machine_and_logs(options.host, paths)
    if not paths:
        _check_alone(host, options)
        return _show_machine(host or "", output)
    from qnnmem.doctor import known_codes
    from qnnmem.verbs.named_files import log_names

    names = log_names(paths)
    request = _Request(options, output, host, _guide(options))
    check_facts(options)
    _check_options(request)
    code = _run(names, request)
    known_codes.keep()
    return code


def _check_alone(host: str | None, options: DoctorOptions) -> None:
    """Raise an error if options about logs are given without a log."""
    if host is None or options != DoctorOptions(host=options.host):
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])


def _guide(options: DoctorOptions) -> Guide:
    """Return a guide that puts the user's file names and options into suggested commands."""
    from qnnmem.report.doctor_remedies import Guide

    split = (word.partition("=") for word in recorded_args())
    settings = [(name, value) for name, _, value in split if name in _OF_MODEL]
    own = tuple(map(Path, options.kb))
    return Guide(options.model, options.binary, options.soc, settings, own)


def _check_options(request: _Request) -> None:
    """Raise UsageError for contradictory options."""
    options, form = request.options, request.form
    alone = options.cluster is None and options.jobs == 1
    if options.cluster is not None and options.jobs != 1:
        raise UsageError("--cluster and --jobs cannot be combined")
    if options.follow and not (alone and options.group_by is None):
        raise UsageError(
            "--follow reads one log and cannot be combined with --jobs, --cluster or --group-by"
        )
    if request.host is not None:
        _check_form(form)
        if options.follow:
            raise UsageError(
                "--follow and --host cannot be combined, because --host checks the machine only "
                "once"
            )
    if options.group_by is not None and form not in ("text", "json"):
        raise UsageError(f"--group-by supports only text and json, not {form}")


def _run(names: tuple[str, ...], request: _Request) -> int:
    """Diagnose logs and show the result; return the exit code."""
    from qnnmem.verbs.doctor import diagnose_streams, read_logs

    options, output = request.options, request.output
    logs = read_logs(names, tuple(map(Path, options.kb)), follow=options.follow)
    streams, knowledge = logs.found.streams, logs.knowledge
    request.guide.whys.update(knowledge.packed.whys)
    live = _LiveOutput(request) if options.follow and output.path is None else None
    if options.follow:
        diagnosis = _follow(streams, knowledge, live)
    else:
        diagnosis = diagnose_streams(streams, knowledge, options.jobs, options.cluster)
    try:
        logs.complete(diagnosis)
        if live is not None and live.shown:
            diagnosis.notes += live.missing
            write_stream(live.end(diagnosis.stats(streams)), None, False)
            return diagnosis.exit_code
        # Compiling a model takes minutes: skip it if nothing failed.
        model = facts_for(options, diagnosis)
        diagnosis.notes += model.missing if model else ()
        facts = model.facts if model else None
        machine = check_machine(request.host, diagnosis) if request.host else None
        stats = diagnosis.stats(streams)
        pieces = _render(diagnosis, stats, request, facts, machine)
        write_stream(pieces, output.path, output.force)
        if output.path is not None:
            say_verdict(_verdict(diagnosis, stats, facts))
        return diagnosis.exit_code
    finally:
        diagnosis.close()


def _follow(streams: Sequence[Stream], knowledge: Knowledge, live: _LiveOutput | None) -> Diagnosis:
    from qnnmem.doctor.follow import follow

    if len(streams) != 1 or len(streams[0].parts) != 1:
        raise UsageError("--follow reads only one log: a file, or - for standard input")
    return follow(streams[0].parts[0], knowledge, live.report if live else _show_nothing)


def _show_nothing(_incident: Incident) -> None:
    """Show no live incident, because the result goes to a file."""


class _LiveOutput:
    """Shows the incidents of a growing log."""

    def __init__(self, request: _Request) -> None:
        from qnnmem.doctor.backend import ALL

        self.shown = 0
        self._form, self._verbose, self._guide = request.form, request.output.verbose, request.guide
        # Compile before watching the log, so that no incident waits for a compile.
        model = find_facts(request.options, ALL) if request.form in _SHOWN_LIVE else None
        self._facts = model.facts if model else None
        self.missing = model.missing if model else ()

    def report(self, incident: Incident) -> None:
        """Show an incident immediately; JSON and SARIF are one object, shown at the end."""
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
        """Yield the last lines of output when the log has ended."""
        from qnnmem.report.doctor import notes
        from qnnmem.report.doctor_words import amount

        yield f"read {amount(stats)}; incidents: {stats.incidents:,}\n"
        yield from notes(stats)


def _render(
    diagnosis: Diagnosis,
    stats: ReadingStats,
    request: _Request,
    facts: FactsOfBackends | None,
    machine: HostResult | None,
) -> Iterable[str]:
    if machine is not None and request.form == "text":
        from qnnmem.report.host import render_beside

        pieces = _render(diagnosis, stats, request, facts, None)
        return chain(pieces, (render_beside(machine, verbose=request.output.verbose),))
    if request.options.group_by is not None:
        return _render_groups(diagnosis, stats, request, facts, machine)
    incidents = (_with_facts(incident, facts) for incident in diagnosis.incidents())
    if request.form == "sarif":
        from qnnmem.report.doctor_formats import render_sarif

        return render_sarif(incidents, stats, __version__, request.guide)
    if request.form == "markdown":
        from qnnmem.report.doctor_formats import render_markdown

        return render_markdown(incidents, stats, request.guide)
    from qnnmem.report import doctor as report

    if request.form == "json":
        rows = diagnosis.rows() if facts is None else incidents
        return report.render_json(rows, stats, machine=machine, guide=request.guide)
    return report.render_text(incidents, stats, verbose=request.output.verbose, guide=request.guide)


def _render_groups(
    diagnosis: Diagnosis,
    stats: ReadingStats,
    request: _Request,
    facts: FactsOfBackends | None,
    machine: HostResult | None,
) -> Iterable[str]:
    from qnnmem.doctor.fleet.summary import group
    from qnnmem.report.doctor import notes, render_fleet, render_json
    from qnnmem.report.doctor_words import amount

    summary = group(diagnosis, request.options.group_by or "")
    if request.form == "json":
        incidents = (_with_facts(incident, facts) for incident in diagnosis.incidents())
        return render_json(incidents, stats, summary, machine, request.guide)
    return (render_fleet(summary), f"read {amount(stats)}\n", *notes(stats))


def _verdict(diagnosis: Diagnosis, stats: ReadingStats, facts: FactsOfBackends | None) -> str:
    """Return the report's first line, which is also printed if the report goes to a file."""
    from qnnmem.report.doctor_words import healthy, summary

    first = next(iter(diagnosis.incidents()), None)
    return healthy(stats) if first is None else summary(stats, _with_facts(first, facts))


def _with_facts(incident: Incident, facts: FactsOfBackends | None) -> Incident:
    return incident if facts is None else facts.add_to(incident)


def _machine_and_logs(
    host: str | None, paths: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...]]:
    """Return machine and logs; if `--host` names a log, add it to the logs and use this machine."""
    if host is None:
        return None, paths
    from qnnmem.doctor.host.devices import LOCAL, is_machine

    if is_machine(host):
        return host, paths
    if host != "-" and "://" not in host and not _is_there(host):
        forms = "local, adb, adb:SERIAL or image:FOLDER"
        problem = f"--host cannot be {quote(host)}; it must be {forms}"
        raise UsageError(f"{problem}, and no log of that name exists")
    return LOCAL, (host, *paths)


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def _show_machine(host: str, output: Output) -> int:
    """Check a machine and show the result; return the exit code."""
    from qnnmem.doctor.host import examine, find_machine
    from qnnmem.report import host as report

    _check_form(output.form)
    result = examine(find_machine(host))
    text = partial(report.render_text, result, verbose=output.verbose)
    output.show(result, text, report.verdict(result))
    return result.exit_code


def _check_form(form: str) -> None:
    """Raise UsageError for a format that cannot show a machine."""
    if form not in ("text", "json"):
        raise UsageError(f"--host supports only text and json, not {form}")
