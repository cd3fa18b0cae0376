"""Diagnoses of logs as subjects."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.gate.loose import LOG, ComparedCount, LooseRead
from qnnmem.gate.subject import BAD, GOOD, OPEN, ComparedAnswer, ResultSubject


class _ReadIncident(LooseRead, frozen=True):
    stage: str
    cause: str
    cause_meaning: str
    verdict: str
    count: ComparedCount = 1
    shortage_bytes: ComparedCount | None = None


class ReadDiagnosis(LooseRead, frozen=True):
    """`qnnmem.doctor/1`."""

    incidents: list[_ReadIncident]
    files: tuple[str, ...] = ()
    tool: str = ""


def log_subjects(found: ReadDiagnosis) -> Iterator[ResultSubject]:
    """All logs that were read together."""
    missing: dict[str, int] = {}
    answers: dict[str, ComparedAnswer] = {}
    for one in found.incidents:
        question = f"{one.stage} stage, {one.cause}"
        answers[question] = ComparedAnswer("seen", OPEN if one.verdict == "undecided" else BAD)
        if one.shortage_bytes is not None:
            pool = f"missing: {one.cause}"
            missing[pool] = max(missing.get(pool, 0), one.shortage_bytes)
    more = f" and {len(found.files) - 1} more" if len(found.files) > 1 else ""
    yield ResultSubject(
        LOG,
        f"{found.files[0]}{more}" if found.files else "",
        pools=missing,
        answers=answers,
        unasked=ComparedAnswer("not seen", GOOD),
        settings={"tool": found.tool},
    )
