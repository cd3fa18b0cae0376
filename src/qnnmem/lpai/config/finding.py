"""What `qnnmem lint` finds: values for the renderers, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"  # the run fails or the setting has no effect
    WARNING = "warning"  # probably not what was meant
    NOTE = "note"  # cannot be checked here; never changes the exit code


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """One thing wrong in one config file."""

    file: str
    line: int | None  # None: about the file as a whole
    column: int | None
    severity: Severity
    key: str  # dotted path, e.g. "lpai_graph.execute.fps"; empty for the file
    check: str  # stable name of what was checked, e.g. "unknown-key"
    sentence: str
    cure: str


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file that was looked at."""

    path: str
    kind: str  # "tool file", "LPAI file", "HTP backend file" or "unknown"
    named_by: str | None = None  # the tool file that points to it, if the user did not name it
    unreadable: str | None = None  # the sentence, when it is not a JSON object


@dataclass(frozen=True, slots=True)
class LintReport:
    """All files and all findings of one call."""

    files: tuple[CheckedFile, ...]
    findings: tuple[ConfigFinding, ...]
    strict: bool = False

    def count(self, severity: Severity) -> int:
        """How many findings are of that severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def renamed(self, names: Mapping[str, str]) -> LintReport:
        """The same with other names for some files."""
        files = (
            replace(
                file,
                path=names.get(file.path, file.path),
                named_by=None if file.named_by is None else names.get(file.named_by, file.named_by),
            )
            for file in self.files
        )
        findings = (replace(one, file=names.get(one.file, one.file)) for one in self.findings)
        return LintReport(tuple(files), tuple(findings), self.strict)

    @property
    def unreadable(self) -> tuple[CheckedFile, ...]:
        """Files that could not be read at all."""
        return tuple(file for file in self.files if file.unreadable is not None)

    @property
    def passes(self) -> bool:
        """Whether nothing is wrong; with `strict` a warning is wrong, too."""
        bad = self.count(Severity.ERROR) + self.strict * self.count(Severity.WARNING)
        return not bad and not self.unreadable
