"""How to go on after a fix: the commands that prepare, load or place what was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from qnnmem.fix.htp import HtpFixResult
from qnnmem.fix.library.judge import MODEL
from qnnmem.fix.parts.op_sequence import Stretch
from qnnmem.fix.remedy import JudgedChange, has_floats
from qnnmem.fix.run import FixResult
from qnnmem.report.shell import file_word, next_line, output_words

_MOST = 4  # commands that anybody pastes
_OURS = ("--backend", "--seed", "--time-limit")  # mean something else to the next command
_HTP = ("--soc", "--precision", "--vtcm-mb", "--opt-level", "--budget")
_BITS = 16  # loses less than 8
_SHAPING = ("--dim", "--shape", "--value")
_CHANGED = "prepare the changed model"
Command = tuple[str, Sequence[str]]  # why, and its words


def next_commands(
    result: FixResult, files: Sequence[str], given: Sequence[str]
) -> Sequence[Command]:
    """What to do with the result; `given` are the words of this run that `prepare` takes, too.

    `files` are those that were written, or that of the user where nothing was.
    """
    if result.exit_code:
        return ()
    kept = [word for word in given if word.partition("=")[0] not in _OURS]
    if result.best.change.model is not result.case.model or result.best.change.parts is not None:
        kept = [word for word in kept if word.partition("=")[0] not in _SHAPING]
    if isinstance(result, HtpFixResult):
        return _htp_commands(result, files, kept)
    if result.best.change.parts is None:
        why = "prepare it so" if result.best.change.model is result.case.model else _CHANGED
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
    """The command that makes one binary of a model for several shapes."""
    inplace = any(one.best.change.pool_options.inplace for one in results)
    words = ["qnnmem", "prepare", *map(file_word, files), *["--inplace"] * inplace]
    words += [*_precision_words(results[0].best), *output_words(binary)]
    return "one binary of them, weights stored once", words


def allow_command(
    result: FixResult, model: str, given: Sequence[str], output: Sequence[str]
) -> Sequence[Command]:
    """The same command with what loses least of what would fit allowed, and where it writes."""
    if not result.hints:
        return ()
    allow = ",".join(sorted({result.hints[0].allow, *result.case.allow}))
    kept = [word for word in given if word.partition("=")[0] not in ("--allow", "-o", "--output")]
    words = ["qnnmem", "fix", file_word(model), *kept, f"--allow={allow}", *output]
    return (("allow what loses least", words),)


def _precision_words(best: JudgedChange) -> list[str]:
    """How a model that computes in floats is prepared: LPAI has no floating point."""
    bits = best.change.pool_options.bits or _BITS
    return [f"--quantize=int{bits}"] if has_floats(best.plan) else []


def _of_part(kept: Sequence[str], part: Stretch) -> list[str]:
    """Without states of which the part has not both ends: the application hands those on."""
    found = []
    for word in kept:
        option, _, pair = word.partition("=")
        ends = pair.rpartition("=")
        if option != "--state" or (ends[0] in part.inputs and ends[2] in part.outputs):
            found.append(word)
    return found


def _htp_commands(
    result: HtpFixResult, files: Sequence[str], given: Sequence[str]
) -> Sequence[Command]:
    if result.rounds and result.binaries:
        return list(_placing(result, files))[:_MOST]
    kept = [word for word in given if word.partition("=")[0] not in _HTP]
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
    """One command for each round of contexts that are loaded at the same time."""
    binaries = [file for file in files if file.endswith(".bin")]
    known = {**{Path(file).stem: file for file in binaries}, **result.beside, MODEL: binaries[0]}
    soc = "" if result.soc is None else result.soc.name
    # The library knows its own limit only.
    limit = result.domain_bytes
    budget = ["--verify"] if limit is None else [f"--budget={limit}"]
    for number, names in enumerate(result.rounds, start=1):
        paths = [file_word(known[name]) for name in names]
        what = "what is loaded together" if len(paths) > 1 else "what is loaded alone"
        turn = f", turn {number} of {len(result.rounds)}" if len(result.rounds) > 1 else ""
        yield f"{what}{turn}", ["qnnmem", "place", *paths, f"--soc={soc}", *budget]


def command_lines(commands: Sequence[Command]) -> list[str]:
    """A line for each, to be pasted."""
    return [line for why, words in commands if (line := next_line(why, words))]


def one_line(commands: Sequence[Command]) -> str:
    """All in one line, each after the one before it went well."""
    found = (next_line("", words).removeprefix("next: : ") for _, words in commands)
    return " && ".join(line for line in found if line)
