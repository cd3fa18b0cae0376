"""The data shared by all subgraphs of a TFLite file: names, states, sizes, assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from qnnmem.errors import LoadError, Setting, Words, chain_words
from qnnmem.ir import Model, Tensor
from qnnmem.loader.model_checks import custom_note, unknown_inside
from qnnmem.loader.tflite.raw_graph import DTYPES, UNSIZED, RawGraph, RawTensor
from qnnmem.loader.tflite.shapes import Shape, written
from qnnmem.text import counted, quote
from qnnmem.units import MAX_BYTES, MAX_RANK


@dataclass(frozen=True, slots=True)
class NestedGraph:
    """A subgraph that an operator runs: its model, states, size and output shapes."""

    model: Model
    reads: tuple[str, ...]  # constants, and outer tensors passed without a copy
    states: tuple[str, ...]  # variables that it reads or writes
    writes: bool  # it changes a variable, so it must run even if its results are unused
    size: int  # number of ops with every call expanded
    returned: tuple[Shape, ...]  # output shapes


@dataclass(slots=True)
class TfliteFile:
    """Data shared by all subgraphs of one file; filled while the subgraphs are read."""

    path: Path
    graphs: tuple[RawGraph, ...]
    given: Mapping[int, Shape]  # shapes of main inputs that differ from the stored ones
    open_inputs: tuple[RawTensor, ...]  # of the main graph, with open dimensions
    states: dict[str, Tensor] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)  # resource variable -> state name
    constants: dict[str, Tensor] = field(default_factory=dict)  # of all graphs
    sparse: dict[str, RawTensor] = field(default_factory=dict)  # sparse constants, as stored
    taken: set[str] = field(default_factory=set)
    names: dict[int, tuple[str, ...]] = field(default_factory=dict)
    nested: dict[tuple[object, ...], NestedGraph] = field(default_factory=dict)
    holds_for: dict[str, None] = field(default_factory=dict)  # sentences for `Model.holds_for`
    ranks_known: bool = False
    is_open: bool = False  # some size is only implied by others
    cannot_run: str = ""  # operator for which the stored shapes are too small, and why
    work: int = 0  # tensors and operators visited so far
    _stored: dict[int, str] = field(default_factory=dict)  # buffer -> name of its constant

    def __post_init__(self) -> None:
        # Only newer writers mark tensors of known rank; without any mark, an empty shape is a
        # scalar.
        tensors = [tensor for graph in self.graphs for tensor in graph.tensors]
        self.ranks_known = any(tensor.has_rank for tensor in tensors)
        self.is_open = any(-1 in tensor.signature for tensor in tensors)
        for tensor in tensors:
            if max(len(tensor.shape), len(tensor.signature)) > MAX_RANK:
                self.fail(f"tensor {quote(tensor.name)} has more than {MAX_RANK} dimensions")
        for index, graph in enumerate(self.graphs):
            self.names[index] = tuple(
                self.unique(tensor.name, position) for position, tensor in enumerate(graph.tensors)
            )

    def fail(self, reason: str) -> NoReturn:
        """Raise a LoadError about the file."""
        raise LoadError(self.path, reason)

    def unique(self, name: str, position: int) -> str:
        """Return an unused name: `name` or `tensor_<position>`, plus `_<position>` if needed."""
        chosen = name or f"tensor_{position}"
        while chosen in self.taken:
            chosen = f"{chosen}_{position}"
        self.taken.add(chosen)
        return chosen

    def state(self, variable: str) -> str:
        """Return the name of the state for a resource variable."""
        if variable not in self.variables:
            self.variables[variable] = self.unique(variable or "variable", len(self.variables))
        return self.variables[variable]

    def constant(self, name: str, raw: RawTensor, shape: Shape | None) -> Tensor:
        """Return a constant; tensors that share a buffer become one constant, which counts once."""
        shared = self._stored.setdefault(raw.buffer, name) if raw.stored else name
        tensor = replace(self.measure(name, raw, constant=True, shape=shape), name=shared)
        before = self.constants.setdefault(shared, tensor)
        if before.nbytes < tensor.nbytes:
            self.constants[shared] = tensor
        if raw.sparse and raw.stored:
            self.sparse[shared] = raw
        return tensor

    def measure(
        self, name: str, raw: RawTensor, *, constant: bool = False, shape: Shape | None = None
    ) -> Tensor:
        """Return a tensor with its type and shape; `shape` overrides the stored shape."""
        if raw.type not in DTYPES:
            kind = UNSIZED.get(raw.type, f"elements of unknown type {raw.type}")
            self.fail(f"tensor {quote(name)} contains {kind}, which have no fixed size")
        tensor = Tensor(name, DTYPES[raw.type], self._shape(name, raw) if shape is None else shape)
        if tensor.nbytes > MAX_BYTES:
            self.fail(f"tensor {quote(name)} has more than {MAX_BYTES:,} bytes")
        if constant and not raw.sparse and 0 < raw.stored < tensor.nbytes:
            self.fail(
                f"constant {quote(name)} stores {raw.stored:,} bytes, but its shape needs "
                f"{tensor.nbytes:,}"
            )
        return tensor

    def _shape(self, name: str, raw: RawTensor) -> Shape:
        who = f"tensor {quote(name)}"
        if any(size < 0 for size in raw.shape):
            self.fail(f"{who} has a negative size")
        if not raw.shape and (raw.signature or (self.ranks_known and not raw.has_rank)):
            self.fail(f"{who} has an unknown shape; convert the model with fixed shapes")
        if -1 in raw.signature and not self.open_inputs:
            self.fail(f"{who} has a size that is known only at run time")
        return raw.shape


def edge_notes(file: TfliteFile) -> Iterator[str]:
    """Yield notes on custom operators and open sizes."""
    if custom := _custom(file):
        yield custom_note(custom)
    for tensor in file.open_inputs:
        if file.given:
            continue
        shape = written(tensor.shape)
        yield f"input {quote(tensor.name)} has no fixed size; planned with the stored shape {shape}"


def sparse_notes(file: TfliteFile, constants: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a note with the stored size and the dense size of sparse constants."""
    sparse = [(raw, constants[name]) for name, raw in file.sparse.items() if name in constants]
    if sparse:
        indices = sum(raw.index_bytes for raw, _ in sparse)
        stored = indices + sum(raw.stored for raw, _ in sparse)
        dense = sum(tensor.nbytes for _, tensor in sparse)
        ops = (op.type for graph in file.graphs for op in graph.ops if not op.custom)
        folded = sum(kind == "DENSIFY" for kind in ops)
        done = f"; {counted(folded, 'DENSIFY op')} computed at load time" if folded else ""
        yield (
            f"{counted(len(sparse), 'sparse constant')} counted as dense ({dense:,} bytes), "
            f"because QNN has no sparse constants; the file stores {stored:,} bytes, "
            f"{indices:,} of them indices{done}"
        )


