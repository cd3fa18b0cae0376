"""Checked budgets and baselines as subjects."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.gate.subject import (
    BAD,
    GOOD,
    NONE,
    OPEN,
    ComparedAnswer,
    ResultSubject,
    SubjectTensor,
)
from qnnmem.results.check import AcceptedModel, Baseline, CheckResult

CHECK = "check of budgets"
_RANKS = {0: GOOD, 1: BAD, 2: NONE, 3: OPEN}  # by exit code


def check_subjects(found: CheckResult) -> Iterator[ResultSubject]:
    """Each model on each target."""
    for model in found.models:
        yield ResultSubject(
            CHECK,
            model.name,
            pools=model.pools,
            at_most=frozenset(model.at_most),
            answers={"file": ComparedAnswer(model.answer, _RANKS[model.exit_code])},
            limits={
                f"{'budget' if check.budget else 'limit'} of {check.pool}": check.have_bytes
                for check in model.checks
                if check.have_bytes is not None
            },
            has_all_tensors=False,
        )


def baseline_subjects(found: Baseline) -> Iterator[ResultSubject]:
    """Each model as it was accepted."""
    yield from (accepted_subject(name, model) for name, model in found.models.items())


def accepted_subject(name: str, model: AcceptedModel) -> ResultSubject:
    """A model by its pools and by the tensors at its peak."""
    return ResultSubject(
        CHECK,
        name,
        pools=model.pools,
        at_most=frozenset(model.at_most or ()),
        tensors={tensor: SubjectTensor("peak", size) for tensor, size in model.peak.items()},
        # Without tensors on one side nothing is known of those on the other.
        has_all_tensors=bool(model.peak),
        settings=model.settings,
    )
