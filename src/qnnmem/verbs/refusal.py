"""Describe a refused compile in a verb's own terms: its options, the doctor's diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from qnnmem.errors import Setting, Words
    from qnnmem.htp.compile import CompileFailure, CompileOptions
    from qnnmem.htp.fit import Fit
    from qnnmem.htp.sweep import Largest, SweepRow
    from qnnmem.loader.onnx.inputs import InputValue
    from qnnmem.targets.socs import Soc

Flags = frozenset[str] | None  # options of the verb; None keeps settings as data
TIMED_OUT = 4  # exit code
_REFUSED = 1
_WITHOUT_VALUE = ("--partition",)  # options of `prepare` without a value


def say_failure(
    failure: CompileFailure, missing: str, flags: Flags, *, as_json: bool = False
) -> str:
    """Return the reason why there is no bill, binary or table; `missing` names the result."""
    from dataclasses import replace

    from qnnmem.report.bill import render_failure

    asked = Asked(failure.model, failure.soc, failure.options)
    said = replace(failure, why=own_words(failure.why, flags, asked))
    reading = reading_of(failure.evidence) if failure.line else ""
    code = failure_code(failure)
    return render_failure(said, missing, reading=reading, code=code, as_json=as_json)


def explained(fit: Fit, path: Path, options: CompileOptions, flags: Flags) -> Fit:
    """Return a fit with the doctor's diagnosis, and with remedies as options of the verb."""
    from msgspec.structs import replace

    from qnnmem.htp.fit import nearby

    reading = reading_of(fit.evidence) if fit.evidence else ""
    why = own_words(fit.why, flags, Asked(path, fit.soc, options))
    near = {one.setting: Asked(path, one.soc, one.options) for one in nearby(fit, options)}
    found = tuple(
        replace(one, reason=own_words(one.reason, flags, near.get(one.setting)))
        for one in fit.nearby
    )
    return replace(fit, why=why, reading=reading, nearby=found)


def explained_row(
    row: SweepRow, path: Path, soc: Soc, base: CompileOptions, flags: Flags
) -> SweepRow:
    """Return a row of a sweep with remedies as options of the verb."""
    from dataclasses import replace

    from msgspec import structs

    from qnnmem.htp.sweep import options_of

    asked = Asked(path, soc, options_of(row.point, base))
    return replace(
        row, result=structs.replace(row.result, reason=own_words(row.result.reason, flags, asked))
    )


def explained_largest(
    one: Largest, path: Path, soc: Soc, base: CompileOptions, flags: Flags
) -> Largest:
    """Return the result of a search with remedies as options of the verb."""
    from msgspec.structs import replace

    from qnnmem.htp.sweep import options_of

    if one.next_value is None:
        return one
    asked = Asked(path, soc, options_of({**one.point, one.name: one.next_value}, base))
    return replace(one, next_reason=own_words(one.next_reason, flags, asked))


def failure_code(failure: CompileFailure) -> int:
    """Return the exit code of a failed compile; a timeout has its own code."""
    return TIMED_OUT if failure.outcome.kind == "timeout" else _REFUSED


class Asked(NamedTuple):
    """Compile request, for commands that repeat it with other settings."""

    model: Path
    soc: Soc
    options: CompileOptions


def own_words(words: Words, flags: Flags, asked: Asked | None = None) -> Words:
    """Return the text; settings that the verb lacks become a command of another verb."""
    from qnnmem.errors import Setting

    if flags is None or isinstance(words, str):
        return words
    return tuple(
        _elsewhere(part, flags, asked) if isinstance(part, Setting) else part for part in words
    )


def _elsewhere(setting: Setting, mine: frozenset[str], asked: Asked | None) -> Setting | str:
    from qnnmem.flags import flag, flag_word

    word = flag(setting)
    name = word.split()[0]
    if name in mine:
        return setting
    command = ""
    if asked is not None and (setting.value or name in _WITHOUT_VALUE):
        command = prepare_line(asked, flag_word(setting))
    return f"`{command}`" if command else f"`{word}` of `qnnmem prepare --backend htp`"


def prepare_line(asked: Asked, *added: str) -> str:
    """Return the `prepare` command for the same compile; empty if it is too long to paste."""
    from qnnmem.report.shell import command_line, file_word, output_words

    model = file_word(str(asked.model))
    words = ["qnnmem", "prepare", model, "--backend=htp", f"--soc={asked.soc.name}"]
    return command_line((*words, *_option_words(asked.options), *added, *output_words("model.bin")))


def _option_words(options: CompileOptions) -> Iterator[str]:
    """Yield the options of `qnnmem prepare` that differ from the defaults."""
    from qnnmem.htp.compile import HtpPrecision

    if options.precision is not HtpPrecision.FP16:
        yield f"--precision={options.precision.value}"
    for name, number in (("vtcm-mb", options.vtcm_mb), ("opt-level", options.opt_level)):
        if number is not None:
            yield f"--{name}={number}"
    yield from (f"--dim={name}={size}" for name, size in options.dims.items())
    for name, shape in options.shapes.items():
        yield f"--shape={name}={'x'.join(map(str, shape)) or 'scalar'}"
    yield from (f"--value={name}={_value(value)}" for name, value in options.values.items())


def _value(value: InputValue) -> str:
    """Return an input value in the syntax of an option."""
    from pathlib import Path

    import numpy

    if isinstance(value, Path):
        return f"@{value}"
    return ",".join(str(one).lower() for one in numpy.asarray(value).ravel().tolist())


def reading_of(lines: Iterable[str]) -> str:
    """Return the doctor's diagnosis of log lines as a sentence; empty if there is none."""
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
