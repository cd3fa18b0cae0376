"""Render as text whether files fit SoCs: the verdict, each need and limit, suggestions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from qnnmem.htp.fit import TITLES
from qnnmem.qnn.codes import code_name
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.report.table import ANSWERS, Column, table_lines, text_table, thousands
from qnnmem.results.files import RefusedFile
from qnnmem.results.fit import FitCheck, FitResult, FitSuggestion, SocFit
from qnnmem.targets.socs import tensor_count_words
from qnnmem.text import counted, lazy_pattern, shorten

_WIDE = 400
_LIMITS = (
    Column("limit", "<", 16),
    *(Column(title, width=16, gap=0) for title in ("needed", "limit")),
    Column("to spare", width=17, gap=0),
    Column("limit origin", "<"),
)


def limit_lines(
    checks: Iterable[FitCheck], *, verbose: bool, decides: bool = True
) -> Iterator[str]:
    """Yield a table of needs and limits; the table shows spare bytes only if `decides` is true."""
    rows = (row for check in checks for row in _limit_rows(check, verbose, decides))
    return text_table(_LIMITS, rows)


def _limit_rows(check: FitCheck, verbose: bool, decides: bool) -> Iterator[Sequence[str]]:
    title = TITLES[check.pool]
    if check.need is None or check.need.is_exact:
        need = None if check.need is None else check.need.high.value
        yield _limit_row(title, check, need, decides)
        return
    bounds = {"at least": check.need.low, "at most": check.need.high}
    if not verbose and check.fits is not None:
        del bounds["at least" if check.fits else "at most"]  # the other bound decides
    for words, bound in bounds.items():
        short = {"process domain": "PD"}.get(title, title)
        yield _limit_row(f"{short} {words}", check, bound.value, decides)


def _limit_row(title: str, check: FitCheck, need: int | None, decides: bool) -> Sequence[str]:
    limit = None if check.limit is None else check.limit.value
    origin = "" if check.limit is None else check.limit.origin.value
    spare = None if need is None or limit is None else limit - need
    sizes = [thousands(size, "not known") for size in (need, limit, spare)]
    return title, *sizes[:2], sizes[2] if decides else "-", origin


def source_lines(checks: Iterable[FitCheck]) -> Iterator[str]:
    """Yield the source of each need and limit."""
    for check in checks:
        title = TITLES[check.pool]
        need = None if check.need is None else check.need.high
        for side, part in (("needed", need), ("limit", check.limit)):
            if part is not None:
                yield f"{title:<16}  {side} {part.origin.value}: {shorten(part.source, _WIDE)}"


_SOCS = (
    Column("SoC", "<", 12),
    Column("answer", "<", 14, gap=0),
    Column("tightest limit", "<", 19, gap=0),
    Column("to spare", width=15, gap=0),
    Column("of limit", width=10, gap=0),
    Column("", "<"),
)
_NO_FP16 = "this SoC has no FP16; --precision int8 quantizes the model (not tried)"
_NAMED = 4  # SoCs named for one reason
_FILES = 3  # files named in the verdict
_NUMBERS = lazy_pattern(r"\d[\d,]*")  # Reasons that differ only in numbers are shown once.
_LONGEST = 3000  # characters of a reason, which may end with a command
_NO_DLC = (
    "note: qnnmem fix changes only ONNX models; pass the model that this DLC was converted from"
)
_VERDICT = {True: "fits", False: "does not fit", None: "cannot tell for"}

FitRow = FitResult | RefusedFile


def render_text(result: FitResult, *, verbose: bool = False, options: Sequence[str] = ()) -> str:
    """Render one SoC with its limits, or several SoCs as a table; `verbose` adds sources.

    The suggested `fix` command repeats `options`: those of this run that `fix` also accepts.
    """
    fits, file = result.socs, result.file
    if len(fits) == 1:
        lines = [verdict(fits[0]), shorten(file, _WIDE), "", *_details(fits[0], verbose)]
        if result.tensors is not None:
            lines += ["", tensor_count_words(result.tensors)]
        lines += _next(fits[0], file, options)
        return "\n".join(lines) + "\n"
    lines = [_summary(fits), shorten(file, _WIDE), "", *_table(fits)]
    if result.tensors is not None:
        lines += ["", tensor_count_words(result.tensors)]
    reasons = list(_reasons(fits))
    lines += ["", *reasons] if reasons else []
    failing = next((fit for fit in fits if fit.fits is not True), None)
    if failing is not None and verbose:
        lines += ["", verdict(failing), *_details(failing, verbose)]
    return "\n".join(lines) + "\n"


def verdict_on_all(result: FitResult) -> str:
    """Return a one-line verdict on all SoCs of the result."""
    return verdict(result.socs[0]) if len(result.socs) == 1 else _summary(result.socs)


def verdict(fit: SocFit) -> str:
    """Return the verdict for one SoC in one line: yes, no or cannot tell, and by how many bytes."""
    words = f"{_VERDICT[fit.fits]} {fit.soc}"
    worst = fit.worst
    if fit.fits is None or fit.wrong_arch or worst is None or worst.spare is None:
        return f"{words}: {shorten(fit.why, _LONGEST)}" if fit.why else words
    if not fit.fits:
        return f"{words}: {counted(-worst.spare, 'byte')} more than the {TITLES[worst.pool]} allows"
    return f"{words}: {_tightest(fit)}"


def _tightest(fit: SocFit) -> str:
    worst, rest = fit.worst, fit.beside_vtcm
    if worst is None or worst.spare is None:
        return "no known limit is close"
    spare = f"{counted(worst.spare, 'byte')} to spare in the {TITLES[worst.pool]}"
    if worst.pool != "vtcm" or worst.spare or rest is None or rest.spare is None:
        return f"{spare}, the tightest"
    then = f"next tightest limit: {counted(rest.spare, 'byte')} to spare in the {TITLES[rest.pool]}"
    return f"{spare}, all of it used; {then}"


def _summary(fits: Sequence[SocFit]) -> str:
    count = {answer: sum(fit.fits is answer for fit in fits) for answer in (True, False, None)}
    if count[True] == len(fits):
        return f"fits all {counted(len(fits), 'SoC')}"
    parts = [f"fits {count[True]} of {counted(len(fits), 'SoC')}"]
    parts += [f"does not fit {count[False]}"] if count[False] else []
    int8 = sum(fit.needs_int8 for fit in fits)
    parts += [f"needs int8 on {int8}"] if int8 else []
    parts += [f"cannot tell for {count[None] - int8}"] if count[None] > int8 else []
    return ", ".join(parts)


def _details(fit: SocFit, verbose: bool) -> Iterator[str]:
    # If all limits hold and the verdict is open, the limits are not the reason.
    decides = fit.fits is not None or any(check.is_between for check in fit.checks)
    decides = decides and not fit.wrong_arch
    if not decides:
        yield f"no verdict for {fit.soc}; what is known:"
    yield from limit_lines(fit.checks, verbose=verbose, decides=decides)
    if verbose:
        yield from ("", *source_lines(fit.checks), "")
    yield from _answered(fit, verbose)
    if fit.same_as:
        yield (
            f"compiled for {fit.same_as}, which has the same architecture, VTCM, compile "
            "limit and FP16 support"
        )
    # Suggest a change only if the model does not clearly fit.
    if verbose or fit.fits is not True:
        yield from _parts(fit)
        yield from _tensors(fit)
    if fit.suggestions or fit.tried:
        yield ""
        yield "what to change:"
        for change in fit.suggestions:
            yield _change_line("verified" if change.verified else "suggested", change)
        for change in fit.tried:
            yield _change_line("too slow" if change.unfinished else "not enough", change)


def _next(fit: SocFit, file: str, options: Sequence[str]) -> Iterator[str]:
    """Yield a `fix` command if a need exceeds its limit and no suggested setting helps.

    For a DLC, yield a note that `fix` cannot read DLC files.
    """
    solved = any(s.verified and s.setting.startswith("--vtcm-mb") for s in fit.suggestions)
    is_size = fit.fits is False and fit.worst is not None and not fit.wrong_arch
    if solved or not is_size:
        return
    if file.lower().endswith(".dlc"):
        yield from ("", _NO_DLC)
    if not file.lower().endswith(".onnx"):
        return
    soc = () if any(word.startswith("--soc=") for word in options) else (f"--soc={fit.soc}",)
    words = ["qnnmem", "fix", file_word(file), "--backend=htp", *soc, *options]
    line = next_line("search for a change that fits", words, *output_words("fixed"))
    yield from ("", line) if line else ()


def _answered(fit: SocFit, verbose: bool) -> Iterator[str]:
    """Yield the library's error code and its reason, then the decisive log line and its meaning.

    The reason is left out if the verdict has shown it.
    """
    is_shown = fit.fits is None or fit.wrong_arch or fit.worst is None or fit.worst.spare is None
    why = "" if is_shown else shorten(fit.why, _LONGEST)
    if fit.code is not None:
        yield f"the library answered with code {fit.code}, {code_name(fit.code)}"
    if why and (verbose or fit.code is not None) and fit.fits is not True:
        yield why
    if fit.line:
        yield f"decisive line: {shorten(fit.line, _WIDE)}"
    if fit.reading:
        yield f"the doctor's diagnosis: {shorten(fit.reading, _WIDE)}"


def _parts(fit: SocFit) -> Iterator[str]:
    """Yield the memory parts in bytes, the largest first, and the total."""
    parts = sorted(fit.parts.items(), key=lambda part: (-part[1].value, part[0]))
    if not parts:
        return
    yield ""
    yield f"memory{'' if fit.total else ', known parts only'}:"
    yield from (f"{size.value:>16,}  {name}" for name, size in parts if size.value)
    if fit.total is not None:
        yield f"{fit.total.value:>16,}  all"


def _tensors(fit: SocFit) -> Iterator[str]:
    tensors = [item for item in fit.largest if item.kind != "part"]
    if tensors:
        yield ""
        yield "largest tensors:"
        yield from (f"{item.bytes:>16,}  {item.kind:<7} {shorten(item.name)}" for item in tensors)


def _change_line(word: str, change: FitSuggestion) -> str:
    return f"  {word:<9} {shorten(change.setting, 100)}: {shorten(change.reason, _LONGEST)}"


def answer_word(fit: SocFit) -> str:
    """Return the verdict for one SoC in the words of a table cell."""
    return "needs int8" if fit.needs_int8 else ANSWERS[fit.fits]


def _table(fits: Sequence[SocFit]) -> Iterator[str]:
    return text_table(_SOCS, map(_soc_cells, fits))


def _soc_cells(fit: SocFit) -> Sequence[str]:
    tightest = None if fit.fits is None or fit.wrong_arch else fit.tightest
    title = "-" if tightest is None else TITLES[tightest.pool]
    spare, share = "-", "-"
    if tightest is not None and tightest.spare is not None and tightest.limit is not None:
        spare = f"{tightest.spare:,}"
        share = f"{tightest.spare / max(1, tightest.limit.value):.1%}"
    same = f"(as {fit.same_as})" if fit.same_as else ""
    return fit.soc, answer_word(fit), title, spare, share, same


def _reasons(fits: Sequence[SocFit]) -> Iterator[str]:
    """Yield each reason for "no" or "cannot tell" once, with the SoCs that share it."""
    groups: dict[tuple[str, str], list[SocFit]] = {}
    for fit in fits:
        if fit.fits is not True:
            # SoCs that share a compile report a reason with the name of the compiled SoC.
            why = fit.why.replace(fit.same_as or fit.soc, "the SoC")
            groups.setdefault((answer_word(fit), _NUMBERS.sub("#", why)), []).append(fit)
    for (answer, _why), same in groups.items():
        names = ", ".join(fit.soc for fit in same[:_NAMED])
        more = f" and {len(same) - _NAMED} more" if len(same) > _NAMED else ""
        why = _NO_FP16 if same[0].needs_int8 else shorten(same[0].why, _LONGEST)
        yield f"{answer} on {names}{more}: {why}"


def render_all(rows: Sequence[FitRow], *, verbose: bool = False) -> str:
    """Render the verdict on all files, then a row for each file and SoC.

    With `verbose`, each file's own report follows; otherwise, undecided verdicts follow.
    """
    judged = [row for row in rows if isinstance(row, FitResult)]
    lines = [verdict_on_files(rows), "", *_file_table(rows)]
    open_ = [fit for row in judged for fit in row.socs if fit.fits is None]
    lines += ["", *dict.fromkeys(map(verdict, open_))] if open_ and not verbose else []
    text = "\n".join(lines) + "\n"
    details = (render_text(row, verbose=True) for row in judged)
    return "\n".join([text, *details]) if verbose else text


def verdict_on_files(rows: Sequence[FitRow]) -> str:
    """Return a one-line verdict on all files."""
    judged = [row for row in rows if isinstance(row, FitResult)]
    refused = len(rows) - len(judged)
    parts = [f"no verdict on {refused} of {len(rows)} files"] if refused else []
    for answer in (False, None):
        names = [shorten(row.file, 40) for row in judged if row.fits is answer]
        if names:
            more = ", …" if len(names) > _FILES else ""
            some = f"{', '.join(names[:_FILES])}{more}"
            parts.append(f"{ANSWERS[answer]}: {len(names)} of {len(judged)} ({some})")
    if judged and all(row.fits is True for row in judged):
        parts.append(f"fits: {'all' if not refused else 'the other'} {len(judged)}")
    return ", ".join(parts) or f"{counted(0, 'file')} judged"


def _file_table(rows: Sequence[FitRow]) -> Iterator[str]:
    titles = ("file", "SoC", "to spare", "limit", "answer")
    yield from table_lines(titles, [cells for row in rows for cells in _cells(row)])


def _cells(row: FitRow) -> Iterator[tuple[str, ...]]:
    if isinstance(row, RefusedFile):
        yield row.input, "-", "-", "-", "no verdict"
        return
    for fit in row.socs:
        tightest = None if fit.fits is None else fit.tightest
        if tightest is None or tightest.spare is None:
            yield row.file, fit.soc, "-", "-", answer_word(fit)
        else:
            title = TITLES[tightest.pool]
            yield row.file, fit.soc, f"{tightest.spare:,}", title, answer_word(fit)
