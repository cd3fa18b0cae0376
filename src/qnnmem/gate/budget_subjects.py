"""Checked budgets and baselines as subjects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from qnnmem.gate.loose import ComparedCount, LooseRead
from qnnmem.gate.subject import (
    BAD,
    GOOD,
    NONE,
    OPEN,
    ComparedAnswer,
    ResultSubject,
    SubjectTensor,
)

CHECK = "check of budgets"
_RANKS = {0: GOOD, 1: BAD, 2: NONE, 3: OPEN}  # by exit code


class _ReadCheckedPool(LooseRead, frozen=True):
    pool: str
    have_bytes: ComparedCount | None = None
    budget: bool = True


class _ReadChecked(LooseRead, frozen=True):
    name: str
    exit_code: ComparedCount
    pools: dict[str, ComparedCount]
    answer: str = ""
    at_most: tuple[str, ...] = ()
    checks: tuple[_ReadCheckedPool, ...] = ()


class ReadCheck(LooseRead, frozen=True):
    """`qnnmem.check/1`."""

    models: list[_ReadChecked]


def check_subjects(found: ReadCheck) -> Iterator[ResultSubject]:
    """Each model on each target."""
    for one in found.models:
        answer = ComparedAnswer(one.answer, _RANKS.get(one.exit_code, NONE))
        answers = {"file": answer}
        yield ResultSubject(
            CHECK,
            one.name,
            pools=one.pools,
            at_most=frozenset(one.at_most),
            answers=answers,
            limits={
                f"{'budget' if check.budget else 'limit'} of {check.pool}": check.have_bytes
                for check in one.checks
                if check.have_bytes is not None
            },
            has_all_tensors=False,
        )


class AcceptedModel(LooseRead, frozen=True):
    """What a baseline keeps of a model."""

    pools: dict[str, ComparedCount]
    peak: dict[str, ComparedCount] = msgspec.field(default_factory=dict)
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    at_most: tuple[str, ...] = ()


class ReadBaseline(LooseRead, frozen=True):
    """`qnnmem.baseline/1`."""

    models: dict[str, AcceptedModel]


def baseline_subjects(found: ReadBaseline) -> Iterator[ResultSubject]:
    """Each model as it was accepted."""
    for name, one in found.models.items():
        yield accepted_subject(name, one.pools, one.peak, one.settings, one.at_most)


def accepted_subject(
    name: str,
    pools: Mapping[str, int],
    peak: Mapping[str, int],
    settings: Mapping[str, str],
    at_most: Iterable[str] = (),
) -> ResultSubject:
    """A model by its pools and by what is alive at its peak."""
    return ResultSubject(
        CHECK,
        name,
        pools=pools,
        at_most=frozenset(at_most),
        tensors={tensor: SubjectTensor("peak", size) for tensor, size in peak.items()},
        # Without tensors on one side nothing is known of those on the other.
        has_all_tensors=bool(peak),
        settings=settings,
    )
