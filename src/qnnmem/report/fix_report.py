"""What a fix came to, as Markdown that stays with the changed model; nothing in it varies by run.

Names come from models and logs: none of them can become markup.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qnnmem.errors import join_words
from qnnmem.fix.remedy import JudgedChange
from qnnmem.fix.run import FixResult
from qnnmem.report.fix import (
    Command,
    deployment_lines,
    extra_work,
    level_lines,
    scope,
    verdict,
)
from qnnmem.report.markdown import block, code, code_table, escape
from qnnmem.report.shell import next_line, shell_line
from qnnmem.results.result import TOOL
from qnnmem.text import counted, shorten

_WIDE = 1000
_HEAD = ("remedy", "change", "pool", "bytes", "limit", "fits", "results", "extra work")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Where a result comes from, so that it can be had again."""

    sha256: str  # of the model's file
    options: tuple[str, ...] = ()  # as they were typed
    runtime: tuple[str, ...] = ()  # who compared the results
    chain: tuple[str, ...] = ()  # from a line of a log to what was asked for


def render_report(
    result: FixResult, facts: RunFacts, recipe: str, commands: Sequence[Command]
) -> str:
    """Verdict, what was tried and done, the proof, how to deploy it, where it comes from."""
    lines = [f"# {escape(verdict(result))}"]
    about = filter(None, (*deployment_lines(result.best), scope(result)))
    lines += [part for line in about for part in ("", escape(line))]
    if facts.chain:
        lines += ["", "## From the log", "", *(f"- {escape(one)}" for one in facts.chain)]
    lines += ["", "## Tried", "", *code_table(_HEAD, map(_cells, result.tried))]
    if result.obstacle:
        lines += ["", f"In the way: {escape(result.obstacle)}"]
    lines += [part for note in result.notes for part in ("", f"Note: {escape(note)}")]
    lines += ["", "## Done", "", *_steps(result.best)]
    lines += ["", "## Proof", "", *_proof(result)]
    lines += ["", "## Deploy", "", *block(_commands(result, recipe, commands))]
    lines += [
        "",
        "## Where it comes from",
        "",
        *code_table(("what", "value"), _origin(result, facts)),
    ]
    return "\n".join(lines) + "\n"


def _cells(change: JudgedChange) -> tuple[str, ...]:
    made, need = change.change, change.need
    size = "-" if need.size is None else f"{need.size:,}"
    limit = "-" if need.limit is None else f"{need.limit:,}"
    fits = {True: "yes", False: "no", None: "-"}[change.fits]
    extra = extra_work(change)
    return made.remedy, made.what, need.what, size, limit, fits, _difference(change), extra


def _difference(change: JudgedChange) -> str:
    proof = change.proof
    if proof is None:
        return "untouched"
    return "the same" if proof.identical else f"{proof.largest:.2g} off"


def _steps(best: JudgedChange) -> Iterator[str]:
    for number, step in enumerate(best.change.steps, 1):
        rest = {name: value for name, value in step.items() if name != "remedy"}
        numbers = f": {code(json.dumps(rest), _WIDE)}" if rest else ""
        yield f"{number}. {escape(str(step['remedy']))}{numbers}"
    if not best.change.steps:
        yield "Nothing."


def _proof(result: FixResult) -> Iterator[str]:
    best = result.best
    proof, need = best.proof, best.need
    if proof is None:
        yield "- The model computes what it did: nothing in it was changed."
    else:
        given = "given" if result.case.samples else f"random, seed {result.case.seed}"
        what = f"{counted(proof.outputs, 'output')} on {counted(proof.samples, 'sample')} ({given})"
        if proof.identical:
            yield f"- Compared with the model as it was: {what}, the same bit by bit."
        else:
            gap = f"{proof.largest:.3g}" if math.isfinite(proof.largest) else "beyond measure"
            names = ", ".join(code(name) for name in proof.differing[:5])
            yield f"- Compared with the model as it was: {what}, off by at most {gap}: {names}."
        yield from (f"- {escape(line)}." for line in level_lines(best))
    if need.size is not None:
        of = "" if need.limit is None else f" of {need.limit:,}"
        yield f"- Judged as it is written: {escape(need.what)} {counted(need.size, 'byte')}{of}."
    if need.why:
        yield f"- {escape(join_words(need.why))}"


def _commands(result: FixResult, recipe: str, commands: Sequence[Command]) -> Iterator[str]:
    for why, words in commands:
        yield f"# {shorten(why, _WIDE)}"
        yield shorten(next_line("", words).removeprefix("next: : "), _WIDE)
    if recipe:
        again = ("qnnmem", "fix", str(result.case.path), "--apply", recipe, "-o", "again")
        yield f"# the same again: {shorten(shell_line(again), _WIDE)}"


def _origin(result: FixResult, facts: RunFacts) -> Iterator[tuple[str, str]]:
    yield "model", str(result.case.path)
    yield "sha256", facts.sha256
    yield "made by", TOOL
    yield "options", shorten(shell_line(facts.options), _WIDE) or "-"
    if result.best.proof is not None:
        yield "compared by", ", ".join(facts.runtime)
