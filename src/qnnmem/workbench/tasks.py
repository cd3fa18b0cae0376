"""What can be asked of a file: verbs of the command line, by the kind of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.text import quote
from qnnmem.workbench import controls
from qnnmem.workbench.controls import Control, words_of

_SHAPE = (controls.DIMS, controls.SHAPES, controls.VALUES)
_COMPILE = (controls.SOC, controls.PRECISION, controls.VTCM, *_SHAPE)
_MODELS = ("onnx", "tflite", "dlc", "eaix", "csv")
_BINARIES = ("htp", "epcontext")
_ONE_TASK = {
    **{"lpai": "inspect", "config": "lint", "trace": "watch"},
    **dict.fromkeys(("text", "packed", "zip", "tar"), "doctor"),
}
_SETTINGS = (".json", ".conf", ".config", ".cfg")


@dataclass(frozen=True, slots=True)
class Task:
    """A verb as the page offers it."""

    name: str  # of the verb
    title: str
    words: str  # what it says
    controls: tuple[Control, ...]
    time_limit_s: float
    is_live: bool = False  # done again whenever a setting changes
    always: tuple[str, ...] = ()  # options that are not for choosing
    before_file: tuple[str, ...] = ()  # the option by which it is given its file
    makes_files: bool = False
    of: str = ""  # which kind of file, where the same verb is offered in several ways

    @property
    def id(self) -> str:
        """What tells it from the others."""
        return f"{self.name} {self.of}".strip()


_LAYOUT = (controls.BITS, controls.ALIGN, controls.IO)
_ORDER = (controls.REORDER, controls.INPLACE)
_PLAN = Task(
    "plan",
    "Plan",
    "Every tensor's place and time, and what the plan is minimal for.",
    (controls.DIMS, *_LAYOUT, *_ORDER, controls.BUDGETS, *_SHAPE[1:], controls.STATES),
    300.0,
    is_live=True,
    always=("--time-limit=3",),
)
_BUFFERS = replace(_PLAN, controls=(controls.ALIGN, controls.BUDGETS), of="buffers")
_FIX_LPAI = tuple(replace(one, only_with=("backend", "")) for one in (controls.BUDGETS, *_LAYOUT))
_FIX_HTP = tuple(
    replace(one, only_with=("backend", "htp"))
    for one in (controls.SOC, controls.PRECISION, controls.HTP_BUDGETS, controls.VTCM)
)
_BILL = Task(
    "footprint", "HTP bill", "What it costs on HTP, by the real library.", _COMPILE, 1800.0
)
_FIT = Task("fit", "Fit", "Whether it fits a SoC, and by how many bytes.", _COMPILE, 3600.0)
_FIX = Task(
    "fix",
    "Fix",
    "Changed until it fits, with the same results.",
    (controls.BACKEND, *_FIX_HTP, *_FIX_LPAI, controls.ALLOW, *_SHAPE),
    3600.0,
    always=("--output=made",),
    makes_files=True,
)
_TASKS: Mapping[str, Task] = {
    "plan": _PLAN,
    "footprint": _BILL,
    "fit": _FIT,
    "sweep": Task(
        "sweep",
        "Sweep",
        "Compiled with many settings: what still fits.",
        (controls.SOC, controls.VARY, *_SHAPE),
        14400.0,
    ),
    "fix": _FIX,
    "inspect": Task("inspect", "Inspect", "What the binary holds.", (), 300.0, is_live=True),
    "lint": Task(
        "lint", "Lint", "What is wrong in the config file.", (controls.STRICT,), 120.0, is_live=True
    ),
    "doctor": Task(
        "doctor", "Diagnosis", "Which stage failed, why, how much is missing.", (), 1800.0, True
    ),
    "watch": Task(
        *("watch", "Watched", "What the program kept alive, released, and saw fail.", (), 300.0),
        is_live=True,
        before_file=("--read",),
    ),
}
# A binary is read and not compiled: at once, for any SoC.
_READ: dict[str, Any] = {
    "controls": (controls.MADE_FOR,),
    "time_limit_s": 300.0,
    "is_live": True,
    "of": "binary",
}
_OF_BINARY = {
    "footprint": replace(_BILL, words="What it costs on HTP.", **_READ),
    "fit": replace(_FIT, **_READ),
    "qmem": Task(
        "qmem", "IO memory", "What raw and memhandle inputs and outputs cost.", (), 300.0, True
    ),
}
# A DLC is compiled as it is: its sizes and types stand.
_OF_DLC = {
    "footprint": replace(_BILL, controls=(controls.SOC, controls.VTCM), of="dlc"),
    "fit": replace(_FIT, controls=(controls.SOC, controls.VTCM), of="dlc"),
    "sweep": replace(
        _TASKS["sweep"],
        controls=(controls.SOC, replace(controls.VARY, hint="e.g. vtcm_mb=2,4,8")),
        of="dlc",
    ),
}


def all_tasks() -> tuple[Task, ...]:
    """Every task there is."""
    return (*_TASKS.values(), _BUFFERS, *_OF_BINARY.values(), *_OF_DLC.values())


def tasks_for(kind: str, name: str = "") -> dict[str, Task]:
    """What can be asked of a file of this kind, the first first."""
    if kind == "onnx":
        return {verb: _TASKS[verb] for verb in ("plan", "footprint", "fit", "sweep", "fix")}
    if kind == "csv":
        return {"plan": _BUFFERS}
    if kind == "dlc":
        return {"plan": _PLAN, **_OF_DLC}
    if kind in _MODELS:
        return {"plan": _PLAN}
    if kind in _BINARIES:
        return _OF_BINARY
    if kind in _ONE_TASK:
        return {_ONE_TASK[kind]: _TASKS[_ONE_TASK[kind]]}
    if kind == "graphs":  # a report without its format, or a config file of HTP
        verbs = ("plan", "lint") if name.lower().endswith(".eaix") else ("lint", "plan")
        return {verb: _TASKS[verb] for verb in verbs}
    if kind == "json":
        verbs = ("lint", "doctor") if name.lower().endswith(_SETTINGS) else ("doctor", "lint")
        return {verb: _TASKS[verb] for verb in verbs}
    return {}


def first_task(kind: str, name: str = "") -> str:
    """What is done with a file as soon as it is there; empty where nothing can be."""
    return next(iter(tasks_for(kind, name)), "")


def checked_task(kind: str, name: str, wanted: object) -> Task:
    """The task of a request."""
    found = tasks_for(kind, name).get(wanted) if isinstance(wanted, str) else None
    if found is None:
        raise UsageError(f"{quote(wanted)} cannot be asked of this file")
    return found


def task_words(task: Task, options: Mapping[str, Any]) -> list[str]:
    """A request in words of the command line, without the file."""
    return [task.name, *words_of(task.controls, options), *task.always]
