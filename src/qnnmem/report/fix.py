"""What a fix came to, as text and as JSON, schema `qnnmem.fix/1`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from qnnmem.errors import join_words
from qnnmem.fix.htp import HtpFixResult
from qnnmem.fix.library.judge import NOUNS
from qnnmem.fix.lossy.remedies import lossy_words
from qnnmem.fix.parts.deployment import Arrangement
from qnnmem.fix.proof.prove import LevelGap, OutputGap
from qnnmem.fix.proof.validate import Validation
from qnnmem.fix.remedy import JudgedChange, LossyHint, Need
from qnnmem.fix.run import FixResult
from qnnmem.flags import with_flags
from qnnmem.planner.planned_file import plan_map
from qnnmem.report import fix_validation
from qnnmem.report.fix_next import Command, command_lines, one_line
from qnnmem.results.schema import write_json
from qnnmem.text import counted, quote, shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.fix/1"
_WIDE = 400
_REMEDY = 11
_OUTPUTS = 8  # of which it is said how far they are off
_CHANGE = 44  # columns for what a remedy changes
_TITLES = "  ratio  fits  results      extra work  seconds"
HEADER = f"{'remedy':<{_REMEDY}}{'change':<{_CHANGE}}{'bytes':>13}{_TITLES}"


def render_text(
    result: FixResult,
    files: Sequence[str],
    commands: Sequence[Command],
    chain: Sequence[str] = (),
    validation: Validation | None = None,
) -> str:
    """Verdict, what was tried, what was written, and how to go on.

    `chain` leads from a line of a log to what was wanted.
    """
    lines = [verdict(result), *deployment_lines(result.best), scope(result)]
    lines += ["", "from the log:", *(f"  {shorten(one, _WIDE)}" for one in chain)] if chain else []
    lines += ["", HEADER, *(row(change) for change in result.tried)]
    lines += _gaps(result.best)
    lines += ["", *level_lines(result.best)] if result.best.proof is not None else []
    if result.obstacle:
        lines += ["", f"in the way: {shorten(result.obstacle, _WIDE)}"]
    lines += map(_hint, result.hints) if result.hints else _untried(result)
    lines += [f"note: {shorten(note, _WIDE)}" for note in result.notes]
    lines += ["", *fix_validation.lines(validation)] if validation is not None else []
    lines += ["", *(f"Wrote {shorten(file, _WIDE)}" for file in files)] if files else []
    lines += command_lines(commands)
    return "\n".join(line for line in lines if line is not None) + "\n"


def _gaps(best: JudgedChange) -> Iterator[str]:
    """How far each output is off, the worst first."""
    if best.proof is None or best.proof.identical:
        return
    yield ""
    each = sorted(best.proof.each, key=lambda one: (-one.relative, one.name))
    for one in each[:_OUTPUTS]:
        noise = "" if one.decibels is None else f", signal to noise {one.decibels:.1f} dB"
        part = f"{one.relative:.2%} of its largest value"
        name = shorten(quote(one.name), _CHANGE)
        yield f"output {name} is off by at most {one.largest:.3g}, {part}{noise}"
    if len(each) > _OUTPUTS:
        yield f"{counted(len(each) - _OUTPUTS, 'more output')} less far"
    for name in best.proof.unmeasured[:_OUTPUTS]:
        yield f"output {shorten(quote(name), _CHANGE)} has another shape: not comparable"


def level_lines(best: JudgedChange) -> Iterator[str]:
    """At which optimisation levels of onnxruntime results are equal, and how far off elsewhere."""
    proof = best.proof
    if proof is None or not proof.identical:
        return
    equal = ["disabled", *(one.level for one in proof.levels if one.identical)]
    yield f"results are equal bit by bit in onnxruntime with optimisation {', '.join(equal)}"
    for one in proof.levels:
        if not one.identical:
            gap = f"off by at most {one.largest:.3g}, {one.relative:.2%} of the largest value"
            yield f"with optimisation {one.level} they are not: {gap}"
    if not proof.levels:
        yield "with optimisation enabled they were not compared: onnxruntime does not run it so"


def _hint(hint: LossyHint) -> str:
    size = "" if hint.need.size is None else f", {hint.need.what} {counted(hint.need.size, 'byte')}"
    return f"{hint.allow} would fit by its plan{size}; it changes results and is not allowed yet"


def _untried(result: FixResult) -> Iterator[str]:
    """What changes results and was not tried for that."""
    if result.exit_code != 1:
        return
    words = [word for word in lossy_words(result.backend) if word not in result.case.allow]
    if words:
        yield f"not tried, as they change results: {', '.join(words)}; --allow names those to try"


def verdict(result: FixResult) -> str:
    """The answer in one line."""
    best, need = result.best, result.best.need
    unsure = need.fits is None and need.why and result.exit_code
    if need.size is None or unsure:
        why = with_flags(need.why)
        if need.fits is False:
            return f"does not fit: {why}"
        return f"cannot tell whether it fits: {why}" if why else "cannot tell whether it fits"
    what = f"{need.what} {counted(need.size, 'byte')}"
    was = _was(best) + _deployed(best)
    as_it_is = best is result.tried[0] and not best.change.steps
    if as_it_is and not result.has_limits:
        return f"{what} ({format_size(need.size)}), and nothing that was tried needs less"
    if need.fits is None:
        doubt = "cannot tell whether it fits: " if result.exit_code else ""
        return f"{doubt}{what} ({format_size(need.size)}), {was}; {_unchanged(best)}"
    was = _was(best) + _other_pools(need) + _deployed(best)
    if need.fits:
        kept = "fits as it is" if as_it_is else "fits"
        of = "" if need.limit is None else f" of {need.limit:,}"
        return f"{kept}: {what}{of}, {was}; {_unchanged(best)}"
    if need.limit is not None and need.size > need.limit:
        missing = counted(need.size - need.limit, "byte")
        return f"does not fit: the best reached is {what}, {missing} more than {need.limit:,}"
    return f"does not fit: {', '.join(need.over)} over its budget; {what}, {was}"


def _other_pools(need: Need) -> str:
    """Other pools that have a budget, and what they need of it."""
    rows = ((pool, sizes) for pool, sizes in need.pools.items() if _noun(pool) != need.what)
    return "".join(f", {_noun(pool)} {size:,} of {have:,}" for pool, (size, have) in rows)


def _noun(pool: str) -> str:
    return NOUNS.get(pool, pool)


def _deployed(change: JudgedChange) -> str:
    """Everything in memory at the worst moment of a chain, and what a run costs beside work."""
    found, plain_bytes = change.need.deployment, change.before.total
    if found is None:
        return ""
    parts = counted(len(found.steps), "part")
    plain = "" if plain_bytes is None else f" (plain {plain_bytes:,})"
    if plain_bytes is not None and found.total > plain_bytes:
        plain = f", {found.total - plain_bytes:,} more than the plain {plain_bytes:,}"
    words = f"; {parts} {found.arrangement.value} take {counted(found.total, 'byte')} in all"
    load = f", each inference loads {counted(found.load_bytes, 'byte')}"
    return words + plain + (load if found.arrangement is Arrangement.IN_TURN else "")


def deployment_lines(change: JudgedChange) -> Iterator[str]:
    """Where a chain is fullest, and what it stores or moves more than the model in one piece."""
    found = change.need.deployment
    if found is None:
        return
    at = found.worst()
    waits = f"{counted(found.held[at], 'byte')} waiting for other parts"
    yield f"fullest while part {at + 1} of {len(found.steps)} runs, with {waits}"
    words = f"weights {counted(found.weights_bytes, 'byte')} in all parts"
    if found.repeated_bytes:
        words += f", {found.repeated_bytes:,} of them stored more than once"
    yield f"{words}; {counted(found.moved_bytes, 'byte')} go from part to part in each inference"


def scope(result: FixResult) -> str | None:
    """For which backend the result is; what helps one may cost memory on the other."""
    change = result.best.change
    if change.model is result.case.model and change.parts is None:  # no file is changed
        return None
    own, other = ("LPAI", "HTP") if result.backend == "lpai" else ("HTP", "LPAI")
    return f"for {own} only: this is no fix for {other}, where it may need more memory"


def _was(change: JudgedChange) -> str:
    before, after = change.before.size, change.need.size
    if before and change.before.what != change.need.what:
        return f"before it was {change.before.what} {before:,}"
    if not before or after is None or change.before.what != change.need.what:
        return "as before" if change.before.size == after else "before that not known"
    return f"{after / before:.2f} of {before:,}"


def _unchanged(change: JudgedChange) -> str:
    if change.proof is None:
        return "results untouched"
    if change.proof.identical:
        return "results the same bit by bit"
    proof = change.proof
    if proof.unmeasured and not proof.differing:
        return "results have other shapes"
    noise = "" if proof.decibels is None else f", {proof.decibels:.0f} dB"
    return f"results differ by at most {proof.largest:.2g} ({proof.relative:.2%}{noise})"


def row(change: JudgedChange) -> str:
    """One line of the table."""
    made, need, before = change.change, change.need, change.before
    fits = {True: "yes", False: "no", None: "-"}[change.fits]
    size = "-" if need.size is None else f"{need.size:,}"
    ratio = "-"
    if before.size and need.size is not None and before.what == need.what:
        ratio = f"{need.size / before.size:.2f}"
    extra = extra_work(change)
    return (
        f"{made.remedy:<{_REMEDY}}{shorten(made.what, _CHANGE - 2):<{_CHANGE}}{size:>13}  "
        f"{ratio:>5}  {fits:<4}  {_results(change):<11}  {extra:>10}  {change.seconds:>7.1f}"
    )


def extra_work(change: JudgedChange) -> str:
    """Multiply-adds on top; a chain whose parts are loaded for every run costs more than those."""
    made, found = change.change, change.need.deployment
    if found is not None and found.arrangement is Arrangement.IN_TURN:
        return "reloads"
    return f"{made.extra_macs / made.macs:+.1%}" if made.macs else "-"


def _results(change: JudgedChange) -> str:
    if change.proof is None:
        return "untouched"
    if change.proof.unmeasured and not change.proof.differing:
        return "reshaped"
    return "the same" if change.proof.identical else f"{change.proof.largest:.2g} off"


def render_json(
    result: FixResult,
    files: Sequence[str],
    commands: Sequence[Command],
    chain: Sequence[str] = (),
    validation: Validation | None = None,
) -> str:
    """One JSON object."""
    said = {"from_log": list(chain)} if chain else {}
    values = as_values(result, files, commands, validation)
    return write_json({**values, **_plans(result), **said})


def _plans(result: FixResult) -> dict[str, Any]:
    """Where every tensor lies before and after, for whoever draws it; HTP has no such plan."""
    before, after = result.best.before.plan, result.best.need.plan
    if before is None or after is None:
        return {}
    whole = result.best.change.parts is None
    plans = {"before": to_builtins(plan_map(before)), "after": to_builtins(plan_map(after))}
    return {"plans": {**plans, "after_is": "whole model" if whole else "neediest part"}}


def as_values(
    result: FixResult,
    files: Sequence[str],
    commands: Sequence[Command],
    validation: Validation | None = None,
) -> dict[str, Any]:
    """The same as JSON has it."""
    best = result.best
    found = best.need.deployment
    return {
        "schema": SCHEMA,
        "input": str(result.case.path),
        "backend": result.backend,
        "fits": result.fits,
        "before_bytes": best.before.size,
        "after_bytes": best.need.size,
        "limit_bytes": best.need.limit,
        "over_budget": list(best.need.over),
        "total_bytes": best.need.total,
        "plain_total_bytes": best.before.total,
        "deployment": None if found is None else found.values(best.before.total),
        "best": result.tried.index(best),
        "tried": [dict(_change(change)) for change in result.tried],
        "obstacle": result.obstacle,
        "notes": list(result.notes),
        "would_fit": [
            {"allow": one.allow, "pool": one.need.what, "bytes": one.need.size}
            for one in result.hints
        ],
        "validation": fix_validation.as_json(validation),
        "files": list(files),
        "next": one_line(commands),
        **({"soc": result.soc.name} if isinstance(result, HtpFixResult) and result.soc else {}),
    }


def _change(change: JudgedChange) -> Iterator[tuple[str, Any]]:
    made, need, proof = change.change, change.need, change.proof
    yield "remedy", made.remedy
    yield "change", made.what
    yield "pool", need.what
    yield "bytes", need.size
    yield "limit_bytes", need.limit
    yield "fits", change.fits
    yield "over_budget", list(need.over)
    yield "missing_bytes", need.missing
    yield "why", join_words(need.why)
    yield "identical", proof is None or proof.identical
    yield "lossy", made.is_lossy
    yield "samples", 0 if proof is None else proof.samples
    largest = 0.0 if proof is None else proof.largest
    yield "largest_difference", _finite(largest)
    yield "relative_difference", _finite(0.0 if proof is None else proof.relative)
    yield "outputs", [] if proof is None else [_output(one) for one in proof.each]
    yield "reshaped_outputs", [] if proof is None else list(proof.unmeasured)
    yield "macs", made.macs
    yield "extra_macs", made.extra_macs
    if proof is not None and proof.levels:
        yield "optimisation_levels", [_level(one) for one in proof.levels]
    yield "seconds", round(change.seconds, 3)
    yield "steps", [dict(step) for step in made.steps]


def _level(gap: LevelGap) -> dict[str, Any]:
    return {
        "level": gap.level,
        "identical": gap.identical,
        "largest_difference": _finite(gap.largest),
        "relative_difference": _finite(gap.relative),
    }


def _output(gap: OutputGap) -> dict[str, Any]:
    return {
        "name": gap.name,
        "largest_difference": _finite(gap.largest),
        "relative_difference": _finite(gap.relative),
        "signal_to_noise_db": None if gap.decibels is None else round(gap.decibels, 2),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no infinity
