"""Offline preparation: from model files to a compiled context with every offset fixed.

    state hidden in ops becomes explicit        Buffer windows; RNN state if requested
    a float model is quantized or refused       LPAI computes with 8 and 16 bits only
    all pools are planned                       the plan of `qnnmem plan`
    the program is put in planned order         and run once in a child process as a test
    constants are stored once                   graphs for several shapes have the same weights

Files other than ONNX, TFLite and DLC become a layout: memory calls can be tested, but nothing can
be executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.arguments import expect
from qnnmem.deadline import Deadline
from qnnmem.errors import (
    FloatModel,
    LoadError,
    Setting,
    UsageError,
    Words,
    chain_words,
    join_words,
    spaced,
)
from qnnmem.flags import flag_word
from qnnmem.ir import Effect, Model
from qnnmem.ir.lifetime import reordered
from qnnmem.loader.onnx import FixedSizes
from qnnmem.lpai.compiled import CONSTANT_ALIGN, CompiledContext, CompiledGraph, Constant, Quant
from qnnmem.lpai.prepare_options import PrepareOptions, as_files, as_prepare_options
from qnnmem.lpai.program.state_window import BufferWindow
from qnnmem.lpai.quantize import quantize_model
from qnnmem.lpai.quantize.precision import Obstacle, classify, find_control, find_obstacle
from qnnmem.lpai.tcm import BinaryTcm
from qnnmem.planner import MemoryPlan, PlacedBuffer, PoolOptions, plan_model
from qnnmem.planner.planned_file import search_missing_note
from qnnmem.planner.problem_plan import Watcher
from qnnmem.planner.tcm_pool import TcmVerdict
from qnnmem.results.prepared import LARGE_ERROR, PreparedBinary, PreparedGraph, QuantizedGraph
from qnnmem.results.result import finite
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import quote
from qnnmem.units import Offset, round_up

if TYPE_CHECKING:
    import onnx

    from qnnmem.qnn.graph import ComposedGraph


Say = Callable[[str], None]
# By file format: the program that quantizes it, because qnnmem cannot.
_QUANTIZERS = {"dlc": "the vendor's quantizer", "tflite": "TensorFlow's converter"}
# Default time limits of the steps, in seconds.
_READ_S, _QUANTIZE_S, _PLAN_S, _TRY_S = 60.0, 600.0, 10.0, 120.0
# Extra time for reading files and starting processes, as the limit itself is for planning.
ROOM_S = 10.0


class ConstantBlock:
    """The constants of a binary; each graph appends its constants."""

    def __init__(self) -> None:
        self._block = bytearray()
        self._places: dict[tuple[int, bytes], Offset] = {}

    def store(self, graph: CompiledGraph, content: bytes) -> CompiledGraph:
        """Add a graph's constants to the block; return the graph with its new offsets.

        `content` holds the bytes of the graph's constants at their present offsets. A constant that
        an earlier graph stored is not stored again.
        """
        view = memoryview(content)
        added: dict[tuple[int, bytes], Offset] = {}
        constants: list[Constant] = []
        for constant in graph.constants:
            own = view[constant.offset : constant.offset + constant.size]
            key = (len(own), hashlib.sha256(own).digest())
            offset = self._places.get(key)
            if offset is None:
                offset = added[key] = self._append(own)
            constants.append(replace(constant, offset=offset))
        self._places |= added  # only now: equal constants of one graph stay separate
        return replace(graph, constants=tuple(constants))

    def _append(self, content: memoryview) -> Offset:
        offset = Offset(round_up(len(self._block), CONSTANT_ALIGN))
        self._block.extend(bytes(offset - len(self._block)))
        self._block.extend(content)
        return offset

    def view(self) -> memoryview:
        """Return a read-only copy of all constants."""
        return memoryview(bytes(self._block))


@dataclass(frozen=True, slots=True, repr=False)
class Prepared:
    """A compiled context and the plans of its graphs."""

    context: CompiledContext
    plans: tuple[MemoryPlan, ...]
    notes: tuple[Words, ...]
    # Quantization errors, by name of a graph that was quantized during preparation.
    errors: Mapping[str, QuantizedGraph] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a one-line summary of the plans."""
        return f"<Prepared: {', '.join(map(repr, self.plans[:4]))}{', …' * (len(self.plans) > 4)}>"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes for the user; settings have their Python names."""
        return tuple(join_words(note) for note in self.notes)

    def write(self, path: Path | str, *, force: bool = True) -> int:
        """Write the context binary that `open` reads, and return its size in bytes."""
        from qnnmem.lpai.binary import write

        expect(path, (Path, str), "`write` needs the path of the binary to create")
        return write(self.context, path, force=force)


@dataclass(frozen=True)
class _Loaded:
    model: Model
    proto: onnx.ModelProto | None
    folder: Path | None
    states: tuple[tuple[str, str], ...]
    windows: tuple[BufferWindow, ...] = ()
    notes: tuple[str, ...] = ()
    error: QuantizedGraph | None = None


_Read = tuple[_Loaded, tuple[Words, ...]]


def prepare(
    files: Mapping[str, Path | str] | Sequence[Path | str] | Path | str,
    options: PrepareOptions | Mapping[str, Any] | None = None,
    say: Say | None = None,
    watch: Watcher | None = None,
) -> Prepared:
    """Return a context with one graph per file; `watch` receives the planner's progress.

    For a path without a graph name, the graph has the name of its file.
    """
    files, options = as_files(files), as_prepare_options(options)
    for name, call in (("say", say), ("watch", watch)):
        if call is not None and not callable(call):
            raise UsageError(f"{name} must be a function, not {quote(call)}")
    say = say or (lambda _text: None)

    def load(path: Path | str, folder: Path, deadline: Deadline) -> _Read:
        return _load(Path(path), options, folder, say, deadline)

    return _prepare(
        {name: partial(load, path) for name, path in files.items()}, options, say, watch
    )


def prepare_composed(
    graphs: Sequence[ComposedGraph], options: PrepareOptions | Mapping[str, Any] | None = None
) -> Prepared:
    """Return a context of composed graphs; raise NotTranslated for ops that cannot be executed."""
    from qnnmem.loader.dlc.model import as_model
    from qnnmem.loader.dlc.operators import translate

    options = as_prepare_options(options)

    def load(graph: ComposedGraph, _folder: Path, _deadline: Deadline) -> _Read:
        place = Path(graph.name)
        model, proto = translate(graph, as_model(place, graph))
        loaded = _Loaded(model, proto, None, options.states, (), model.notes)
        _refuse_float(place, loaded, options)
        return loaded, ()

    loads = {graph.name: partial(load, graph) for graph in graphs}
    return _prepare(loads, options, lambda _text: None, None)


def _prepare(
    loads: Mapping[str, Callable[[Path, Deadline], _Read]],
    options: PrepareOptions,
    say: Say,
    watch: Watcher | None,
) -> Prepared:
    from qnnmem.version import __version__

    graphs: list[CompiledGraph] = []
    plans: list[MemoryPlan] = []
    warnings: list[Words] = []
    errors: dict[str, QuantizedGraph] = {}
    block = ConstantBlock()
    deadline = Deadline.after(options.time_limit_s, ROOM_S)
    for name, load in loads.items():
        with deadline.enforced(), temporary_folder() as folder:
            loaded, notes = load(Path(folder), deadline)
            warnings += notes
            if loaded.error is not None:
                errors[name] = loaded.error
            say(f"planning {name}")
            graph, plan, constants = _compile(name, loaded, options, say, deadline, watch)
        warnings += _likely_states(plan.likely_states)
        graphs.append(block.store(graph, constants))
        plans.append(plan)
    context = CompiledContext(
        tuple(graphs), options.hw_version, f"qnnmem {__version__}", block.view()
    )
    return Prepared(context, tuple(plans), tuple(warnings), errors)


def _likely_states(pairs: Sequence[tuple[str, str]]) -> list[Words]:
    """Return a note about likely state pairs, with all settings in one line, ready to copy."""
    settings = [Setting("states", f"{old}={new}") for old, new in pairs]
    if len(settings) > 1:
        what = f"{len(settings)} pairs of an input and an output look like state; "
        return [(what, *spaced(settings), " keep them in persistent memory")]
    return [
        (f"{old} and {new} look like state; ", setting, " keeps it in persistent memory")
        for (old, new), setting in zip(pairs, settings, strict=True)
    ]


def _load(
    path: Path, options: PrepareOptions, folder: Path, say: Say, deadline: Deadline
) -> tuple[_Loaded, tuple[Words, ...]]:
    from qnnmem.loader import kind_of
    from qnnmem.loader.file_kind import is_library

    library = is_library(path, trust=options.trust)
    kind = "library" if library else kind_of(path)
    if library or kind == "dlc":
        return _load_composed(path, options, say, deadline, trusted=library), ()
    if kind == "tflite":
        return _load_tflite(path, options, say), ()
    if kind != "onnx":
        return _load_layout(path, options), ()
    from qnnmem.loader.onnx import read_with_graph
    from qnnmem.lpai.program.state import rewrite_states

    say(f"reading {path.name}")
    (rewritten_to := folder / "state").mkdir()
    rewritten = rewrite_states(
        path,
        rewritten_to,
        keep_rnn_state=options.rnn_state,
        time_limit_s=deadline.left(_READ_S),
        **options.sizes,
    )
    states = (*options.states, *rewritten.states)
    source, sizes = rewritten.path, options.sizes
    warnings: tuple[Words, ...] = rewritten.notes
    error: QuantizedGraph | None = None
    if options.quantize is not None:
        source = folder / f"{path.stem}.onnx"
        quantize_notes, error = _quantize(rewritten.path, source, states, options, say, deadline)
        warnings += quantize_notes
        # The quantized model contains the other settings.
        inner = {name: s for name, s in options.shapes.items() if name not in options.values}
        sizes = FixedSizes(shapes=inner)
    try:
        model, proto = read_with_graph(source, time_limit_s=deadline.left(_READ_S), **sizes)
    except LoadError as exc:
        if source.parent != folder:
            raise
        raise _original_error(path, source, exc, allow_float=options.allow_float) from exc
    notes = (*rewritten.notes, *model.notes, *(() if error is None else (error.sentence,)))
    loaded = _Loaded(model, proto, source.parent, states, rewritten.windows, notes, error)
    _refuse_float(path, loaded, options)
    return loaded, warnings


def _original_error(
    path: Path, quantized: Path, error: LoadError, *, allow_float: bool
) -> LoadError:
    """Return an error that names the user's model instead of its quantized copy."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    from qnnmem.loader.onnx.well_formed import sort_nodes

    obstacle = None
    with suppress(DecodeError):
        model = onnx.load(quantized, load_external_data=False)
        sort_nodes(path, model.graph)  # the quantizer appends its nodes at the end
        obstacle = find_control(model)
    if obstacle is not None and not allow_float:
        return LoadError(path, "cannot be prepared for LPAI", cure=obstacle.words)
    what = chain_words("cannot be prepared after quantization: ", error.what)
    return LoadError(path, what, cure=error.cure)


