"""Render the Qmem table: the recommendation, then the four combinations, flags and traps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from qnnmem.errors import Words
from qnnmem.flags import with_flags
from qnnmem.htp.worker import signal_name
from qnnmem.provenance import Sourced
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.report.table import Column, text_table, thousands
from qnnmem.results.qmem import CopyTime, MisuseAnswer, QmemResult, QmemRow, QmemRun, RanRow
from qnnmem.text import shorten

_WIDE = 200
_ROWS = (
    *(Column(title, "<", 10, gap=0) for title in ("prepared", "executed")),
    Column("at load", width=13, gap=0),
    Column("1st inference", width=14, gap=0),
    Column("copied each", width=13, gap=0),
    Column("PD left", width=14, gap=0),
    Column("", "<"),
)

OptionsFor = Callable[[str], Sequence[str]]


def render_text(
    result: QmemResult,
    options_for: OptionsFor = lambda _verb: (),
    *,
    no_run: Words = "",
    verbose: bool = False,
) -> str:
    """Render the advice, the four combinations and the next command; names become printable.

    `no_run` explains why the combinations cannot be executed on this machine. `verbose` adds the
    sources of the numbers, and the traps.
    """
    blocks = [_head(result), _table(result)]
    blocks += [_sizes(result)] if verbose else []
    blocks += [_run(result.run), _misuses(result, verbose=verbose), _flags(result)]
    blocks += [(f"trap: {trap}" for trap in result.traps)] if verbose else []
    blocks += [_next(result, options_for, no_run)]
    return "\n\n".join(text for text in map("\n".join, blocks) if text) + "\n"


def verdict(result: QmemResult) -> str:
    """Return the recommended combination, and whether the executed combinations confirm it."""
    return "\n".join([result.advice, *islice(_run(result.run), 1)])


def _head(qmem: QmemResult) -> Iterator[str]:
    name = shorten(qmem.file, _WIDE)
    if qmem.run is not None:
        same = "all four combinations give the same results"
        proven = same if qmem.run.agrees else "the four combinations DIFFER"
        where = "IO layer emulated, results by the real library"
        yield f"{where}: {proven}; costs on a device are not shown"
    yield from [qmem.missing] if qmem.missing else []
    yield qmem.advice
    soc = "" if qmem.soc is None else f" for {qmem.soc}"
    count = f"{qmem.tensors} input{'s and outputs' if qmem.tensors != 1 else ' or output'}"
    if qmem.compiled:
        yield f"{name} was compiled{soc}; {count}"
    else:
        hint = f"{qmem.memhandle_tensors} of them prepared for memhandle"
        yield f"{name} is a context binary{soc}; {count}, {hint}"


def _table(qmem: QmemResult) -> Iterator[str]:
    yield "bytes of internal IO memory, bytes copied, and bytes left in the process domain (PD):"
    yield from text_table(_ROWS, (_cells(row, row is qmem.best) for row in qmem.rows))
    yield "note: the IO layer is emulated; the x86 library registers no memory"


def _cells(row: QmemRow, best: bool) -> Sequence[str]:
    left = "not known" if row.process_domain_left is None else f"{row.process_domain_left.value:,}"
    reserved = row.reserved_at_load.value, row.reserved_at_first_inference.value
    sizes = map(thousands, (*reserved, row.copied))
    return row.prepared.value, row.executed.value, *sizes, left, "best" if best else ""


def duration(nanoseconds: int) -> str:
    """Return a time in a readable unit, e.g. `1.25 ms`."""
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= scale:
            return f"{nanoseconds / scale:,.2f} {unit}"
    return f"{nanoseconds} ns"


def _sizes(qmem: QmemResult) -> Iterator[str]:
    yield _sized("IO without padding", qmem.io_exact)
    yield _sized("IO in the binary", qmem.io_stored)
    raw = qmem.rows[0]
    took = duration(raw.copy_time.nanoseconds)
    yield f"{'copying on host':<18}{took:>16}  {_origin(raw.copy_time)}"
    if raw.process_domain_left is not None:
        yield _sized("PD left", raw.process_domain_left)
    yield _sized("PD budget", qmem.process_domain_budget)


def _sized(name: str, part: Sourced) -> str:
    return f"{name:<18}{part.value:>16,}  {_origin(part)}"


def _origin(part: Sourced | CopyTime) -> str:
    return f"{part.origin.value}: {shorten(part.source, _WIDE)}"


def _run(run: QmemRun | None) -> Iterator[str]:
    if run is None:
        return
    same = "the same results, bit for bit, in all four combinations"
    verdict = same if run.agrees else "results DIFFER between the combinations"
    yield f"executed: results by {run.library}, {verdict}; IO layer emulated"
    if run.binaries == 1:
        yield "all combinations use one binary, because the x86 library ignores the prepared mode"
    yield from map(_ran, run.rows)
    yield from _times([row.seconds for row in run.rows if len(row.seconds) > 1])


def _times(rows: Sequence[Sequence[float]]) -> Iterator[str]:
    """Yield the times of QnnGraph_execute, separately for the first call after each load."""
    if not rows:
        return
    firsts, later = [row[0] for row in rows], [min(row[1:]) for row in rows]
    ratio = max(later) / min(later) if min(later) > 0 else 1.0
    yield (
        f"QnnGraph_execute on x86, measured: first call after loading {_span(firsts)}, later "
        f"calls {_span(later)}"
    )
    yield (
        "the x86 library ignores the prepared mode, so all combinations do the same work; "
        f"their times differ by a factor of up to {ratio:.1f}, which is noise. Only a device "
        "shows what a mode costs or saves"
    )


def _span(seconds: Sequence[float]) -> str:
    low, high = (duration(int(bound * 1e9)) for bound in (min(seconds), max(seconds)))
    return low if low == high else f"{low} to {high}"


def _ran(row: RanRow) -> str:
    first, second = row.inferences[0], row.inferences[-1]
    faults = f", {len(row.findings)} findings" if row.findings else ""
    return (
        f"{row.prepared.value:<10}{row.executed.value:<10}{row.reserved_at_load:>14,}{first.reserved:>15,}"
        f"{second.copied_in + second.copied_out:>14,}  sha256 {row.sha256[:12]}{faults}"
    )


def _misuses(result: QmemResult, *, verbose: bool) -> Iterator[str]:
    if not result.misuses:
        return
    tried = any(row.library is not None for row in result.misuses)
    made = (
        f"{len(result.misuses)} deliberate mistakes, each with the answer of the emulated IO layer"
    )
    yield f"{made} and of the x86 library:" if tried else f"{made} (the library was not called):"
    for row in result.misuses:
        contract = f"{row.code}" if row.code else "reported"
        yield f"  {row.what:<62}{row.rule:<5}{contract:<10}{_answer(row)}".rstrip()
        if verbose:
            yield f"      {shorten(row.sentence, _WIDE)}; {row.cure}"
    if tried:
        yield ("note: the x86 library answers 1000 because it registers no memory")


def _answer(row: MisuseAnswer) -> str:
    """Describe the library's answer to a misuse; empty if the library was not asked."""
    answer = row.library
    if answer is None:
        return ""
    if answer.signal is not None:
        return f"killed by {signal_name(answer.signal)}"
    if answer.code == 0:
        return "0, not detected"
    return f"{answer.code}, the same" if answer.code == row.code else f"{answer.code}"


def _flags(result: QmemResult) -> Iterator[str]:
    yield "to use memhandle:"
    yield from (f"  {flag.tool:<29}{flag.step:<9}{flag.text}" for flag in result.flags)


def _next(result: QmemResult, options_for: OptionsFor, no_run: Words) -> Iterator[str]:
    soc = result.soc or "SM8650"

    def words(verb: str) -> list[str]:
        return ["qnnmem", verb, file_word(result.file), *options_for(verb)]

    if result.compiled:
        how = ("--backend=htp", f"--soc={soc}", "--io-mem-type=memhandle")
        target = output_words("model.bin")
        yield next_line("prepare the model for memhandle", words("prepare"), *how, *target)
    elif result.run is None and not no_run:
        why = "execute the four combinations with the real library"
        yield next_line(why, words("qmem"), "--run")
    else:
        if no_run:
            yield f"note: {shorten(with_flags(no_run), _WIDE)}"
        yield next_line("show the context's other memory", words("footprint"))
