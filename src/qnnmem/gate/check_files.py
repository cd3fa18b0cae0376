"""Files of a config checked one after the other; what cannot be answered is part of the result."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from qnnmem.errors import CannotTell, QnnMemError, Setting, UsageError
from qnnmem.gate.check_htp import check_on_socs
from qnnmem.gate.check_lpai import check_binary, check_planned
from qnnmem.gate.checked import NOT_READ, OPEN, CheckedModel
from qnnmem.gate.pools import HTP, LPAI
from qnnmem.gate.task import BudgetTask
from qnnmem.results.check import ExitCode
from qnnmem.text import quote


def check_all(
    tasks: Sequence[BudgetTask], say: Callable[[str], object] | None = None
) -> tuple[CheckedModel, ...]:
    """A result for each file and target; `say` is told what is under way."""
    found: list[CheckedModel] = []
    for task in tasks:
        if say is not None:
            say(task.file)
        found += check_task(task)
    _check_names(found)
    return tuple(found)


def check_task(task: BudgetTask) -> tuple[CheckedModel, ...]:
    """What there is to say about one file."""
    try:
        return tuple(_results(task))
    except CannotTell as exc:
        return (_refused(task, exc, OPEN),)
    except QnnMemError as exc:
        return (_refused(task, exc, NOT_READ),)


def _results(task: BudgetTask) -> Iterator[CheckedModel]:
    from qnnmem.loader.file_kind import kind_of_file

    kind = kind_of_file(task.path).name
    target = task.target(kind)
    if target == HTP:
        yield from check_on_socs(task, kind)
    elif kind == LPAI:
        yield from check_binary(task)
    else:
        yield check_planned(task, kind)


def _refused(task: BudgetTask, exc: QnnMemError, code: ExitCode) -> CheckedModel:
    """A file without an answer, the sentence without the path that is its name."""
    sentence = exc.sentence(in_toml).removeprefix(f"{task.path}: ")
    target = "LPAI"
    if task.wished() == HTP:
        target = ", ".join(task.entry.get("socs", ())) or "HTP"
    return CheckedModel(
        name=task.entry.name or f"{task.file} ({target})",
        file=task.file,
        place=task.place or task.file,
        target=target,
        why=sentence,
        refusal=code,
        line=task.entry.line,
    )


def in_toml(setting: Setting) -> str:
    """A setting as a config says it: `dims = { N = 1 }`."""
    if not setting.value:
        return setting.name
    key, parts, value = setting.value.rpartition("=")
    is_plain = re.fullmatch(r"-?[0-9]+(?:\.[0-9]+)?|true|false", value) is not None
    word = value if is_plain else json.dumps(value)
    if not parts:
        return f"{setting.name} = {word}"
    name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)
    return f"{setting.name} = {{ {name} = {word} }}"


def _check_names(found: Iterable[CheckedModel]) -> None:
    """Refuses two results of one name: a baseline could not tell them apart."""
    seen: set[str] = set()
    for one in found:
        if one.name in seen:
            raise UsageError(f"two models are called {quote(one.name)}; give them a name each")
        seen.add(one.name)
