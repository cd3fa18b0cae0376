"""What the page reads of gates: lint, check and diff."""

from __future__ import annotations

import msgspec

from qnnmem.report.page.values import Count, Loose


class LintedFile(Loose, frozen=True):
    """A config file."""

    path: str


class LintedFinding(Loose, frozen=True):
    """Something wrong in a config file."""

    file: str
    severity: str
    sentence: str
    key: str | None = None
    line: Count | None = None
    cure: str | None = None


class LintValues(Loose, frozen=True):
    """`qnnmem.lint/1`."""

    passes: bool
    errors: Count
    warnings: Count
    findings: list[LintedFinding]
    files: tuple[LintedFile, ...] = ()


class PoolCheck(Loose, frozen=True):
    """A pool against its budget."""

    pool: str
    need_bytes: Count | None = None
    have_bytes: Count | None = None


class GatedModel(Loose, frozen=True):
    """A model of a project."""

    name: str
    fits: bool | None
    reasons: tuple[str, ...] = ()
    pools: dict[str, Count] = msgspec.field(default_factory=dict)
    checks: tuple[PoolCheck, ...] = ()


class CheckValues(Loose, frozen=True):
    """`qnnmem.check/1`."""

    verdict: str
    exit_code: int
    models: list[GatedModel]
    config: str | None = None
    tool: str = ""


class DiffPool(Loose, frozen=True):
    """A pool before and after."""

    pool: str
    before_bytes: Count | None = None
    after_bytes: Count | None = None
    change_bytes: Count | None = None
    worse: bool = False
    not_comparable: str | None = None  # why


class DiffVerdict(Loose, frozen=True):
    """An answer that turned."""

    question: str
    before: str
    after: str
    worse: bool


class DiffTensor(Loose, frozen=True):
    """A tensor that changed."""

    name: str
    change: str = ""
    before_bytes: Count | None = None
    after_bytes: Count | None = None


class DiffLimit(Loose, frozen=True):
    """A budget that is another one."""

    name: str
    before_bytes: Count | None = None
    after_bytes: Count | None = None


class DiffSetting(Loose, frozen=True):
    """A setting that differs."""

    name: str
    before: str
    after: str


class DiffSubject(Loose, frozen=True):
    """A file before and after."""

    before: str
    after: str
    pools: tuple[DiffPool, ...] = ()
    verdicts: tuple[DiffVerdict, ...] = ()
    tensors: tuple[DiffTensor, ...] = ()
    limits: tuple[DiffLimit, ...] = ()
    settings: tuple[DiffSetting, ...] = ()


class DiffValues(Loose, frozen=True):
    """`qnnmem.diff/1`."""

    worse: bool
    verdict: str
    subjects: list[DiffSubject]
    changed: bool = True
    appeared: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    tool: str = ""
