"""Render the result of `fix`: text, a table of several models, and the report file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qnnmem.errors import join_words
from qnnmem.fix.fixed_model import FixRow
from qnnmem.fix.htp import HtpFixResult
from qnnmem.fix.library.compile_judge import MODEL, NOUNS
from qnnmem.fix.lossy.remedies import lossy_words
from qnnmem.fix.parts.deployment import Arrangement
from qnnmem.fix.parts.op_sequence import OpRange
from qnnmem.fix.remedy import JudgedChange, LossyHint, Need, has_floats
from qnnmem.fix.remedy_search import FixResult
from qnnmem.flags import with_flags
from qnnmem.report.shell import command_line, file_word, next_line, output_words, shell_line
from qnnmem.report.table import FITS, block, code, code_table, escape, table_lines, thousands
from qnnmem.results.files import RefusedFile
from qnnmem.results.fix import FixedModel, ValidatedOutput, Validation
from qnnmem.results.result import TOOL
from qnnmem.text import counted, quote, shorten
from qnnmem.units import format_size

_WIDE = 400
_REMEDY = 11
_OUTPUTS = 8  # outputs listed with their errors
_CHANGE = 44  # columns for the description of a change
_TITLES = "  ratio  fits  results      extra work  seconds"
HEADER = f"{'remedy':<{_REMEDY}}{'change':<{_CHANGE}}{'bytes':>13}{_TITLES}"
_OUTPUT = 40  # columns for the name of an output
_SHOWN_OUTPUTS = 20
_TABLE = ("file", "before", "after", "ratio", "remedy", "results", "answer")
_WORDS = {True: "fits", False: "does not fit", None: "-"}
_MOST = 4  # commands; nobody pastes more
_OURS = ("--backend", "--seed", "--time-limit")  # options with another meaning in the next command
_HTP = ("--soc", "--precision", "--vtcm-mb", "--opt-level", "--budget")
_BITS = 16  # int16 loses less than int8
_SHAPING = ("--dim", "--shape", "--value")
_CHANGED = "prepare the changed model"
Command = tuple[str, Sequence[str]]  # reason, and words of the command


def render_text(
    result: FixResult,
    files: Sequence[str],
    commands: Sequence[Command],
    chain: Sequence[str] = (),
    validation: Validation | None = None,
) -> str:
    """Render the verdict, the tried remedies, the written files and the next command.

    `chain` explains, step by step, how the budgets follow from a log line.
    """
    lines = [verdict(result), *deployment_lines(result.best), *scope_lines(result)]
    lines += ["", "from the log:"] if chain else []
    lines += [f"  {shorten(step, _WIDE)}" for step in chain]
    lines += ["", HEADER, *(row(change) for change in result.tried)]
    lines += _gaps(result.best)
    lines += ["", *level_lines(result.best)] if result.best.proof is not None else []
    if result.obstacle:
        lines += ["", f"what prevents a smaller size: {shorten(result.obstacle, _WIDE)}"]
    lines += map(_hint, result.hints) if result.hints else _untried(result)
    lines += [f"note: {shorten(note, _WIDE)}" for note in result.notes]
    lines += ["", *_validation_lines(validation)] if validation is not None else []
    lines += ["", *(f"Wrote {shorten(file, _WIDE)}" for file in files)] if files else []
    lines += command_lines(commands)
    return "\n".join(lines) + "\n"


def _gaps(best: JudgedChange) -> Iterator[str]:
    """Yield the error of each output, the largest first; yield nothing for identical results."""
    if best.proof is None or best.proof.identical:
        return
    yield ""
    each = sorted(best.proof.each, key=lambda output: (-output.relative, output.name))
    for output in each[:_OUTPUTS]:
        noise = "" if output.decibels is None else f", signal to noise {output.decibels:.1f} dB"
        part = f"{output.relative:.2%} of its largest value"
        name = shorten(quote(output.name), _CHANGE)
        yield f"output {name} is off by at most {output.largest:.3g}, {part}{noise}"
    if len(each) > _OUTPUTS:
        yield f"{counted(len(each) - _OUTPUTS, 'more output')} with smaller differences"
    for name in best.proof.unmeasured[:_OUTPUTS]:
        yield f"output {shorten(quote(name), _CHANGE)} has another shape: not comparable"


def level_lines(best: JudgedChange) -> Iterator[str]:
    """Yield the onnxruntime optimisation levels with equal results; for other levels, the error."""
    proof = best.proof
    if proof is None or not proof.identical:
        return
    equal = ["disabled", *(level.level for level in proof.levels if level.identical)]
    levels = ", ".join(equal)
    yield f"results are equal bit for bit at these onnxruntime optimisation levels: {levels}"
    for level in proof.levels:
        if not level.identical:
            gap = f"off by at most {level.largest:.3g}, {level.relative:.2%} of the largest value"
            yield f"with optimisation {level.level}, results differ: {gap}"
    if not proof.levels:
        yield (
            "results with optimisation enabled were not compared: onnxruntime does not run the "
            "model that way"
        )


def _hint(hint: LossyHint) -> str:
    size = "" if hint.need.size is None else f", {hint.need.what} {counted(hint.need.size, 'byte')}"
    return (
        f"{hint.allow} would fit according to its plan{size}; it changes results and needs --allow"
    )


def _untried(result: FixResult) -> Iterator[str]:
    """If `fix` failed, yield one line with the lossy remedies that were not allowed."""
    if result.exit_code != 1:
        return
    words = [word for word in lossy_words(result.backend) if word not in result.case.allow]
    if words:
        yield (
            f"not tried because they change results: {', '.join(words)}; to try one, name it "
            "with --allow"
        )


def verdict(result: FixResult) -> str:
    """Return a one-line verdict: whether the best change fits, and how many bytes it needs."""
    best, need = result.best, result.best.need
    unsure = need.fits is None and need.why and result.exit_code
    if need.size is None or unsure:
        why = with_flags(need.why)
        if need.fits is False:
            return f"does not fit: {why}"
        return f"cannot tell whether it fits: {why}" if why else "cannot tell whether it fits"
    size = f"{need.what} {counted(need.size, 'byte')}"
    was = _was(best) + _deployed(best)
    as_it_is = best is result.tried[0] and not best.change.steps
    if as_it_is and not result.has_limits:
        return f"{size} ({format_size(need.size)}), and no change that was tried needs less"
    if need.fits is None:
        doubt = "cannot tell whether it fits: " if result.exit_code else ""
        return f"{doubt}{size} ({format_size(need.size)}), {was}; {_unchanged(best)}"
    was = _was(best) + _other_pools(need) + _deployed(best)
    if need.fits:
        kept = "fits unchanged" if as_it_is else "fits"
        of = "" if need.limit is None else f" of {need.limit:,}"
        return f"{kept}: {size}{of}, {was}; {_unchanged(best)}"
    if need.limit is not None and need.size > need.limit:
        missing = counted(need.size - need.limit, "byte")
        return f"does not fit: the smallest result is {size}, {missing} more than {need.limit:,}"
    return f"does not fit: {', '.join(need.over)} over budget; {size}, {was}"


def _other_pools(need: Need) -> str:
    """Return needs and budgets of the pools that the verdict line does not name yet."""
    rows = ((pool, sizes) for pool, sizes in need.pools.items() if _noun(pool) != need.what)
    return "".join(f", {_noun(pool)} {size:,} of {have:,}" for pool, (size, have) in rows)


def _noun(pool: str) -> str:
    return NOUNS.get(pool, pool)


def _deployed(change: JudgedChange) -> str:
    """Return a phrase with a model chain's memory and the bytes that each inference loads."""
    deployment, plain_bytes = change.need.deployment, change.before.total
    if deployment is None:
        return ""
    parts = counted(len(deployment.steps), "part")
    plain = "" if plain_bytes is None else f" (the original model takes {plain_bytes:,})"
    if plain_bytes is not None and deployment.total > plain_bytes:
        over = deployment.total - plain_bytes
        plain = f", {over:,} more than the original model's {plain_bytes:,}"
    total = counted(deployment.total, "byte")
    words = f"; {parts} {deployment.arrangement.value} take {total} in total"
    load = f", each inference loads {counted(deployment.load_bytes, 'byte')}"
    return words + plain + (load if deployment.arrangement is Arrangement.IN_TURN else "")


