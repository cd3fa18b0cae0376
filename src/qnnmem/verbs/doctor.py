"""`doctor`: logs found, read with what is known, and diagnosed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from qnnmem.doctor.diagnose import Diagnosis
    from qnnmem.doctor.kb.knowledge import Knowledge
    from qnnmem.doctor.logs.source import FoundLogs, Stream
    from qnnmem.report.doctor_remedies import Guide


class ReadLogs(NamedTuple):
    """Logs that were found, and the knowledge that they are read with."""

    found: FoundLogs
    knowledge: Knowledge

    def complete(self, diagnosis: Diagnosis) -> None:
        """Add what could not be read, and notes on logs and knowledge."""
        for error in self.found.unread:
            diagnosis.miss(error)
        diagnosis.notes += (*self.found.notes, *self.knowledge.notes)


def read_logs(paths: Sequence[str], kb: Sequence[Path] = (), *, follow: bool = False) -> ReadLogs:
    """Find the logs that paths mean; one that is followed may still be empty."""
    from qnnmem.doctor.kb.knowledge import with_own
    from qnnmem.doctor.logs.kind import without_other_kinds
    from qnnmem.doctor.logs.source import find_logs

    found = find_logs(paths)
    return ReadLogs(found if follow else without_other_kinds(found), with_own(kb))


@contextmanager
def known_causes(knowledge: Knowledge, guide: Guide) -> Iterator[None]:
    """Give the guide the root causes of earlier runs, and keep what it learns."""
    from qnnmem.doctor.kept_whys import keep_whys, load_whys

    whys = load_whys(knowledge)
    guide.whys.update(whys)
    yield
    if guide.whys != whys:
        keep_whys(knowledge, guide.whys)


def diagnose_streams(
    streams: Sequence[Stream], knowledge: Knowledge, jobs: int = 1, cluster: str | None = None
) -> Diagnosis:
    """Diagnose logs here, with several processes, or on a cluster."""
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