def assumptions(file: TfliteFile) -> Words:
    """Return the warnings about placeholder sizes and custom operators; empty if there are none."""
    placeholders, custom = _placeholders(file), unknown_inside(_custom(file))
    if placeholders and custom:
        return chain_words(placeholders, "\n", custom)
    return placeholders or custom


def _custom(file: TfliteFile) -> list[str]:
    """Return the types of custom operators, each once."""
    return list(dict.fromkeys(op.type for g in file.graphs for op in g.ops if op.custom))


def _placeholders(file: TfliteFile) -> Words:
    """Return the warning about a placeholder size; empty if there is none."""
    placeholders = [tensor for tensor in file.open_inputs if _has_placeholder(tensor)]
    if file.given or not (placeholders or file.cannot_run):
        return ""
    first = (placeholders or list(file.open_inputs))[0]
    fault = f" and the graph cannot run ({file.cannot_run})" if file.cannot_run else ""
    return (
        f"planned with a placeholder: input {quote(first.name)} is {written(first.shape)} "
        f"in the file because its size is not fixed{fault}; set the real size with ",
        Setting("shapes", shape_pattern(first)),
    )


def shape_pattern(tensor: RawTensor) -> str:
    """Return a shape setting for an input, with `N` for every open size."""
    sizes = ("N" if size == -1 else str(size) for size in tensor.signature)
    return f"{tensor.name}={'x'.join(sizes)}"


def _has_placeholder(tensor: RawTensor) -> bool:
    """Return whether an open size other than the batch is stored as a placeholder."""
    sizes = tuple(zip(tensor.shape, tensor.signature, strict=False))
    return any(size <= 1 and wanted == -1 for size, wanted in sizes[len(sizes) > 1 :])