def deployment_lines(change: JudgedChange) -> Iterator[str]:
    """Yield lines about a model chain: its memory peak, its weights and its transfers."""
    deployment = change.need.deployment
    if deployment is None:
        return
    peak = deployment.worst()
    waits = f"{counted(deployment.held[peak], 'byte')} of tensors held for other parts"
    yield f"memory peak: while part {peak + 1} of {len(deployment.steps)} runs, with {waits}"
    words = f"weights {counted(deployment.weights_bytes, 'byte')} in all parts"
    if deployment.repeated_bytes:
        words += f", of which {deployment.repeated_bytes:,} are duplicates"
    moved = counted(deployment.moved_bytes, "byte")
    yield f"{words}; {moved} passed between parts in each inference"


def scope_lines(result: FixResult) -> Iterator[str]:
    """If the fix changes the model, yield a warning that the change helps only one backend."""
    change = result.best.change
    if change.model is not result.case.model or change.parts is not None:
        own, other = ("LPAI", "HTP") if result.backend == "lpai" else ("HTP", "LPAI")
        yield f"for {own} only: this is not a fix for {other}, where the model may need more memory"


def _was(change: JudgedChange) -> str:
    before, after = change.before.size, change.need.size
    same_pool = change.before.what == change.need.what
    if before and not same_pool:
        return f"before: {change.before.what} {before:,}"
    if not before or after is None or not same_pool:
        return "as before" if before == after else "before: unknown"
    return f"{100 * after / before:.0f} % of the original {before:,}"


