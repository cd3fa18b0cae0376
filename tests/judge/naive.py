"""A second opinion on memory: simulate a run of an ONNX file, step by step, and add up.

Nothing here imports the product. Shapes come from running the model in ONNX Runtime with every
intermediate tensor as an output; the rules are those of docs/explanation/lifetimes-and-pools.md.

    step -1        the application writes the inputs
    step k         op k reads its inputs while it writes its outputs
    step n         the application reads the outputs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, numpy_helper

VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"}
ELEMENTWISE = {
    *("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Exp", "HardSwish", "Add", "Mul", "Sub", "Max"),
    *("Sqrt", "Log", "Div", "Pow", "Clip", "LeakyRelu", "HardSigmoid", "Erf", "Where", "Min"),
}
TCM_BYTES, TCM_SLOTS = 2_035_712, 32  # the vendor documents both for aDSP direct mode


@dataclass(frozen=True)
class Step:
    """An op at run time, including the quantize and dequantize nodes around the op."""

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    is_view: bool = False
    bodies: tuple[Run, ...] = ()
    repeats: bool = False


@dataclass(frozen=True)
class Run:
    """Behaviour of a model at run time."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    sizes: Mapping[str, int]  # exact bytes of every tensor
    constants: Mapping[str, int]  # exact bytes of each stored tensor that an op reads at run time

    @property
    def has_bodies(self) -> bool:
        """True if the model contains an If, Loop or Scan."""
        return any(step.bodies for step in self.steps)


class Bodies(Enum):
    """Storage of tensors in the bodies of If, Loop and Scan."""

    LEAST = "results are written where the op's results are, views are free"
    VIEWS = "results are written in the body and copied out, views are free"
    COPIES = "results are copied out, a view of what lies outside is a copy"


@dataclass
class Storage:
    """Bytes with one or more names."""

    names: list[str]
    size: int
    born: int
    last: int


@dataclass(frozen=True)
class Pools:
    """Bytes of each pool."""

    alive: tuple[int, ...]  # bytes of live scratch at steps -1, 0, …, n
    persistent: int
    io: int
    constants: int
    tcm: int
    tcm_slots: int

    @property
    def scratch(self) -> int:
        """The largest number of scratch bytes that are live at a step."""
        return max(self.alive, default=0)


def rounded(size: int, align: int) -> int:
    """Round a size up to the alignment."""
    return -(-size // align) * align


# --- reading ---------------------------------------------------------------------------------


def read_run(
    path: Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Run:
    """Read a file as a run, with open shapes fixed and some inputs as constants."""
    model = onnx.load(path)
    _fix_inputs(model.graph, shapes or {}, values or {})
    known = _inline_constant_branches(model)
    return _run_of(model, model.graph, known, _constant_names(model.graph, set()))


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session that computes each node exactly as stored, without optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _fix_inputs(
    graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any]
) -> None:
    stored = {item.name for item in graph.initializer}
    kept = []
    for item in graph.input:
        kind = item.type.tensor_type
        if item.name in shapes:
            del kind.shape.dim[:]
            for size in shapes[item.name]:
                kind.shape.dim.add().dim_value = int(size)
        if item.name in values:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            shape = [dim.dim_value for dim in kind.shape.dim]
            value = np.full(shape, values[item.name], dtype)
            graph.initializer.append(numpy_helper.from_array(value, item.name))
        elif item.name not in stored:
            kept.append(item)
    del graph.input[:]
    graph.input.extend(kept)


def _dtype(item: onnx.ValueInfoProto) -> np.dtype[Any]:
    return onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)