def _load_composed(
    path: Path, options: PrepareOptions, say: Say, deadline: Deadline, *, trusted: bool
) -> _Loaded:
    """Return the graph of a DLC, or of a trusted model library."""
    from qnnmem.loader.dlc import read_with_graph

    _refuse_rewriting(path, options)
    for name in ("dims", "shapes", "values"):
        if getattr(options, name):
            raise UsageError((f"{path} has fixed shapes; ", Setting(name), " is for ONNX models"))
    say(f"reading {path.name}")
    model, proto = read_with_graph(path, deadline.left(_READ_S), trusted=trusted)
    loaded = _Loaded(model, proto, None, options.states, (), model.notes)
    _refuse_float(path, loaded, options)
    return loaded


def _refuse_rewriting(path: Path, options: PrepareOptions) -> None:
    if options.quantize is not None or options.rnn_state:
        setting = Setting("quantize" if options.quantize is not None else "rnn_state")
        raise UsageError((setting, " is for ONNX models"), where=path)


def _load_tflite(path: Path, options: PrepareOptions, say: Say) -> _Loaded:
    from qnnmem.loader.tflite import read_with_graph

    _refuse_rewriting(path, options)
    if options.values:
        raise UsageError((Setting("values"), " is for ONNX models"), where=path)
    say(f"reading {path.name}")
    model, proto, states = read_with_graph(path, shapes=options.shapes, dims=options.dims)
    loaded = _Loaded(model, proto, None, (*options.states, *states), (), model.notes)
    _refuse_float(path, loaded, options)
    return loaded