def _unchanged(change: JudgedChange) -> str:
    if change.proof is None:
        return "results untouched"
    if change.proof.identical:
        return "results identical bit for bit"
    proof = change.proof
    if proof.unmeasured and not proof.differing:
        return "results have other shapes"
    noise = "" if proof.decibels is None else f", {proof.decibels:.0f} dB"
    return f"results differ by at most {proof.largest:.2g} ({proof.relative:.2%}{noise})"


def row(change: JudgedChange) -> str:
    """Return the table row for a change with its need and its proof."""
    applied, need, before = change.change, change.need, change.before
    ratio = "-"
    if before.size and need.size is not None and before.what == need.what:
        ratio = f"{need.size / before.size:.2f}"
    name = f"{applied.remedy:<{_REMEDY}}{shorten(applied.what, _CHANGE - 2):<{_CHANGE}}"
    sizes = f"{thousands(need.size):>13}  {ratio:>5}  {FITS[change.fits]:<4}"
    work = f"{extra_work(change):>10}  {change.seconds:>7.1f}"
    return f"{name}{sizes}  {_results(change):<11}  {work}"


def extra_work(change: JudgedChange) -> str:
    """Return the share of extra multiply-adds as a table cell; a dash if the share is unknown.

    The cell is "reloads" if each inference loads the parts of a model chain again.
    """
    applied, deployment = change.change, change.need.deployment
    if deployment is not None and deployment.arrangement is Arrangement.IN_TURN:
        return "reloads"
    return f"{applied.extra_macs / applied.macs:+.1%}" if applied.macs else "-"


def _results(change: JudgedChange) -> str:
    if change.proof is None:
        return "untouched"
    if change.proof.unmeasured and not change.proof.differing:
        return "reshaped"
    return "the same" if change.proof.identical else f"{change.proof.largest:.2g} off"


def _validation_lines(validation: Validation) -> Iterator[str]:
    """Yield the verdict of the validation, then a line for each output."""
    samples = counted(validation.samples, "sample")
    verdict = "holds" if validation.holds else "DOES NOT HOLD"
    yield f"validated on {samples}: {verdict}"
    heads = f"{'to the original model':<36}{'planned memory':<16}NaN, infinite"
    yield f"  {'output':<{_OUTPUT}}{heads}"
    for output in validation.outputs[:_SHOWN_OUTPUTS]:
        name = shorten(output.output, _OUTPUT - 2)
        yield f"  {name:<{_OUTPUT}}{_validated_row(output, validation)}"
    if len(validation.outputs) > _SHOWN_OUTPUTS:
        yield f"  and {counted(len(validation.outputs) - _SHOWN_OUTPUTS, 'other output')}"
    if not validation.planned:
        yield f"  not run in planned memory: {shorten(validation.why_not_planned, 200)}"
    for finding in validation.findings:
        yield f"  rule broken in planned memory: {shorten(finding, 200)}"


