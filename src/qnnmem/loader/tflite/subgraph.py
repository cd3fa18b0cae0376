"""One TFLite subgraph, and the subgraphs it runs, as an `ir.Model`.

The operators are read in file order, which is the order of execution. An operator with only
constant inputs becomes a constant. Handles of resource variables are resolved to their state. The
other operators become the ops of the model if they are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qnnmem.deadline import ask_deadline
from qnnmem.errors import Damaged
from qnnmem.ir import Effect, Model, Op, Tensor
from qnnmem.loader.tflite.file import NestedGraph, TfliteFile, assumptions, edge_notes, sparse_notes
from qnnmem.loader.tflite.raw_graph import (
    DATA_DEPENDENT,
    ELEMENTWISE,
    NEVER_FOLDED,
    RESOURCE,
    SHAPE_QUERIES,
    STORED_FORMS,
    UNFOLLOWED,
    VIEWS,
    RawOp,
)
from qnnmem.loader.tflite.shapes import Operand
from qnnmem.loader.tflite.values import KnownShapes
from qnnmem.text import by_sizes, quote

_MAX_NESTED_OPS = 1_000_000
_MAX_WORK = 4_000_000


def read_graph(file: TfliteFile) -> Model:
    """Return the model of the main subgraph, with notes on assumptions."""
    arguments = {index: _Argument(known=Operand(shape)) for index, shape in file.given.items()}
    nested = _GraphReader(file, 0, arguments, ()).read()
    model = nested.model
    constants = {name: file.constants[name] for name in sorted(nested.reads)}
    tensors = {**model.tensors, **constants, **file.states}
    notes = (*edge_notes(file), *sparse_notes(file, constants), *model.notes)
    return Model(
        name=file.path.stem,
        format="tflite",
        tensors=tensors,
        ops=model.ops,
        inputs=model.inputs,
        outputs=model.outputs,
        constants=tuple(constants),
        states=tuple(file.states),
        notes=notes,
        assumed=assumptions(file),
        holds_for=tuple(file.holds_for),
    )


@dataclass(frozen=True, slots=True)
class _Argument:
    """A value passed to a nested graph."""

    variable: str = ""  # the resource variable that it is a handle of
    name: str = ""  # name of the outer tensor, if it is read in place and not copied
    like: Tensor | None = None  # that outer tensor
    constant: bool = False
    known: Operand | None = None  # known shape and value, if shapes are derived

    @property
    def key(self) -> tuple[object, ...]:
        """Cache key: arguments with equal keys result in the same nested graph."""
        if self.known is None:
            return self.variable, self.name
        value = self.known.value
        numbers = None if value is None else value.tobytes()
        return self.variable, self.name, self.known.shape, numbers


class _GraphReader:
    """Reader of one subgraph; `arguments` are the values of its inputs."""

    def __init__(
        self,
        file: TfliteFile,
        index: int,
        arguments: Mapping[int, _Argument],
        callers: tuple[int, ...],
    ) -> None:
        self.file, self.index, self.callers = file, index, (*callers, index)
        self.raw, self.names = file.graphs[index], file.names[index]
        self.returned = frozenset(self.raw.outputs)
        self.outer = {i: a for i, a in arguments.items() if a.name}  # read in place
        self.handles = {i: a.variable for i, a in arguments.items() if a.variable}
        self.shapes = KnownShapes(
            file, self.raw, {i: a.known for i, a in arguments.items() if a.known}
        )
        # constant -> the stored constant with the same bytes
        self.constants = {i: i for i, argument in self.outer.items() if argument.constant}
        self.aliases: dict[int, int] = {}  # output of a loop -> the input that it returns unchanged
        self.known: set[int] = set()  # tensors with a value at this point
        self.tensors: dict[str, Tensor] = {}
        self.stored: dict[int, Tensor] = {}
        self.states: dict[str, None] = {}
        self.ops: list[tuple[Op, bool]] = []  # op, and whether it must run for its effect on state
        self.size = 0

    def read(self) -> NestedGraph:
        """Return the subgraph as a model."""
        self._begin()
        for position, op in enumerate(self.raw.ops):
            self._step(position, op)
        for index in self.raw.outputs:
            self._require(index, "the graph returns")
        returned = (index for index in self.raw.outputs if index not in self.handles)
        return self._finish(tuple(dict.fromkeys(map(self._source, returned))))

    def _begin(self) -> None:
        raw, fail = self.raw, self.file.fail
        # A graph is read again for each set of variables that it runs on.
        self.file.work += len(raw.tensors) + len(raw.ops)
        if self.file.work > _MAX_WORK:
            fail("contains too many calls of its nested graphs")
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
        ask_deadline()
        where = f"operator {position} ({quote(op.type)})"
        inputs = tuple(index for index in op.inputs if index != -1)
        self._check_range((*inputs, *op.outputs), where)
        for index in inputs:
            self._require(index, f"{where} reads")
        for index in op.outputs:
            self._claim(index)
        if op.type in UNFOLLOWED and not op.custom:
            self.file.fail(f"{where} calls a nested graph in a way that is not supported")
        if op.type == "VAR_HANDLE" and not op.custom:
            self.handles.update(dict.fromkeys(op.outputs, op.variable))
        elif op.type == "CALL_ONCE" and not op.custom:
            self._check_subgraphs(op, where)  # it sets variables before the first execution
        else:
            if not op.subgraphs:
                self.shapes.run(op, where)
            if self._folds(op, inputs):
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
        if op.type in DATA_DEPENDENT:
            self._hold_stored_shapes(op, where)
        nested, copied = self._nested(op, inputs, where)
        self._follow_variable(op, inputs, where)
        reads = [self._source(index) for index in copied]
        reads += [name for body in nested for name in (*body.reads, *body.states)]
        writes = tuple(self._name(index) for index in op.outputs if self._is_made(index))
        self.states.update(dict.fromkeys(s for s in reads if s in self.file.states))
        self.size += 1 + sum(body.size + len(body.states) for body in nested)
        if self.size > _MAX_NESTED_OPS:
            self.file.fail(
                f"{where} expands the nested graphs to more than {_MAX_NESTED_OPS:,} operators"
            )
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

    def _hold_stored_shapes(self, op: RawOp, where: str) -> None:
        """Limit the plan to the stored shapes of data-dependent outputs; fail if a size is open."""
        if any(-1 in self.raw.tensors[index].signature for index in op.outputs):
            self.file.fail(
                f"{where} returns a size that depends on its data, which cannot be planned"
            )
        for output in map(self._sized, op.outputs):
            shape = by_sizes(output.shape)
            tensor = f"{quote(output.name)} of {where}"
            limit = f"the plan is valid while the shape of {tensor} stays within the stored {shape}"
            self.file.holds_for[limit] = None

    def _has_effect(self, op: RawOp, reads: list[str], nested: tuple[NestedGraph, ...]) -> bool:
        if nested:
            return any(body.writes for body in nested)
        if op.type == "READ_VARIABLE" and not op.custom:
            return False
        # Recurrent operators update the state tensors that they read.
        return any(name in self.file.states for name in reads)

    def _follow_variable(self, op: RawOp, inputs: tuple[int, ...], where: str) -> None:
        """If an op reads or assigns a variable, add its state with the size of the value."""
        held = [index for index in inputs if index in self.handles]
        if op.custom or op.type not in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
            if held and not op.subgraphs:
                self.file.fail(f"{where} uses a resource in a way that is not supported")
            return
        value = op.outputs if op.type == "READ_VARIABLE" else inputs[1:2]
        if len(held) != 1 or held[0] != inputs[0] or len(value) != 1:
            self.file.fail(f"{where} must have one variable and one value")
        self._add_state(self.file.state(self.handles[held[0]]), self._sized(value[0]))

    def _add_state(self, name: str, like: Tensor) -> None:
        tensor = Tensor(name, like.dtype, like.shape)
        before = self.file.states.setdefault(name, tensor)
        if before.nbytes != tensor.nbytes:
            self.file.fail(
                f"variable {quote(name)} has {before.nbytes:,} bytes for one operator but "
                f"{tensor.nbytes:,} for another"
            )
        self.states[name] = None
        self.tensors[name] = before

    def _nested(
        self, op: RawOp, inputs: tuple[int, ...], where: str
    ) -> tuple[tuple[NestedGraph, ...], tuple[int, ...]]:
        """Return the subgraphs of an operator, and the inputs that the operator itself reads."""
        if not op.subgraphs:
            return (), inputs
        self._check_subgraphs(op, where)
        own, passed = (inputs[:1], inputs[1:]) if op.type == "IF" else ((), inputs)
        carried: frozenset[int] = frozenset()
        if op.type == "WHILE":
            carried = self._carried(op, passed)
        bodies = tuple(self._run(index, passed, carried, where) for index in op.subgraphs)
        self._return(op, bodies, passed, carried, where)
        copied = tuple(passed[position] for position in sorted(carried))
        return bodies, tuple(dict.fromkeys((*own, *copied)))

    def _carried(self, op: RawOp, passed: tuple[int, ...]) -> frozenset[int]:
        """Return the positions of carried values that a loop changes; other values pass through."""
        # A handle carried through the loop refers to the same variable afterwards.
        self.handles.update(
            (output, self.handles[source])
            for output, source in zip(op.outputs, passed, strict=False)
            if source in self.handles
        )
        body = self.file.graphs[op.subgraphs[-1]]
        values = {position for position, source in enumerate(passed) if source not in self.handles}
        if not len(body.inputs) == len(body.outputs) == len(op.outputs) == len(passed):
            return frozenset(values)
        kept = {position for position in values if body.inputs[position] == body.outputs[position]}
        for position in kept:
            output, source = op.outputs[position], passed[position]
            if source in self.constants:
                self.constants[output] = self.constants[source]
            else:
                self.aliases[output] = self.aliases.get(source, source)
        return frozenset(values - kept)

    def _return(
        self,
        op: RawOp,
        bodies: tuple[NestedGraph, ...],
        passed: tuple[int, ...],
        carried: frozenset[int],
        where: str,
    ) -> None:
        """Set the output shapes of a control-flow operator to those that its graphs return."""
        if not self.file.is_open:
            return
        returned, fault = bodies[-1].returned, ""
        if op.type == "WHILE":
            passed_shapes = [self._shape(index) for index in passed]
            if any(
                position < len(returned) and returned[position] != passed_shapes[position]
                for position in carried
            ):
                fault = "changes the shape of a loop variable between iterations"
        elif any(body.returned != returned for body in bodies):
            fault = "returns different shapes depending on its data"
        if len(returned) != len(op.outputs):
            fault = f"has {len(op.outputs)} outputs instead of {len(returned)}"
        try:
            self.shapes.returns(op.outputs, () if fault else returned)
        except Damaged as exc:
            fault = str(exc)
        if fault and self.file.given:
            self.file.fail(f"{where} {fault}")

    def _check_subgraphs(self, op: RawOp, where: str) -> None:
        for index in op.subgraphs:
            if not 0 <= index < len(self.file.graphs):
                self.file.fail(f"{where} calls graph {index}, which does not exist")
            if index in self.callers:
                self.file.fail(f"{where} calls graph {index} recursively, which is not supported")

    def _run(
        self, index: int, passed: tuple[int, ...], carried: frozenset[int], where: str
    ) -> NestedGraph:
        inside = self.file.graphs[index].inputs
        if len(inside) != len(passed):
            self.file.fail(
                f"{where} passes {len(passed)} values to a graph with {len(inside)} inputs"
            )
        arguments = {
            inner: self._argument(outer, position in carried)
            for position, (inner, outer) in enumerate(zip(inside, passed, strict=True))
        }
        key = (index, *(arguments[inner].key for inner in inside))
        if key not in self.file.nested:
            reader = _GraphReader(self.file, index, arguments, self.callers)
            self.file.nested[key] = reader.read()
        return self.file.nested[key]

    def _argument(self, index: int, copied: bool) -> _Argument:
        if index in self.handles:
            return _Argument(variable=self.handles[index])
        known = self.shapes.operand(index) if self.file.is_open else None
        if copied:  # its value in the first iteration does not determine later ones
            return _Argument(known=known and Operand(known.shape))
        constant = index in self.constants
        return _Argument("", self._source(index), self._sized(index), constant, known)

    def _effect(self, op: RawOp, inputs: tuple[int, ...], where: str) -> Effect:
        if op.custom or not inputs or len(op.outputs) != 1:
            return Effect.COMPUTE
        output = self._sized(op.outputs[0])
        if op.type in VIEWS:
            return self._view_effect(inputs[0], output, where)
        if op.type not in ELEMENTWISE:
            return Effect.COMPUTE
        # As many bytes but fewer elements: the input is broadcast and must not be overwritten.
        spread = any(
            tensor.nbytes == output.nbytes and tensor.elements != output.elements
            for tensor in map(self._sized, inputs)
        )
        return Effect.COMPUTE if spread else Effect.ELEMENTWISE

    def _view_effect(self, source: int, output: Tensor, where: str) -> Effect:
        before = self._sized(source)
        if before.elements != output.elements:
            self.file.fail(
                f"{where} has {before.elements:,} input elements but {output.elements:,} "
                "output elements, so the stored shapes are inconsistent; convert the model "
                "with fixed shapes"
            )
        fixed = source in self.constants or self._source(source) in self.file.states
        return Effect.COMPUTE if fixed or before.nbytes != output.nbytes else Effect.VIEW

    def _finish(self, outputs: tuple[str, ...]) -> NestedGraph:
        kept = self._needed(outputs)
        dropped = len(self.ops) - len(kept)
        used = dict.fromkeys(name for op in kept for name in (*op.inputs, *op.outputs))
        inputs = tuple(
            self._name(i) for i in self.raw.inputs if i not in self.handles and i not in self.outer
        )
        used.update(dict.fromkeys((*inputs, *outputs)))
        handed = {argument.name for argument in self.outer.values()}
        model = Model(
            name=self.raw.name or f"graph {self.index}",
            format="tflite",
            tensors={name: tensor for name, tensor in self.tensors.items() if name in used},
            ops=kept,
            inputs=inputs,
            outputs=outputs,
            notes=(f"{dropped} operators with unused outputs were removed",) * (dropped > 0),
        )
        return NestedGraph(
            model,
            tuple(name for name in used if name in handed or name in self.file.constants),
            tuple(self.states),
            any(effect for _, effect in self.ops),
            self.size,
            tuple(self._shape(index) for index in self.raw.outputs),
        )

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
                self.file.fail(f"{where} uses tensor {index}, which does not exist")

    def _require(self, index: int, who: str) -> None:
        if not (index in self.known or index in self.constants or index in self.handles):
            self.file.fail(f"{who} {self._quoted(index)}, which no operator has produced")

    def _claim(self, index: int) -> None:
        if index in self.known:
            self.file.fail(f"tensor {self._quoted(index)} is produced twice")
        self.known.add(index)

    def _quoted(self, index: int) -> str:
        return quote(self.names[index])

    def _is_made(self, index: int) -> bool:
        """Return whether an output is a separate tensor, not another name of a tensor."""
        return not (index in self.handles or index in self.aliases or index in self.constants)

    def _source(self, index: int) -> str:
        """Return a tensor's name in the model; for a variable's handle, the name of its state."""
        if index in self.handles:
            return self.file.state(self.handles[index])
        return self._name(index)

    def _name(self, index: int) -> str:
        return self._sized(index).name

    def _shape(self, index: int) -> tuple[int, ...]:
        return self.shapes.operand(index).shape

    def _sized(self, index: int) -> Tensor:
        """Return a tensor with its size; constants have the stored size."""
        index = self.constants.get(index, index)
        index = self.aliases.get(index, index)
        if index in self.outer and (like := self.outer[index].like):
            return like
        raw, name = self.raw.tensors[index], self.names[index]
        shape = self.shapes.derived(index)
        if index not in self.constants:
            if name not in self.tensors:
                self.tensors[name] = self.file.measure(name, raw, shape=shape)
            return self.tensors[name]
        if index not in self.stored:
            self.stored[index] = self.file.constant(name, raw, shape)
        return self.stored[index]
