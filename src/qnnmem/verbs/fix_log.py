"""Verb `fix --log`: derive the goal for a model from a failing log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from qnnmem.errors import CannotTell, Setting, UsageError, Words
from qnnmem.fix.from_log import goal_of
from qnnmem.flags import with_flags
from qnnmem.report.doctor_words import healthy, verdict
from qnnmem.text import plain_or_quoted, quote
from qnnmem.verbs.doctor import diagnose_streams, read_logs

if TYPE_CHECKING:
    from qnnmem.fix.from_log import LogGoal
    from qnnmem.results.incident import Incident, ReadingStats
    from qnnmem.verbs.fix import FixTask

_MOST = 10_000  # incidents considered
_NO_CHANGE_HELPS = "no change to the model can prevent this failure"


def goal_in(logs: Sequence[str], models: Sequence[str], recipe: str | None) -> LogGoal:
    """Return the goal from the first failure that a change of the model might prevent.

    Raise UsageError for several models, or with a recipe.
    """
    if len(models) > 1:
        raise UsageError("--log works on one model; name only one")
    if recipe is not None:
        raise UsageError(
            "--log searches for a change and --apply repeats one; use only one of these options"
        )

    incidents, stats = _diagnosed(logs)
    goal = next(filter(None, map(goal_of, incidents)), None)
    if goal is not None:
        return goal
    named = plain_or_quoted(logs[0], 200)
    if not incidents:
        raise CannotTell(
            f"{healthy(stats)}; no failure was found that a change of the model could fix"
        )
    undecided = incidents[0].verdict == "undecided"
    why = "the log states no limit for the model to meet" if undecided else _NO_CHANGE_HELPS
    raise CannotTell(
        f"{verdict(incidents[0])}: {why}",
        where=logs[0],
        cure=f"qnnmem doctor {named} shows what helps",
    )


def _diagnosed(logs: Sequence[str]) -> tuple[list[Incident], ReadingStats]:
    """Read logs the way `qnnmem doctor` does; return the incidents and how much was read."""
    read = read_logs(logs)
    if read.found.unread:
        raise read.found.unread[0]
    diagnosis = diagnose_streams(read.found.streams, read.knowledge)
    try:
        return list(islice(diagnosis.incidents(), _MOST)), diagnosis.stats(read.found.streams)
    finally:
        diagnosis.close()


def backend_for(goal: LogGoal, chosen: str | None) -> str:
    """Return the backend chosen by the user, else the backend named in the log."""
    if chosen is not None:
        return chosen
    if not goal.backend:
        raise UsageError("the log does not name the backend; choose one with --backend lpai or htp")
    return goal.backend


def task_for(goal: LogGoal, models: Sequence[str], task: FixTask) -> FixTask:
    """Return the task with facts from the log filled in; the user's options take precedence."""
    known = goal.with_given(task.options.backend, list(task.options.budgets))
    request = _limit_request(known.backend)
    return task._replace(
        model=models[0] if models else _found(goal),
        options=replace(task.options, budgets=tuple(known.budget)),
        chain=known.sentences(with_flags(request)),
        first=goal.first,
        # For LPAI the result is a size, not a verdict.
        limit_request=request if known.backend == "htp" and not known.budget else (),
    )


def _limit_request(backend: str) -> Words:
    """Return the advice to state a limit, because no log line states one."""
    pool = "scratch" if backend == "lpai" else "pd"
    return ("state the device's limit with ", Setting("budget", f"{pool}=SIZE"))


def _found(goal: LogGoal) -> str:
    """Return the path of the model named in the log; raise UsageError if there is no such file."""
    if goal.model is None:
        raise UsageError("the log does not name the model that failed; give its path as MODEL")
    beside = Path(goal.file).parent / Path(goal.model).name
    for path in (Path(goal.model), beside):
        if path.is_file():
            return str(path)
    raise UsageError(
        f"the log names {quote(goal.model)}, which was not found; give its path as MODEL"
    )
