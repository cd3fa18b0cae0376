"""What a fix came to, as text and as JSON, schema `qnnmem.fix/1`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.errors import join_words
from qnnmem.fix.lossy import lossy_words
from qnnmem.fix.prove import OutputGap
from qnnmem.fix.remedy import JudgedChange, LossyHint
from qnnmem.fix.run import FixResult
from qnnmem.plan.pools import PoolOptions
from qnnmem.report.schema import write_json
from qnnmem.report.shell import file_word, next_line
from qnnmem.text import counted, quote, shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.fix/1"
_SHAPING = ("--dim", "--shape", "--value")
_OURS = ("--backend", "--seed", "--time-limit")  # mean something else to the next command
_WIDE = 400
_REMEDY = 11
_OUTPUTS = 8  # of which it is said how far they are off
_CHANGE = 44  # columns for what a remedy changes
_TITLES = "  ratio  fits  results      extra work  seconds"
HEADER = f"{'remedy':<{_REMEDY}}{'change':<{_CHANGE}}{'bytes':>13}{_TITLES}"


def render_text(result: FixResult, files: Sequence[str], next_words: Sequence[str]) -> str:
    """Verdict, what was tried, what was written, and how to go on."""
    lines = [verdict(result), "", HEADER, *(row(change) for change in result.tried)]
    lines += _gaps(result.best)
    if result.obstacle:
        lines += ["", f"in the way: {shorten(result.obstacle, _WIDE)}"]
    lines += map(_hint, result.hints) if result.hints else _untried(result)
    lines += [f"note: {shorten(note, _WIDE)}" for note in result.notes]
    lines += ["", *(f"Wrote {shorten(file, _WIDE)}" for file in files)] if files else []
    if next_words:
        lines += [next_line(_why(result), next_words)]
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


def _hint(hint: LossyHint) -> str:
    size = "" if hint.need.size is None else f", {hint.need.what} {counted(hint.need.size, 'byte')}"
    return f"{hint.allow} would fit by its plan{size}; it changes results and is not allowed yet"


def _untried(result: FixResult) -> Iterator[str]:
    """What changes results and was not tried for that."""
    if result.exit_code != 1:
        return
    backend = "lpai" if isinstance(result.case.options, PoolOptions) else "htp"
    words = [word for word in lossy_words(backend) if word not in result.case.allow]
    if words:
        yield f"not tried, as they change results: {', '.join(words)}; --allow names those to try"


def verdict(result: FixResult) -> str:
    """The answer in one line."""
    best, need = result.best, result.best.need
    if need.size is None:
        why = join_words(need.why)
        return f"cannot tell whether it fits: {why}" if why else "cannot tell whether it fits"
    what = f"{need.what} {counted(need.size, 'byte')}"
    was = _was(best)
    if best is result.tried[0] and not result.has_limits:
        return f"{what} ({format_size(need.size)}), and nothing that was tried needs less"
    if need.fits is None:
        doubt = "cannot tell whether it fits: " if result.exit_code else ""
        return f"{doubt}{what} ({format_size(need.size)}), {was}; {_unchanged(best)}"
    if need.fits:
        kept = "fits as it is" if best is result.tried[0] else "fits"
        of = "" if need.limit is None else f" of {need.limit:,}"
        return f"{kept}: {what}{of}, {was}; {_unchanged(best)}"
    if need.limit is not None and need.size > need.limit:
        missing = counted(need.size - need.limit, "byte")
        return f"does not fit: the best reached is {what}, {missing} more than {need.limit:,}"
    return f"does not fit: {', '.join(need.over)} over its budget; {what}, {was}"


def _was(change: JudgedChange) -> str:
    before, after = change.before.size, change.need.size
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
    ratio = f"{need.size / before.size:.2f}" if before.size and need.size is not None else "-"
    extra = f"{made.extra_macs / made.macs:+.1%}" if made.macs else "-"
    return (
        f"{made.remedy:<{_REMEDY}}{shorten(made.what, _CHANGE - 2):<{_CHANGE}}{size:>13}  "
        f"{ratio:>5}  {fits:<4}  {_results(change):<11}  {extra:>10}  {change.seconds:>7.1f}"
    )


def _results(change: JudgedChange) -> str:
    if change.proof is None:
        return "untouched"
    if change.proof.unmeasured and not change.proof.differing:
        return "reshaped"
    return "the same" if change.proof.identical else f"{change.proof.largest:.2g} off"


def _why(result: FixResult) -> str:
    if result.hints:
        return "allow what loses least"
    changed = result.best.change.model is not result.case.model
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
            "before_bytes": best.before.size,
            "after_bytes": best.need.size,
            "limit_bytes": best.need.limit,
            "over_budget": list(best.need.over),
            "best": result.tried.index(best),
            "tried": [dict(_change(change)) for change in result.tried],
            "obstacle": result.obstacle,
            "notes": list(result.notes),
            "would_fit": [
                {"allow": one.allow, "pool": one.need.what, "bytes": one.need.size}
                for one in result.hints
            ],
            "files": list(files),
            "next": command,
        }
    )


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
    yield "seconds", round(change.seconds, 3)
    yield "steps", [dict(step) for step in made.steps]


def _output(gap: OutputGap) -> dict[str, Any]:
    return {
        "name": gap.name,
        "largest_difference": _finite(gap.largest),
        "relative_difference": _finite(gap.relative),
        "signal_to_noise_db": None if gap.decibels is None else round(gap.decibels, 2),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no infinity


def allow_words(
    result: FixResult, model: str, given: Sequence[str], output: Sequence[str]
) -> list[str]:
    """The same command with what loses least of what would fit allowed, and where it writes."""
    allow = ",".join(sorted({result.hints[0].allow, *result.case.allow}))
    kept = [word for word in given if word.partition("=")[0] != "--allow"]
    return ["qnnmem", "fix", file_word(model), *kept, f"--allow={allow}", *output]


def prepare_words(result: FixResult, model: str, given: Sequence[str]) -> list[str]:
    """The command that prepares the result; `given` are the words of this run that fit there."""
    best = result.best
    options = best.change.pool_options
    fixed = (
        _SHAPING if best.change.model is not result.case.model else ()
    )  # shapes are in the changed model
    kept = [word for word in given if word.partition("=")[0] not in (*_OURS, *fixed)]
    words = ["qnnmem", "prepare", file_word(model), *kept, *["--inplace"] * options.inplace]
    tensors = best.plan.model.tensors
    made = (name for op in best.plan.model.ops for name in op.outputs if name in tensors)
    if any(tensors[name].dtype.is_float for name in made):
        words.append("--float" if options.bits is None else f"--quantize=int{options.bits}")
    return [*words, "-o", file_word(f"{model.removesuffix('.onnx')}.bin")]
