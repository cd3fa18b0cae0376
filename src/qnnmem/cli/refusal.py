"""A refused compile as a verb says it: with options that it has, and the doctor's reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qnnmem.errors import Setting, Words
    from qnnmem.htp.compile import CompileFailure
    from qnnmem.htp.fit import Fit
    from qnnmem.htp.sweep import SweepRow

TIMED_OUT = 4  # exit code
_REFUSED = 1


def say_failure(failure: CompileFailure, missing: str, *, as_json: bool = False) -> str:
    """Why there is no bill, binary or table, whichever is `missing`."""
    from dataclasses import replace

    from qnnmem.report.compiled import render_failure

    said = replace(failure, why=own_words(failure.why))
    reading = reading_of(failure.evidence) if failure.line else ""
    code = failure_code(failure)
    return render_failure(said, missing, reading=reading, code=code, as_json=as_json)


def explained(fit: Fit) -> Fit:
    """An answer of `qnnmem fit` with the doctor's reading, and with options that the verb has."""
    from dataclasses import replace

    reading = reading_of(fit.evidence) if fit.evidence else ""
    tried = tuple(replace(one, reason=own_words(one.reason)) for one in fit.tried)
    return replace(fit, why=own_words(fit.why), reading=reading, tried=tried)


def explained_row(row: SweepRow) -> SweepRow:
    """A row of `qnnmem sweep` with options that the verb has."""
    from dataclasses import replace

    return replace(row, result=replace(row.result, reason=own_words(row.result.reason)))


def failure_code(failure: CompileFailure) -> int:
    """The exit code: the library's no is another answer than a time limit that was reached."""
    return TIMED_OUT if failure.outcome.kind == "timeout" else _REFUSED


def own_words(words: Words) -> Words:
    """The text with settings that this verb cannot take written as options of the one that can."""
    from qnnmem.errors import Setting

    context = click.get_current_context(silent=True)
    if context is None or isinstance(words, str):
        return words
    mine = {spelling for option in context.command.params for spelling in option.opts}
    return tuple(_elsewhere(part, mine) if isinstance(part, Setting) else part for part in words)


def _elsewhere(setting: Setting, mine: set[str]) -> Setting | str:
    from qnnmem.report.flags import flag

    word = flag(setting)
    return setting if word.split()[0] in mine else f"`qnnmem prepare --backend htp {word}`"


def reading_of(lines: Iterable[str]) -> str:
    """What the doctor makes of lines of a log, in a sentence; empty where that is nothing."""
    from itertools import islice
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from qnnmem.doctor.diagnose import diagnose
    from qnnmem.doctor.kb.knowledge import with_own
    from qnnmem.doctor.logs.source import find_logs
    from qnnmem.report.doctor_words import verdict

    with TemporaryDirectory(".qnnmem") as folder:
        path = Path(folder, "compile.log")
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8", "replace")
        diagnosis = diagnose(find_logs([str(path)]).streams, with_own(()))
        try:
            found = next(islice(diagnosis.incidents(), 1), None)
        finally:
            diagnosis.close()
    if found is None or found.verdict == "undecided":
        return ""
    return f"{verdict(found)}; {found.title} (qnnmem kb show {found.entry})"
