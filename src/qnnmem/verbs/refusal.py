"""Describe a refused compile in a verb's own terms: its options, the doctor's diagnosis."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import with_own
from qnnmem.doctor.logs.source import find_logs
from qnnmem.errors import Setting
from qnnmem.flags import flag, flag_word
from qnnmem.htp.compile import HtpPrecision
from qnnmem.htp.fit import nearby
from qnnmem.htp.sweep import options_of
from qnnmem.report.bill import render_failure
from qnnmem.report.doctor_words import verdict
from qnnmem.report.shell import command_line, file_word, output_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qnnmem.errors import Words
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

    request = RepeatedCompile(failure.model, failure.soc, failure.options)
    shown = replace(failure, why=own_words(failure.why, flags, request))
    reading = reading_of(failure.evidence) if failure.line else ""
    code = failure_code(failure)
    return render_failure(shown, missing, reading=reading, code=code, as_json=as_json)


def explained(fit: Fit, path: Path, options: CompileOptions, flags: Flags) -> Fit:
    """Return the fit with the doctor's diagnosis, and remedies written as options of the verb."""
    from msgspec.structs import replace

    reading = reading_of(fit.evidence) if fit.evidence else ""
    why = own_words(fit.why, flags, RepeatedCompile(path, fit.soc, options))
    tried = nearby(fit, options)
    near = {change.setting: RepeatedCompile(path, change.soc, change.options) for change in tried}
    changes = tuple(
        replace(change, reason=own_words(change.reason, flags, near.get(change.setting)))
        for change in fit.nearby
    )
    return replace(fit, why=why, reading=reading, nearby=changes)


def explained_row(
    row: SweepRow, path: Path, soc: Soc, base: CompileOptions, flags: Flags
) -> SweepRow:
    """Return the sweep row with the remedies in its reason written as options of the verb."""
    from dataclasses import replace

    request = RepeatedCompile(path, soc, options_of(row.point, base))
    return replace(
        row, result=structs.replace(row.result, reason=own_words(row.result.reason, flags, request))
    )


def explained_largest(
    largest: Largest, path: Path, soc: Soc, base: CompileOptions, flags: Flags
) -> Largest:
    """Return the search result with the remedies in its reason written as options of the verb."""
    from msgspec.structs import replace

    if largest.next_value is None:
        return largest
    point = {**largest.point, largest.name: largest.next_value}
    request = RepeatedCompile(path, soc, options_of(point, base))
    return replace(largest, next_reason=own_words(largest.next_reason, flags, request))


def failure_code(failure: CompileFailure) -> int:
    """Return the exit code of a failed compile; a timeout has its own code."""
    return TIMED_OUT if failure.outcome.kind == "timeout" else _REFUSED


class RepeatedCompile(NamedTuple):
    """A compile that a suggested command repeats with other settings."""

    model: Path
    soc: Soc
    options: CompileOptions


def own_words(words: Words, flags: Flags, request: RepeatedCompile | None = None) -> Words:
    """Return the text; a setting that the verb lacks becomes an option of `qnnmem prepare`."""
    if flags is None or isinstance(words, str):
        return words
    return tuple(
        _elsewhere(part, flags, request) if isinstance(part, Setting) else part for part in words
    )


def _elsewhere(
    setting: Setting, flags: frozenset[str], request: RepeatedCompile | None
) -> Setting | str:
    word = flag(setting)
    name = word.split()[0]
    if name in flags:
        return setting
    command = ""
    if request is not None and (setting.value or name in _WITHOUT_VALUE):
        command = prepare_line(request, flag_word(setting))
    return f"`{command}`" if command else f"`{word}` of `qnnmem prepare --backend htp`"


def prepare_line(request: RepeatedCompile, *added: str) -> str:
    """Return the `prepare` command that repeats `request`; empty if it is too long to paste."""
    model = file_word(str(request.model))
    words = ["qnnmem", "prepare", model, "--backend=htp", f"--soc={request.soc.name}"]
    words += [*_option_words(request.options), *added, *output_words("model.bin")]
    return command_line(words)


def _option_words(options: CompileOptions) -> Iterator[str]:
    """Yield the options of `qnnmem prepare` that differ from the defaults."""
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
    """Return an input value in the syntax of the option `--value`."""
    import numpy

    if isinstance(value, Path):
        return f"@{value}"
    return ",".join(str(number).lower() for number in numpy.asarray(value).ravel().tolist())


def reading_of(lines: Iterable[str]) -> str:
    """Return the doctor's diagnosis of log lines as a sentence; empty if there is none."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(".qnnmem") as folder:
        path = Path(folder, "compile.log")
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8", "replace")
        diagnosis = diagnose(find_logs([str(path)]).streams, with_own(()))
        try:
            incident = next(islice(diagnosis.incidents(), 1), None)
        finally:
            diagnosis.close()
    if incident is None or incident.verdict == "undecided":
        return ""
    return f"{verdict(incident)}; {incident.title} (qnnmem kb show {incident.entry})"
