"""Results of checking a project's models against budgets and accepted numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from msgspec import UNSET, Meta, Struct, UnsetType, field

from qnnmem.results.diff import PoolChange, SubjectChange
from qnnmem.results.result import Count, Result, SchemaDocument, describe

ExitCode = Literal[0, 1, 2, 3]


class Allocations(Struct, frozen=True):
    """Number of TCM allocations compared with the limit."""

    needed: Count
    possible: Annotated[Count, describe("Largest number of allocations that the pool allows.")]


class PoolCheck(Struct, frozen=True):
    """A pool compared with its budget or with a limit of the SoC."""

    pool: str
    need_bytes: Count | None = None
    at_least_bytes: Annotated[
        Count | None,
        describe("Lower bound of the bytes needed: proven for any plan, or stated by the library."),
    ] = None
    have_bytes: Count | None = None
    over_bytes: Annotated[Count, describe("Bytes over the limit.")] = 0
    fits: Annotated[bool | None, describe("Whether the pool fits; null if unknown.")] = None
    budget: Annotated[
        bool, describe("True for a budget of the project, false for a limit of the SoC.")
    ] = True
    blockers: Annotated[tuple[str, ...], describe("Largest tensors that prevent a fit.")] = ()
    alike: Annotated[
        Count,
        describe("Number of other tensors at least as large as the smallest one in `blockers`."),
    ] = 0
    allocations: Annotated[
        Allocations | None,
        describe(
            "Number of allocations and the limit, if there are too many allocations; otherwise "
            "null."
        ),
    ] = None

    @classmethod
    def of(
        cls,
        pool: str,
        need: int | None,
        have: int | None,
        fits: bool | None,
        *,
        budget: bool = True,
        at_least: int | None = None,
        blockers: tuple[str, ...] = (),
        alike: int = 0,
        allocations: Allocations | None = None,
    ) -> Self:
        """Return the check of a pool, with the bytes over its budget."""
        over = 0
        if fits is False and need is not None and have is not None:
            over = max(0, (need if at_least is None else at_least) - have)
        return cls(pool, need, at_least, have, over, fits, budget, blockers, alike, allocations)


class ModelCheck(Struct, frozen=True, kw_only=True):
    """The check of one model on one target."""

    name: Annotated[str, describe("Name of the model in tables and in the baseline.")]
    file: Annotated[str, describe("Path relative to the folder of the config.")] = ""
    target: Annotated[str, describe("LPAI or the name of a SoC.")] = ""
    fits: Annotated[
        bool | None,
        describe("Whether every budget and limit holds; null if unknown."),
    ]
    exit_code: ExitCode
    answer: Annotated[str, describe("The verdict in a few words.")] = ""
    reasons: Annotated[
        tuple[str, ...], describe("Problems that were found, one sentence each.")
    ] = ()
    pools: Annotated[dict[str, Count], describe("Bytes of each pool.")]
    at_most: Annotated[tuple[str, ...], describe("Pools whose numbers are upper bounds.")] = ()
    checks: tuple[PoolCheck, ...] = ()
    change: Annotated[
        SubjectChange | None,
        describe("Change since the baseline; null if the model is not in the baseline."),
    ] = None
    seconds: Annotated[float, Meta(ge=0)] = 0.0

    @property
    def grown(self) -> tuple[PoolChange, ...]:
        """Pools that grew by more than the allowed amount."""
        return tuple(pool for pool in self.change.pools if pool.worse) if self.change else ()

    @property
    def broken(self) -> tuple[PoolCheck, ...]:
        """Checks whose budget or limit is exceeded."""
        return tuple(check for check in self.checks if check.fits is False)


class CheckCounts(Struct, frozen=True):
    """Number of models by result."""

    models: Count
    good: Count
    broken: Count
    not_checked: Count
    cannot_tell: Count


class BaselineUse(Struct, frozen=True):
    """The baseline, and the models that it covers."""

    file: str | None
    found: bool
    updated: Annotated[bool, describe("Whether this run wrote the baseline.")]
    new: Annotated[tuple[str, ...], describe("Models that are not in the baseline.")]
    gone: Annotated[tuple[str, ...], describe("Models in the baseline that are no longer checked.")]


class AcceptedState(Struct, frozen=True):
    """The numbers that a commit accepted."""

    commit: Annotated[str, describe("Hash of the commit.")]
    time: Annotated[str, describe("Time of the commit, in ISO 8601.")]
    models: Annotated[dict[str, dict[str, Count]], describe("Bytes of each pool, by model name.")]


class CheckResult(Result, frozen=True, kw_only=True, tag="qnnmem.check/1"):
    """Models of a project compared with their budgets and accepted numbers."""

    config: Annotated[str, describe("The file that holds the budgets.")] = ""
    exit_code: ExitCode
    verdict: Annotated[str, Meta(min_length=1), describe("The answer in one line.")]
    counts: CheckCounts
    baseline: BaselineUse
    models: tuple[ModelCheck, ...]
    history: Annotated[
        tuple[AcceptedState, ...],
        describe("Accepted numbers in git history, oldest first; empty unless requested."),
    ] = ()

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        return self.verdict


class AcceptedModel(Struct, frozen=True, kw_only=True):
    """Accepted numbers of one model."""

    at_most: Annotated[
        tuple[str, ...] | UnsetType,
        describe("Pools whose numbers are upper bounds; absent if there are none."),
    ] = UNSET
    pools: Annotated[dict[str, Count], describe("Bytes of each pool.")]
    peak: Annotated[
        dict[str, Count],
        describe("Bytes of the tensors alive at the peak; empty if there are more than 64."),
    ] = field(default_factory=dict)
    settings: Annotated[
        dict[str, str], describe("Settings that the numbers were measured with.")
    ] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pools: Mapping[str, int],
        peak: Mapping[str, int],
        settings: Mapping[str, str],
        at_most: Iterable[str],
    ) -> Self:
        """Return accepted numbers in sorted order, so that git shows only real changes."""
        return cls(
            at_most=tuple(sorted(at_most)) or UNSET,
            pools=dict(sorted(pools.items())),
            peak=dict(sorted(peak.items())),
            settings=dict(sorted(settings.items())),
        )


class Baseline(SchemaDocument, frozen=True, kw_only=True, tag="qnnmem.baseline/1"):
    """Accepted numbers of a project's models, written by `qnnmem check --update-baseline`."""

    models: Annotated[
        dict[str, AcceptedModel], describe("Accepted numbers, by model name and target.")
    ]
