"""Render memory bills, compile results, and numbers known without a compiler, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from qnnmem.flags import with_flags
from qnnmem.htp.compile import CompileFailure, RefusedNode
from qnnmem.htp.fit import checks_of
from qnnmem.provenance import Sourced
from qnnmem.report.carrier import binary_lines, facts_lines
from qnnmem.report.fit import limit_lines, source_lines
from qnnmem.report.shell import LONGEST, file_word, next_line, output_words, shell_line
from qnnmem.report.table import size_words, thousands
from qnnmem.results.fit import FitCheck
from qnnmem.results.footprint import Bill, BillItem, GraphBill, PreparedContext
from qnnmem.results.result import ErrorResult
from qnnmem.results.schema import encode
from qnnmem.targets.socs import find_soc
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

_WIDE = 200  # columns for paths and sentences
_GRAPHS = 20  # graphs in the text; --json lists all


def render_text(
    bill: Bill, *, compiled: bool = False, next_step: str = "", verbose: bool = False
) -> str:
    """Render a memory bill: total, parts and limits; names from files are made printable.

    `compiled` states that the model was compiled for this bill. `next_step` replaces the last line.
    `verbose` adds the sources of the numbers, the parts of zero bytes and the largest tensors.
    """
    parts = [_table(bill, verbose), _estimates(bill, verbose), *_carried(bill), _graphs(bill)]
    parts += [_largest(bill)] if verbose else []
    parts += [_traps(bill)]
    head = [verdict(bill), *([_total(bill)] if bill.missing_outputs else [])]
    head += [_about(bill, compiled)]
    blocks = ["\n".join(head)]
    blocks += [*map("\n".join, parts), next_step or next_look(bill)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def next_prepare(bill: Bill, options: Sequence[str]) -> str:
    """Return a line with the next command: a `prepare` that saves the model's binary."""
    soc = [] if bill.soc is None else [f"--soc={bill.soc}"]
    words = ["qnnmem", "prepare", file_word(bill.file), *options]
    return next_line("keep the binary", words, "--backend=htp", *soc, *output_words("model.bin"))


def verdict(bill: Bill) -> str:
    """Return the first line of a bill: the missing outputs, else the total or the unknown sizes."""
    return bill.missing_sentence or _total(bill)


def _total(bill: Bill) -> str:
    target = f" on {bill.soc}" if bill.soc is not None else ""
    if bill.total is None:
        missing = [name for name, part in bill.named_parts if part is None]
        return f"total not known{target}: the file does not state {', '.join(missing)}"
    scope = " for the compiled part" if bill.missing_outputs else ""
    total = f"{size_words(bill.total.value)} of memory{target}{scope}"
    part = None if bill.dominant is None else bill.parts.get(bill.dominant)
    if bill.dominant is None or part is None:
        return total
    name = bill.dominant
    verb = "are" if name.endswith(("weights", "tensors")) else "is"
    share = f"{total}; {name} {verb} {100 * part.value / bill.total.value:.0f}% of it"
    vtcm = next((check for check in _checks(bill) if check.pool == "vtcm"), None)
    if vtcm is None or vtcm.spare is None or vtcm.spare >= 0:
        return share
    bound = "" if vtcm.fits is False else "up to "
    return f"{share}; VTCM {bound}{counted(-vtcm.spare, 'byte')} more than the SoC has"


def _checks(bill: Bill) -> tuple[FitCheck, ...]:
    return checks_of(bill, None if bill.soc is None else find_soc(bill.soc))


def _about(bill: Bill, compiled: bool) -> str:
    graphs = counted(len(bill.graphs), "graph")
    version = shorten(bill.build_id) or "without version"
    arch = "" if bill.dsp_arch is None else f", Hexagon v{bill.dsp_arch}"
    kind = f"{'compiles to' if compiled else 'is'} a context binary"
    if bill.carrier is not UNSET:
        contexts = counted(len(bill.carrier.binaries), "distinct context")
        kind = f"is {bill.carrier.title}: {contexts}"
    facts = f"{size_words(bill.file_bytes)}, {graphs}{arch}, by QAIRT {version}"
    return f"{shorten(bill.file, _WIDE)} {kind} of {facts}"


def _table(bill: Bill, verbose: bool) -> Iterator[str]:
    yield f"{'part':<16}{'bytes':>16}{'size':>13}  origin"
    for name, part in (*bill.named_parts, ("total", bill.total)):
        if verbose or part is None or part.value:
            yield _row(name, part, verbose)
    if verbose:
        yield _row("IO without pads", bill.io_exact, verbose)
        yield _row("VTCM as stored", bill.vtcm_stored, verbose)


