"""The pools of LPAI, the options of a plan, and the plan itself.

Scratch holds temporaries and, by default, inputs and outputs. Persistent holds state that survives
from one execution to the next. IO holds inputs and outputs that the application allocates.
Constants are part of the model binary.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeAlias

from qnnmem.arguments import as_dataclass, expect, expect_items
from qnnmem.errors import Setting, UsageError
from qnnmem.ir.lifetime import TensorGroup
from qnnmem.ir.model import DType, Effect, Model
from qnnmem.planner.problem import Peak, Plan
from qnnmem.planner.tcm_pool import TcmVerdict
from qnnmem.results.proof import ProofScope, proof_words
from qnnmem.text import by_sizes, counted, quote
from qnnmem.units import MAX_BYTES, Align, Bytes, Offset, Size, as_align, as_bytes

StatePair = tuple[str, str]

# Words in tensor names by which exporters mark the old and the new value of a state.
_OLD_NEW = re.compile(
    r"past_key_values|past|present|previous|prev|next|new|old|updated|initial|init|input|output|in|out"
)


def check_states(model: Model, pairs: Iterable[StatePair]) -> tuple[StatePair, ...]:
    """Return the pairs; raise UsageError unless each is an input and a matching output."""
    pairs = tuple(pairs)
    for old, new in pairs:
        fault = _fault(model, old, new)
        if fault:
            raise UsageError((Setting("states", f"{old}={new}"), f": {fault}"))
    names = [name for pair in pairs for name in pair]
    if len(set(names)) != len(names):
        raise UsageError((Setting("states"), " names the same tensor twice"))
    return pairs


def _fault(model: Model, old: str, new: str) -> str:
    """Return why an output cannot become an input of the next run; empty if it can."""
    if old not in model.inputs or new not in model.outputs:
        return (
            f"expected input=output; inputs are {_list(model.inputs)}, "
            f"outputs are {_list(model.outputs)}"
        )
    if new in model.constants or new in model.states:
        return f"output {new} is never written by an op"
    a, b = model.tensors[old], model.tensors[new]
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype.value} {by_sizes(a.shape)} and {b.dtype.value} {by_sizes(b.shape)} differ"
    return ""


def suggest_states(model: Model) -> tuple[StatePair, ...]:
    """Return input-output pairs that look like state: same type, shape and name stem.

    An output that only passes an input through is not state.
    """
    outputs: dict[tuple[str, DType, tuple[int, ...]], list[str]] = {}
    unchanged = _input_views(model)
    for name in model.outputs:
        if name not in unchanged:
            outputs.setdefault(_form(model, name), []).append(name)
    pairs = []
    for name in model.inputs:
        form = _form(model, name)
        if form[0] and outputs.get(form):
            pairs.append((name, outputs[form].pop(0)))
    return tuple(pairs)


def _input_views(model: Model) -> set[str]:
    """Return the inputs and all views of them."""
    views = set(model.inputs)
    for op in model.ops:
        if op.effect is Effect.VIEW and op.inputs[0] in views:
            views.add(op.outputs[0])
    return views


def _form(model: Model, name: str) -> tuple[str, DType, tuple[int, ...]]:
    """Return name stem, type and shape, which are equal for a state's old and new value."""
    tensor = model.tensors[name]
    return _stem(name), tensor.dtype, tensor.shape


def _stem(name: str) -> str:
    """Return a state's name without its old or new mark: `h` for `h0` and `hn`."""
    bare = _OLD_NEW.sub("", name.lower()[:200])
    bare = re.sub(r"[^a-z0-9]+", "", bare)
    stem = re.sub(r"(?<=.)(n|\d+)$", "", bare)
    return stem if re.search("[a-z]", stem) else ""  # a bare number identifies nothing


def _list(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 8 else shown or "none"


TCM = "tcm"  # in budgets: the pool that model binary and IO share if they are placed there


class Pool(Enum):
    """A memory pool of LPAI."""

    SCRATCH = "scratch"
    PERSISTENT = "persistent"
    IO = "io"
    CONSTANTS = "constants"


# Forms of a budget: 262144, "256K", {"scratch": "256K", "tcm": "1M"}.
Budget: TypeAlias = "Size | Mapping[Pool, Size] | Mapping[str, Size]"
_BITS = (8, 16, 32)


class Io(Enum):
    """Where inputs and outputs are located."""

    INSIDE = "inside"  # in scratch, the default of the LPAI compiler
    OUTSIDE = "outside"  # in buffers of the application (`exclude_io`)


@dataclass(frozen=True, slots=True)
class LayoutChoices:
    """Options of both planning and preparation; the defaults are those of LPAI's documentation.

    `io` can be given as a word, `states` as pairs or as a mapping from inputs to outputs.
    """

    io: Io = Io.INSIDE
    states: tuple[StatePair, ...] = ()
    inplace: bool = False
    reorder: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "io", as_io(self.io))
        object.__setattr__(self, "states", as_states(self.states))
        for name in ("inplace", "reorder"):
            expect(getattr(self, name), bool, f"{name} must be True or False")


