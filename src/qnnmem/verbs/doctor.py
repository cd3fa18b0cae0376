"""Verb `doctor`: find logs, read them, and diagnose."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import NoCompiler, QnnMemError
from qnnmem.flags import flag

if TYPE_CHECKING:
    from qnnmem.doctor.diagnose import Diagnosis
    from qnnmem.doctor.kb.knowledge import Knowledge
    from qnnmem.doctor.logs.source import FoundLogs, Stream
    from qnnmem.doctor.model_facts import FactsOfBackends
    from qnnmem.options.doctor import DoctorOptions
    from qnnmem.results.host import HostResult

_MOST_INCIDENTS = 1000  # incidents whose causes are checked
_NO_SOC = (
    "--soc SOC adds the limits of this model on HTP: compile limit, VTCM and, where "
    "installed, the compiler's answer"
)


class ReadLogs(NamedTuple):
    """Logs to read, and the knowledge base for them."""

    found: FoundLogs
    knowledge: Knowledge

    def complete(self, diagnosis: Diagnosis) -> None:
        """Add unreadable logs, and the notes about logs and knowledge base, to the diagnosis."""
        for error in self.found.unread:
            diagnosis.miss(error)
        diagnosis.notes += (*self.found.notes, *self.knowledge.notes)


def read_logs(paths: Sequence[str], kb: Sequence[Path] = (), *, follow: bool = False) -> ReadLogs:
    """Find the logs named by `paths`; with `follow`, a log can still be empty."""
    from qnnmem.doctor.kb.knowledge import with_own
    from qnnmem.doctor.logs.source import find_logs, without_other_kinds

    logs = find_logs(paths)
    return ReadLogs(logs if follow else without_other_kinds(logs), with_own(kb))


def diagnose_streams(
    streams: Sequence[Stream], knowledge: Knowledge, jobs: int = 1, cluster: str | None = None
) -> Diagnosis:
    """Diagnose logs in this process, in several processes, or on a cluster."""
    from qnnmem.collector import collect_as_ever

    if cluster is None and jobs == 1:
        from qnnmem.doctor.diagnose import diagnose

        collect_as_ever()
        return diagnose(streams, knowledge)
    from qnnmem.doctor import fleet

    collect_as_ever()
    if cluster is None:
        chosen = fleet.jobs_executor(jobs, fleet.bytes_of(streams))
    else:
        chosen = fleet.cluster_executor(cluster)
    with chosen as executor:
        return fleet.diagnose_with(streams, knowledge, executor)


class FoundFacts(NamedTuple):
    """Facts about the failing model, and a sentence for each missing fact."""

    facts: FactsOfBackends
    missing: tuple[str, ...]


def check_facts(options: DoctorOptions) -> None:
    """Raise UsageError for an unknown SoC, before any log is read."""
    if options.soc is not None:
        from qnnmem.targets.socs import find_soc

        find_soc(options.soc)


def find_facts(options: DoctorOptions, backends: Collection[str]) -> FoundFacts | None:
    """Return the model's facts for these backends; None if no model, binary or SoC is given."""
    if options.binary is None and options.model is None and options.soc is None:
        return None
    from qnnmem.doctor.backend import HTP
    from qnnmem.doctor.model_facts import gather_possible
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.targets.socs import find_soc

    binary = None if options.binary is None else Path(options.binary)
    model = None if options.model is None else Path(options.model)
    soc = None if options.soc is None else find_soc(options.soc)
    compiled = None if model is None else CompileOptions(**options.sizes)
    facts, failures = gather_possible(binary, model, soc, compiled, backends)
    notes = [_not_known(failure.sentence(flag), failure) for failure in failures]
    if model is not None and soc is None and HTP in backends:
        notes.append(_NO_SOC)
    return FoundFacts(facts, tuple(notes))


def _not_known(sentence: str, failure: QnnMemError) -> str:
    is_compile = isinstance(failure, NoCompiler)
    missing = "the model was not compiled" if is_compile else "no facts about the model"
    return f"{missing}: {sentence}"


def facts_for(options: DoctorOptions, diagnosis: Diagnosis) -> FoundFacts | None:
    """Return the model's facts for the backends that failed."""
    if not len(diagnosis):
        return None
    from qnnmem.doctor.backend import LPAI, backend_of

    short = (incident for incident in diagnosis.incidents() if incident.decided_memory is not False)
    # A wrong name is reported even if memory is not short; but nothing is compiled.
    return find_facts(options, {backend_of(incident) for incident in short} or {LPAI})


def check_machine(host: str, diagnosis: Diagnosis) -> HostResult | None:
    """Return the checks of the machine, those about diagnosed causes first.

    If the machine cannot be checked, add a note to the diagnosis and return None.
    """
    from qnnmem.doctor.host import examine, find_machine
    from qnnmem.doctor.host.judge import with_causes

    try:
        checked = examine(find_machine(host))
    except QnnMemError as exc:
        diagnosis.notes.append(f"the machine was not checked: {exc.sentence(flag)}")
        return None
    return with_causes(checked, _causes(diagnosis))


def _causes(diagnosis: Diagnosis) -> list[str]:
    """Return the diagnosed causes, and the candidate causes of undecided incidents."""
    causes: list[str] = []
    for incident in islice(diagnosis.incidents(), _MOST_INCIDENTS):
        ranked = [candidate.cause for candidate in incident.candidates]
        causes += ranked if ranked and incident.verdict != "cause" else [incident.cause]
    return causes
