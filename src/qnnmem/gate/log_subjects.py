"""Diagnoses of logs as subjects."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.errors import UsageError
from qnnmem.gate.subject import BAD, GOOD, LOG, OPEN, ComparedAnswer, ResultSubject
from qnnmem.results.doctor import DoctorResult
from qnnmem.results.result import MAX_COUNT


def log_subjects(found: DoctorResult) -> Iterator[ResultSubject]:
    """All logs that were read together."""
    missing: dict[str, int] = {}
    answers: dict[str, ComparedAnswer] = {}
    for incident in found.incidents:
        question = f"{incident.stage} stage, {incident.cause}"
        is_open = incident.verdict == "undecided"
        answers[question] = ComparedAnswer("seen", OPEN if is_open else BAD)
        if incident.shortage_bytes is not None:
            if abs(incident.shortage_bytes) > MAX_COUNT:  # a log may print any number
                raise UsageError("more bytes are missing in it than any memory has")
            pool = f"missing: {incident.cause}"
            missing[pool] = max(missing.get(pool, 0), incident.shortage_bytes)
    more = f" and {len(found.files) - 1} more" if len(found.files) > 1 else ""
    yield ResultSubject(
        LOG,
        f"{found.files[0]}{more}" if found.files else "",
        pools=missing,
        answers=answers,
        unasked=ComparedAnswer("not seen", GOOD),
        settings={"tool": found.tool},
    )
