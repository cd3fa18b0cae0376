"""Verb `check`: a project's budgets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.atomic_file import check_replaceable
from qnnmem.doctor.host.command import CommandAnswer, ask
from qnnmem.errors import CannotTell, LoadError, UsageError
from qnnmem.gate.budget_check import BudgetTask, check_all
from qnnmem.gate.checked import BudgetRun, against, read_accepted, read_baseline, write_baseline
from qnnmem.gate.config import check_inside, find_config, read_config
from qnnmem.loader.file_kind import IN_FOLDERS, is_kind
from qnnmem.results.check import AcceptedState
from qnnmem.text import quote
from qnnmem.verbs.named_files import named_files

if TYPE_CHECKING:
    from qnnmem.gate.config import BudgetConfig
    from qnnmem.options.gate import CheckOptions
    from qnnmem.results.check import AcceptedState
    from qnnmem.verbs import VerbCall

_KINDS = ("onnx", "tflite", "dlc", "eaix", "csv", "lpai", "htp", "epcontext", *IN_FOLDERS)
_MOST = 50  # commits
_LARGEST = 8 << 20  # bytes of a baseline
_SECONDS = 20.0  # seconds for a call of git
_SETTINGS = (
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.pager=cat", "core.editor=true"),
    *("log.showSignature=false", "gpg.program=false", "core.alternateRefsCommand=true"),
)
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
}


def check_budgets(options: CheckOptions, base: Path, call: VerbCall) -> BudgetRun:
    """Check every model of a project; file names in the result are relative to `base`."""
    config = read_config(
        find_config(Path.cwd()) if options.config is None else Path(options.config)
    )
    kept = config.baseline if options.baseline is None else Path(options.baseline)
    needs = "--update-baseline" if options.update else "--history" if options.history else ""
    if needs and kept is None:
        example = 'baseline = "qnnmem-baseline.json"'
        raise UsageError(f"{needs} needs a baseline; give --baseline FILE or write {example}")
    if options.update and kept is not None:
        check_replaceable(kept, force=True)
    accepted = None if kept is None else read_baseline(kept)
    models = check_all(_tasks(config, base), call.listener.say)
    gone: tuple[str, ...] = ()
    if accepted is not None:
        models, gone = against(models, accepted, config.tolerance)
    run = BudgetRun(
        _shown(config.path, base),
        models,
        None if kept is None else _shown(kept, base),
        accepted is not None,
        gone,
    )
    if options.history and kept is not None:
        run = replace(run, history=accepted_history(kept))
    if not options.update or kept is None:
        return run
    write_baseline(kept, run)
    return run.updated()


def _tasks(config: BudgetConfig, base: Path) -> list[BudgetTask]:
    """Return a task for each file of the project; files with their own budget table come first.

    The patterns of the whole project skip files with their own table.
    """
    tasks: list[BudgetTask] = []
    listed: set[Path] = set()
    for entry in config.entries:
        files = list(dict.fromkeys(_files(config, entry.paths)))
        if not entry.has_table:
            files = [file for file in files if file not in listed]
        if entry.name and len(files) > 1:
            mismatch = (
                f"{quote(entry.name)} matches {len(files)} files, but a named entry must "
                "match exactly one"
            )
            raise UsageError(mismatch, where=config.path)
        listed.update(files)
        tasks += [
            BudgetTask(entry, path, _shown(path, config.folder), config.folder, _shown(path, base))
            for path in files
        ]
    return tasks


def _files(config: BudgetConfig, names: Sequence[str]) -> Iterator[Path]:
    """Yield the files matched by names, patterns and folders relative to the config."""
    for name in names:
        absolute = os.path.isabs(name)  # noqa: PTH117 - a pattern, not a path
        word = name if absolute else f"{escape(str(config.folder))}/{name}"
        try:
            named = named_files([word], lambda path: is_kind(path, _KINDS), "model")
        except UsageError as exc:
            raise UsageError(f"no file matches {quote(name)}", where=config.path) from exc
        for file in named.files:
            path = Path(file)
            # A pattern may follow a link out of the project.
            check_inside(config.path, path.absolute(), _shown(path, config.folder))
            yield path


def _shown(path: Path, base: Path) -> str:
    """Return a path relative to a folder, with slashes on every system."""
    try:
        return Path(os.path.relpath(path, base)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


def accepted_history(baseline: Path) -> tuple[AcceptedState, ...]:
    """Return the accepted sizes by commit, oldest first; unreadable versions are skipped."""
    folder, name = baseline.absolute().parent, baseline.name
    listed = _git(folder, "rev-list", f"--max-count={_MOST}", "--format=%cI", "HEAD", "--", name)
    if listed.code:
        reason = listed.errors.strip().partition("\n")[0] or "git did not answer in time"
        raise CannotTell(f"the history of {name} cannot be read: {reason}")
    words = listed.text.split()  # "commit", its hash, its time
    states = (_state(folder, name, *pair) for pair in zip(words[1::3], words[2::3], strict=False))
    return tuple(state for state in states if state is not None)[::-1]


def _state(folder: Path, name: str, commit: str, time: str) -> AcceptedState | None:
    stored = _git(folder, "cat-file", "blob", f"{commit}:./{name}")
    if stored.code != 0:
        return None
    try:
        accepted = read_accepted(stored.text, folder / name)
    except LoadError:
        return None
    pools = {name: model.pools for name, model in accepted.models.items()}
    return AcceptedState(commit, time, pools)


def _git(folder: Path, *words: str) -> CommandAnswer:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = ["git", "--no-pager", "--literal-pathspecs", *settings, "-C", str(folder), *words]
    try:
        return ask(command, _SECONDS, _LARGEST, _ENVIRONMENT)
    except OSError as exc:
        raise CannotTell("the history needs git, which cannot be started") from exc