def _load_layout(path: Path, options: PrepareOptions) -> _Loaded:
    from qnnmem.loader import load

    _refuse_rewriting(path, options)
    model = load(path, **options.sizes)
    note = "layout only, without a program: memory calls can be tested, but nothing can be executed"
    loaded = _Loaded(model, None, None, options.states, (), (*model.notes, note))
    _refuse_float(path, loaded, options)
    return loaded


def _quantize(
    path: Path,
    target: Path,
    states: Sequence[tuple[str, str]],
    options: PrepareOptions,
    say: Say,
    deadline: Deadline,
) -> tuple[tuple[Words, ...], QuantizedGraph | None]:
    bits, weight_bits = options.quantize, options.weight_bits
    if bits is None:
        return (), None
    say(f"quantizing {path.name}")
    result = quantize_model(
        path,
        target,
        bits=bits,
        weight_bits=weight_bits,
        calibration=None if options.calibration is None else Path(options.calibration),
        seed=options.seed,
        states=states,
        time_limit_s=deadline.left(_QUANTIZE_S),
        progress=say,
        **options.sizes,
    )
    if result.worst_error is None:
        return result.notes, None
    return result.notes, QuantizedGraph(
        bits=bits,
        weight_bits=weight_bits,
        error=finite(result.worst_error),
        error_is_large=result.worst_error > LARGE_ERROR,
        made_up_samples=result.seeded_random,
        tried=result.tried,
    )