@dataclass(frozen=True, slots=True, init=False)
class PoolOptions(LayoutChoices):
    """Options for the layout of a model in pools; `align` is a number or a string such as `4K`."""

    align: Align | None = None  # of start and size; None: 64, for a buffer CSV as in the file
    bits: Literal[8, 16, 32] | None = None  # of floating-point elements; None: as in the model

    def __init__(
        self,
        io: Io | str = Io.INSIDE,
        align: Size | None = None,
        bits: int | None = None,
        states: Mapping[str, str] | Iterable[StatePair] = (),
        inplace: bool = False,
        reorder: bool = False,
    ) -> None:
        if bits is not None and (type(bits) is not int or bits not in _BITS):
            raise UsageError((Setting("bits"), f" must be 8, 16 or 32, not {quote(bits)}"))
        LayoutChoices.__init__(self, as_io(io), as_states(states), inplace, reorder)
        object.__setattr__(self, "align", None if align is None else as_align(align))
        object.__setattr__(self, "bits", bits)


def as_options(options: PoolOptions | Mapping[str, Any] | None) -> PoolOptions:
    """Return options; a mapping sets some options, and the others keep their defaults."""
    return as_dataclass(options, PoolOptions)


def as_states(states: Mapping[str, str] | Iterable[StatePair]) -> tuple[StatePair, ...]:
    """Return state pairs, given as pairs of names or a mapping from inputs to outputs."""
    pairs = tuple(states.items()) if isinstance(states, Mapping) else states
    what = "states must be pairs of an input and an output"
    checked = []
    for pair in expect_items(pairs, object, what):
        names = expect_items(pair, str, what)
        if len(names) != 2:
            raise UsageError(f"{what}; one of them has {counted(len(names), 'name')}")
        checked.append((names[0], names[1]))
    return tuple(checked)


def as_io(word: Io | str) -> Io:
    """Convert a word to a location of inputs and outputs; raise UsageError for unknown words."""
    try:
        return Io(word)
    except ValueError:
        wanted = " or ".join(place.value for place in Io)
        raise UsageError((Setting("io"), f" must be {wanted}, not {quote(word)}")) from None


