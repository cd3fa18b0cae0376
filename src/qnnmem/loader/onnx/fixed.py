"""What a caller fixes of a model that leaves something open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from qnnmem.errors import Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A number, true or false, several of them, an array, or a .npy or .raw file that holds them.
InputValue: TypeAlias = "bool | int | float | Path | Sequence[Any] | NDArray[Any]"

MAX_VALUE_BYTES = 256 << 20  # of one value: more is a model's weight, not its input


@dataclass(frozen=True, slots=True)
class Fixed:
    """Sizes of named dimensions, shapes of tensors and values of inputs, each by name."""

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, InputValue] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.dims or self.shapes or self.values)


def settings_of(fixed: Fixed) -> tuple[Setting, ...]:
    """What a caller gives, as settings."""
    return (
        *(Setting("dims", f"{name}={size}") for name, size in fixed.dims.items()),
        *(Setting("shapes", _assignment(name, shape)) for name, shape in fixed.shapes.items()),
        *(Setting("values", f"{name}={value_text(value)}") for name, value in fixed.values.items()),
    )


def _assignment(name: str, shape: Sequence[int]) -> str:
    return f"{name}={'x'.join(map(str, shape)) or 'scalar'}"


def value_text(value: object) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return f"@{value}"
    flat = isinstance(value, list | tuple) and not any(isinstance(v, list | tuple) for v in value)
    if flat:
        return ",".join(map(value_text, value))  # type: ignore[call-overload]  # a list, as just seen
    return str(value) if isinstance(value, int | float) else "@FILE.npy"
