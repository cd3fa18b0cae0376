"""`lint`: the exit code of checked config files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qnnmem.lpai.config.finding import LintReport


def lint_exit_code(report: LintReport) -> int:
    """Return 2 for a file that cannot be read, 1 for errors."""
    if report.unreadable:
        return 2
    return 0 if report.passes else 1