def _refuse_float(path: Path, loaded: _Loaded, options: PrepareOptions) -> None:
    precision = classify(loaded.model)
    if precision.is_quantized or options.allow_float:
        return
    # Names help to find the remaining float ops; if all ops are float, names are useless.
    all_float = len(precision.float_ops) == precision.ops
    ops = precision.sentence.partition(":")[0] if all_float else precision.sentence
    what = f"LPAI runs only 8- and 16-bit models; {ops}"
    quantizer = _QUANTIZERS.get(loaded.model.format)
    if quantizer is not None:
        cure = f"quantize the model with {quantizer}"
        raise FloatModel(path, what, quantizable=False, obstacle=cure)
    if loaded.proto is None:
        raise FloatModel(path, what, quantizable=False)
    obstacle = None if options.quantize else find_obstacle(loaded.proto)
    obstacle = obstacle or find_control(loaded.proto)
    if obstacle is not None and not obstacle.runs_unquantized:
        raise UsageError(what, where=path, cure=obstacle.words)
    if obstacle is None and options.quantize:
        obstacle = Obstacle("quantization does not change these ops")
    words = "" if obstacle is None else obstacle.words
    raise FloatModel(path, what, quantizable=obstacle is None, obstacle=words)


def _compile(
    name: str,
    loaded: _Loaded,
    options: PrepareOptions,
    say: Say,
    deadline: Deadline,
    watch: Watcher | None,
) -> tuple[CompiledGraph, MemoryPlan, bytes]:
    """Return one graph, its plan, and its constants, whose offsets begin at 0."""
    pools = PoolOptions(align=options.align)  # a buffer list takes no other options
    if loaded.model.format != "csv":
        pools = PoolOptions(
            io=options.io,
            align=options.align,
            states=loaded.states,
            inplace=options.inplace,
            reorder=options.reorder and not loaded.windows,
        )
    model = _copying_old_state(_with_windows(loaded.model, loaded.windows), loaded.states)
    plan = plan_model(
        model,
        pools,
        time_limit=min(options.time_limit_s or _PLAN_S, deadline.left(_PLAN_S)),
        watch=watch,
    )
    graph = CompiledGraph(
        name=name,
        model=replace(plan.model, encodings={}),  # `quants` has them
        buffers=_placed_once(plan.buffers),
        scratch_bytes=plan.scratch_bytes,
        persistent_bytes=plan.persistent_bytes,
        align=plan.align,
        io=plan.options.io,
        states=plan.options.states,
        windows=tuple(window.kept for window in loaded.windows),
        quants={name: Quant(*encoding) for name, encoding in model.encodings.items()},
        notes=loaded.notes,
        float_ops=len(classify(loaded.model).float_ops),
    )
    if loaded.proto is None:
        return graph, plan, b""
    say(f"trying {name}")
    graph, constants = _with_program(graph, loaded.proto, loaded.folder, deadline)
    return graph, plan, constants


def _copying_old_state(model: Model, states: Sequence[tuple[str, str]]) -> Model:
    """Return the model with outputs that copy the old state instead of sharing its memory.

    After an execution, the memory of the old state contains the new state.
    """
    old = {name for name, _ in states}
    outputs = set(model.outputs)
    both = next((name for name in model.outputs if name in old), None)
    if both is not None:
        raise UsageError(
            f"the old state {quote(both)} is also an output, but when the output is read, its "
            "memory already holds the new state; let the model output a copy with another name"
        )
    views = set(old)
    ops = []
    for op in model.ops:
        if op.effect is Effect.VIEW and op.inputs[0] in views:
            if outputs.isdisjoint(op.outputs):
                views.add(op.outputs[0])
            else:
                op = replace(op, effect=Effect.COMPUTE)
        ops.append(op)
    return replace(model, ops=tuple(ops))


