"""One TFLite subgraph, and the subgraphs it runs, as an `ir.Model`.

Walks the operators in file order, which is the order of execution. An operator whose inputs are
all constant becomes a constant; handles of resource variables are followed to the state they
stand for; what remains and is needed becomes the ops of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qnnmem.ir import Effect, Model, Op, Tensor
from qnnmem.load.tflite.file import NestedGraph, TfliteFile
from qnnmem.load.tflite.ops import (
    DATA_DEPENDENT,
    ELEMENTWISE,
    NEVER_FOLDED,
    RESOURCE,
    SHAPE_QUERIES,
    STORED_FORMS,
    UNFOLLOWED,
    VIEWS,
)
from qnnmem.load.tflite.schema import RawOp
from qnnmem.text import quote

_MAX_NESTED_OPS = 1_000_000
_MAX_WORK = 4_000_000


def read_graph(file: TfliteFile) -> Model:
    """Read the main subgraph, with notes on what was assumed."""
    nested = _GraphReader(file, 0, {}, ()).read()
    model = nested.model
    tensors = {**model.tensors, **file.states}
    notes = (*_open_notes(file), *model.notes)
    return Model(
        name=file.graphs[0].name or file.path.stem,
        format="tflite",
        tensors=tensors,
        ops=model.ops,
        inputs=model.inputs,
        outputs=model.outputs,
        constants=model.constants,
        states=tuple(file.states),
        notes=notes,
    )


def _open_notes(file: TfliteFile) -> Iterable[str]:
    wanted, stored = file.batch
    for tensor in file.open_inputs:
        if wanted != stored:
            yield (
                f"input {quote(tensor.name)} has batch {wanted}; the file's shapes, made for batch"
                f" {stored}, were scaled"
            )
            continue
        shape = "x".join(map(str, tensor.shape))
        yield f"input {quote(tensor.name)} leaves its size open; planned for {shape} as stored"


class _GraphReader:
    """Reads one subgraph; `handles` are the resource variables its inputs stand for."""

    def __init__(
        self, file: TfliteFile, index: int, handles: Mapping[int, str], callers: tuple[int, ...]
    ) -> None:
        self.file, self.index, self.callers = file, index, (*callers, index)
        self.raw, self.names = file.graphs[index], file.names[index]
        self.returned = frozenset(self.raw.outputs)
        self.handles = dict(handles)  # tensor -> resource variable
        self.constants: dict[int, int] = {}  # tensor -> tensor whose bytes it has
        self.known: set[int] = set()  # tensors with a value at this point
        self.tensors: dict[str, Tensor] = {}
        self.states: dict[str, None] = {}
        self.ops: list[tuple[Op, bool]] = []  # op, and whether it runs for its effect on state
        self.size = 0

    def read(self) -> NestedGraph:
        """Read the subgraph as a model."""
        self._begin()
        for position, op in enumerate(self.raw.ops):
            self._step(position, op)
        for index in self.raw.outputs:
            self._require(index, "the graph returns")
        returned = (index for index in self.raw.outputs if index not in self.handles)
        return self._finish(tuple(dict.fromkeys(map(self._source, returned))))

    def _begin(self) -> None:
        raw, fail = self.raw, self.file.fail
        # A graph is read again for each set of variables it is run on.
        self.file.work += len(raw.tensors) + len(raw.ops)
        if self.file.work > _MAX_WORK:
            fail("its nested graphs are run in too many ways")
        self._check_range((*raw.inputs, *raw.outputs), f"graph {self.index}")
        produced = {index for op in raw.ops for index in op.outputs}
        inputs = set(raw.inputs)
        if len(inputs) < len(raw.inputs) or produced & inputs:
            fail("a graph input is listed twice or overwritten by an operator")
        for index, tensor in enumerate(raw.tensors):
            if index in produced or index in inputs:
                continue
            if tensor.variable:
                self._add_state(self.names[index], self._sized(index))
                self.known.add(index)
            elif tensor.stored or 0 in tensor.shape:
                self.constants[index] = index
        for index in raw.inputs:
            if raw.tensors[index].type == RESOURCE and index not in self.handles:
                fail(f"input {self._quoted(index)} is a resource, which has no size")
        self.known.update(inputs)

    def _step(self, position: int, op: RawOp) -> None:
        where = f"operator {position} ({quote(op.type)})"
        inputs = tuple(index for index in op.inputs if index != -1)
        self._check_range((*inputs, *op.outputs), where)
        for index in inputs:
            self._require(index, f"{where} reads")
        for index in op.outputs:
            self._claim(index)
        if op.type in UNFOLLOWED and not op.custom:
            self.file.fail(f"{where} runs a nested graph in a way that is not supported")
        if op.type == "VAR_HANDLE" and not op.custom:
            self.handles.update(dict.fromkeys(op.outputs, op.variable))
        elif op.type == "CALL_ONCE" and not op.custom:
            self._check_subgraphs(op, where)  # it sets variables before the first execution
        elif self._folds(op, inputs):
            self._fold(op, inputs)
        else:
            self._emit(position, op, inputs, where)

    def _folds(self, op: RawOp, inputs: tuple[int, ...]) -> bool:
        if op.custom or op.type in NEVER_FOLDED or not self.returned.isdisjoint(op.outputs):
            return False
        if op.type in SHAPE_QUERIES:
            return True
        return bool(inputs) and all(index in self.constants for index in inputs)

    def _fold(self, op: RawOp, inputs: tuple[int, ...]) -> None:
        if op.type in STORED_FORMS:
            self.constants[op.outputs[0]] = self.constants[inputs[0]]
        else:
            self.constants.update((index, index) for index in op.outputs)

    def _emit(self, position: int, op: RawOp, inputs: tuple[int, ...], where: str) -> None:
        if op.type in DATA_DEPENDENT and any(
            -1 in self.raw.tensors[index].signature for index in op.outputs
        ):
            self.file.fail(
                f"{where} returns more or less depending on its data, which cannot be planned"
            )
        nested = self._nested(op, inputs, where)
        self._follow_variable(op, inputs, where)
        reads = [self._source(index) for index in inputs]
        reads += [state for body in nested for state in body.states]
        writes = tuple(self._name(index) for index in op.outputs if index not in self.handles)
        self.states.update(dict.fromkeys(s for s in reads if s in self.file.states))
        self.size += 1 + sum(body.size + len(body.states) for body in nested)
        if self.size > _MAX_NESTED_OPS:
            self.file.fail(f"{where} brings the nested graphs above {_MAX_NESTED_OPS:,} operators")
        ir_op = Op(
            name=f"{op.type}_{position}",
            type=op.type,
            inputs=tuple(dict.fromkeys(reads)),
            outputs=writes,
            effect=self._effect(op, inputs, where),
            sources=(position,),
            bodies=tuple(body.model for body in nested),
            repeats=op.type == "WHILE" and not op.custom,
        )
        self.ops.append((ir_op, self._has_effect(op, reads, nested)))

    def _has_effect(self, op: RawOp, reads: list[str], nested: tuple[NestedGraph, ...]) -> bool:
        if nested:
            return any(body.writes for body in nested)
        if op.type == "READ_VARIABLE" and not op.custom:
            return False
        # Recurrent operators update the state tensors they read.
        return any(name in self.file.states for name in reads)

    def _follow_variable(self, op: RawOp, inputs: tuple[int, ...], where: str) -> None:
        """Give the state behind a variable its size, from the value read or assigned."""
        held = [index for index in inputs if index in self.handles]
        if op.custom or op.type not in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
            if held and not op.subgraphs:
                self.file.fail(f"{where} uses a resource in a way that is not supported")
            return
        value = op.outputs if op.type == "READ_VARIABLE" else inputs[1:2]
        if len(held) != 1 or held[0] != inputs[0] or len(value) != 1:
            self.file.fail(f"{where} does not name one variable and one value")
        self._add_state(self.file.state(self.handles[held[0]]), self._sized(value[0]))

    def _add_state(self, name: str, like: Tensor) -> None:
        tensor = Tensor(name, like.dtype, like.shape)
        before = self.file.states.setdefault(name, tensor)
        if before.nbytes != tensor.nbytes:
            self.file.fail(
                f"variable {quote(name)} has {before.nbytes:,} bytes in one place and"
                f" {tensor.nbytes:,} in another"
            )
        self.states[name] = None
        self.tensors[name] = before

    def _nested(self, op: RawOp, inputs: tuple[int, ...], where: str) -> tuple[NestedGraph, ...]:
        if not op.subgraphs:
            return ()
        self._check_subgraphs(op, where)
        passed = inputs[1:] if op.type == "IF" else inputs
        if op.type == "WHILE":
            # A handle carried through the loop stands for the same variable afterwards.
            carried = zip(op.outputs, passed, strict=False)
            self.handles.update((o, self.handles[i]) for o, i in carried if i in self.handles)
        return tuple(self._run(index, passed, where) for index in op.subgraphs)

    def _check_subgraphs(self, op: RawOp, where: str) -> None:
        for index in op.subgraphs:
            if not 0 <= index < len(self.file.graphs):
                self.file.fail(f"{where} runs graph {index}, which does not exist")
            if index in self.callers:
                self.file.fail(f"{where} runs graph {index}, which is already running")

    def _run(self, index: int, passed: tuple[int, ...], where: str) -> NestedGraph:
        inside = self.file.graphs[index].inputs
        if len(inside) != len(passed):
            self.file.fail(f"{where} passes {len(passed)} values to a graph of {len(inside)}")
        pairs = zip(inside, passed, strict=True)
        handles = {inner: self.handles[outer] for inner, outer in pairs if outer in self.handles}
        key = (index, *sorted(handles.items()))
        if key not in self.file.nested:
            reader = _GraphReader(self.file, index, handles, self.callers)
            self.file.nested[key] = reader.read()
        return self.file.nested[key]

    def _effect(self, op: RawOp, inputs: tuple[int, ...], where: str) -> Effect:
        if op.custom or not inputs or len(op.outputs) != 1:
            return Effect.COMPUTE
        output = self._sized(op.outputs[0])
        if op.type in VIEWS:
            return self._view_effect(inputs[0], output, where)
        if op.type not in ELEMENTWISE:
            return Effect.COMPUTE
        # As many bytes but not as many elements: the input is spread, not overwritten in step.
        spread = any(
            tensor.nbytes == output.nbytes and tensor.elements != output.elements
            for tensor in map(self._sized, inputs)
        )
        return Effect.COMPUTE if spread else Effect.ELEMENTWISE

    def _view_effect(self, source: int, output: Tensor, where: str) -> Effect:
        before = self._sized(source)
        if before.elements != output.elements:
            self.file.fail(
                f"{where} turns {before.elements:,} elements into {output.elements:,}, so the"
                " stored shapes are not those of one execution; convert with fixed shapes"
            )
        fixed = source in self.constants or self.names[source] in self.file.states
        return Effect.COMPUTE if fixed or before.nbytes != output.nbytes else Effect.VIEW

    def _finish(self, outputs: tuple[str, ...]) -> NestedGraph:
        kept = self._needed(outputs)
        dropped = len(self.ops) - len(kept)
        used = {name for op in kept for name in (*op.inputs, *op.outputs)}
        inputs = tuple(self._name(i) for i in self.raw.inputs if i not in self.handles)
        used.update(inputs, outputs)
        constants = {self.names[index] for index in self.constants.values()} & used
        model = Model(
            name=self.raw.name or f"graph {self.index}",
            format="tflite",
            tensors={name: tensor for name, tensor in self.tensors.items() if name in used},
            ops=kept,
            inputs=inputs,
            outputs=outputs,
            constants=tuple(sorted(constants)),
            notes=(f"{dropped} operators whose results nobody reads are left out",) * (dropped > 0),
        )
        writes = any(effect for _, effect in self.ops)
        return NestedGraph(model, tuple(self.states), writes, self.size)

    def _needed(self, outputs: tuple[str, ...]) -> tuple[Op, ...]:
        needed = set(outputs)
        kept: list[Op] = []
        for op, effect in reversed(self.ops):
            if effect or not needed.isdisjoint(op.outputs):
                needed.update(op.inputs)
                kept.append(op)
        return tuple(reversed(kept))

    def _check_range(self, indexes: Iterable[int], where: str) -> None:
        for index in indexes:
            if not 0 <= index < len(self.raw.tensors):
                self.file.fail(f"{where} names tensor {index}, which does not exist")

    def _require(self, index: int, who: str) -> None:
        if not (index in self.known or index in self.constants or index in self.handles):
            self.file.fail(f"{who} {self._quoted(index)}, which nothing has produced by then")

    def _claim(self, index: int) -> None:
        if index in self.known:
            self.file.fail(f"tensor {self._quoted(index)} is produced twice")
        self.known.add(index)

    def _quoted(self, index: int) -> str:
        return quote(self.names[index])

    def _source(self, index: int) -> str:
        """Name under which a tensor's bytes are found."""
        if index in self.handles:
            return self.file.state(self.handles[index])
        return self._name(self.constants.get(index, index))

    def _name(self, index: int) -> str:
        self._sized(index)
        return self.names[index]

    def _sized(self, index: int) -> Tensor:
        """Measure a tensor; constants as stored."""
        index = self.constants.get(index, index)
        name = self.names[index]
        if name not in self.tensors:
            constant = index in self.constants
            self.tensors[name] = self.file.measure(name, self.raw.tensors[index], constant)
        return self.tensors[name]
