"""Sorts the lifetimes of a model into pools."""

from __future__ import annotations

from collections.abc import Iterable

from qnnmem.ir.lifetime import Lifetime, Role, lifetimes, stored_bytes
from qnnmem.ir.model import Buffer, Model, Op
from qnnmem.ir.span import Span
from qnnmem.planner.effort import Effort
from qnnmem.planner.pools import Io, PlacedBuffer, Pool, PoolOptions
from qnnmem.planner.problem import Infeasible, Problem
from qnnmem.planner.problem_plan import plan_within
from qnnmem.units import Align, Bytes, Offset, Step, round_up


class Layout:
    """Sorts the lifetimes of a model into pools; all but scratch are filled in order."""

    def __init__(self, model: Model, options: PoolOptions, align: Align) -> None:
        self.model, self.options, self.align = model, options, align
        self.placed: list[PlacedBuffer] = []
        self.aliases: dict[str, tuple[str, ...]] = {}
        self.ends = dict.fromkeys(Pool, 0)  # of the pools that are filled in order
        self.whole = Span(Step(-1), Step(len(model.ops) + 1))
        self.workspaces: dict[str, int] = {}  # of control-flow ops, for their bodies
        self.search_missing = False  # for the body of a control-flow op

    def rounded(self, size: int) -> Bytes:
        """A size with the padding that alignment adds."""
        return Bytes(round_up(size, self.align))

    def bytes_of(self, name: str) -> Bytes:
        """Bytes of a tensor as it is stored."""
        return stored_bytes(self.model.tensors[name], self.options.bits)

    def used(self, pool: Pool) -> Bytes:
        """End of the last buffer of a pool that is filled in order."""
        return Bytes(self.ends[pool])

    def io_sizes(self) -> Iterable[tuple[str, Bytes]]:
        """Inputs and outputs that are not state, with their bytes."""
        kept = {name for pair in self.options.states for name in pair}
        for name in dict.fromkeys((*self.model.inputs, *self.model.outputs)):
            if name not in kept:
                yield name, self.bytes_of(name)

    def sort_into_pools(self, effort: Effort, seed: int) -> tuple[Buffer, ...]:
        """Places persistent and IO, returns what remains for scratch."""
        lives = {life.name: life for life in self._lifetimes()}
        for name, size in _states(self.model, self.options.bits).items():
            self._append(Pool.PERSISTENT, name, size, self.whole, ())
        self._place_state_pairs(lives)
        if self.options.io is Io.OUTSIDE:
            self._place_io(lives)
        buffers = []
        for life in lives.values():
            self.aliases[life.name] = life.aliases
            buffers.append(Buffer(life.name, self.rounded(life.size), life.live, self.align))
        for step, op in enumerate(self.model.ops):
            if op.bodies:
                buffers.append(self._workspace(step, op, effort, seed))
        return tuple(buffers)

    def _lifetimes(self) -> tuple[Lifetime, ...]:
        return lifetimes(self.model, bits=self.options.bits, inplace=self.options.inplace)

    def _append(
        self, pool: Pool, name: str, size: Bytes, live: Span, aliases: tuple[str, ...]
    ) -> None:
        offset, size = Offset(self.used(pool)), self.rounded(size)
        self.ends[pool] += size
        self.placed.append(PlacedBuffer(name, pool, size, live, offset, aliases))

    def _place_state_pairs(self, lives: dict[str, Lifetime]) -> None:
        """Puts old state into persistent, and the new one too where it can be written in place.

        The new state may take the place of the old one only if that is not read any more when it is
        written; otherwise it stays in scratch until the end, to be copied over.
        """
        owner = {alias: life for life in lives.values() for alias in (life.name, *life.aliases)}
        for old, new in self.options.states:
            before, after = owner[old], owner[new]
            aliases, size = before.aliases, before.size
            lives.pop(before.name, None)
            # Not if another pair has it, nor if the application reads it under another name too.
            shown = {new, *(n for pair in self.options.states for n in pair)}
            others = {after.name, *after.aliases} & {
                *self.model.inputs,
                *self.model.outputs,
            } - shown
            free = after.name in lives and Role.INPUT not in after.roles and not others
            if free and before.live.upper <= after.live.lower:
                del lives[after.name]
                aliases += (after.name, *after.aliases)
                size = Bytes(max(size, after.size))  # a view may be smaller than what it shows
            self._append(Pool.PERSISTENT, before.name, size, self.whole, aliases)

    def _place_io(self, lives: dict[str, Lifetime]) -> None:
        """Gives every input and output a buffer of its own and takes them out of scratch.

        Views stay with the first of them they belong to; where several inputs or outputs are views
        of each other, the application's buffers differ and the runtime must copy.
        """
        sizes = dict(self.io_sizes())
        for life in list(lives.values()):
            group = (life.name, *life.aliases)
            if not any(name in sizes for name in group):  # a temporary, or state on its way out
                continue
            del lives[life.name]
            views = tuple(name for name in group if name not in sizes)
            for name in group:
                if name in sizes:
                    size = Bytes(max(sizes[name], life.size)) if views else sizes[name]
                    self._append(Pool.IO, name, size, life.live, views)
                    views = ()
                    del sizes[name]
        for name, size in sizes.items():  # outputs that no op writes: constants handed out
            self._append(Pool.IO, name, size, self.whole, ())

    def _workspace(self, step: int, op: Op, effort: Effort, seed: int) -> Buffer:
        """Memory for whichever body of a control-flow op needs most, while that op runs."""
        need = max(_body_bytes(body, op, self, effort, seed) for body in op.bodies)
        self.workspaces[op.name] = need
        name = f"{op.name} (body)"
        while name in self.model.tensors or name in self.aliases:
            name += "'"
        self.aliases[name] = ()
        return Buffer(name, Bytes(need), Span(Step(step), Step(step + 1)), self.align)


def _body_bytes(body: Model, op: Op, outer: Layout, effort: Effort, seed: int) -> int:
    """Scratch a body needs; tensors it captures live outside and cost nothing here."""
    layout = Layout(body, PoolOptions(bits=outer.options.bits), outer.align)
    buffers = layout.sort_into_pools(effort, seed)
    if op.repeats:
        # Results of one turn are copied to the inputs of the next: neither may overwrite the other.
        inputs = set(body.inputs)
        buffers = tuple(
            Buffer(b.name, b.size, layout.whole, b.align) if b.name in inputs else b
            for b in buffers
        )
    part = effort.part(effort.left // 4)
    given = part.left
    plan = plan_within(Problem(buffers), part, seed=seed)
    effort.settle(part, given)
    best = plan.best if isinstance(plan, Infeasible) else plan
    outer.search_missing |= layout.search_missing or best.search_missing
    return best.peak


def _states(model: Model, bits: int | None) -> dict[str, Bytes]:
    """State variables of a model and of the bodies in it, under their names."""
    found = {name: stored_bytes(model.tensors[name], bits) for name in model.states}
    for op in model.ops:
        for body in op.bodies:
            found = _states(body, bits) | found
    return found


def constant_bytes(model: Model, bits: int | None) -> Bytes:
    """Bytes of all constants, those of bodies included."""
    own = sum(stored_bytes(model.tensors[name], bits) for name in model.constants)
    return Bytes(own + sum(constant_bytes(b, bits) for op in model.ops for b in op.bodies))
