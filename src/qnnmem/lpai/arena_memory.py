"""One block of memory with guard zones, and the tensors at their planned places in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qnnmem.errors import UsageError
from qnnmem.ir import DType, Effect, Model

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Vector kernels peel loops by address: at another base the last bits of a result can change.
BASE_ALIGN = 64
GUARD_BYTES = 4096
# All ones is NaN in every float type: a read of bytes that nobody wrote does not stay hidden.
POISON = 0xFF
_GUARD = 0xC3
# Types numpy has no name for; their tensors are handed out as raw bytes.
_RAW = {DType.INT4, DType.UINT4, DType.FLOAT8, DType.BFLOAT16}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tensors lie in an arena of `size` bytes; a view has the offset of what it shows."""

    offsets: Mapping[str, int]
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", MappingProxyType(dict(self.offsets)))


@dataclass(frozen=True, slots=True)
class Arena:
    """Memory at an aligned base between two guard zones."""

    size: int
    _block: NDArray[Any] = field(repr=False)
    _base: int

    @classmethod
    def allocate(cls, size: int) -> Arena:
        """Fresh memory, poisoned, with its guards up."""
        import numpy

        block = numpy.full(size + 2 * GUARD_BYTES + BASE_ALIGN, _GUARD, numpy.uint8)
        base = GUARD_BYTES + -(address_of(block) + GUARD_BYTES) % BASE_ALIGN
        block[base : base + size] = POISON
        return cls(size, block, base)

    def slice(self, offset: int, size: int) -> NDArray[Any]:
        """Bytes `offset` to `offset + size`, writable in place."""
        return self._block[self._base + offset : self._base + offset + size]

    def broken_guards(self) -> tuple[str, ...]:
        """Which guard zones somebody wrote into: `before`, `behind`, both or none."""
        before, behind = self._block[: self._base], self._block[self._base + self.size :]
        zones = (("before", before), ("behind", behind))
        return tuple(name for name, zone in zones if (zone != _GUARD).any())


class Memory:
    """Every tensor of a model at its place: in the arena, or outside for IO without an offset."""

    def __init__(self, model: Model, placement: Placement) -> None:
        self.arena = Arena.allocate(_checked_size(placement))
        self._tensors = model.tensors
        self._places: dict[str, NDArray[Any]] = {}
        self.outside: list[str] = []
        fixed = set(model.constants)
        for name in model.inputs:
            if name not in fixed:
                self._place(name, placement, may_be_outside=True)
        outputs = set(model.outputs)
        for op in model.ops:
            for position, name in enumerate(op.outputs):
                if op.effect is Effect.VIEW and position == 0 and op.inputs[0] in self.outside:
                    self._share_outside(name, op.inputs[0], placement)
                self._place(name, placement, may_be_outside=name in outputs)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def raw(self, name: str) -> NDArray[Any]:
        """Bytes of a tensor in place."""
        return self._places[name]

    def address(self, name: str) -> int:
        """Address of a tensor's first byte."""
        return address_of(self._places[name])

    def array(self, name: str) -> NDArray[Any]:
        """Typed array over a tensor in place; raw bytes where numpy lacks the type."""
        tensor = self._tensors[name]
        if tensor.dtype in _RAW:
            return self.raw(name)
        return self.raw(name).view(tensor.dtype.value).reshape(tensor.shape)

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Put a value into its place; its type and shape must be the tensor's own."""
        tensor = self._tensors[name]
        same_type = tensor.dtype in _RAW or value.dtype.name == tensor.dtype.value
        if not same_type or value.shape != tensor.shape or value.nbytes != tensor.nbytes:
            raise UsageError(
                f"input {name[:80]!r} is {tensor.dtype.value} {list(tensor.shape)}, "
                f"but was given as {value.dtype.name} {list(value.shape)}"
            )
        self.raw(name)[:] = bytes_of(value)

    def shares_bytes(self, first: str, second: str) -> bool:
        """Whether two tensors are the same bytes under two names."""
        a, b = self._places.get(first), self._places.get(second)
        if a is None or b is None:
            return False
        return a.size == b.size and (a.size == 0 or address_of(a) == address_of(b))

    def poison(self, dead: Iterable[str], live: Iterable[str]) -> None:
        """Overwrite dead tensors, but no byte that a live one covers."""
        import numpy

        spans = [(self.address(name), self.raw(name).size) for name in live]
        for name in dead:
            start, place = self.address(name), self.raw(name)
            cuts = [(begin - start, begin - start + size) for begin, size in spans]
            cuts = [(a, b) for a, b in cuts if a < place.size and b > 0]
            free = numpy.ones(place.size if cuts else 0, bool)
            for a, b in cuts:
                free[max(0, a) : b] = False
            place[free if cuts else slice(None)] = POISON

    def _place(self, name: str, placement: Placement, may_be_outside: bool) -> None:
        if name in self._places:
            return
        size = self._tensors[name].nbytes
        offset = placement.offsets.get(name)
        if offset is not None:
            if offset < 0 or offset + size > placement.size:
                raise UsageError(
                    f"tensor {name[:80]!r} at offset {offset:,} with {size:,} bytes "
                    f"lies outside the arena of {placement.size:,} bytes"
                )
            self._places[name] = self.arena.slice(offset, size)
        elif may_be_outside or size == 0:
            self._places[name] = Arena.allocate(size).slice(0, size)
            self.outside.append(name)
        else:
            raise UsageError(f"the plan gives no offset for tensor {name[:80]!r}, {size:,} bytes")

    def _share_outside(self, view: str, root: str, placement: Placement) -> None:
        if view not in placement.offsets:
            self._places[view] = self._places[root]
            self.outside.append(view)


def address_of(array: NDArray[Any]) -> int:
    """Address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def bytes_of(array: NDArray[Any]) -> NDArray[Any]:
    """Bytes of an array in C order, so that comparing them treats NaN like any other value."""
    import numpy

    return numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)


def _checked_size(placement: Placement) -> int:
    if placement.size < 0:
        raise UsageError(f"an arena cannot have {placement.size:,} bytes")
    return placement.size
