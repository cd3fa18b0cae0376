"""The workbench as a whole: its folder, uploads, jobs and history."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError, UsageError
from qnnmem.report.page.sections import sections_of
from qnnmem.results.read import schema_in
from qnnmem.temporary_folder import is_temporary_name, lock_folder
from qnnmem.workbench.history import History, KeptFile, KeptResult
from qnnmem.workbench.job_folder import MadeFiles
from qnnmem.workbench.jobs import JobQueue, key_of
from qnnmem.workbench.private_folder import (
    FILES,
    HISTORY,
    MADE,
    WORK,
    private_folder,
    private_part,
)
from qnnmem.workbench.show import exit_code_of, summary_of
from qnnmem.workbench.uploads import Uploads

# Bytes of an uploaded result: it is parsed in this process, where deep JSON must not take
# gigabytes.
MAX_RESULT = 8 << 20


class Bench:
    """Files, jobs and results in one folder, which only one process can use at a time."""

    def __init__(self, folder: Path, *, keeps_spare: bool = True) -> None:
        private_folder(folder)
        self._lock = lock_folder(folder)
        if self._lock is None and os.name == "posix":
            raise UsageError(
                "another workbench uses this folder; start this workbench with another folder"
            )
        work = private_part(folder / WORK)
        for left in work.iterdir():  # folders of killed jobs
            if is_temporary_name(left.name):
                shutil.rmtree(left, ignore_errors=True)
        self.history = History(folder / HISTORY)
        self.uploads = Uploads(private_part(folder / FILES), self.history)
        self.made = MadeFiles(private_part(folder / MADE))
        self.tidy()
        self.jobs = JobQueue(work, self.uploads, self.history, self.made, keeps_spare=keeps_spare)

    def close(self) -> None:
        """End all jobs, close the history and unlock the folder."""
        self.jobs.close()
        self.history.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def tidy(self) -> None:
        """Remove output files of jobs whose results were deleted."""
        self.made.tidy(self.history.keys())

    def take_result(self, file: KeptFile) -> KeptResult:
        """Add an uploaded result to the history and remove the uploaded file."""
        try:
            result = read_result(self.uploads.path(file.id), file.name)
            new = KeptResult(
                *(0, "", file.name, "result", {}, "", schema_in(result) or "", summary_of(result)),
                *(exit_code_of(result), 0.0, 0.0),
            )
            return self.history.add(key_of(file, "result", {}), new, result)
        finally:
            self.uploads.remove(file.id)


def read_result(path: Path, name: str) -> dict[str, Any]:
    """Read a JSON result; raise LoadError or UsageError if it cannot be shown."""
    if path.stat().st_size > MAX_RESULT:
        raise LoadError(name, f"a result can have at most {MAX_RESULT:,} bytes")
    try:
        result = json.loads(read_bytes(path, MAX_RESULT))
    except (ValueError, RecursionError) as exc:
        raise LoadError(name, "is not valid JSON; it may be truncated") from exc
    if not isinstance(result, dict):
        raise LoadError(name, "is not a result of qnnmem")
    sections_of(result, name)
    return result
