"""The comparison of two results: pools before and after, tensors and verdicts that changed."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from qnnmem.results.result import Count, Difference, Result, describe

Side = Literal["before", "after"]


class PoolChange(Struct, frozen=True):
    """The bytes of a pool before and after."""

    pool: str
    before_bytes: Annotated[
        Count | None,
        describe("Bytes in the first result; null if that result does not state them."),
    ] = None
    after_bytes: Count | None = None
    change_bytes: Annotated[
        Difference | None, describe("Growth in bytes; null if the two numbers are not comparable.")
    ] = None
    worse: Annotated[bool, describe("Whether the pool grew by more than the tolerance.")] = False
    bound: Annotated[
        Side | None,
        describe(
            "Side whose number is an upper bound while the other side's number is exact, so that "
            "`change_bytes` is null; null if both numbers are of the same kind."
        ),
    ] = None
    not_comparable: Annotated[
        str | None, describe("Why the two numbers are not compared; null if they are compared.")
    ] = None

    @property
    def fraction(self) -> float | None:
        """The change as a share of the old value; None if the share is unknown or undefined."""
        before, change = self.before_bytes, self.change_bytes
        return change / before if change is not None and before else None


class VerdictChange(Struct, frozen=True):
    """A verdict that differs between the two results."""

    question: str
    before: str
    after: str
    worse: bool
    better: bool = False


class TensorChange(Struct, frozen=True):
    """A tensor that appeared, vanished, changed its size or moved to another pool."""

    name: str
    change: Literal["appeared", "vanished", "grew", "shrank", "moved"]
    before_bytes: Count | None = None
    after_bytes: Count | None = None
    pool_before: str | None = None
    pool_after: str | None = None

    @property
    def change_bytes(self) -> int:
        """Increase in bytes; negative for a decrease."""
        return (self.after_bytes or 0) - (self.before_bytes or 0)


class LimitChange(Struct, frozen=True):
    """A budget or a limit that changed."""

    name: str
    before_bytes: Annotated[
        Count | None, describe("Limit in the first result; null if that result has no limit.")
    ] = None
    after_bytes: Count | None = None


class SettingChange(Struct, frozen=True):
    """A setting or tool version that changed, which might explain changed numbers."""

    name: str
    before: str
    after: str


class SubjectChange(Struct, frozen=True):
    """The comparison of one file, or of one file on one SoC if a result has several SoCs."""

    before: Annotated[str, describe("Name of the subject in the first result.")]
    after: Annotated[str, describe("Name of the subject in the second result.")]
    worse: Annotated[bool, describe("Whether any pool or verdict is worse.")]
    pools: tuple[PoolChange, ...]
    verdicts: Annotated[tuple[VerdictChange, ...], describe("Verdicts that changed.")]
    tensors: Annotated[
        tuple[TensorChange, ...], describe("Tensors that changed, largest change first.")
    ] = ()
    limits: Annotated[tuple[LimitChange, ...], describe("Budgets and limits that differ.")] = ()
    settings: Annotated[
        tuple[SettingChange, ...],
        describe("Settings and tools that differ and might explain other differences."),
    ] = ()

    @property
    def is_changed(self) -> bool:
        """True if anything other than settings changed."""
        pools = any(pool.change_bytes or pool.not_comparable for pool in self.pools)
        return pools or bool(self.tensors or self.verdicts or self.limits)


class DiffResult(Result, frozen=True, kw_only=True, tag="qnnmem.diff/1"):
    """The comparison of two results: pools before and after, tensors and verdicts that changed."""

    worse: Annotated[
        bool, describe("Whether the second result is worse; if so, the exit code is 1.")
    ]
    changed: Annotated[bool, describe("Whether anything other than settings differs.")]
    verdict: Annotated[str, Meta(min_length=1), describe("The answer in one line.")]
    kind: Annotated[str, describe("Kind of both results.")] = ""
    subjects: tuple[SubjectChange, ...]
    appeared: Annotated[tuple[str, ...], describe("Subjects that only the second result has.")] = ()
    vanished: Annotated[tuple[str, ...], describe("Subjects that only the first result has.")] = ()
    failing: Annotated[
        tuple[str, ...], describe("New subjects that do not fit or have no answer.")
    ] = ()

    @property
    def exit_code(self) -> int:
        """1 if the second result is worse, else 0."""
        return int(self.worse)

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        return self.verdict