def _validated_row(output: ValidatedOutput, validation: Validation) -> str:
    off = (
        f"{_gap(output.largest_difference)} off, {_gap(output.relative_difference)} of the largest"
    )
    was = "the same" if output.identical else off
    moved = output.planned_difference
    ran = "the same" if moved == 0 else f"{_gap(moved)} off"
    ran = ran if validation.planned else "-"
    odd = f"{output.nans:,}, {output.infinities:,}" if output.nans or output.infinities else "none"
    return f"{was:<36}{ran:<16}{odd}"


def _gap(size: float | None) -> str:
    """Return an error in short form; `inf` for None, which means a NaN or infinite number."""
    return "inf" if size is None else f"{size:.2g}"


# --- Several models


def render_table(rows: Sequence[FixRow]) -> str:
    """Render the overall verdict, a row for each model, and the written files."""
    done = [row for row in rows if isinstance(row, FixedModel)]
    lines = [_verdict_on_all(rows), "", *table_lines(_TABLE, [_cells(row) for row in rows])]
    ways = [row for row in done if row.obstacle]
    lines += ["", *(_obstacle(row) for row in ways)] if ways else []
    files = [file for row in done for file in row.files if file.endswith(".onnx")]
    lines += ["", *(f"Wrote {shorten(file, _WIDE)}" for file in files)] if files else []
    return "\n".join(lines) + "\n"


def _verdict_on_all(rows: Sequence[FixRow]) -> str:
    done = [row for row in rows if isinstance(row, FixedModel)]
    parts = (
        [f"no verdict on {len(rows) - len(done)} of {len(rows)}"] if len(done) < len(rows) else []
    )
    over = sum(row.fits is False for row in done)
    fits = sum(row.fits is True for row in done)
    parts += [f"does not fit: {over} of {len(done)}"] if over else []
    parts += [f"fits: {fits} of {len(done)}"] if fits else []
    changed = sum(bool(row.files) for row in done)
    return ", ".join([*parts, f"{counted(changed, 'model')} changed"])


def _cells(row: FixRow) -> tuple[str, ...]:
    if isinstance(row, RefusedFile):
        return row.input, "-", "-", "-", "-", "-", "no verdict"
    before, after, best = row.before_bytes, row.after_bytes, row.chosen
    ratio = f"{after / before:.2f}" if before and after is not None else "-"
    gap = best.largest_difference
    results = "the same" if best.identical else "off" if gap is None else f"{gap:.2g} off"
    sizes = ("-" if size is None else f"{size:,}" for size in (before, after))
    name = f"{row.input} {row.soc_name}" if row.soc_name else row.input
    return name, *sizes, ratio, best.remedy, results, _WORDS[row.fits]


def _obstacle(row: FixedModel) -> str:
    return f"{shorten(row.input, 80)}: obstacle: {shorten(row.obstacle, _WIDE)}"


# --- Next steps


def next_commands(
    result: FixResult, files: Sequence[str], options: Sequence[str]
) -> Sequence[Command]:
    """Return the next commands, which repeat `options` as far as `prepare` accepts them.

    `files` are the written files, or the user's file if `fix` wrote no file.
    """
    if result.exit_code:
        return ()
    kept = [word for word in options if word.partition("=")[0] not in _OURS]
    if result.best.change.model is not result.case.model or result.best.change.parts is not None:
        kept = [word for word in kept if word.partition("=")[0] not in _SHAPING]
    if isinstance(result, HtpFixResult):
        return _htp_commands(result, files, kept)
    if result.best.change.parts is None:
        if files[0].lower().endswith(".tflite") and has_floats(result.best.plan):
            return ()  # `prepare` accepts only integer TFLite models
        why = (
            "prepare the model with these options"
            if result.best.change.model is result.case.model
            else _CHANGED
        )
        return ((why, _prepare_words(result, files[0], kept)),)
    return tuple(
        (f"prepare part {number}", _prepare_words(result, file, _of_part(kept, part)))
        for number, (file, part) in enumerate(
            zip(files, result.best.change.parts.parts, strict=False), start=1
        )
    )


def _prepare_words(result: FixResult, model: str, kept: Sequence[str]) -> list[str]:
    best = result.best
    options = best.change.pool_options
    words = ["qnnmem", "prepare", file_word(model), *kept, *["--inplace"] * options.inplace]
    words += _precision_words(best)
    return [*words, *output_words(f"{model.removesuffix('.onnx')}.bin")]


