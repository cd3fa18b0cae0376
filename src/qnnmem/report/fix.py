"""What a fix came to, as text and as JSON, schema `qnnmem.fix/1`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.fix.lpai import FixResult
from qnnmem.fix.remedy import JudgedChange
from qnnmem.report.schema import write_json
from qnnmem.report.shell import file_word, next_line
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.fix/1"
_SHAPING = ("--dim", "--shape", "--value")
_OURS = ("--backend", "--seed", "--time-limit")  # mean something else to the next command
_WIDE = 400
_CHANGE = 44  # columns for what a remedy changes
_TITLES = "  ratio  fits  results    extra work  seconds"
HEADER = f"{'remedy':<8}{'change':<{_CHANGE}}{'scratch':>13}{_TITLES}"


def render_text(result: FixResult, files: Sequence[str], next_words: Sequence[str]) -> str:
    """Verdict, what was tried, what was written, and how to go on."""
    lines = [verdict(result), "", HEADER, *(row(change) for change in result.tried)]
    if result.obstacle:
        lines += ["", f"in the way: {shorten(result.obstacle, _WIDE)}"]
    lines += [f"note: {shorten(note, _WIDE)}" for note in result.notes]
    lines += ["", *(f"Wrote {shorten(file, _WIDE)}" for file in files)] if files else []
    if next_words:
        lines += [next_line(_why(result), next_words)]
    return "\n".join(line for line in lines if line is not None) + "\n"


def verdict(result: FixResult) -> str:
    """The answer in one line."""
    best = result.best
    unchanged = "results the same bit by bit" if best.proof is not None else "results untouched"
    need = f"scratch {counted(best.after, 'byte')}"
    was = f"{best.after / best.before:.2f} of {best.before:,}" if best.before else "as before"
    limit = result.case.limit
    if best.after == best.before and result.case.budget is None:
        return f"{need} ({format_size(best.after)}), and nothing that was tried needs less"
    if result.fits is None:
        doubt = "cannot tell whether it fits: " if result.exit_code else ""
        return f"{doubt}{need} ({format_size(best.after)}), {was}; {unchanged}"
    if result.fits:
        kept = "fits as it is" if best is result.tried[0] else "fits"
        of = "" if limit is None else f" of {limit:,}"
        return f"{kept}: {need}{of}, {was}; {unchanged}"
    if limit is not None and best.after > limit:
        missing = counted(best.after - limit, "byte")
        return f"does not fit: the best reached is {need}, {missing} more than {limit:,}"
    pools = ", ".join(over_budget(best))
    return f"does not fit: {pools} over its budget; {need}, {was}"


def over_budget(change: JudgedChange) -> list[str]:
    """Pools that are too large."""
    pools = [budget.pool.value for budget in change.plan.budgets if budget.fits is False]
    tcm = change.plan.tcm
    return [*pools, "tcm"] if tcm is not None and not tcm.fits else pools


def row(change: JudgedChange) -> str:
    """One line of the table."""
    fits = {True: "yes", False: "no", None: "-"}[change.fits]
    ratio = f"{change.after / change.before:.2f}" if change.before else "-"
    extra = f"{change.extra_macs / change.macs:+.1%}" if change.macs else "-"
    return (
        f"{change.remedy:<8}{shorten(change.what, _CHANGE - 2):<{_CHANGE}}{change.after:>13,}  "
        f"{ratio:>5}  {fits:<4}  {_results(change):<9}  {extra:>10}  {change.seconds:>7.1f}"
    )


def _results(change: JudgedChange) -> str:
    if change.proof is None:
        return "untouched"
    return "the same" if change.proof.identical else f"{change.proof.largest:.2g} off"


def _why(result: FixResult) -> str:
    changed = result.best.model is not None
    return "prepare the changed model" if changed else "prepare it so"


def render_json(result: FixResult, files: Sequence[str], next_words: Sequence[str]) -> str:
    """One JSON object."""
    best = result.best
    command = next_line("", next_words).removeprefix("next: : ") if next_words else ""
    return write_json(
        {
            "schema": SCHEMA,
            "input": str(result.case.path),
            "fits": result.fits,
            "before_bytes": best.before,
            "after_bytes": best.after,
            "limit_bytes": result.case.limit,
            "over_budget": over_budget(best),
            "best": result.tried.index(best),
            "tried": [dict(_change(change)) for change in result.tried],
            "obstacle": result.obstacle,
            "notes": list(result.notes),
            "files": list(files),
            "next": command,
        }
    )


def _change(change: JudgedChange) -> Iterator[tuple[str, Any]]:
    options, proof = change.plan.options, change.proof
    yield "remedy", change.remedy
    yield "change", change.what
    yield "scratch_bytes", change.after
    yield "fits", change.fits
    yield "optimal", change.plan.scratch.optimal
    yield "inplace", options.inplace
    yield "reordered", change.reordered
    yield "identical", change.holds
    yield "samples", 0 if proof is None else proof.samples
    largest = 0.0 if proof is None else proof.largest
    yield "largest_difference", largest if math.isfinite(largest) else None  # JSON has no infinity
    yield "macs", change.macs
    yield "extra_macs", change.extra_macs
    yield "seconds", round(change.seconds, 3)
    yield (
        "regions",
        [
            {
                "first": region.first,
                "end": region.end,
                "bands": region.bands,
                "axis": "rows" if region.axis == -2 else "columns",
            }
            for region in change.regions
        ],
    )


def prepare_words(result: FixResult, model: str, given: Sequence[str]) -> list[str]:
    """The command that prepares the result; `given` are the words of this run that fit there."""
    best = result.best
    options = best.plan.options
    fixed = _SHAPING if best.model is not None else ()  # shapes are in the changed model
    kept = [word for word in given if word.partition("=")[0] not in (*_OURS, *fixed)]
    words = ["qnnmem", "prepare", file_word(model), *kept, *["--inplace"] * options.inplace]
    tensors = best.plan.model.tensors
    made = (name for op in best.plan.model.ops for name in op.outputs if name in tensors)
    if any(tensors[name].dtype.is_float for name in made):
        words.append("--float" if options.bits is None else f"--quantize=int{options.bits}")
    return [*words, "-o", file_word(f"{model.removesuffix('.onnx')}.bin")]