def _placed_once(buffers: Sequence[PlacedBuffer]) -> tuple[PlacedBuffer, ...]:
    """Return the buffers, without the aliases that have a buffer of their own.

    The runtime copies the content of such an alias.
    """
    own = {buffer.name for buffer in buffers}
    return tuple(
        replace(buffer, aliases=tuple(name for name in buffer.aliases if name not in own))
        for buffer in buffers
    )


def _with_program(
    graph: CompiledGraph,
    proto: onnx.ModelProto,
    folder: Path | None,
    deadline: Deadline,
) -> tuple[CompiledGraph, bytes]:
    from qnnmem.lpai.program import arrange
    from qnnmem.lpai.program.run import Parts, runs_in_order

    program = arrange(proto, graph.model, folder, time_limit_s=deadline.left(_READ_S))
    constants = program.constant_bytes()
    graph = replace(
        graph,
        model=program.model,
        quants={**program.quants, **graph.quants},
        constants=program.constants,
        program=program.proto.SerializeToString(deterministic=True),
    )
    in_order = runs_in_order(Parts(graph, memoryview(constants)), deadline.left(_TRY_S))
    return replace(graph, in_order=in_order), constants


def _with_windows(model: Model, windows: Sequence[BufferWindow]) -> Model:
    """Return the model with its ops ordered so that a blocking window can stop an execution.

    The ops that wait for no window come first; among them, the ops that fill windows come last.
    Then come the ops that wait only for these windows, and so on.
    """
    blocking = {window.kept.new: window for window in windows if window.kept.blocking}
    if not blocking:
        return model
    level_of: dict[str, int] = {}  # by tensor: the number of consecutive windows that it waits for
    gated: dict[str, int] = {}  # state that must wait although no tensor dependency shows it
    levels = []
    for op in model.ops:
        level = max((level_of.get(name, 0) for name in op.inputs), default=0)
        level = max(level, *(gated.get(name, 0) for name in op.outputs), 0)
        filled = [blocking[name] for name in op.outputs if name in blocking]
        levels.append((level, bool(filled)))
        level_of.update(dict.fromkeys(op.outputs, level + bool(filled)))
        for window in filled:
            gated.update(dict.fromkeys(window.gated, level + 1))
    return reordered(model, sorted(range(len(levels)), key=levels.__getitem__))


def prepared_binary(
    prepared: Prepared,
    tcm: BinaryTcm,
    path: str,
    file_bytes: int,
    *,
    notes: Sequence[str],
    next_steps: Sequence[str],
) -> PreparedBinary:
    """Return the result of preparing the binary at `path`; `notes` are about the request."""
    context = prepared.context
    graphs = zip(context.graphs, prepared.plans, tcm.graphs, strict=True)
    return PreparedBinary(
        file=path,
        file_bytes=file_bytes,
        hw_version=context.hw_version,
        graphs=tuple(_graph(*graph, prepared.errors.get(graph[0].name)) for graph in graphs),
        notes=tuple(all_notes(prepared, notes)),
        next=tuple(next_steps),
    )


def all_notes(prepared: Prepared, notes: Sequence[str]) -> list[str]:
    """Return the notes about the request, followed by those about models and missing packages."""
    known = [*notes, *(join_words(note, flag_word) for note in prepared.notes)]
    missing = any(plan.search_missing for plan in prepared.plans)
    return [*known, search_missing_note()] if missing else known


def _graph(
    graph: CompiledGraph, plan: MemoryPlan, tcm: TcmVerdict | None, error: QuantizedGraph | None
) -> PreparedGraph:
    return PreparedGraph(
        name=graph.name,
        ops=len(graph.model.ops),
        scratch_bytes=graph.scratch_bytes,
        optimal=plan.scratch.optimal,
        proof=plan.proof,
        persistent_bytes=graph.persistent_bytes,
        io_bytes=sum(size for _, size in plan.io_sizes),
        io=graph.io.value,
        executable=bool(graph.program),
        float_ops=graph.float_ops,
        tcm_bytes=None if tcm is None else tcm.need,
        fits_tcm=None if tcm is None else tcm.fits,
        quantized=error,
    )