def feeds_of(graph: onnx.GraphProto, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return small random inputs."""
    random = np.random.default_rng(seed)
    found = {}
    for item in graph.input:
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        dtype = _dtype(item)
        if dtype.kind == "f":
            found[item.name] = random.standard_normal(shape).astype(dtype)
        else:
            found[item.name] = random.integers(0, 2, shape).astype(dtype)
    return found


def _subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def _captured(graph: onnx.GraphProto) -> list[str]:
    """Return the outer names that a body reads."""
    own = {item.name for item in (*graph.input, *graph.initializer)}
    own.update(name for node in graph.node for name in node.output)
    used = [name for node in graph.node for name in _reads(node)]
    used += [item.name for item in graph.output]
    return list(dict.fromkeys(name for name in used if name not in own))


def _reads(node: onnx.NodeProto) -> list[str]:
    found = [name for name in node.input if name]
    for body in _subgraphs(node):
        found.extend(_captured(body))
    return list(dict.fromkeys(found))


def _constant_names(graph: onnx.GraphProto, outer: set[str]) -> set[str]:
    """Return the names whose values are known before the run, including shapes."""
    found = outer | {item.name for item in graph.initializer}
    for node in graph.node:
        reads = _reads(node)
        if node.op_type in ("Constant", "Shape", "Size") or (
            reads and not node.op_type.startswith("Random") and all(name in found for name in reads)
        ):
            found.update(node.output)
    return found


def _measure(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """Run the model once and return each tensor of the main graph."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:], copy.graph.output[:]
    names = [name for node in copy.graph.node for name in node.output if name]
    known = {item.name for item in copy.graph.input}
    read = {name for node in copy.graph.node for name in _reads(node)}
    stored = [item for item in copy.graph.initializer if item.name in read - known]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(stored)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    feeds = feeds_of(copy.graph)
    found = dict(zip(names, session(copy).run(names, feeds), strict=True)) if names else {}
    return {**{item.name: numpy_helper.to_array(item) for item in stored}, **feeds, **found}


def _inline_constant_branches(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """Replace each If with a known condition by its taken branch; return all measured tensors."""
    graph = model.graph
    while True:
        known = _measure(model)
        constant = _constant_names(graph, set())
        at = next(
            (
                index
                for index, node in enumerate(graph.node)
                if node.op_type == "If" and node.input[0] in constant
            ),
            None,
        )
        if at is None:
            return known
        node = graph.node[at]
        wanted = "then_branch" if known[node.input[0]].item() else "else_branch"
        body = next(a.g for a in node.attribute if a.name == wanted)
        _splice(graph, at, body)


def _splice(graph: onnx.GraphProto, at: int, body: onnx.GraphProto) -> None:
    taken = {item.name for item in (*graph.input, *graph.initializer)}
    taken.update(name for node in graph.node for name in node.output)
    own = [item.name for item in body.initializer]
    own += [name for node in body.node for name in node.output if name]
    new = {name: name + "'" if name in taken else name for name in own}
    made = {name for node in body.node for name in node.output}
    pairs = [(a, b.name) for a, b in zip(graph.node[at].output, body.output, strict=True) if a]
    for outer, inner in pairs:
        if inner in made and new[inner] not in graph.node[at].output:
            new[inner] = outer  # the If wrote its result to this name
    nodes = [_renamed(node, new) for node in body.node]
    for outer, inner in pairs:
        name = new.get(inner, inner)
        if name != outer:
            nodes.append(onnx.helper.make_node("Identity", [name], [outer]))
    for item in body.initializer:
        graph.initializer.add().CopyFrom(item)
        graph.initializer[-1].name = new[item.name]
    every = [*graph.node[:at], *nodes, *graph.node[at + 1 :]]
    del graph.node[:]
    graph.node.extend(every)


def _renamed(node: onnx.NodeProto, new: Mapping[str, str]) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for names in (copy.input, copy.output):
        names[:] = [new.get(name, name) for name in names]
    for body in _subgraphs(copy):
        for index, inner in enumerate(body.node):
            body.node[index].CopyFrom(_renamed(inner, new))
        for item in body.output:
            item.name = new.get(item.name, item.name)
    return copy


# --- what runs -------------------------------------------------------------------------------


def _live(graph: onnx.GraphProto, constant: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that an output needs at run time, in file order."""
    needed = {item.name for item in graph.output} - constant
    found = []
    for node in reversed(graph.node):
        if any(name in needed for name in node.output):
            found.append(node)
            needed.update(name for name in _reads(node) if name not in constant)
    return found[::-1]


@dataclass
class _Quantization:
    """Quantize and dequantize nodes that belong to the neighbouring op."""

    before: dict[str, onnx.NodeProto] = field(default_factory=dict)  # by the float they make
    after: dict[str, onnx.NodeProto] = field(default_factory=dict)  # by the float they take


def _quantization(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], constant: set[str]
) -> _Quantization:
    kept = {item.name for item in graph.output}
    kept.update(name for node in nodes for body in _subgraphs(node) for name in _captured(body))
    readers: dict[str, int] = {}
    for node in nodes:
        for name in _reads(node):
            readers[name] = readers.get(name, 0) + 1
    maker = {name: node for node in nodes for name in node.output}
    found = _Quantization()

    def fixed(node: onnx.NodeProto) -> bool:
        return all(name in constant for name in node.input[1:] if name)

    for node in graph.node:
        known = node.op_type == "DequantizeLinear" and fixed(node)
        if known and node.output[0] not in kept:
            found.before[node.output[0]] = node
    for node in nodes:
        if node.op_type != "QuantizeLinear" or not fixed(node):
            continue
        name = node.input[0]
        made = maker.get(name)
        if made is None or name in kept or readers[name] != 1 or name in found.before:
            continue
        if made.op_type not in ("QuantizeLinear", "If", "Loop", "Scan"):
            found.after[name] = node
    return found


def _same_scale(
    before: onnx.NodeProto, after: onnx.NodeProto, known: Mapping[str, np.ndarray[Any, Any]]
) -> bool:
    """True if a second quantization gives the same integers."""
    pairs = list(zip(before.input[1:3], after.input[1:3], strict=True))
    return (
        all(known[a].size == 1 for a, _ in pairs)
        and all(known[a].tobytes() == known[b].tobytes() for a, b in pairs)
        and known[before.input[0]].dtype == known[after.output[0]].dtype
    )


def _run_of(
    model: onnx.ModelProto,
    graph: onnx.GraphProto,
    known: Mapping[str, np.ndarray[Any, Any]],
    constant: set[str],
    outer: Iterable[str] = (),
) -> Run:
    nodes = _live(graph, constant)
    quantization = _quantization(graph, nodes, constant)
    steps = []
    # A constant output is copied to where the caller reads outputs.
    for item in graph.output:
        if item.name in constant and item.name not in outer:
            steps.append(Step(item.name, "Constant", (), (item.name,)))
    folded = [*quantization.after.values(), *quantization.before.values()]
    for node in nodes:
        if not any(node is part for part in folded):
            steps.append(_step(model, node, quantization, known, constant))
    inputs = tuple(item.name for item in graph.input)
    made = {*inputs, *(name for step in steps for name in step.writes)}
    stored = [name for step in steps for name in step.reads if name in constant]
    return Run(
        inputs,
        tuple(dict.fromkeys(item.name for item in graph.output)),
        tuple(steps),
        {name: known[name].nbytes for name in (*made, *outer) if name in known},
        {name: known[name].nbytes for name in stored if name not in made and name not in outer},
    )


def _step(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    quantization: _Quantization,
    known: Mapping[str, np.ndarray[Any, Any]],
    constant: set[str],
) -> Step:
    reads: list[str] = []
    before = []
    for name in _reads(node):
        part = quantization.before.get(name)
        if part is not None:
            before.append(part)
        reads.extend([name] if part is None else filter(None, part.input))
    writes = []
    after = []
    for name in filter(None, node.output):
        part = quantization.after.get(name)
        if part is not None:
            after.append(part)
            reads.extend(filter(None, part.input[1:]))
        writes.append(name if part is None else part.output[0])
    is_view = node.op_type in VIEWS or (
        node.op_type == "Cast" and known[node.input[0]].dtype == known[node.output[0]].dtype
    )
    is_view = is_view and node.input[0] not in constant
    if is_view and (before or after):
        is_view = len(before) == len(after) == 1 and _same_scale(before[0], after[0], known)
    return Step(
        node.name or node.output[0],
        node.op_type,
        tuple(dict.fromkeys(reads)),
        tuple(writes),
        is_view,
        tuple(_body(model, body, known, constant) for body in _subgraphs(node)),
        node.op_type in ("Loop", "Scan"),
    )


def _body(
    model: onnx.ModelProto,
    body: onnx.GraphProto,
    known: Mapping[str, np.ndarray[Any, Any]],
    constant: set[str],
) -> Run:
    """Return the run of a body as a separate model, with captured tensors as inputs."""
    captured = _captured(body)
    alone = onnx.ModelProto()
    alone.CopyFrom(model)
    alone.graph.CopyFrom(body)
    del alone.graph.output[:]
    for name in captured:
        value = known[name]
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        item = onnx.helper.make_tensor_value_info(name, kind, value.shape)
        if name in constant:
            alone.graph.initializer.append(numpy_helper.from_array(value, name))
        else:
            alone.graph.input.append(item)
    inside = {**known, **_measure(alone)}
    stored = {name for name in captured if name in constant}
    own = _constant_names(body, stored)
    return _run_of(model, body, inside, own, captured)


# --- the run ---------------------------------------------------------------------------------


def storages(run: Run, fixed: Iterable[str] = ()) -> list[Storage]:
    """Return the storage and lifetime of each tensor except `fixed`; aliases share one storage."""
    fixed = set(fixed)
    end = len(run.steps)
    home: dict[str, Storage] = {}
    found: list[Storage] = []

    def make(name: str, born: int) -> None:
        if name not in fixed and name not in home:
            home[name] = Storage([name], run.sizes[name], born, born)
            found.append(home[name])

    for name in run.inputs:
        make(name, -1)
    for at, step in enumerate(run.steps):
        for name in step.reads:
            if name in home:
                home[name].last = max(home[name].last, at)
        source = home.get(step.reads[0]) if step.reads else None
        if step.is_view and source is not None and step.writes[0] not in fixed:
            source.names.append(step.writes[0])
            source.size = max(source.size, run.sizes[step.writes[0]])
            home[step.writes[0]] = source
            continue
        for name in step.writes:
            make(name, at)
    for name in run.outputs:
        if name in home:
            home[name].last = end
    return found


def body_bytes(step: Step, align: int, bodies: Bodies) -> int:
    """Return the peak bytes of the bodies of an op; captured tensors count outside."""
    return max((_body_bytes(body, step, align, bodies) for body in step.bodies), default=0)


def _body_bytes(body: Run, step: Step, align: int, bodies: Bodies) -> int:
    free = set() if bodies is Bodies.COPIES else _views_of_captured(body)
    found = storages(body, free)
    for storage in found:
        if step.repeats and set(storage.names) & set(body.inputs):
            storage.last = len(body.steps)
    if bodies is Bodies.LEAST:
        found = [one for one in found if not set(one.names) & {*body.inputs, *body.outputs}]
    return max(_alive(body, found, align, bodies), default=0)


def _views_of_captured(body: Run) -> set[str]:
    own = {*body.inputs, *body.constants}
    own.update(name for step in body.steps for name in step.writes)
    found: set[str] = set()
    for step in body.steps:
        if step.is_view and (step.reads[0] in found or step.reads[0] not in own):
            found.add(step.writes[0])
    return found


def _alive(run: Run, found: Sequence[Storage], align: int, bodies: Bodies) -> tuple[int, ...]:
    inside = [0, *(body_bytes(step, align, bodies) for step in run.steps), 0]
    sums = list(inside)
    for storage in found:
        for at in range(storage.born, storage.last + 1):
            sums[at + 1] += rounded(storage.size, align)
    return tuple(sums)


def pools(
    run: Run,
    *,
    align: int = 64,
    io: str = "inside",
    states: Mapping[str, str] | None = None,
    bodies: Bodies = Bodies.VIEWS,
) -> Pools:
    """Return the bytes of each pool from one run of the model."""
    states = states or {}
    found = storages(run)
    home = {name: storage for storage in found for name in storage.names}
    shown = {*states, *states.values()}
    persistent = 0
    scratch = list(found)
    for old, new in states.items():
        before, after = home[old], home[new]
        scratch = [storage for storage in scratch if storage is not before]
        others = set(after.names) & {*run.inputs, *run.outputs} - shown
        free = any(after is storage for storage in scratch)
        size = before.size
        free = free and not set(after.names) & set(run.inputs) and not others
        if free and before.last < after.born:
            scratch = [storage for storage in scratch if storage is not after]
            size = max(size, after.size)
        persistent += rounded(size, align)
    visible = [name for name in dict.fromkeys((*run.inputs, *run.outputs)) if name not in shown]
    sizes = [rounded(run.sizes[name], align) for name in visible]
    constants = sum(_all_constants(run))
    outside = 0
    if io == "outside":
        gone = []
        counted = set()
        for storage in scratch:
            own = [name for name in storage.names if name in visible]
            views = len(own) < len(storage.names)
            for place, name in enumerate(own):
                whole = storage.size if views and place == 0 else run.sizes[name]
                outside += rounded(max(whole, run.sizes[name]), align)
                counted.add(name)
            if own:
                gone.append(storage)
        scratch = [s for s in scratch if not any(s is other for other in gone)]
        outside += sum(rounded(run.sizes[n], align) for n in visible if n not in counted)
    return Pools(
        _alive(run, scratch, align, bodies),
        persistent,
        outside,
        constants,
        rounded(constants, align) + sum(sizes),
        1 + len(sizes),
    )


def _all_constants(run: Run) -> Iterator[int]:
    yield from run.constants.values()
    for step in run.steps:
        for body in step.bodies:
            yield from _all_constants(body)


# --- a plan, byte by byte --------------------------------------------------------------------


class Memory:
    """Pools as arrays in units of the alignment; each unit records its last writer."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.unit = plan["align_bytes"]
        self.place: dict[str, tuple[str, int, int]] = {}
        ends: dict[str, int] = {}
        for buffer in plan["buffers"]:
            where = (buffer["pool"], buffer["offset_bytes"], buffer["size_bytes"])
            assert where[1] % self.unit == 0, f"{buffer['name']} is not aligned"
            assert where[2] % self.unit == 0, f"the size of {buffer['name']} is not rounded"
            ends[where[0]] = max(ends.get(where[0], 0), where[1] + where[2])
            for name in (buffer["name"], *buffer["aliases"]):
                self.place[name] = where
                # A number may distinguish a name from a taken branch.
                bare, _, number = name.rpartition("/")
                if number.isdecimal() and bare not in self.place:
                    self.place[bare] = where
        self.ends = ends
        self.units = {pool: np.full(end // self.unit + 1, -1) for pool, end in ends.items()}
        self.value: dict[str, int] = {}
        self.made = 0

    def _range(self, name: str, size: int) -> tuple[str, slice]:
        pool, start, room = self.place[name]
        assert size <= room, f"{name} needs {size} bytes, but its buffer has {room}"
        return pool, slice(start // self.unit, -(-(start + size) // self.unit))

    def write(self, name: str, size: int) -> None:
        """Write a new value."""
        self.made += 1
        self.value[name] = self.made
        pool, units = self._range(name, size)
        self.units[pool][units] = self.made

    def alias(self, name: str, source: str) -> None:
        """Give a value a second name."""
        self.value[name] = self.value[source]

    def check(self, name: str, size: int, when: str) -> None:
        """Fail if a byte of this value was overwritten."""
        pool, units = self._range(name, size)
        whole = bool((self.units[pool][units] == self.value[name]).all())
        assert whole, f"{name} is overwritten before {when}"

    def same_place(self, a: str, b: str) -> bool:
        """True if two tensors begin at the same byte."""
        return self.place[a][:2] == self.place[b][:2]


def execute_in(run: Run, plan: Mapping[str, Any], *, inplace: bool = False) -> None:
    """Run the model in the planned memory; fail at the first lost byte."""
    memory = Memory(plan)
    for name in run.inputs:
        memory.write(name, run.sizes[name])
    for at, step in _planned_order(run, plan):
        if step.bodies:
            name = next(n for n in memory.place if n.startswith(f"{step.name} (body)"))
            memory.write(name, memory.place[name][2])
        planned = [name for name in step.reads if name in memory.value]
        source = step.reads[0] if step.is_view else ""
        if source in memory.value and memory.same_place(source, step.writes[0]):
            memory.check(source, run.sizes[source], step.name)
            memory.alias(step.writes[0], source)
            continue
        over = {name for name in planned if inplace and memory.same_place(name, step.writes[0])}
        for name in over:  # each element is read before the result overwrites it
            memory.check(name, run.sizes[name], step.name)
            assert run.sizes[name] == run.sizes[step.writes[0]], f"{step.name} cannot run in place"
            assert name not in run.inputs, f"{step.name} overwrites an input"
            assert step.kind in ELEMENTWISE, f"{step.kind} reads what it has overwritten"
        for name in step.writes:
            memory.write(name, run.sizes[name])
        for name in planned:
            if name not in over:
                memory.check(name, run.sizes[name], f"step {at}, {step.name}, has read it")
        for name in step.writes:
            memory.check(name, run.sizes[name], f"step {at} ends")
    for name in run.outputs:
        if name in memory.value:
            memory.check(name, run.sizes[name], "the application reads it")


def _planned_order(run: Run, plan: Mapping[str, Any]) -> list[tuple[int, Step]]:
    """Return the steps in plan order; fail if the order breaks a dependency."""
    if plan["reorder"] is None:
        assert len(plan["ops"]) == len(run.steps), (plan["ops"], [s.name for s in run.steps])
        return list(enumerate(run.steps))
    by_name = {step.name: step for step in run.steps}
    assert len(by_name) == len(run.steps)
    assert sorted(by_name) == sorted(plan["ops"])
    order = [by_name[name] for name in plan["ops"]]
    made = {*run.inputs, *run.constants}
    written = {name for step in run.steps for name in step.writes}
    for step in order:
        missing = [name for name in step.reads if name in written and name not in made]
        assert not missing, f"{step.name} runs before {missing[0]} is made"
        made.update(step.writes)
    return list(enumerate(order))


def in_order(run: Run, names: Sequence[str]) -> Run:
    """Return the run with its steps in another order."""
    by_name = {step.name: step for step in run.steps}
    steps = tuple(by_name[name] for name in names)
    return Run(run.inputs, run.outputs, steps, run.sizes, run.constants)
