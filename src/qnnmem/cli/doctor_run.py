"""What `qnnmem doctor` does, whichever way its arguments were read."""

from __future__ import annotations

from qnnmem.errors import UsageError

TYPE_CHECKING = False  # true for type checkers; importing typing is dear beside a small log
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from qnnmem.doctor.diagnose import Diagnosis
    from qnnmem.doctor.kb.knowledge import Knowledge
    from qnnmem.doctor.logs.source import Stream
    from qnnmem.doctor.model_facts import Numbers
    from qnnmem.report.doctor_read import Read


_AT_ONCE = ("text", "markdown")  # the others are one object, which has to end


def run_doctor(
    paths: Sequence[str],
    form: str,
    *,
    output: Path | None = None,
    force: bool = False,
    kb: Sequence[Path] = (),
    follow: bool = False,
    jobs: int = 1,
    cluster: str | None = None,
    group_by: str | None = None,
    find_numbers: Callable[[], Numbers] | None = None,
) -> int:
    """Diagnoses logs and shows the result; gives the exit code."""
    from qnnmem.cli.output import check_free, write_stream
    from qnnmem.doctor.logs.source import find_streams

    if output is not None:
        check_free(output, force)  # says so before the work, not after
    streams = find_streams(paths)
    knowledge = _knowledge(kb)
    live = _Live(form, find_numbers) if follow and output is None else None
    if follow:
        diagnosis = _follow(streams, knowledge, live)
    else:
        diagnosis = _diagnose(streams, knowledge, jobs, cluster)
    try:
        read = _read(diagnosis, knowledge, streams)
        if live is not None and live.shown:
            write_stream(live.end(read), None, False)
        else:
            # Compiling a model takes minutes: not for logs in which nothing failed.
            numbers = find_numbers() if find_numbers and read.incidents else None
            write_stream(_render(diagnosis, read, form, numbers, group_by), output, force)
        return diagnosis.exit_code
    finally:
        diagnosis.close()


def _knowledge(kb: Sequence[Path]) -> Knowledge:
    from qnnmem.doctor.kb.knowledge import built_in, with_own

    return with_own(kb) if kb else built_in()


def _diagnose(
    streams: Sequence[Stream], knowledge: Knowledge, jobs: int, cluster: str | None
) -> Diagnosis:
    if cluster is None and jobs == 1:
        from qnnmem.doctor.diagnose import diagnose

        return diagnose(streams, knowledge)
    from qnnmem.doctor import fleet

    with fleet.cluster_executor(cluster) if cluster else fleet.jobs_executor(jobs) as executor:
        return fleet.diagnose_with(streams, knowledge, executor)


def _follow(streams: Sequence[Stream], knowledge: Knowledge, live: _Live | None) -> Diagnosis:
    from qnnmem.doctor.logs.follow import follow

    if len(streams) != 1 or len(streams[0].parts) != 1:
        raise UsageError("--follow watches one log, a file or -")
    return follow(streams[0].parts[0], knowledge, live.report if live else _nothing)


def _nothing(_incident: dict[str, Any]) -> None:
    """Where the result goes to a file, nothing is shown on the way."""


class _Live:
    """Shows incidents of a log that is still being written."""

    def __init__(self, form: str, find_numbers: Callable[[], Numbers] | None) -> None:
        self.shown = 0
        self._form = form
        # Before the log is watched: an incident is not to wait for a compile.
        self._numbers = find_numbers() if find_numbers and form in _AT_ONCE else None

    def report(self, incident: dict[str, Any]) -> None:
        """Shows one incident at once; JSON and SARIF are one object, shown at the end."""
        from qnnmem.cli.output import write
        from qnnmem.report import doctor_markdown, doctor_text

        if self._form not in _AT_ONCE:
            return
        self.shown += 1
        one = doctor_markdown.one if self._form == "markdown" else doctor_text.one
        write(one(_with_numbers(incident, self._numbers), self.shown), None, False)

    def end(self, read: Read) -> Iterator[str]:
        """What is left to say when the log has ended."""
        from qnnmem.report.doctor_words import amount

        yield f"read {amount(read)}; incidents: {read.incidents:,}\n"


def _read(diagnosis: Diagnosis, knowledge: Knowledge, streams: Sequence[Stream]) -> Read:
    from qnnmem.report.doctor_read import Read

    noise = diagnosis.noise
    titles: Mapping[str, str] = _titles(knowledge) if noise else {}
    stats = diagnosis.stats()
    return Read(
        files=tuple(part for stream in streams for part in stream.parts),
        lines=diagnosis.lines,
        size=diagnosis.bytes,
        seconds=stats["seconds"],
        incidents=len(diagnosis),
        noise=tuple((name, titles.get(name, name), seen) for name, seen in noise.items()),
        notes=tuple(diagnosis.notes),
    )


def _render(
    diagnosis: Diagnosis, read: Read, form: str, numbers: Numbers | None, by: str | None
) -> Iterable[str]:
    groups = _groups(diagnosis, by) if by else None
    if form == "json":
        from qnnmem.report import doctor_json

        rows = None if groups is None else [dict(row._asdict()) for row in groups]
        return doctor_json.render(_texts(diagnosis, numbers), read, rows)
    incidents = (_with_numbers(one, numbers) for one in diagnosis.incidents())
    if form == "sarif":
        from qnnmem.report import doctor_sarif
        from qnnmem.version import __version__

        return doctor_sarif.render(incidents, read, __version__)
    if groups is not None and by is not None:
        return _grouped(groups, by, read)
    if form == "markdown":
        from qnnmem.report import doctor_markdown

        return doctor_markdown.render(incidents, read)
    from qnnmem.report import doctor_text

    return doctor_text.render(incidents, read)


def _groups(diagnosis: Diagnosis, by: str) -> Sequence[Any]:
    from qnnmem.doctor.fleet.summary import group

    return group(diagnosis, by)


def _grouped(groups: Sequence[Any], by: str, read: Read) -> Iterator[str]:
    from qnnmem.report import fleet_text
    from qnnmem.report.doctor_words import amount

    yield fleet_text.render(groups, by)
    yield f"read {amount(read)}\n"


def _texts(diagnosis: Diagnosis, numbers: Numbers | None) -> Iterator[str]:
    """Incidents as JSON texts, which are only taken apart where something is added."""
    if numbers is None:
        yield from diagnosis.texts()
        return
    import json

    for incident in diagnosis.incidents():
        yield json.dumps(_with_numbers(incident, numbers))


def _with_numbers(incident: dict[str, Any], numbers: Numbers | None) -> dict[str, Any]:
    if numbers is None:
        return incident
    from qnnmem.doctor.model_facts import add

    return add(incident, numbers)


def _titles(knowledge: Knowledge) -> Mapping[str, str]:
    entries = map(knowledge.entry, range(len(knowledge)))
    return {entry.id: entry.title for entry in entries}
