"""Runs a planned model op by op inside one arena.

Each op is executed by onnxruntime's own CPU kernels, reading and writing at the addresses the plan
chose. If two tensors that are alive together share a byte, the answer changes: comparing it bit by
bit with a plain run is a proof that does not depend on the planner's idea of lifetimes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qnnmem.errors import UsageError
from qnnmem.ir import Effect, Model, Op
from qnnmem.lpai.arena_memory import Memory, Placement, address_of, bytes_of
from qnnmem.lpai.arena_steps import Form, Program, Step, first_line, open_session, prepare

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

AfterStep = Callable[[int, Op, Memory], None]

# One wrong tensor makes all that follow wrong: more findings than this tell nothing new.
_MAX_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class ArenaRun:
    """What came out of a run, and what went wrong in it."""

    outputs: Mapping[str, NDArray[Any]]
    findings: tuple[str, ...]
    copied_bytes: int  # moved because a view has its own place or onnxruntime chose another
    outside: tuple[str, ...]  # IO the plan does not place
    opaque: tuple[str, ...]  # ops of several nodes or with bodies: their inner memory is not ours

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", MappingProxyType(dict(self.outputs)))

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        return not self.findings


def run_in_arena(
    proto: onnx.ModelProto,
    model: Model,
    offsets: Mapping[str, int],
    arena_bytes: int,
    feeds: Mapping[str, NDArray[Any]],
    *,
    reference: Mapping[str, NDArray[Any]] | None = None,
    after_step: AfterStep | None = None,
    folder: Path | None = None,
) -> ArenaRun:
    """Run `model` once with its tensors at `offsets`; see `run_program` for many runs."""
    program = prepare(proto, model, folder)
    placement = Placement(offsets, arena_bytes)
    return run_program(program, placement, feeds, reference=reference, after_step=after_step)


def run_program(
    program: Program,
    placement: Placement,
    feeds: Mapping[str, NDArray[Any]],
    *,
    reference: Mapping[str, NDArray[Any]] | None = None,
    after_step: AfterStep | None = None,
) -> ArenaRun:
    """Run a prepared model in an arena laid out by `placement`.

    Dead tensors are overwritten as soon as no op needs them. With a `reference`, every tensor in it
    is compared when it is written and again whenever it is read.
    """
    memory = Memory(program.model, placement)
    run = _Run(program, memory, reference or {})
    run.feed(feeds)
    dying = _deaths(program.model)
    for index, step in enumerate(program.steps):
        if not run.advance(step):
            return run.result({})
        run.bury(dying[index], step.op)
        if after_step is not None:
            after_step(index, step.op, memory)
    return run.result(run.outputs())


def plain_run(
    proto: onnx.ModelProto,
    feeds: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    folder: Path | None = None,
) -> dict[str, NDArray[Any]]:
    """Tensors of an ordinary onnxruntime run, inner ones too: what an arena run must equal."""
    import onnx

    given = {value.name for value in proto.graph.input}
    made = [name for name in names if name not in given]
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    used = {name: value for name, value in feeds.items() if name in given}
    try:
        results = open_session(copy, folder).run(made, used) if made else []
    except Exception as exc:  # onnxruntime's classes have no common base of their own
        raise UsageError(f"a plain run failed: {first_line(exc)}") from exc
    found = dict(zip(made, results, strict=True))
    return {name: found[name] if name in found else feeds[name] for name in names}


def same_bits(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Whether two arrays have the same shape, type and bytes; NaN equals itself."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool((bytes_of(first) == bytes_of(second)).all())


class _Run:
    """One execution under way."""

    def __init__(
        self, program: Program, memory: Memory, reference: Mapping[str, NDArray[Any]]
    ) -> None:
        self._program, self._memory, self._reference = program, memory, reference
        self._findings: list[str] = []
        self._copied = 0
        self._live: set[str] = set()

    def feed(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Put the inputs into their places."""
        for name in self._program.model.inputs:
            if name not in self._memory:
                continue  # an input with a default value, which the reader took as a constant
            if name not in feeds:
                raise UsageError(f"no value is given for input {name[:80]!r}")
            self._memory.write(name, feeds[name])
            self._live.add(name)

    def advance(self, step: Step) -> bool:
        """Run one op; False when it failed and the run cannot go on."""
        op = step.op
        for name in step.reads:
            self._compare(name, f"changed before op {_label(op)} read it")
        view = op.effect is Effect.VIEW
        shared = view and self._memory.shares_bytes(op.inputs[0], op.outputs[0])
        try:
            written = self._execute(step, op.outputs[0] if shared else None)
        except Exception as exc:  # onnxruntime's classes have no common base of their own
            self._note(f"op {_label(op)} failed: {first_line(exc)}")
            return False
        if shared and (bytes_of(written) != self._memory.raw(op.outputs[0])).any():
            self._note(f"op {_label(op)} is no view: its output has other bytes than its input")
        elif view and not shared:
            self._copied += self._memory.raw(op.outputs[0]).size
        for name in op.outputs:
            self._compare(name, f"differs from the plain run after op {_label(op)}")
        return True

    def bury(self, dead: Sequence[str], op: Op) -> None:
        """Overwrite what no later op reads."""
        self._live.update(op.outputs)
        self._live.difference_update(dead)
        self._memory.poison(dead, self._live)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Model outputs, copied out of the arena."""
        constants, found = self._program.constants, {}
        for name in self._program.model.outputs:
            if name in self._memory:
                self._compare(name, "changed before the end of the run")
                found[name] = self._memory.array(name).copy()
            else:
                found[name] = constants[name]
        return found

    def result(self, outputs: Mapping[str, NDArray[Any]]) -> ArenaRun:
        """Everything about the run."""
        for zone in self._memory.arena.broken_guards():
            self._note(f"bytes {zone} the arena were overwritten")
        ops = [step.op for step in self._program.steps if step.session is not None]
        opaque = tuple(op.name for op in ops if op.bodies or len(op.sources) > 1)
        outside = tuple(self._memory.outside)
        return ArenaRun(outputs, tuple(self._findings), self._copied, outside, opaque)

    def _execute(self, step: Step, aside: str | None) -> NDArray[Any]:
        """Run the op's session in place; output `aside` goes to memory of its own, returned."""
        import numpy

        if step.session is None:
            for name in step.op.outputs:
                self._memory.write(name, self._program.constants[name])
            return numpy.empty(0, numpy.uint8)
        binding = step.session.io_binding()
        for name in step.reads:
            _bind(binding.bind_input, name, step.forms[name], self._home(name))
        spare = numpy.empty(self._memory.raw(aside).size if aside else 0, numpy.uint8)
        homes = [spare if name == aside else self._memory.raw(name) for name in step.op.outputs]
        for name, home in zip(step.op.outputs, homes, strict=True):
            _bind(binding.bind_output, name, step.forms[name], home)
        step.session.run_with_iobinding(binding)
        for home, value in zip(homes, binding.get_outputs(), strict=True):
            if home.size and value.data_ptr() != address_of(home):
                home[:] = bytes_of(value.numpy())
                self._copied += home.size
        return spare

    def _home(self, name: str) -> NDArray[Any]:
        return self._memory.raw(name) if name in self._memory else self._program.constants[name]

    def _compare(self, name: str, problem: str) -> None:
        expected = self._reference.get(name)
        if expected is None or name not in self._memory:
            return
        want, have = bytes_of(expected), self._memory.raw(name)
        if want.size != have.size:
            self._note(f"{name[:80]!r} has {have.size:,} bytes, {want.size:,} in the plain run")
        elif (want != have).any():
            self._note(f"{name[:80]!r} {problem}, first at byte {(want != have).argmax():,}")

    def _note(self, finding: str) -> None:
        if len(self._findings) < _MAX_FINDINGS:
            self._findings.append(finding)


def _deaths(model: Model) -> list[list[str]]:
    """For each op the tensors that nothing after it needs; model outputs never die."""
    last = {name: at for at, op in enumerate(model.ops) for name in (*op.outputs, *op.inputs)}
    keep = {*model.outputs, *model.constants}
    dying: list[list[str]] = [[] for _ in model.ops]
    for name, at in last.items():
        if name not in keep:
            dying[at].append(name)
    return dying


def _bind(bind: Callable[..., None], name: str, form: Form, home: NDArray[Any]) -> None:
    bind(name, "cpu", 0, form.element, form.shape, address_of(home))


def _label(op: Op) -> str:
    return f"{op.name[:80]!r} ({op.type[:40]})"