def together(results: Sequence[FixResult], files: Sequence[str], binary: str) -> Command:
    """Return the `prepare` command that makes one binary from models of different shapes."""
    inplace = any(result.best.change.pool_options.inplace for result in results)
    words = ["qnnmem", "prepare", *map(file_word, files), *["--inplace"] * inplace]
    words += [*_precision_words(results[0].best), *output_words(binary)]
    return "make one binary of these models, which stores the weights once", words


def allow_command(
    result: FixResult, model: str, options: Sequence[str], output: Sequence[str]
) -> Sequence[Command]:
    """Return the typed command, extended to allow the least lossy change that would fit."""
    if not result.hints:
        return ()
    allow = ",".join(sorted({result.hints[0].allow, *result.case.allow}))
    kept = [word for word in options if word.partition("=")[0] not in ("--allow", "-o", "--output")]
    words = ["qnnmem", "fix", file_word(model), *kept, f"--allow={allow}", *output]
    return (("allow the change with the smallest difference", words),)


def _precision_words(best: JudgedChange) -> list[str]:
    """Return the quantize option for a float model, because LPAI has no floating point."""
    bits = best.change.pool_options.bits or _BITS
    return [f"--quantize=int{bits}"] if has_floats(best.plan) else []


def _of_part(kept: Sequence[str], part: OpRange) -> list[str]:
    """Return the words, except `--state` pairs that have a tensor outside this part.

    If the tensors of a pair are in different parts, the application itself passes them on.
    """
    words = []
    for word in kept:
        option, _, pair = word.partition("=")
        ends = pair.rpartition("=")
        if option != "--state" or (ends[0] in part.inputs and ends[2] in part.outputs):
            words.append(word)
    return words


def _htp_commands(
    result: HtpFixResult, files: Sequence[str], options: Sequence[str]
) -> Sequence[Command]:
    if result.rounds and result.binaries:
        return list(_placing(result, files))[:_MOST]
    kept = [word for word in options if word.partition("=")[0] not in _HTP]
    model = next((file for file in files if file.endswith(".onnx")), str(result.case.path))
    binary = next((file for file in files if file.endswith(".bin")), "")
    words = ["qnnmem", "prepare", file_word(model), *_htp_words(result), *kept]
    if binary:
        return [("compile with these settings", [*words, "--force", "-o", file_word(binary)])]
    return [("compile it", [*words, *output_words(f"{Path(model).stem}.bin")])]


def _htp_words(result: HtpFixResult) -> Iterator[str]:
    options = result.best.change.compile_options
    soc = "" if result.soc is None else result.soc.name
    yield from ("--backend=htp", f"--soc={soc}")
    if options.precision.value != "fp16":
        yield f"--precision={options.precision.value}"
    if options.vtcm_mb is not None:
        yield f"--vtcm-mb={options.vtcm_mb}"
    if options.opt_level is not None:
        yield f"--opt-level={options.opt_level}"


def _placing(result: HtpFixResult, files: Sequence[str]) -> Iterator[Command]:
    """Yield a `place` command for each group of contexts that are loaded together."""
    binaries = [file for file in files if file.endswith(".bin")]
    known = {**{Path(file).stem: file for file in binaries}, **result.beside, MODEL: binaries[0]}
    soc = "" if result.soc is None else result.soc.name
    # Without a budget, only the library knows the limit, so let it verify.
    limit = result.domain_bytes
    budget = ["--verify"] if limit is None else [f"--budget={limit}"]
    for number, names in enumerate(result.rounds, start=1):
        paths = [file_word(known[name]) for name in names]
        loaded = (
            ("check whether the contexts fit together")
            if len(paths) > 1
            else "check whether the context fits alone"
        )
        turn = f", turn {number} of {len(result.rounds)}" if len(result.rounds) > 1 else ""
        yield f"{loaded}{turn}", ["qnnmem", "place", *paths, f"--soc={soc}", *budget]


def command_lines(commands: Sequence[Command]) -> list[str]:
    """Return a line to paste for each command, except for commands that are too long to paste."""
    return [line for why, words in commands if (line := next_line(why, words))]


