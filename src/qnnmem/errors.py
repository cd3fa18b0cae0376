"""Every error this package raises on purpose.

QnnMemError                exit code 2
├── UsageError             an option that cannot be honoured
├── LoadError              a file that cannot be read as a model
│   └── FreeDimensions     a model whose shapes are not all fixed
├── OutputError            a result that cannot be written
└── CannotTell             exit code 3: something needed for an answer is missing
"""

from __future__ import annotations

# Not from `typing`, which takes longer to import than a small log to read.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class QnnMemError(Exception):
    """Base of every error this package raises on purpose; its text is one plain sentence."""

    exit_code = 2


class UsageError(QnnMemError):
    """An option contradicts the model or another option."""


class LoadError(QnnMemError):
    """A file cannot be read as a model."""

    def __init__(self, path: Path | str, reason: str) -> None:
        self.path, self.reason = str(path), reason
        super().__init__(f"{self.path}: {reason}")


class FreeDimensions(LoadError):
    """A model leaves dimensions open that planning needs as numbers."""

    def __init__(self, path: Path | str, free: Sequence[str], options: str) -> None:
        self.free, self.options = tuple(free), options
        super().__init__(path, f"free dimensions {', '.join(free)}; fix them, e.g. with {options}")


class OutputError(QnnMemError):
    """A result cannot be written where it was asked for."""


class CannotTell(QnnMemError):
    """A library, a target or evidence needed for the answer is missing."""

    exit_code = 3
