"""The Qmem table as text and as JSON, schema `qnnmem.qmem/1`.

The text gives the recommendation first, then the four rows, flags and traps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from qnnmem.flags import with_flags
from qnnmem.htp.qmem import Qmem, QmemRow
from qnnmem.htp.qmem.advice import FLAGS, advise, traps
from qnnmem.htp.qmem.misuse import MisuseRow
from qnnmem.htp.qmem.model import QmemResult
from qnnmem.htp.qmem.run import QmemRun, RanRow
from qnnmem.htp.worker.outcome import signal_name
from qnnmem.provenance import Sourced
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.report.sourced import bytes_values
from qnnmem.results.schema import write_json
from qnnmem.text import shorten

SCHEMA = "qnnmem.qmem/1"
_WIDE = 200


# The options of this run that another verb takes, too, for a command to paste.
Given = Callable[[str], Sequence[str]]


def render_text(
    result: QmemResult, file: str, given: Given = lambda _verb: (), *, verbose: bool = False
) -> str:
    """Advice, the four rows and how to get there; names from files are made safe to print.

    `verbose` adds where the numbers come from, and the traps.
    """
    qmem = result.qmem
    blocks = [_head(result, file), _table(result)]
    blocks += [_sizes(qmem)] if verbose else []
    blocks += [_run(result.run), _misuses(result, verbose=verbose), _flags()]
    blocks += [(f"trap: {trap}" for trap in traps(qmem))] if verbose else []
    blocks += [_next(result, file, given)]
    return "\n\n".join(text for text in map("\n".join, blocks) if text) + "\n"


def verdict(result: QmemResult) -> str:
    """What to choose, and whether the rows that were carried out agree."""
    return "\n".join([advise(result.qmem), *islice(_run(result.run), 1)])


def _head(result: QmemResult, file: str) -> Iterator[str]:
    qmem, name = result.qmem, shorten(file, _WIDE)
    yield from [qmem.bill.missing_sentence] if qmem.bill.missing_outputs else []
    yield advise(qmem)
    soc = "" if qmem.bill.soc is None else f" for {qmem.bill.soc}"
    count = f"{qmem.tensors} input{'s and outputs' if qmem.tensors != 1 else ' or output'}"
    if result.compiled:
        yield f"{name} was compiled{soc}; {count}"
    else:
        hint = f"{qmem.memhandles} of them prepared for memhandle"
        yield f"{name} is a context binary{soc}; {count}, {hint}"


def _table(result: QmemResult) -> Iterator[str]:
    qmem = result.qmem
    yield "bytes of internal IO memory, bytes copied, and what the process domain (PD) has left:"
    yield (
        f"{'prepared':<10}{'executed':<10}{'at load':>13}{'1st inference':>14}"
        f"{'copied each':>13}{'PD left':>14}"
    )
    for row in qmem.rows:
        yield _row(row, row is qmem.best)
    yield "note: the IO layer is emulated; the library for x86 registers no memory"


def _row(row: QmemRow, best: bool) -> str:
    left = "not known" if row.pd_room is None else f"{row.pd_room.value:,}"
    return (
        f"{row.prepared.value:<10}{row.executed.value:<10}{row.at_load.value:>13,}"
        f"{row.at_first.value:>14,}{row.copied:>13,}{left:>14}{'  best' if best else ''}"
    )


def duration(nanoseconds: int) -> str:
    """A time for people, e.g. `1.25 ms`."""
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= scale:
            return f"{nanoseconds / scale:,.2f} {unit}"
    return f"{nanoseconds} ns"


def _sizes(qmem: Qmem) -> Iterator[str]:
    yield _sized("IO as it is", qmem.exact)
    yield _sized("IO in the binary", qmem.stored)
    raw = qmem.rows[0]
    yield f"{'copying on host':<18}{duration(raw.copy_ns.value):>16}  {_origin(raw.copy_ns)}"
    if raw.pd_room is not None:
        yield f"{'PD left':<18}{raw.pd_room.value:>16,}  {_origin(raw.pd_room)}"
    yield _sized("PD budget", qmem.bill.process_domain_budget)


def _sized(name: str, part: Sourced) -> str:
    return f"{name:<18}{part.value:>16,}  {_origin(part)}"


def _origin(part: Sourced) -> str:
    return f"{part.origin.value}: {shorten(part.source, _WIDE)}"


def _run(run: QmemRun | None) -> Iterator[str]:
    if run is None:
        return
    verdict = "the same bits in all four rows" if run.agrees else "DIFFERENT between the rows"
    yield f"carried out: results by {run.library}, {verdict}; IO layer emulated"
    if run.binaries == 1:
        yield "one binary stands for both ways of preparing, which the library for x86 ignores"
    for row in run.rows:
        yield _ran(row)


def _ran(row: RanRow) -> str:
    first, second = row.inferences[0], row.inferences[-1]
    faults = f", {len(row.findings)} findings" if row.findings else ""
    return (
        f"{row.prepared.value:<10}{row.executed.value:<10}{row.at_load:>14,}{first.reserved:>15,}"
        f"{second.copied_in + second.copied_out:>14,}  sha256 {row.digest[:12]}{faults}"
    )


def _misuses(result: QmemResult, *, verbose: bool) -> Iterator[str]:
    if not result.misuses:
        return
    asked = any(row.library is not None for row in result.misuses)
    where = "the library for x86" if asked else "the library, which is not asked here"
    yield f"{len(result.misuses)} mistakes, what the contract answers, and {where}:"
    for row in result.misuses:
        contract = f"{row.code}" if row.code else "reported"
        rule = row.finding.rule
        yield f"  {row.what:<62}{rule:<5}{contract:<10}{_answer(row)}".rstrip()
        if verbose:
            yield f"      {shorten(row.finding.sentence, _WIDE)}; {row.finding.cure}"
    if asked:
        yield "note: 1000, the library for x86 registers no memory; what is not the same is ours"


def _answer(row: MisuseRow) -> str:
    """What the library did, in a word or two."""
    answer = row.library
    if answer is None:
        return ""
    if answer.signal is not None:
        return f"killed by {signal_name(answer.signal)}"
    if answer.code == 0:
        return "0, says nothing"
    return f"{answer.code}, the same" if answer.code == row.code else f"{answer.code}"


def _flags() -> Iterator[str]:
    yield "to use memhandle:"
    yield from (f"  {one.tool:<29}{one.step:<9}{with_flags(one.text)}" for one in FLAGS)


def _next(result: QmemResult, file: str, given: Given) -> Iterator[str]:
    soc = "SM8650" if result.qmem.bill.soc is None else result.qmem.bill.soc

    def words(verb: str) -> list[str]:
        return ["qnnmem", verb, file_word(file), *given(verb)]

    if result.compiled:
        how = ("--backend=htp", f"--soc={soc}", "--io-mem-type=memhandle")
        target = output_words("model.bin")
        yield next_line("prepare it for memhandle", words("prepare"), *how, *target)
    elif result.run is None and not result.no_run:
        why = "carry out the four rows with the real library"
        yield next_line(why, words("qmem"), "--run")
    else:
        if result.no_run:
            yield f"note: {shorten(with_flags(result.no_run), _WIDE)}"
        yield next_line("the rest of the memory", words("footprint"))


def render_json(result: QmemResult, file: str, tool: str) -> str:
    """One JSON object."""
    return write_json(as_values(result, file, tool))


def as_values(result: QmemResult, file: str, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    qmem = result.qmem
    best = qmem.best
    return {
        "schema": SCHEMA,
        "tool": tool,
        "file": file,
        "compiled": result.compiled,
        "soc": None if qmem.bill.soc is None else qmem.bill.soc,
        "io_layer": "emulated",
        "tensors": qmem.tensors,
        "memhandle_tensors": qmem.memhandles,
        "io_exact": bytes_values(qmem.exact),
        "io_stored": bytes_values(qmem.stored),
        "process_domain_budget": bytes_values(qmem.bill.process_domain_budget),
        "rows": [_row_values(row) for row in qmem.rows],
        "recommended": {"prepared": best.prepared.value, "executed": best.executed.value},
        "advice": advise(qmem),
        "traps": list(traps(qmem)),
        "flags": [{"tool": f.tool, "step": f.step, "text": with_flags(f.text)} for f in FLAGS],
        "run": None if result.run is None else _run_values(result.run),
        "misuses": [_misuse_values(row) for row in result.misuses],
    }


def _misuse_values(row: MisuseRow) -> dict[str, Any]:
    found, answer = row.finding, row.library
    return {
        "id": row.id,
        "what": row.what,
        "code": row.code,
        "rule": found.rule,
        "sentence": found.sentence,
        "cure": found.cure,
        "source": found.source,
        "library": None if answer is None else {"code": answer.code, "signal": answer.signal},
    }


def _row_values(row: QmemRow) -> dict[str, Any]:
    time = row.copy_ns
    return {
        "prepared": row.prepared.value,
        "executed": row.executed.value,
        "reserved_at_load": bytes_values(row.at_load),
        "reserved_at_first_inference": bytes_values(row.at_first),
        "copied_in": bytes_values(row.copied_in),
        "copied_out": bytes_values(row.copied_out),
        "copy_time": {
            "nanoseconds": time.value,
            "origin": time.origin.value,
            "source": time.source,
        },
        "shared_memory": bytes_values(row.shared),
        "process_domain_left": bytes_values(row.pd_room),
    }


def _run_values(run: QmemRun) -> dict[str, Any]:
    return {
        "library": run.library,
        "graph": run.graph,
        "agrees": run.agrees,
        "binaries": run.binaries,
        "rows": [_ran_values(row) for row in run.rows],
    }


def _ran_values(row: RanRow) -> dict[str, Any]:
    return {
        "prepared": row.prepared.value,
        "executed": row.executed.value,
        "reserved_at_load": row.at_load,
        "inferences": [
            {
                "reserved": once.reserved,
                "copied_in": once.copied_in,
                "copied_out": once.copied_out,
                "copy_seconds": once.copy_seconds,
            }
            for once in row.inferences
        ],
        "sha256": row.digest,
        "findings": [{"rule": f.rule, "sentence": f.sentence} for f in row.findings],
    }