def as_pool(name: Pool | str) -> Pool:
    """Return the pool with this name; raise UsageError for an unknown name."""
    try:
        return Pool(name)
    except ValueError:
        pools = ", ".join(pool.value for pool in Pool)
        raise UsageError(f"{quote(name)} is not a pool; choose one of {pools} and {TCM}") from None


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of the pools, and of TCM, which holds the model binary and IO."""

    pools: Mapping[Pool, Bytes]
    tcm: Bytes | None = None


def as_limits(budget: Budget | None) -> Limits:
    """Return limits for a mapping such as `{"scratch": "256K"}` or a single size for scratch."""
    if budget is None:
        return Limits({})
    if not isinstance(budget, Mapping):
        whole = hasattr(budget, "__index__") and not isinstance(budget, bool)  # NumPy's, too
        if not whole and not isinstance(budget, str):
            what = 'a budget must be a size for scratch or a mapping such as {"scratch": "256K"}'
            raise UsageError(f"{what}, not {quote(budget)}")
        budget = {Pool.SCRATCH: budget}
    pools: dict[Pool, Bytes] = {}
    tcm = None
    for name, size in budget.items():
        have = as_bytes(size)
        if not 0 <= have <= MAX_BYTES:
            raise UsageError(f"a budget must be between 0 and {MAX_BYTES:,} bytes")
        if name == TCM:
            tcm = have
            continue
        pool = as_pool(name)
        if pool in pools:  # once as a word and once as a Pool
            raise UsageError(f"pool {pool.value} has two budgets; set only one")
        pools[pool] = have
    return Limits(pools, tcm)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBuffer(TensorGroup):
    """A group of tensors at an offset in a pool."""

    pool: Pool
    offset: Offset


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """A pool compared with its budget."""

    pool: Pool
    need: Bytes  # in this plan
    at_least: Bytes  # proven for any plan
    have: Bytes
    blockers: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """True if the pool fits its budget, False if it provably cannot; None if undecided."""
        if self.need <= self.have:
            return True
        return False if self.at_least > self.have else None


@dataclass(frozen=True, slots=True)
class Reordered:
    """The live bytes of scratch at the peak step, before and after reordering."""

    before: Bytes
    after: Bytes
    proven: bool  # no order has fewer
    skipped: str | None = None  # why no other order was searched for


def joint_verdict(answers: Collection[bool | None]) -> bool | None:
    """Return False if any answer is False, otherwise None if any is None, otherwise True."""
    return False if False in answers else None if None in answers else True


def held_types(model: Model) -> Iterator[DType]:
    """Yield the types of all tensors except constants, including tensors in bodies."""
    constants = set(model.constants)
    yield from (tensor.dtype for name, tensor in model.tensors.items() if name not in constants)
    for op in model.ops:
        for body in op.bodies:
            yield from held_types(body)


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """The memory plan of a model: pools, offsets, proof and peak."""

    model: Model  # in the planned order
    options: PoolOptions
    align: Align
    scratch: Plan
    buffers: tuple[PlacedBuffer, ...]
    io_sizes: tuple[tuple[str, Bytes], ...]  # inputs and outputs, wherever they are located
    persistent_bytes: Bytes
    io_bytes: Bytes
    constant_bytes: Bytes
    peak: Peak | None
    budgets: tuple[BudgetVerdict, ...] = ()
    reordered: Reordered | None = None
    likely_states: tuple[StatePair, ...] = ()
    body_search_missing: bool = False  # like `Plan.search_missing`, for bodies of control-flow ops
    tcm: TcmVerdict | None = None  # against a budget for it, if one was given

    def __repr__(self) -> str:
        """Return the plan in one line."""
        name = quote(self.model.name)
        scratch = f"scratch {counted(self.scratch_bytes, 'byte')}, {self.proof_words}"
        others = (pool for pool in Pool if pool is not Pool.SCRATCH and self.pool_bytes(pool))
        rest = "".join(f", {pool.value} {self.pool_bytes(pool):,}" for pool in others)
        return f"<MemoryPlan of {name}: {scratch}{rest}; {counted(len(self.buffers), 'buffer')}>"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        from qnnmem.notebook import shown

        return shown(self)

    @property
    def scratch_bytes(self) -> Bytes:
        """Size of the scratch pool, rounded to the size alignment."""
        return self.scratch.peak

    @property
    def proof(self) -> ProofScope:
        """The op orders for which scratch is proven to be minimal, or why there is no proof."""
        if self.is_estimate:
            return ProofScope.ESTIMATE
        if any(op.bodies for op in self.model.ops):
            return ProofScope.UPPER_BOUND
        if not self.scratch.optimal:
            return ProofScope.NONE
        if not self.model.ops:
            return ProofScope.LIFETIMES
        order = self.reordered
        if order is not None and order.proven and order.after == self.scratch_bytes:
            return ProofScope.ANY_ORDER
        return ProofScope.IN_PLACE if self.options.inplace else ProofScope.THIS_ORDER

    @property
    def is_estimate(self) -> bool:
        """True if a float model is planned with integer sizes, as if it were quantized."""
        bits = self.options.bits
        return bits is not None and bits < 32 and any(t.is_float for t in held_types(self.model))

    @property
    def proof_words(self) -> str:
        """The proof as a phrase for a sentence."""
        return proof_words(self.proof, self.scratch_bytes, self.scratch.lower_bound)

    def pool_bytes(self, pool: Pool) -> Bytes:
        """Return the size of a pool in bytes."""
        return {
            Pool.SCRATCH: self.scratch_bytes,
            Pool.PERSISTENT: self.persistent_bytes,
            Pool.IO: self.io_bytes,
            Pool.CONSTANTS: self.constant_bytes,
        }[pool]

    @property
    def search_missing(self) -> bool:
        """True if the search ran in plain Python, and a compiled search might reduce scratch."""
        return self.body_search_missing or (
            self.scratch.search_missing and not self.scratch.optimal
        )

    @property
    def fits(self) -> bool:
        """True if every budget is known to hold, and the TCM pool, if checked, is large enough."""
        within_tcm = self.tcm is None or self.tcm.fits
        return within_tcm and all(budget.fits for budget in self.budgets)