def one_line(commands: Sequence[Command]) -> str:
    """Join all commands with `&&` into one line."""
    return " && ".join(filter(None, (command_line(words) for _, words in commands)))


_LONGEST = 1000
_HEAD = ("remedy", "change", "pool", "bytes", "limit", "fits", "results", "extra work")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Where a result came from: the facts that are needed to reproduce the run."""

    sha256: str  # hash of the model file
    options: tuple[str, ...] = ()  # options in the typed form
    runtime: tuple[str, ...] = ()  # runtime that compared the results
    chain: tuple[str, ...] = ()  # steps from a log line to the budgets


def render_report(
    result: FixResult, facts: RunFacts, recipe: str, commands: Sequence[Command]
) -> str:
    """Render the report file in Markdown: verdict, remedies, proof, deployment and provenance."""
    lines = [f"# {escape(verdict(result))}"]
    for line in (*deployment_lines(result.best), *scope_lines(result)):
        lines += ["", escape(line)]
    if facts.chain:
        lines += ["", "## From the log", "", *(f"- {escape(step)}" for step in facts.chain)]
    lines += ["", "## Tried", "", *code_table(_HEAD, map(_report_cells, result.tried))]
    if result.obstacle:
        lines += ["", f"What prevents a smaller size: {escape(result.obstacle)}"]
    lines += [part for note in result.notes for part in ("", f"Note: {escape(note)}")]
    lines += ["", "## Done", "", *_steps(result.best)]
    lines += ["", "## Proof", "", *_proof(result)]
    lines += ["", "## Deploy", "", *block(_commands(result, recipe, commands))]
    lines += ["", "## Origin", "", *code_table(("what", "value"), _origin(result, facts))]
    return "\n".join(lines) + "\n"


def _report_cells(change: JudgedChange) -> tuple[str, ...]:
    applied, need = change.change, change.need
    sizes = thousands(need.size), thousands(need.limit), FITS[change.fits]
    return applied.remedy, applied.what, need.what, *sizes, _results(change), extra_work(change)


def _steps(best: JudgedChange) -> Iterator[str]:
    for number, step in enumerate(best.change.steps, 1):
        rest = {name: value for name, value in step.items() if name != "remedy"}
        numbers = f": {code(json.dumps(rest), _LONGEST)}" if rest else ""
        yield f"{number}. {escape(str(step['remedy']))}{numbers}"
    if not best.change.steps:
        yield "Nothing."


def _proof(result: FixResult) -> Iterator[str]:
    best = result.best
    proof, need = best.proof, best.need
    if proof is None:
        yield "- The model is unchanged, so its results are the same."
    else:
        origin = "given" if result.case.samples else f"random, seed {result.case.seed}"
        samples = f"{counted(proof.samples, 'sample')} ({origin})"
        compared = f"- Compared with the original model: {counted(proof.outputs, 'output')}"
        if proof.identical:
            yield f"{compared} on {samples}, the same bit for bit."
        else:
            gap = f"{proof.largest:.3g}" if math.isfinite(proof.largest) else "beyond measure"
            names = ", ".join(code(name) for name in proof.differing[:5])
            yield f"{compared} on {samples}, off by at most {gap}: {names}."
        yield from (f"- {escape(line)}." for line in level_lines(best))
    if need.size is not None:
        of = "" if need.limit is None else f" of {need.limit:,}"
        yield f"- The written model needs {escape(need.what)} {counted(need.size, 'byte')}{of}."
    if need.why:
        yield f"- {escape(join_words(need.why))}"


def _commands(result: FixResult, recipe: str, commands: Sequence[Command]) -> Iterator[str]:
    for why, words in commands:
        yield f"# {shorten(why, _LONGEST)}"
        yield shorten(command_line(words), _LONGEST)
    if recipe:
        again = ("qnnmem", "fix", str(result.case.path), "--apply", recipe, "-o", "again")
        yield f"# repeat this: {shorten(shell_line(again), _LONGEST)}"


def _origin(result: FixResult, facts: RunFacts) -> Iterator[tuple[str, str]]:
    yield "model", str(result.case.path)
    yield "sha256", facts.sha256
    yield "made by", TOOL
    yield "options", shorten(shell_line(facts.options), _LONGEST) or "-"
    if result.best.proof is not None:
        yield "compared by", ", ".join(facts.runtime)
