"""What of a result is compared: numbers by pool, tensors by name, verdicts by question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# What two results must both be to be compared.
LPAI, HTP, LOG, FIX, SWEEP = (
    "plan of memory",
    "bill or fit on HTP",
    "diagnosis",
    "fix",
    "sweep",
)
# How good an answer is; of two answers the one with the higher number is worse.
GOOD, OPEN, BAD, NONE = range(4)
_RANKS = {True: GOOD, None: OPEN, False: BAD}
_WORDS = {True: "fits", None: "cannot tell", False: "does not fit"}


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """A verdict in words, and how good it is."""

    words: str
    rank: int = GOOD


def fit_answer(fits: bool | None) -> ComparedAnswer:
    """Yes, no or cannot tell."""
    return ComparedAnswer(_WORDS[fits], _RANKS[fits])


@dataclass(frozen=True, slots=True)
class SubjectTensor:
    """Where a tensor lies and how much it takes."""

    pool: str
    size: int


def tensors_by_name(found: Iterable[tuple[str, str, int]]) -> dict[str, SubjectTensor]:
    """Tensors by name, with pool and size; several of one name are added up."""
    tensors: dict[str, SubjectTensor] = {}
    for name, pool, size in found:
        before = tensors.get(name)
        tensors[name] = SubjectTensor(pool, size + (before.size if before else 0))
    return tensors


@dataclass(frozen=True, slots=True)
class ResultSubject:
    """One thing that a result is about: a file, a file on one SoC, a graph."""

    kind: str  # what it may be compared with
    file: str
    part: str = ""  # SoC, graph or setting, where a file has several
    pools: Mapping[str, int] = field(default_factory=dict)
    at_most: frozenset[str] = frozenset()  # pools of which only an upper bound is known
    counted: Mapping[str, str] = field(default_factory=dict)  # what is in pools of this name here
    tensors: Mapping[str, SubjectTensor] = field(default_factory=dict)
    has_all_tensors: bool = True  # else only the largest, and a missing one says nothing
    answers: Mapping[str, ComparedAnswer] = field(default_factory=dict)
    unasked: ComparedAnswer | None = (
        None  # what a question is answered with that only the other side has
    )
    limits: Mapping[str, int] | None = None  # budgets; None where such a result never has one
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """File and part."""
        return f"{self.file} ({self.part})" if self.part else self.file