def _row(name: str, part: Sourced | None, verbose: bool) -> str:
    if part is None:
        return f"{name:<16}{'not known':>16}"
    size = f"{part.value:>16,}{format_size(part.value):>13}"
    source = f": {shorten(part.source, _WIDE)}" if verbose else ""
    return f"{name:<16}{size}  {part.origin.value}{source}"


def _estimates(bill: Bill, verbose: bool) -> Iterator[str]:
    checks = _checks(bill)
    yield from limit_lines(checks, verbose=verbose)
    if verbose:
        yield from ("", *source_lines(checks))
    yield from _measured(bill, verbose)


def _measured(bill: Bill, verbose: bool) -> Iterator[str]:
    missing = []
    for name, part in (
        ("spilled to DDR", bill.spilled_per_inference),
        ("filled again", bill.filled_per_inference),
        ("DDR read", bill.ddr_read_per_inference),
        ("DDR written", bill.ddr_written_per_inference),
        ("host RAM", bill.host_ram),
    ):
        if part is None:
            missing.append(name)
        else:
            yield _row(name, part, verbose)
    if missing and verbose:
        yield f"not in the file, but shown after compiling: {', '.join(missing)}"


def _carried(bill: Bill) -> tuple[Iterator[str], ...]:
    facts = bill.carrier
    return () if facts is UNSET else (binary_lines(facts), facts_lines(facts))


def _graphs(bill: Bill) -> Iterator[str]:
    if len(bill.graphs) < 2:
        return
    yield f"{'total':>16}{'weights':>16}{'IO':>14}{'spill/fill':>14}{'op data':>14}  graph"
    yield from map(_graph_row, bill.graphs[:_GRAPHS])
    if len(bill.graphs) > _GRAPHS:
        yield f"… and {counted(len(bill.graphs) - _GRAPHS, 'more graph')}; --json lists all"


def _graph_row(graph: GraphBill) -> str:
    wide, narrow = (graph.total, graph.weights), (graph.io, graph.spill_fill, graph.op_data)
    columns = [*((part, 16) for part in wide), *((part, 14) for part in narrow)]
    sizes = ((None if part is None else part.value, width) for part, width in columns)
    cells = "".join(f"{thousands(size):>{width}}" for size, width in sizes)
    return f"{cells}  {shorten(graph.name)}"


def _largest(bill: Bill) -> Iterator[str]:
    for title, items in (
        ("largest inputs and outputs", bill.largest_io),
        ("largest weights", bill.largest_weights),
    ):
        if items:
            yield f"{title}:"
            yield from (_item(item, len(bill.graphs) > 1) for item in items)


def _item(item: BillItem, with_graph: bool) -> str:
    inside = f" of {shorten(item.graph)}" if with_graph else ""
    return f"{item.bytes:>16,}  {item.kind:<7} {shorten(item.name)}{inside}"


def _traps(bill: Bill) -> Iterator[str]:
    yield from (f"trap: {shorten(trap.sentence, 2 * _WIDE)}" for trap in bill.traps)


def next_look(bill: Bill, options: Sequence[str] = ()) -> str:
    """Return a line with the next command: `footprint` if the bill has no SoC, else `inspect`."""
    if bill.soc is None:
        words = ["qnnmem", "footprint", file_word(bill.file), *options]
        return next_line("compare with the limits of a SoC", words, "--soc=SM8650")
    return next_line(
        "show every field of the file", ["qnnmem", "inspect", file_word(bill.file)], "--json"
    )


_SENTENCE = 2000  # columns; a refused operator may have a long name
_LAST_LINES = 5  # lines of a crash log


def render_prepared(bill: Bill, prepared: PreparedContext, io_types: Sequence[str]) -> str:
    """Render a report of the written files, then the bill in the format of `footprint`.

    `io_types` are the memory types of inputs and outputs in the file.
    """
    words = ["qnnmem", "footprint", file_word(prepared.path)]
    again = next_line("show the bill of this file, without the library", words, f"--soc={bill.soc}")
    first = [bill.missing_sentence] if bill.missing_outputs else []
    rest = replace(bill, missing_outputs=())  # the first line already names them
    shown = render_text(rest, compiled=True, next_step=again)
    return "\n".join([*first, *_written(bill, prepared, io_types), "", shown])


