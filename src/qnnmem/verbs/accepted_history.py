"""Accepted numbers in the git history: the baseline in every commit that changed it.

A repository is untrusted: its configuration may name commands for hooks, pagers, signatures, text
conversion, file monitors and transports. Only plumbing that reads objects is run, those settings
are overruled, and no transport is allowed, so that nothing is fetched for a partial clone either.
"""

from __future__ import annotations

from pathlib import Path

from qnnmem.doctor.host.command import CommandAnswer, ask
from qnnmem.errors import CannotTell, LoadError
from qnnmem.gate.checked import read_accepted
from qnnmem.results.check import AcceptedState

_MOST = 50  # commits
_LARGEST = 8 << 20  # bytes of a baseline
_SECONDS = 20.0  # for a call of git
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


def accepted_history(baseline: Path) -> tuple[AcceptedState, ...]:
    """Return the accepted numbers by commit, oldest first; unreadable versions are left out."""
    folder, name = baseline.absolute().parent, baseline.name
    listed = _git(folder, "rev-list", f"--max-count={_MOST}", "--format=%cI", "HEAD", "--", name)
    if listed.code:
        reason = listed.errors.strip().partition("\n")[0] or "git did not answer in time"
        raise CannotTell(f"the history of {name} cannot be read: {reason}")
    words = listed.text.split()  # "commit", its name, its time
    found = (_state(folder, name, *pair) for pair in zip(words[1::3], words[2::3], strict=False))
    return tuple(state for state in found if state is not None)[::-1]


def _state(folder: Path, name: str, commit: str, time: str) -> AcceptedState | None:
    stored = _git(folder, "cat-file", "blob", f"{commit}:./{name}")
    if stored.code != 0:
        return None
    try:
        accepted = read_accepted(stored.text, folder / name)
    except LoadError:
        return None
    return AcceptedState(commit, time, {one: kept.pools for one, kept in accepted.models.items()})


def _git(folder: Path, *words: str) -> CommandAnswer:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = ["git", "--no-pager", "--literal-pathspecs", *settings, "-C", str(folder), *words]
    try:
        return ask(command, _SECONDS, _LARGEST, _ENVIRONMENT)
    except OSError as exc:
        raise CannotTell("the history needs git, which cannot be started") from exc
