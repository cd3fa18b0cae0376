"""The tasks that the page offers for each kind of file: verbs with their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.loader.file_kind import ARCHIVES, IN_FOLDERS
from qnnmem.options.config import LintOptions
from qnnmem.options.fix import FixOptions
from qnnmem.options.htp import FitOptions, FootprintOptions, QmemOptions, SweepOptions
from qnnmem.options.option import Options, option_fields
from qnnmem.options.plan import PlanOptions, ShapeOptions
from qnnmem.text import quote
from qnnmem.workbench.controls import Control, controls_of, read_request
from qnnmem.workbench.job_folder import MADE

_MODELS = ("onnx", "tflite", "dlc", "eaix", "csv")
_BINARIES = ("htp", "epcontext", *IN_FOLDERS)
_ONE_TASK = {
    **{"lpai": "inspect", "config": "lint", "trace": "watch"},
    **dict.fromkeys(("text", "packed", "tar"), "doctor"),
}
_APPS = (".apk", ".aab", ".apks")
_SETTINGS = (".json", ".conf", ".config", ".cfg")
_SIZES = tuple(option.name for option in option_fields(ShapeOptions))


@dataclass(frozen=True, slots=True)
class Task:
    """A verb that the page offers as a task."""

    name: str  # name of the verb
    title: str
    words: str  # description on the page
    time_limit_s: float
    options: type[Options] = Options
    is_live: bool = False  # repeated whenever a setting changes
    fixed: Mapping[str, Any] = field(default_factory=dict)  # options with fixed values
    without: tuple[str, ...] = ()  # options without meaning for this kind of file
    needed: tuple[str, ...] = ()
    before_file: tuple[str, ...] = ()  # the option before the file name
    of: str = ""  # kind of file, if it has its own variant of the verb

    @property
    def id(self) -> str:
        """Return the unique id of the task."""
        return f"{self.name} {self.of}".strip()

    @property
    def makes_files(self) -> bool:
        """Return True if the verb writes files."""
        return "output" in self.fixed

    @property
    def controls(self) -> tuple[Control, ...]:
        """Return the controls of the task."""
        without = (*self.without, *self.fixed)
        return controls_of(self.options, without=without, needed=self.needed)

    def read(self, request: Mapping[str, Any]) -> Options:
        """Return the options of a request; raise UsageError for a wrong setting."""
        values = {field.name: value for field, value in read_request(self.controls, request)}
        return self.options(**values, **self.fixed)

    def typed(self, request: Mapping[str, Any]) -> list[str]:
        """Return the equivalent command without the file."""
        values = read_request(self.controls, request)
        words = [word for field, value in values for word in field.words(value)]
        return [self.name, *words, *([f"--output={MADE}"] if self.makes_files else [])]


_PLAN = Task(
    "plan",
    "Plan",
    "Where and when each tensor is in memory, and whether the plan is proven minimal.",
    300.0,
    PlanOptions,
    is_live=True,
    fixed={"time_limit": 3.0},
)
_BUFFERS = replace(
    _PLAN,
    without=tuple(
        option.name for option in option_fields(PlanOptions) if not option.opt.for_buffers
    ),
    of="buffers",
)
_BILL = Task(
    "footprint",
    "HTP bill",
    "How much memory the model needs on HTP, from the real library.",
    1800.0,
    FootprintOptions,
    needed=("soc",),
)
_FIT = Task(
    *("fit", "Fit", "Whether the file fits a SoC, and by how many bytes.", 3600.0),
    FitOptions,
    needed=("soc",),
)
_SWEEP = Task(
    *("sweep", "Sweep", "Compile with many settings and see which fit.", 14400.0),
    SweepOptions,
    needed=("soc", "vary"),
)
_FIX = Task(
    *("fix", "Fix", "Change the model until it fits, with the same results.", 3600.0),
    FixOptions,
    fixed={"output": MADE},
    needed=("soc",),
)
_TASKS: Mapping[str, Task] = {
    "plan": _PLAN,
    "footprint": _BILL,
    "fit": _FIT,
    "sweep": _SWEEP,
    "fix": _FIX,
    "inspect": Task("inspect", "Inspect", "Contents of the binary.", 300.0, is_live=True),
    "lint": Task("lint", "Lint", "Errors in the config file.", 120.0, LintOptions, is_live=True),
    "doctor": Task(
        "doctor",
        "Diagnosis",
        "Which stage failed, why, and how many bytes are missing.",
        1800.0,
        is_live=True,
    ),
    "watch": Task(
        "watch",
        "Watched",
        "What the program allocated, what it released, and which calls failed.",
        300.0,
        is_live=True,
        before_file=("--read",),
    ),
}
# A binary is read, not compiled: this is fast, works for any SoC, and needs no compile options.
_COMPILING = (*_SIZES, "precision", "vtcm_mb", "time_limit")
_READ: dict[str, Any] = {
    "without": _COMPILING,
    "needed": (),
    "time_limit_s": 300.0,
    "is_live": True,
    "of": "binary",
}
_OF_BINARY = {
    "footprint": replace(_BILL, words="Memory on HTP.", **_READ),
    "fit": replace(_FIT, **_READ),
    "qmem": Task(
        *("qmem", "IO memory", "Compare raw and memhandle inputs and outputs.", 300.0),
        QmemOptions,
        is_live=True,
        without=(*_COMPILING, "soc"),
    ),
}
# A DLC is compiled unchanged: its sizes and types are fixed.
_STORED = (*_SIZES, "precision")
_OF_DLC = {
    "footprint": replace(_BILL, without=_STORED, of="dlc"),
    "fit": replace(_FIT, without=_STORED, of="dlc"),
    "sweep": replace(_SWEEP, without=_STORED, of="dlc"),
}


@cache
def all_tasks() -> tuple[Task, ...]:
    """Return all tasks."""
    return (*_TASKS.values(), _BUFFERS, *_OF_BINARY.values(), *_OF_DLC.values())


def task_of(number: str) -> Task:
    """Return a task by its id."""
    return next(task for task in all_tasks() if task.id == number)


def tasks_for(kind: str, name: str = "") -> dict[str, Task]:
    """Return the tasks for a kind of file, by verb, with the default task first."""
    if kind == "onnx":
        return {verb: _TASKS[verb] for verb in ("plan", "footprint", "fit", "sweep", "fix")}
    if kind == "csv":
        return {"plan": _BUFFERS}
    if kind == "dlc":
        return {"plan": _PLAN, **_OF_DLC}
    if kind == "tflite":
        return {"plan": _PLAN, "fix": _TASKS["fix"]}
    if kind in _MODELS:
        return {"plan": _PLAN}
    if kind in _BINARIES:
        return _OF_BINARY
    if kind in ARCHIVES:  # an app, a bundle, or logs
        doctor = {"doctor": _TASKS["doctor"]}
        is_app = kind == "task" or name.lower().endswith(_APPS)
        return {**_OF_BINARY, **doctor} if is_app else {**doctor, **_OF_BINARY}
    if kind in _ONE_TASK:
        return {_ONE_TASK[kind]: _TASKS[_ONE_TASK[kind]]}
    if kind == "graphs":  # a report without a format, or a config file for HTP
        verbs = ("plan", "lint") if name.lower().endswith(".eaix") else ("lint", "plan")
        return {verb: _TASKS[verb] for verb in verbs}
    if kind in ("json", "genie", "genai"):  # a config file without the binaries of its folder
        verbs = ("lint", "doctor") if name.lower().endswith(_SETTINGS) else ("doctor", "lint")
        return {verb: _TASKS[verb] for verb in verbs}
    return {}


def first_task(kind: str, name: str = "") -> str:
    """Return the default task for a kind of file; empty if there is none."""
    return next(iter(tasks_for(kind, name)), "")


def checked_task(kind: str, name: str, wanted: object) -> Task:
    """Return the task that a request names; raise UsageError if the file has no such task."""
    task = tasks_for(kind, name).get(wanted) if isinstance(wanted, str) else None
    if task is None:
        raise UsageError(f"{quote(wanted)} is not a task for this file")
    return task
