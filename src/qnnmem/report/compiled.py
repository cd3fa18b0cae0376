"""What `qnnmem prepare --backend htp` made, as text, or why the compiler made nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from qnnmem.flags import with_flags
from qnnmem.htp.compile import CompileFailure, RefusedNode
from qnnmem.htp.measure import MeasuredModel
from qnnmem.report import bill
from qnnmem.report.shell import file_word, next_line
from qnnmem.results.error import ErrorResult
from qnnmem.results.schema import encode
from qnnmem.text import counted, shorten

_WIDE = 200
_SENTENCE = 2000  # an operator refused by the library may be named at length
_LAST_LINES = 5  # of the log of a crash


def render_text(
    made: MeasuredModel, model: str, binary: Path, epcontext: Path | None = None
) -> str:
    """The file that was written, what came with it, then the bill as `footprint` shows it."""
    soc = made.compiled.soc.name
    words = ["qnnmem", "footprint", file_word(str(binary))]
    again = next_line("read the file again, without the library", words, f"--soc={soc}")
    part = made.bill.missing_sentence
    whole = replace(made.bill, file=model, missing_outputs=())  # the first line says it already
    shown = bill.render_text(whole, compiled=True, next_step=again)
    first = [part] if part else []
    return "\n".join([*first, *_written(made, binary, epcontext), "", shown])


def _written(made: MeasuredModel, binary: Path, epcontext: Path | None) -> Iterator[str]:
    compiled = made.compiled
    context, target = compiled.context, shorten(str(binary), _WIDE)
    size = f"{counted(context.file_bytes, 'byte')} for {compiled.soc.name}"
    yield f"{target}: {size}, compiled by {compiled.library}"
    for graph in context.graphs:
        yield f"  graph {shorten(graph.name, _WIDE)}"
    hints = sorted({t.mem_type.name.lower() for graph in context.graphs for t in graph.tensors})
    yield f"  IO memory type in the file: {', '.join(hints)}"
    yield f"  compiled in {compiled.outcome.seconds:.1f} s"
    for node in compiled.on_cpu:
        why = f": {shorten(node.reason, _WIDE)}" if node.reason else ""
        yield f"  on the CPU: {shorten(node.name, _WIDE)} ({shorten(node.operator)}){why}"
    for note in compiled.notes:
        yield f"  note: {shorten(note, _WIDE)}"
    if epcontext is not None:
        yield f"  for ONNX Runtime: {shorten(str(epcontext), _WIDE)}"
    if compiled.run is not None:
        yield f"  {compiled.run.sentence}"


def render_failure(
    failure: CompileFailure,
    missing: str,
    *,
    reading: str = "",
    code: int = 1,
    as_json: bool = False,
) -> str:
    """Why there is no binary, bill or table, whichever is `missing`.

    `reading` is what the doctor makes of the line that decides, `code` the exit code.
    """
    lines = list(_failure(failure, missing, reading))
    if as_json:
        sentence = "; ".join(line.strip() for line in lines)
        return encode(ErrorResult(error=sentence, exit_code=code))
    return "\n".join(lines) + "\n"


def _failure(failure: CompileFailure, missing: str, reading: str) -> Iterator[str]:
    yield f"No {missing}: {shorten(with_flags(failure.why), _SENTENCE)}"
    for node in failure.unsupported:
        yield f"  not for QNN: {refused_words(node)}"
    if failure.code is not None:
        yield f"  code {failure.code}, {failure.code_name}"
    if failure.line:
        yield f"  decisive line: {shorten(failure.line, _SENTENCE)}"
    if reading:
        yield f"  the doctor reads it as: {shorten(reading, _SENTENCE)}"
    if failure.outcome.kind == "crashed":
        for line in failure.outcome.tail[-_LAST_LINES:]:
            yield f"  log: {shorten(line, _SENTENCE)}"


def refused_words(node: RefusedNode) -> str:
    """A node that QNN cannot take: name, operator, types and shapes, the reason."""
    takes, gives = ", ".join(node.inputs), ", ".join(node.outputs)
    types = f"; {takes} -> {gives}" if takes or gives else ""
    why = f": {shorten(node.reason, _WIDE)}" if node.reason else ""
    return f"{shorten(node.name, _WIDE)} ({shorten(node.operator)}{types}){why}"
