"""Convenience API that opens, runs and closes a prepared model, and allocates all its memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from qnnmem.arguments import expect
from qnnmem.contract.rules import finding
from qnnmem.errors import UsageError
from qnnmem.finding import Finding
from qnnmem.ir import Tensor
from qnnmem.lpai.binary import map_file
from qnnmem.lpai.compiled import CompiledGraph, Quant
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.runtime.backend import Backend, Log
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import Config, Mem, ask, custom
from qnnmem.lpai.runtime.execution import Counters
from qnnmem.lpai.runtime.graph import EARLY_TERMINATION, Graph
from qnnmem.lpai.runtime.graph_io import to_float, to_native, typed
from qnnmem.lpai.runtime.heap import Extensions, HeapBuffer
from qnnmem.lpai.runtime.system_context import io_tensors
from qnnmem.planner import Io
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import (
    BackendProperty,
    ContextCustomOption,
    ContextOption,
    GraphOption,
    GraphProperty,
    MemType,
)
from qnnmem.qnn.tensor import QnnTensor
from qnnmem.text import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]
Timed = Callable[[str], AbstractContextManager[object]]  # measures the named call
POOLS = (
    (GraphProperty.GET_PROP_SCRATCH_MEM_SIZE, GraphOption.SET_CFG_SCRATCH_MEM),
    (GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE, GraphOption.SET_CFG_PERSISTENT_MEM),
)
_SHOWN = 4  # number of inputs or outputs shown


class Session:
    """A graph of a context binary, ready to run.

    Threads may share a session: its runs are serialized, each with its own inputs and outputs. All
    threads share the state.

    A quantized input accepts real numbers, which are quantized, or stored values. A quantized
    output is returned as real numbers in float32 or, if `native` is true, as stored values. Outputs
    that are not quantized, such as indexes, are returned unchanged.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        graph: str | None = None,
        profile: Profile | None = None,
        mem_type: str = "ddr",
        sanitize: bool = True,
        trusted: bool = False,
        log: Log | None = None,
        native: bool = False,
    ) -> None:
        _check_words(path, graph, mem_type)
        expect(native, bool, "native must be True or False")
        self._native = native
        self._closing = Lock()
        self.backend = Backend.create(profile=profile, log=log)
        self._extensions = Extensions(self.backend, mem_type)
        self._buffers: list[HeapBuffer] = []
        self._context: Context | None = None
        try:
            self.graph: Graph = self._open(map_file(path), graph, sanitize, trusted)
            self._set_up()
        except BaseException:
            self.close()
            raise

    @property
    def context(self) -> Context:
        """The context of the binary."""
        if self._context is None:
            raise AssertionError("the session has no context")
        return self._context

    def _open(self, content: memoryview, graph: str | None, sanitize: bool, trusted: bool) -> Graph:
        ask(self.backend.get_property, BackendProperty.GET_PROP_ALIGNMENT_REQ)
        self._binary = self._read(content)
        configs = [Config(ContextOption.PERSISTENT_BINARY, True)]
        if self._extensions.mem_type is MemType.TCM:
            configs.append(custom(ContextCustomOption.MODEL_BUFFER_MEM_TYPE, MemType.TCM))
        self._context = Context.create_from_binary(
            self.backend, self._binary, configs, sanitize=sanitize, trusted=trusted
        )
        names = [compiled.name for compiled in self._context.compiled.graphs]
        if graph is None and len(names) > 1:
            shown = ", ".join(map(quote, names[:8]))
            raise UsageError(f"the binary has several graphs; choose one of {shown}")
        return self._context.graph_retrieve(graph or names[0])

    def run(self, feeds: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> Arrays:
        """Run one inference and return its outputs; see `Session` for their form.

        Several mappings are successive frames of a streaming model; the run consumes as many as
        the model's windows need.
        """
        if hasattr(feeds, "__array__"):
            known = ", ".join(quote(name) for name in self.compiled.inputs[:_SHOWN])
            raise UsageError(f"pass arrays by input name: {known}")
        outputs = self.feed(feeds) if isinstance(feeds, Mapping) else self._fill(_frames(feeds))
        if outputs is not None:
            return outputs
        sentence = "the windows of the model are not full yet"
        cure = "pass further frames, or pass all frames in one call as a list"
        raise qnn_error(EARLY_TERMINATION, finding("R5", sentence, cure=cure))

    def _fill(self, frames: Iterable[Mapping[str, Any]]) -> Arrays | None:
        """Execute with successive frames until an execution completes, and return its outputs.

        Other threads wait meanwhile, so that their frames cannot come in between.
        """
        return self.graph.undisturbed(lambda: next(self.stream(frames), None))

    def feed(self, feeds: Mapping[str, Any]) -> Arrays | None:
        """Execute once; return the outputs, or None if a window needs more frames.

        Later executions do not change the returned arrays.
        """
        if not isinstance(feeds, Mapping):
            raise UsageError("inputs must be a mapping from input names to arrays")
        unknown = [name for name in feeds if name not in self.compiled.inputs]
        if unknown:
            known = ", ".join(quote(name) for name in self.compiled.inputs[:8])
            raise UsageError(f"{quote(str(unknown[0]))} is not an input; the inputs are {known}")
        missing = [name for name in self.compiled.inputs if name not in feeds]
        if missing:
            raise UsageError(f"no value is given for input {quote(missing[0])}")
        return self.graph.undisturbed(lambda: self._execute(feeds))

    def _execute(self, feeds: Mapping[str, Any]) -> Arrays | None:
        for name in self.compiled.inputs:
            self._write(name, feeds[name])
        if self.graph.execute(self._inputs, self._outputs) == EARLY_TERMINATION:
            return None
        return {name: self._read_output(name) for name in self.compiled.outputs}

    def _read_output(self, name: str) -> NDArray[Any]:
        stored = self._array(name)
        return to_float(stored, self._real[name]) if name in self._real else stored.copy()

    @property
    def _real(self) -> Mapping[str, Quant]:
        """The quantization of each tensor that is returned as real numbers."""
        return {} if self._native else self.compiled.quants

    def stream(self, frames: Iterable[Mapping[str, Any]]) -> Iterator[Arrays]:
        """Execute for each frame and yield the outputs of every execution that completes."""
        for frame in _frames(frames):
            outputs = self.feed(frame)
            if outputs is not None:
                yield outputs

    def reset(self) -> None:
        """Reset all state."""
        self.graph.reset()

    def snapshot(self) -> tuple[bytes, dict[str, int]]:
        """Return a copy of the state for `restore`."""
        return self.graph.snapshot()

    def restore(self, saved: tuple[bytes, dict[str, int]]) -> None:
        """Restore the state from a snapshot."""
        self.graph.restore(saved)

    @property
    def compiled(self) -> CompiledGraph:
        """The prepared graph."""
        return self.graph.compiled

    @property
    def counters(self) -> Counters:
        """Counts of executions, early terminations and copied bytes so far."""
        return self.graph.counters

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings about broken rules so far."""
        return tuple(self.backend.findings)

    def __repr__(self) -> str:
        """Return a one-line summary with the types and shapes of inputs and outputs.

        Inputs are shown with their stored types, outputs with the types that `run` returns.
        """
        shown = (
            self._shown(self.compiled.inputs, ()),
            self._shown(self.compiled.outputs, self._real),
        )
        return f"<Session of {quote(self.compiled.name)}: {' -> '.join(shown)}>"

    def _shown(self, names: Sequence[str], real: Collection[str]) -> str:
        tensors = [self.compiled.model.tensors[name] for name in names[:_SHOWN]]
        kinds = ("float32" if t.name in real else t.dtype.value for t in tensors)
        words = (
            f"{quote(t.name)} {kind} {list(t.shape)}"
            for t, kind in zip(tensors, kinds, strict=True)
        )
        return ", ".join(words) + ", …" * (len(names) > _SHOWN)

    def close(self) -> None:
        """Free the context, then the memory that it used, in the documented order."""
        with self._closing:
            if self._context is not None and not self._context.is_freed:
                self._context.free()
                self._extensions.note_overruns()
            if not self.backend.is_freed:
                self.backend.free()
                self._buffers.clear()
                self._extensions.free_tcm()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _read(self, content: memoryview) -> Any:
        """Return the binary in memory: mapped from its file, or copied if the session uses TCM."""
        if self._extensions.mem_type is MemType.DDR:
            return content
        buffer = self._extensions.allocate(len(content), "model binary")
        buffer.view[: len(content)] = content
        return buffer.view[: len(content)]

    def _set_up(self) -> None:
        self._buffers = hand_over_pools(self.graph, self._extensions)
        self.graph.finalize()
        self._io: dict[str, NDArray[Any]] = {}
        self._inputs: list[QnnTensor] | None = None
        self._outputs: list[QnnTensor] | None = None
        if self._extensions.mem_type is not MemType.DDR or self.compiled.io is Io.OUTSIDE:
            self._inputs, self._outputs = map(list, io_tensors(self.compiled))
            tensors = (*self._inputs, *self._outputs)
            self._io = self._extensions.bring_io(self.compiled, tensors, "tensor")

    def _array(self, name: str) -> NDArray[Any]:
        if name in self._io:
            return typed(self._io[name], self.compiled.model.tensors[name])
        return self.graph.view(name).array

    def _write(self, name: str, value: Any) -> None:
        """Write an input to where the graph reads it, quantized if necessary."""
        import numpy

        tensor: Tensor = self.compiled.model.tensors[name]
        try:
            array = numpy.asarray(value)
        except (ValueError, TypeError, OverflowError) as exc:
            raise UsageError(
                f"the value of input {quote(name)} is not a valid array; all rows of a "
                "list must have equal length and contain numbers"
            ) from exc
        quant = self.compiled.quants.get(name)
        is_real = array.dtype.kind == "f" and quant is not None and not tensor.dtype.is_float
        target = self._array(name)
        if array.shape != target.shape or not (is_real or array.dtype == target.dtype):
            real = quant is not None and not tensor.dtype.is_float
            kind = f"{target.dtype.name}{' or real numbers' if real else ''}"
            raise UsageError(
                f"input {quote(name)} must be {kind} {list(target.shape)}, not "
                f"{array.dtype.name} {list(array.shape)}"
            )
        target[...] = to_native(array, tensor, quant) if is_real else array


def hand_over_pools(
    graph: Graph,
    extensions: Extensions,
    timed: Timed = nullcontext,
    scratch: HeapBuffer | None = None,
) -> list[HeapBuffer]:
    """Allocate scratch and persistent memory in the required sizes, and pass both to the graph.

    Return the buffers. `scratch` is a buffer shared by graphs that never execute at the same time.
    """
    buffers = []
    for size_property, option in POOLS:
        with timed("QnnGraph_getProperty"):
            size = ask(graph.get_property, size_property)
        if size:
            if scratch is not None and option is GraphOption.SET_CFG_SCRATCH_MEM:
                buffer = scratch
            else:
                buffer = extensions.allocate_pool(size, option.name)
            buffers.append(buffer)
            config = custom(option, Mem(MemType.DDR, buffer.size, buffer))
            with timed("QnnGraph_setConfig"):
                graph.set_config([config, None])
    return buffers


def _check_words(path: object, graph: object, mem_type: object) -> None:
    if not isinstance(path, str | Path):
        raise UsageError(f"a {type(path).__name__} is not the path of a context binary")
    if not isinstance(graph, str | None) or not isinstance(mem_type, str):
        raise UsageError("the graph and the memory type must be names")


def _frames(frames: object) -> Iterable[Mapping[str, Any]]:
    """Return an iterable of frames; raise UsageError for anything else, such as an array."""
    if not isinstance(frames, Iterable) or hasattr(frames, "__array__") or _is_bytes(frames):
        raise UsageError("frames must be a list of mappings from input names to arrays")
    return frames


def _is_bytes(frames: object) -> bool:
    try:
        memoryview(frames).release()  # type: ignore[arg-type]  # whether it can is the question
    except TypeError:
        return isinstance(frames, str)
    except ValueError:  # released or closed
        return True
    return True