def _written(bill: Bill, prepared: PreparedContext, io_types: Sequence[str]) -> Iterator[str]:
    size = f"{counted(bill.file_bytes, 'byte')} for {bill.soc}"
    yield f"{shorten(prepared.path, _WIDE)}: {size}, compiled by {prepared.library}"
    for graph in bill.graphs:
        yield f"  graph {shorten(graph.name, _WIDE)}"
    yield f"  IO memory type in the file: {', '.join(io_types)}"
    yield f"  compiled in {prepared.seconds:.1f} s"
    for node in prepared.on_cpu:
        why = f": {shorten(node.reason, _WIDE)}" if node.reason else ""
        yield f"  on the CPU: {shorten(node.name, _WIDE)} ({shorten(node.operator)}){why}"
    for note in prepared.notes:
        yield f"  note: {shorten(note, _WIDE)}"
    if prepared.epcontext is not None:
        yield f"  for ONNX Runtime: {shorten(prepared.epcontext, _WIDE)}"
    if prepared.pte is not None:
        yield f"  for ExecuTorch, with a method for each graph: {shorten(prepared.pte, _WIDE)}"
    if prepared.run is not None:
        yield f"  {prepared.run.why}"


def render_failure(
    failure: CompileFailure,
    missing: str,
    *,
    reading: str = "",
    code: int = 1,
    as_json: bool = False,
) -> str:
    """Render why a compile gave no result; `missing` names the result, e.g. a binary or a bill.

    `reading` is the doctor's explanation of the decisive line, `code` the exit code.
    """
    lines = list(_failure(failure, missing, reading))
    if as_json:
        sentence = "; ".join(line.strip() for line in lines)
        return encode(ErrorResult(error=sentence, exit_code=code))
    return "\n".join(lines) + "\n"


def _failure(failure: CompileFailure, missing: str, reading: str) -> Iterator[str]:
    yield f"No {missing}: {shorten(with_flags(failure.why), _SENTENCE)}"
    for node in failure.unsupported:
        yield f"  refused by QNN: {refused_words(node)}"
    if failure.code is not None:
        yield f"  code {failure.code}, {failure.code_name}"
    if failure.line:
        yield f"  decisive line: {shorten(failure.line, _SENTENCE)}"
    if reading:
        yield f"  the doctor's diagnosis: {shorten(reading, _SENTENCE)}"
    if failure.outcome.kind == "crashed":
        for line in failure.outcome.tail[-_LAST_LINES:]:
            yield f"  log: {shorten(line, _SENTENCE)}"


def refused_words(node: RefusedNode) -> str:
    """Return a phrase about a node that QNN refuses: name, operator, types, shapes, reason."""
    takes, gives = ", ".join(node.inputs), ", ".join(node.outputs)
    types = f"; {takes} -> {gives}" if takes or gives else ""
    why = f": {shorten(node.reason, _WIDE)}" if node.reason else ""
    return f"{shorten(node.name, _WIDE)} ({shorten(node.operator)}{types}){why}"


_WORKER = "docker run -i --rm --platform linux/amd64 qnnmem htp-worker"
_RUN = 'docker run --rm --platform linux/amd64 -v "$PWD:/models" qnnmem'


def facts(known: Sequence[tuple[str, Sourced]], settings: str = "") -> Iterator[str]:
    """Yield a heading that shows `settings`, then a row for each size known without a compile."""
    yield f"known without compiling{f' at {shorten(settings)}' if settings else ''}, in bytes:"
    for name, part in known:
        size = f"{part.value:>15,}{format_size(part.value):>13}"
        yield f"  {shorten(name, 30):<30}{size}  {part.origin.value}"


def ways(image: str, words: Sequence[str], *, elsewhere: bool) -> Iterator[str]:
    """Yield ways to compile a model without a local compiler, and a way to read a finished binary.

    `image` is the folder or address from which the container image is built; empty if unknown.
    `words` is the typed command; empty if a container would not find the files. `elsewhere`
    states that this platform has no compiler.
    """
    if elsewhere:
        source = shell_line([image or "FOLDER-OF-THE-SOURCES"])
        yield "with a worker on another machine: set QNNMEM_HTP_WORKER to one of these commands:"
        yield "  ssh BOX qnnmem htp-worker                           Linux on x86-64, over ssh"
        yield f"  {_WORKER}    a container"
        yield "  qemu-x86_64 PYTHON -m qnnmem htp-worker             ARM Linux, under qemu-user"
        yield "in a container, from a folder with the model:"
        yield f"  docker build --platform linux/amd64 -t qnnmem {source}"
        line = f"{_RUN} {shell_line(words)}"
        yield f"  {line if words and len(line) <= LONGEST else f'{_RUN} --help'}"
    yield (
        "without a compiler: footprint, fit, qmem, inspect and place read a context "
        "binary of the model (.bin) on any machine"
    )
