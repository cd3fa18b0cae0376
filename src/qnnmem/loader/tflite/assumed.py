"""What a plan of a TFLite file takes for granted, to be said beside its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qnnmem.errors import Setting, Words, chain_words
from qnnmem.ir import Tensor
from qnnmem.loader.model_checks import custom_note, unknown_inside
from qnnmem.loader.tflite.derive.call import written
from qnnmem.loader.tflite.file import TfliteFile
from qnnmem.loader.tflite.schema import RawTensor
from qnnmem.text import counted, quote


def edge_notes(file: TfliteFile) -> Iterator[str]:
    """Notes on where the file ends and guesses begin."""
    if custom := _custom(file):
        yield custom_note(custom)
    for tensor in file.open_inputs:
        if file.given:
            continue
        shape = written(tensor.shape)
        yield f"input {quote(tensor.name)} leaves its size open; planned for {shape} as stored"


def sparse_notes(file: TfliteFile, constants: Mapping[str, Tensor]) -> Iterator[str]:
    """How large sparse constants are in the file, and dense, as QNN has them."""
    found = [(raw, constants[name]) for name, raw in file.sparse.items() if name in constants]
    if found:
        indices = sum(raw.index_bytes for raw, _ in found)
        stored = indices + sum(raw.stored for raw, _ in found)
        dense = sum(tensor.nbytes for _, tensor in found)
        ops = (op.type for graph in file.graphs for op in graph.ops if not op.custom)
        folded = sum(kind == "DENSIFY" for kind in ops)
        done = f"; {counted(folded, 'DENSIFY op')} done while loading" if folded else ""
        yield (
            f"{counted(len(found), 'sparse constant')} counted dense, {dense:,} bytes, as QNN has "
            f"no sparse ones; {stored:,} in the file, {indices:,} of them indices{done}"
        )


def say_first(file: TfliteFile) -> Words:
    """What makes every number a guess, or less than the whole; nothing for most files."""
    given = (_placeholders(file), unknown_inside(_custom(file)))
    parts: list[Words] = [part for part in given if part]
    return chain_words(parts[0], "\n", parts[1]) if len(parts) == 2 else (parts or [""])[0]


def _custom(file: TfliteFile) -> list[str]:
    """Operators that only their author knows, each once."""
    return list(dict.fromkeys(op.type for g in file.graphs for op in g.ops if op.custom))


def _placeholders(file: TfliteFile) -> Words:
    """What to say first where a size was planned that only stands in for the true one."""
    made_up = [tensor for tensor in file.open_inputs if _stands_in(tensor)]
    if file.given or not (made_up or file.cannot_run):
        return ""
    first = (made_up or list(file.open_inputs))[0]
    fault = f" and cannot run ({file.cannot_run})" if file.cannot_run else ""
    return (
        f"planned for a placeholder: input {quote(first.name)} is {written(first.shape)} in the "
        f"file, which stands in for a size left open{fault}; give the true one with ",
        Setting("shapes", shape_pattern(first)),
    )


def shape_pattern(tensor: RawTensor) -> str:
    """The shape of an input as it is given, `N` for every size that is left open."""
    sizes = ("N" if size == -1 else str(size) for size in tensor.signature)
    return f"{tensor.name}={'x'.join(sizes)}"


def _stands_in(tensor: RawTensor) -> bool:
    """Whether an open size, not that of a batch, is stored as the one that says nothing."""
    sizes = tuple(zip(tensor.shape, tensor.signature, strict=False))
    return any(size <= 1 and wanted == -1 for size, wanted in sizes[len(sizes) > 1 :])
