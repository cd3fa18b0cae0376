"""One job: what was asked of which file, and what became of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qnnmem.child import ChildProcess
from qnnmem.version import __version__
from qnnmem.workbench.history import KeptFile
from qnnmem.workbench.tasks import Task

JobState = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(slots=True)
class BenchJob:
    """Something that was asked; changed only under the lock of its queue."""

    id: str
    file: KeptFile
    task: Task
    options: dict[str, Any]
    words: list[str]  # the command, without its file
    key: str
    state: JobState = "queued"
    doing: str = "waiting"
    fraction: float | None = None
    started: float = 0.0
    seconds: float = 0.0
    error: str = ""
    exit_code: int = 0
    settings: list[list[str]] = field(default_factory=list)
    is_guess: bool = False  # whether the settings were not seen to run
    is_first: bool = False  # whether its file just came
    is_gone: bool = False  # whether its file is not kept: nothing can be said about it
    result: int | None = None
    child: ChildProcess | None = None

    def values(self) -> dict[str, Any]:
        """What the page is told."""
        running = time.time() - self.started if self.state == "running" else self.seconds
        return {
            **{"id": self.id, "file": self.file.id, "name": self.file.name, "task": self.task.name},
            **{"title": self.task.title, "state": self.state, "doing": self.doing},
            **{"fraction": self.fraction, "error": self.error, "exit_code": self.exit_code},
            **{"settings": self.settings, "result": self.result, "options": self.options},
            **{"is_guess": self.is_guess, "is_gone": self.is_gone},
            "seconds": round(running, 3),
        }

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.state not in ("queued", "running")


def key_of(file: KeptFile, task: str, options: Mapping[str, Any]) -> str:
    """Return what makes two requests the same: content, name, task, options, program."""
    parts = [file.digest, file.name, task, dict(options), __version__]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
